"""Parameters of operations by kind and executor: a table with the error messages, and the parsed values."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from unbounded.api.machine_status import (
    MAX_ERASURES,
    PCR_FORM,
    PCR_LIST,
    PCR_TWICE,
    RESCUE_KEY_FORM,
    RESCUE_KEYS,
    RESCUE_KEYS_MAX,
    is_ssh_key,
)
from unbounded.api.names import ANNOTATION_MIGRATED_FROM, ANNOTATION_REQUESTED_BY
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.operations.executor_selection import ExecutorKind

GRACE_DEFAULT_S: Final = 120
ERASE_DISKS: Final = "eraseDisks"
ACCEPT_PCRS: Final = "acceptPCRs"
DISKS: Final = "disks"
ALL_DISKS: Final = "All"
AUTHORIZED_KEYS: Final = "authorizedKeys"
MINUTES: Final = "minutes"
IMAGE_URI: Final = "imageURI"
TARGETS: Final = "targets"
TARGETS_MAX: Final = 32
RESCUE_MINUTES: Final = 60
RESCUE_MINUTES_MAX: Final = 1440
_GRACE_MAX_S: Final = 3600


def _boolean(value: str) -> str | None:
    return None if value in {"true", "false"} else '"true" or "false"'


def _strict(value: str) -> str | None:
    return None if value == "strict" else '"strict", or absent'


def _fields(value: str) -> str | None:
    fits = all(re.fullmatch(r"[A-Za-z][^\s,]{0,255}", one.strip()) for one in value.split(","))
    return None if fits else "comma-separated fields of status.losses, such as vnic.privateIp"


def _grace(value: str) -> str | None:
    fits = re.fullmatch(r"[0-9]{1,4}", value) is not None and int(value) <= _GRACE_MAX_S
    return None if fits else f"whole seconds from 0 to {_GRACE_MAX_S}"


def _anything(value: str) -> str | None:
    return None if value.strip() else "not empty"


def _url(value: str) -> str | None:
    try:
        parts = urlsplit(value.strip())
        fits = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.username is None
    except ValueError:
        fits = False
    return None if fits and not parts.fragment else "an https or http URL without user name and fragment"


def _sha256(value: str) -> str | None:
    return None if re.fullmatch(r"(sha256:)?[0-9a-fA-F]{64}", value) else "64 hexadecimal digits"


_SERIALS: Final = "comma-separated serial numbers of disks, exactly as in status.hardware, each once"


def _serials(value: str) -> str | None:
    serials = value.split(",")
    fits = len(set(serials)) == len(serials) and all(one and one == one.strip() for one in serials)
    return None if fits else _SERIALS


def _pcrs(value: str) -> str | None:
    fits = re.fullmatch(PCR_LIST, value) is not None and re.search(PCR_TWICE, value) is None
    return None if fits else PCR_FORM


def _disks(value: str) -> str | None:
    serials = value.split(",")
    fits = (
        _serials(value) is None
        and len(serials) <= MAX_ERASURES
        and (ALL_DISKS not in serials or serials == [ALL_DISKS])
    )
    return None if fits else f"{ALL_DISKS}, or at most {MAX_ERASURES} {_SERIALS}"


_KEY: Final = re.compile(
    r"(\S.*\s)?(ssh|ecdsa|sk-ssh|sk-ecdsa)-[a-z0-9@.-]+\s+AAAA[A-Za-z0-9+/]{8,}={0,2}(\s.*)?",
)


def _keys(value: str) -> str | None:
    lines = [line.strip() for line in value.splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    fits = keys and all(_KEY.fullmatch(line) for line in keys)
    return None if fits else "lines of an authorized_keys file, each such as ssh-ed25519 AAAA… me@here"


def _rescue_keys(value: str) -> str | None:
    fits = re.fullmatch(RESCUE_KEYS, value, re.ASCII) is not None and all(map(is_ssh_key, value.splitlines()))
    return (
        None if fits else f"1 to {RESCUE_KEYS_MAX} lines of OpenSSH public keys without options, each {RESCUE_KEY_FORM}"
    )


def _targets(value: str) -> str | None:
    names = value.split(",")
    fits = len(set(names)) == len(names) <= TARGETS_MAX and all(
        re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", one) for one in names
    )
    return None if fits else f"at most {TARGETS_MAX} comma-separated ids of the BMC's FirmwareInventory, each once"


def _minutes(value: str) -> str | None:
    fits = re.fullmatch(r"[0-9]{1,4}", value) is not None and 1 <= int(value) <= RESCUE_MINUTES_MAX
    return None if fits else f"whole minutes from 1 to {RESCUE_MINUTES_MAX}"


@dataclass(frozen=True)
class Parameter:
    """One parameter: the kinds and executors that accept it, and a check that returns the valid form for an invalid
    value.
    """

    name: str
    kinds: frozenset[OperationKind]
    executors: frozenset[ExecutorKind]
    check: Callable[[str], str | None]
    required: bool = False


_DOWN: Final = frozenset({OperationKind.HOST_REBOOT, OperationKind.HOST_POWER_OFF})
_RESCUE: Final = frozenset({OperationKind.HOST_RESCUE})
_GRACE: Final = _DOWN | _RESCUE | {OperationKind.HOST_INSPECT, OperationKind.HOST_ERASE}
_OFF: Final = frozenset({OperationKind.HOST_POWER_OFF})
_REPLACE: Final = frozenset({OperationKind.HOST_REPLACE})
_ERASE: Final = frozenset({OperationKind.HOST_ERASE})
_FIRMWARE: Final = frozenset({OperationKind.FIRMWARE_UPDATE})
_UPGRADE: Final = frozenset({OperationKind.AGENT_UPGRADE})
_OUTSIDE: Final = frozenset({ExecutorKind.METALMAN, ExecutorKind.CLOUD})
_CLOUD: Final = frozenset({ExecutorKind.CLOUD})
_METALMAN: Final = frozenset({ExecutorKind.METALMAN})
_AGENT: Final = frozenset({ExecutorKind.AGENT})

TABLE: Final = (
    Parameter("force", _DOWN, _OUTSIDE, _boolean),
    Parameter("graceSeconds", _GRACE, _OUTSIDE, _grace),
    Parameter("deallocate", _OFF, _CLOUD, _boolean),
    Parameter("keep", _REPLACE, _CLOUD, _strict),
    Parameter("accept", _REPLACE, _CLOUD, _fields),
    Parameter("imageID", _REPLACE, _CLOUD, _anything),
    Parameter("sshAuthorizedKeys", _REPLACE, _CLOUD, _keys),
    Parameter(ERASE_DISKS, _REPLACE, _METALMAN, _serials),
    Parameter(ACCEPT_PCRS, _REPLACE, _METALMAN, _pcrs),
    Parameter(DISKS, _ERASE, _METALMAN, _disks, required=True),
    Parameter(AUTHORIZED_KEYS, _RESCUE, _METALMAN, _rescue_keys, required=True),
    Parameter(MINUTES, _RESCUE, _METALMAN, _minutes),
    Parameter(IMAGE_URI, _FIRMWARE, _METALMAN, _url, required=True),
    Parameter(TARGETS, _FIRMWARE, _METALMAN, _targets),
    Parameter("assignPublicIP", _REPLACE, _CLOUD, _boolean),
    Parameter("downloadURL", _UPGRADE, _AGENT, _url, required=True),
    Parameter("sha256", _UPGRADE, _AGENT, _sha256),
    Parameter("retryFailedDigest", _UPGRADE, _AGENT, _boolean),
)


def names(kind: OperationKind, executor: ExecutorKind | None) -> frozenset[str]:
    """Return the parameters that a kind accepts, with this executor or with any."""
    fitting = (one for one in TABLE if kind in one.kinds and (executor is None or executor in one.executors))
    return frozenset(one.name for one in fitting)


def invalid(
    operation: MachineOperation, executor: ExecutorKind | None = None, heeded: Collection[str] | None = None
) -> str | None:
    """Return an error that names the field and the valid form; None for valid parameters.

    Args:
        executor: of the operation, when that is known; only cloud executors accept some parameters.
        heeded: the names that this provider accepts, when that is known.
    """
    kind = OperationKind(operation.spec.operation_kind)
    fitting = names(kind, executor)
    known = {one.name: one for one in TABLE if one.name in fitting and (heeded is None or one.name in heeded)}
    given = operation.spec.parameters
    for parameter in known.values():
        if parameter.required and not given.get(parameter.name, "").strip():
            return f"spec.parameters.{parameter.name} is required for {kind}"
    for name, value in sorted(given.items()):
        if name not in known:
            return f"spec.parameters.{name} is not a parameter of {kind}{_choices(known, executor, heeded)}"
        expected = known[name].check(value)
        if expected is not None:
            return f"spec.parameters.{name} must be {expected}, not {value[:64]!r}"
    if kind is OperationKind.HOST_RESCUE and operation.spec.machine_ref is None:
        return f"spec.parameters.{AUTHORIZED_KEYS} needs spec.machineRef, as the keys are for one Machine"
    field = consent_field(kind, given)
    return None if field is None else _without_consent(operation, field)


def consent_field(kind: str, parameters: Mapping[str, str]) -> str | None:
    """Return the parameter by which an operation erases disks or accepts another boot, and needs a known user; None if
    there is none.
    """
    if kind == OperationKind.HOST_ERASE:
        return DISKS
    return next((name for name in (ERASE_DISKS, ACCEPT_PCRS) if name in parameters), None)


def _without_consent(operation: MachineOperation, field: str) -> str | None:
    """Return an error where no user is known who consents to this operation; None otherwise."""
    if operation.spec.machine_ref is None:
        about = "PCRs" if field == ACCEPT_PCRS else "disks"
        return f"spec.parameters.{field} needs spec.machineRef, as it names the {about} of one Machine"
    if not operation.metadata.annotations.get(ANNOTATION_REQUESTED_BY):
        return f"spec.parameters.{field} needs the annotation {ANNOTATION_REQUESTED_BY}: the user who creates it"
    if ANNOTATION_MIGRATED_FROM in operation.metadata.annotations:
        return f"spec.parameters.{field} is not valid in a copy of a migration: create another MachineOperation"
    return None


def erased_disks(operation: MachineOperation) -> tuple[str, ...]:
    """Return the serial numbers of the disks that a HostReplace may erase."""
    if operation.spec.operation_kind != OperationKind.HOST_REPLACE or ERASE_DISKS not in operation.spec.parameters:
        return ()
    serials = operation.spec.parameters[ERASE_DISKS]
    return () if _serials(serials) or _without_consent(operation, ERASE_DISKS) else tuple(serials.split(","))


def accepted_pcrs(operation: MachineOperation) -> frozenset[int]:
    """Return the PCRs whose other values a HostReplace accepts, once."""
    given = operation.spec.parameters.get(ACCEPT_PCRS, "")
    if operation.spec.operation_kind != OperationKind.HOST_REPLACE or _pcrs(given):
        return frozenset()
    return frozenset() if _without_consent(operation, ACCEPT_PCRS) else frozenset(map(int, given.split(",")))


def disks_to_erase(operation: MachineOperation) -> tuple[str, ...]:
    """Return the serial numbers of the disks that a HostErase erases, or `ALL_DISKS` alone."""
    given = operation.spec.parameters.get(DISKS, "")
    if operation.spec.operation_kind != OperationKind.HOST_ERASE or _disks(given):
        return ()
    return () if _without_consent(operation, DISKS) else tuple(given.split(","))


def rescue_keys(operation: MachineOperation) -> tuple[str, ...]:
    """Return the public keys that may log in to the rescue system of a HostRescue, a line each."""
    keys = operation.spec.parameters.get(AUTHORIZED_KEYS, "")
    is_rescue = operation.spec.operation_kind == OperationKind.HOST_RESCUE
    return tuple(keys.splitlines()) if is_rescue and _rescue_keys(keys) is None else ()


def rescue_minutes(operation: MachineOperation) -> int:
    """Return the minutes for which the rescue system of a HostRescue runs."""
    given = operation.spec.parameters.get(MINUTES, "")
    return RESCUE_MINUTES if _minutes(given) else int(given)


def firmware_targets(operation: MachineOperation) -> tuple[str, ...]:
    """Return the components that a FirmwareUpdate names; none where the image names them."""
    given = operation.spec.parameters.get(TARGETS, "")
    return tuple(given.split(",")) if given else ()


def requester(operation: MachineOperation) -> str:
    """Return the user who created an operation; empty if it does not say."""
    return operation.metadata.annotations.get(ANNOTATION_REQUESTED_BY, "")


def _choices(known: Collection[str], executor: ExecutorKind | None, heeded: Collection[str] | None) -> str:
    """Return the accepted names for an error message, as far as they are known."""
    choices = ", ".join(sorted(known)) or "none"
    if executor is None:
        return f"; parameters of other Machines: {choices}"
    if executor is ExecutorKind.CLOUD and heeded is None and known:
        return f" on this Machine; its provider supports a subset of: {choices}"
    return f" on this Machine; supported: {choices}"


def is_forced(operation: MachineOperation) -> bool:
    return operation.spec.parameters.get("force") == "true"


def grace_s(operation: MachineOperation) -> int:
    """Return the seconds that the host's own shutdown may take before it is powered off."""
    return int(operation.spec.parameters.get("graceSeconds", GRACE_DEFAULT_S))
