"""Requested network boots: pure, from a Machine and the operations on it.

Two sources request a boot:

- an operation of one of BOOTING_KINDS that metalman executes, from the stage on that switches the host on, or that
  inserts its image of virtual media;
- a repave counter that is ahead, if there is no BMC to switch the host on.

A boot ends with its operation, or with the report that the image is written. After that report its window is
FINISHING: the installed system still gets its cloud-init data, reports, and attests under the prefix. For an operation
the window lasts until the operation has ended. For a counter it lasts until cloud-init is done; a host that is to
become a Node attests later, so it has the time that the follower allows.

The unguessable prefix of a boot's URLs is equal on every replica and after every restart, and not stored anywhere.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from unbounded.api.conditions import ConditionStatus, ConditionType
from unbounded.api.core import SECRETS, Secret
from unbounded.api.failures import Rejected
from unbounded.api.machine import Machine, NetbootMilestone, NetbootStatus
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MachineOperation, OperationKind, OperationsStatus
from unbounded.kube.api import AlreadyExists, Api, ApiError, NotFound
from unbounded.kube.logs import Log
from unbounded.metalman.boot_override import as_booted, boots_by_media
from unbounded.metalman.http.response_signing import StatementKey
from unbounded.metalman.netboot.model import BootRequest, BootWindow
from unbounded.metalman.power import UNDOING
from unbounded.metalman.replace_table import (
    BOOT_STAGES,
    BOOTING_KINDS,
    RETURN_STAGES,
    SETTING_STAGES,
    UNDOING_SHUTDOWN,
)
from unbounded.operations.executor_selection import ExecutorKind

BOOTING: Final = BOOT_STAGES
FINISHING: Final = RETURN_STAGES
UNDOING_BOOT: Final = frozenset({UNDOING, UNDOING_SHUTDOWN})  # an installer that has started by then may continue


def requested_boot(machine: Machine, operations: Iterable[MachineOperation]) -> BootRequest | None:
    """Return the requested boot of a Machine; None if it is to boot from its disk, or its boot was contested."""
    if machine.spec.pxe is None or machine.metadata.deletion_timestamp is not None:
        return None
    running = [each for each in operations if _requests_boot(each, machine)]
    if running:
        return _by_operation(machine, min(running, key=_order))
    return _by_counter(machine)


def with_counter_ahead(machine: Machine, request: BootRequest) -> Machine:
    """Return the Machine as templates should see it: its repave counter is ahead during the install.

    Templates decide by the counters between installing and booting from disk. A HostReplace of the user changes no
    counter.
    """
    if request.window is not BootWindow.INSTALLING:
        return machine
    requested = machine.spec.operations or OperationsStatus()
    reached = machine.status.operations or OperationsStatus()
    ahead = replace(requested, repave_counter=max(requested.repave_counter, reached.repave_counter + 1))
    return replace(
        machine,
        spec=replace(machine.spec, operations=ahead),
        status=replace(machine.status, operations=reached),
    )


def is_counter_only(machine: Machine) -> bool:
    """Return whether the Machine's counter alone requests a repave: no controller can switch the Machine."""
    pxe = machine.spec.pxe
    return pxe is not None and pxe.redfish is None and machine.provider is None and not machine.spec.provider_id


def boot_record(machine: Machine, boot: str) -> NetbootStatus | None:
    """Return the record of this boot in the status; None if the record is of another boot."""
    seen = machine.status.netboot
    return seen if seen is not None and seen.boot == boot else None


def _order(operation: MachineOperation) -> tuple[str, str]:
    return (operation.metadata.creation_timestamp or "", operation.name)


def _requests_boot(operation: MachineOperation, machine: Machine) -> bool:
    execution = operation.status.execution
    return (
        operation.spec.operation_kind in BOOTING_KINDS
        and operation.spec.machine_ref == machine.name
        and not operation.terminal
        and execution is not None
        and execution.machine_uid == machine.metadata.uid
        and execution.executor.partition("/")[0] == ExecutorKind.METALMAN
    )


def _by_operation(machine: Machine, operation: MachineOperation) -> BootRequest | None:
    stage = operation.status.targets[0].stage if operation.status.targets else None
    boot = operation.metadata.uid
    by_media = boots_by_media(as_booted(machine, boot))
    is_setting = by_media and stage in SETTING_STAGES
    seen = boot_record(machine, boot)
    milestone = None if seen is None else seen.milestone
    if milestone == NetbootMilestone.CONTESTED or (stage not in BOOTING | FINISHING | UNDOING_BOOT and not is_setting):
        return None
    if stage in FINISHING or milestone == NetbootMilestone.IMAGE_WRITTEN:
        window = BootWindow.FINISHING
    else:
        window = BootWindow.INSTALLING if stage in BOOTING else BootWindow.SUSPENDED
    executor = "" if operation.status.execution is None else operation.status.execution.executor
    return BootRequest(
        machine.name,
        machine.metadata.uid,
        boot,
        window,
        operation=operation.name,
        executor=executor,
        inspects=operation.spec.operation_kind == OperationKind.HOST_INSPECT,
        erases=operation.spec.operation_kind == OperationKind.HOST_ERASE,
        rescues=operation.spec.operation_kind == OperationKind.HOST_RESCUE,
        by_media=by_media,
        media_open=is_setting or (by_media and stage in BOOTING),
    )


def _by_counter(machine: Machine) -> BootRequest | None:
    if not is_counter_only(machine) or (machine.spec.pxe is not None and machine.spec.pxe.image is None):
        return None
    requested = (machine.spec.operations or OperationsStatus()).repave_counter
    reached = (machine.status.operations or OperationsStatus()).repave_counter
    number = requested if requested > reached else reached
    boot = f"repave-{number}"
    seen = boot_record(machine, boot)
    milestone = None if seen is None else seen.milestone
    if requested > reached:
        if milestone == NetbootMilestone.CONTESTED:
            return None
        window = BootWindow.INSTALLING
    elif milestone == NetbootMilestone.IMAGE_WRITTEN and not _is_finished(machine):
        window = BootWindow.FINISHING
    else:
        return None
    return BootRequest(machine.name, machine.metadata.uid, boot, window, repave=number)


def _is_finished(machine: Machine) -> bool:
    return machine.spec.kubernetes is None and any(
        condition.type == ConditionType.CLOUD_INIT_DONE and condition.status == ConditionStatus.TRUE
        for condition in machine.status.conditions
    )


KEY_SECRET: Final = "metalman-netboot"  # noqa: S105 - the name of an object
DATA_KEY: Final = "key"
STATEMENT_SECRET: Final = "metalman-statement-key"  # noqa: S105 - the name of an object
STATEMENT_DATA: Final = "statement.key"
STATEMENT_KEY_S: Final = 30.0  # between two readings
KEY_BYTES: Final = 32
PREFIX_BYTES: Final = 20  # 160 bits, which are 32 letters without padding
LOOKUP_LETTERS: Final = 8  # the part that an index may be searched by; the rest is compared in constant time

log = Log("metalman.netboot")


class PrefixKey:
    """Key from which prefixes are derived; its `repr` hides it."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        """Take a key.

        Raises:
            ValueError: the key is too short.
        """
        if len(key) < KEY_BYTES:
            raise ValueError(f"it has {len(key)} bytes and needs {KEY_BYTES}")
        self._key = key

    def __repr__(self) -> str:
        return "PrefixKey(…)"

    def prefix(self, machine_uid: str, boot: str) -> str:
        """Return 32 letters and digits that identify one boot of one Machine."""
        digest = hmac.new(self._key, f"{machine_uid}/{boot}".encode(), hashlib.sha256).digest()
        return base64.b32encode(digest[:PREFIX_BYTES]).decode().lower()

    def derived(self, purpose: str) -> bytes:
        """Return 32 bytes for another purpose that all replicas share; a prefix reveals nothing about them."""
        return hmac.new(self._key, purpose.encode(), hashlib.sha256).digest()


def is_same_prefix(given: str, known: str) -> bool:
    """Return whether two prefixes are equal, in a time that does not depend on the equal part."""
    return hmac.compare_digest(given.encode(errors="replace"), known.encode())


async def prefix_key(api: Api) -> PrefixKey:
    """Read the key of this cluster, and create it if there is none.

    Raises:
        ApiError: the Secret can be neither read nor created.
        Rejected: the Secret does not contain a key. Deleting it creates a new one and ends the running boots.
    """
    try:
        found = await api.get(SECRETS, KEY_SECRET, namespace=NAMESPACE)
    except NotFound:
        found = await _create_key(api)
    try:
        return PrefixKey(found.value(DATA_KEY) or b"")
    except ValueError as error:  # raised also if the value is not base64
        text = (
            f"Secret {NAMESPACE}/{KEY_SECRET}: data.{DATA_KEY} is not a valid key: {error}; delete the Secret "
            "to create a new one"
        )
        raise Rejected(text) from None


async def _create_key(api: Api) -> Secret:
    body = {
        "metadata": {"name": KEY_SECRET},
        "type": "Opaque",
        "data": {DATA_KEY: base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()},
    }
    try:
        made = await api.create(SECRETS, body, namespace=NAMESPACE)
    except AlreadyExists:  # another replica was faster
        return await api.get(SECRETS, KEY_SECRET, namespace=NAMESPACE)
    log.info("key of boot URLs created", secret=f"{NAMESPACE}/{KEY_SECRET}")
    return made


class StatementKeys:
    """The key of this site that signs answers to installers, as a Secret has it now or had it half a minute ago."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._key: StatementKey | None = None
        self._read_at = -STATEMENT_KEY_S
        self._reading = asyncio.Lock()

    async def current(self) -> StatementKey | None:
        """Return the key; None if there is none, or the Secret is unusable."""
        async with self._reading:
            now = asyncio.get_running_loop().time()
            if now - self._read_at >= STATEMENT_KEY_S:
                self._key = await self._read()
                self._read_at = now
            return self._key

    async def _read(self) -> StatementKey | None:
        try:
            found = await self._api.get(SECRETS, STATEMENT_SECRET, namespace=NAMESPACE)
            return StatementKey(found.value(STATEMENT_DATA) or b"")
        except NotFound:
            return None
        except ApiError as error:
            log.warning("cannot read the key of statements", error=error)
            return self._key
        except ValueError as error:  # raised also if the value is not base64
            wanted = f"data[{STATEMENT_DATA}] must be a private Ed25519 key in PEM, without a password"
            log.warning(f"cannot sign answers to installers: {wanted}", secret=STATEMENT_SECRET, error=error)
            return None
