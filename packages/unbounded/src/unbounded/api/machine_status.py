"""Records in a Machine's status: its measured boots, the erasure of its disks, its host's and its rescue system.

The PCRs that a TPM quotes are in `status.tpm`. An erasure is also in the status of its HostErase, and the module has
the form of the keys that may log in to a rescue system.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Final

from msgspec.structs import replace

from unbounded.api.fields import MAX_LIST, SHA256, ApiStruct, Count, Field, Int32, Time
from unbounded.api.hardware import ReportedHardware

PCR_MEANING: Final[Mapping[int, str]] = {
    0: "firmware code",
    1: "firmware settings and boot order",
    2: "code of option ROMs and UEFI drivers",
    3: "settings of option ROMs and UEFI drivers",
    4: "boot loader",
    5: "partition table and boot loader settings",
    6: "events of the platform's maker",
    7: "Secure Boot policy and keys",
    11: "unified kernel image and its boot phases",
    12: "kernel command line and credentials of a unified kernel image",
}
"""TCG PC Client Platform Firmware Profile for 0 to 7, systemd-stub for 11 and 12."""
_ONE_PCR: Final = f"({'|'.join(map(str, PCR_MEANING))})"
PCR_LIST: Final = f"^{_ONE_PCR}(,{_ONE_PCR}){{0,{len(PCR_MEANING) - 1}}}$"
PCR_TWICE: Final = f"(^|,)({'|'.join(f'{one},([0-9]+,)*{one}' for one in PCR_MEANING)})(,|$)"
PCR_FORM: Final = f"comma-separated numbers of PCRs, of {', '.join(map(str, PCR_MEANING))}, each once"
MAX_ERASURES: Final = 128  # the disks of a machine, as in status.hardware
MAX_ERASE_ATTEMPTS: Final = 8
RESCUE_KEYS_MAX: Final = 16
_TYPES: Final = "|".join(
    ("ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp(256|384|521)", "sk-ssh-ed25519@openssh[.]com",
     "sk-ecdsa-sha2-nistp256@openssh[.]com")
)  # fmt: skip
# A comment has no quotes and no backslash: the installer reads the keys from JSON. Go refuses nested counts above 1000.
_KEY: Final = f"({_TYPES}) AAAA[A-Za-z0-9+/]+={{0,2}}( [-A-Za-z0-9 .,:;@+=_/()]+)?"
RESCUE_KEYS: Final = f"^{_KEY}(\\n{_KEY}){{0,{RESCUE_KEYS_MAX - 1}}}\\n?$"
RESCUE_KEY_FORM: Final = "such as ssh-ed25519 AAAA… me@here"
_LENGTH_BYTES: Final = 4
MAX_RELEASE: Final = 64  # characters of a value of /etc/os-release
MAX_PACKAGE: Final = 128
MAX_ADDRESS: Final = 64
MAX_ADDRESSES: Final = 32
MAX_INTERFACE: Final = 64


def pcr_text(number: int) -> str:
    """Return a PCR with its meaning: `PCR 7 (Secure Boot policy and keys)`."""
    return f"PCR {number} ({PCR_MEANING[number]})" if number in PCR_MEANING else f"PCR {number}"


def accept_command(machine: str, pcrs: Iterable[int]) -> str:
    """Return the command that installs a Machine again, and accepts other values of these PCRs."""
    flags = " ".join(f"--accept-pcr {one}" for one in sorted(pcrs))
    return f"kubectl unbounded machine replace {machine} {flags}"


class PCRValue(ApiStruct, frozen=True, kw_only=True):
    """The value of one Platform Configuration Register."""

    number: Annotated[Int32, Field("Number of the PCR.", minimum=0, maximum=23)]
    sha256: Annotated[str, Field("Value in the SHA-256 bank.", pattern=SHA256, max_length=64)]


class QuotedBoot(ApiStruct, frozen=True, kw_only=True):
    """A boot, as the TPM quoted it."""

    boot: Annotated[str, Field("Boot, as in status.netboot.boot.", max_length=128)]
    at: Annotated[Time, Field("Time at which metalman verified the quote.")]
    image_digest: Annotated[str | None, Field("Digest of the installed OCI image.", max_length=256)] = None
    accepted_by: Annotated[
        str | None,
        Field("User who accepted other values than those before, by parameters.acceptPCRs.", max_length=1024),
    ] = None
    pcrs: Annotated[
        tuple[PCRValue, ...], Field("Values of the quoted PCRs; empty where the host sent no quote.", max_items=24)
    ] = ()

    @property
    def values(self) -> dict[int, str]:
        """Return the values by the numbers of the PCRs."""
        return {one.number: one.sha256.lower() for one in self.pcrs}

    def deviations(self, reference: QuotedBoot) -> frozenset[int]:
        """Return the PCRs whose values differ from those of the reference, or are in one of the two only."""
        mine, others = self.values, reference.values
        return frozenset(one for one in {*mine, *others} if mine.get(one) != others.get(one))


class TPMStatus(ApiStruct, frozen=True, kw_only=True):
    """The observed state of the TPM."""

    ek_public_key: Annotated[
        str | None,
        Field(
            "Endorsement key, PEM: the one that spec.pxe.attestation names, or the first that proved its identity.",
            max_length=16384,
        ),
    ] = None
    reference: Annotated[
        QuotedBoot | None,
        Field(
            "Boot that later ones are compared with: the first that the TPM quoted, or the last one whose other values "
            "a user accepted. If it is removed, the next boot becomes the reference."
        ),
    ] = None
    quote: Annotated[QuotedBoot | None, Field("Last boot that the TPM quoted.")] = None


class ErasureState(StrEnum):
    """The progress of one disk's erasure."""

    UNTOUCHED = "Untouched"
    ERASING = "Erasing"  # data are lost from here on
    FAILED = "Failed"
    ERASED = "Erased"


class DiskErasure(ApiStruct, frozen=True, kw_only=True):
    """A disk with data of others that an operation may write, once."""

    serial_number: Annotated[str, Field("Serial number of the disk.", max_length=256)]
    contents: Annotated[str, Field("Former contents of the disk.", max_length=512)] = ""


class ErasureAttempt(ApiStruct, frozen=True, kw_only=True):
    """A method that was tried, and its failure."""

    method: Annotated[str, Field("Sanitize, Format, SecureErase, Discard or Overwrite.", max_length=64)]
    failure: Annotated[
        str | None, Field("Why the method did not erase the disk; absent if it did.", max_length=256)
    ] = None
    seconds: Annotated[Count | None, Field("Duration of the attempt.")] = None


class DiskErasureRecord(ApiStruct, frozen=True, kw_only=True):
    """The erasure of one disk by a HostErase."""

    serial_number: Annotated[str, Field("Serial number of the disk.", min_length=1, max_length=256)]
    name: Annotated[str | None, Field("Name that the installer's kernel gave the disk.", max_length=256)] = None
    model: Annotated[str | None, Field("Model, as the disk reports it.", max_length=256)] = None
    wwn: Annotated[str | None, Field("World Wide Name or EUI.", max_length=256)] = None
    size_bytes: Annotated[Count | None, Field("Size in bytes.")] = None
    contents: Annotated[str | None, Field("Former contents of the disk.", max_length=512)] = None
    state: Annotated[
        str,
        Field("Untouched, Erasing (begun, not finished), Failed or Erased.", enum=tuple(ErasureState)),
    ]
    method: Annotated[str | None, Field("Method in progress, or the one that erased the disk.", max_length=64)] = None
    percent: Annotated[Int32 | None, Field("Part of the disk that is done.", minimum=0, maximum=100)] = None
    seconds: Annotated[Count | None, Field("Duration of the erasure up to the last report.")] = None
    attempts: Annotated[
        tuple[ErasureAttempt, ...], Field("Methods that were tried, in their order.", max_items=MAX_ERASE_ATTEMPTS)
    ] = ()
    verification: Annotated[str | None, Field("Content that was read back after the erasure.", max_length=256)] = None
    failure: Annotated[str | None, Field("Why the disk is not erased.", max_length=256)] = None
    started_at: Annotated[Time | None, Field("Time at which metalman let the erasure begin.")] = None
    completed_at: Annotated[Time | None, Field("Time of the report that the disk is erased, or is not.")] = None

    @property
    def is_permission(self) -> bool:
        """Return whether this is the begin of an erasure: later reports of it have a method."""
        return self.state == ErasureState.ERASING and not self.method


_ORDER: Final = {ErasureState.UNTOUCHED: 0, ErasureState.ERASING: 1, ErasureState.FAILED: 1, ErasureState.ERASED: 2}


def merge_erasures(
    before: Sequence[DiskErasureRecord], new: Iterable[DiskErasureRecord]
) -> tuple[DiskErasureRecord, ...]:
    """Return the records with newer ones, which may have been overtaken.

    A disk that was begun is never untouched again, and an erased one stays. A failed erasure is in progress again only
    after another permission.
    """
    known = {one.serial_number: one for one in before}
    for one in new:
        old = known.get(one.serial_number)
        known[one.serial_number] = one if old is None else _newer(old, one)
    return tuple(known.values())


def _newer(old: DiskErasureRecord, new: DiskErasureRecord) -> DiskErasureRecord:
    late = old.state == ErasureState.FAILED and new.state == ErasureState.ERASING and not new.is_permission
    if late or _rank(old.state) == _rank(ErasureState.ERASED) or _rank(old.state) > _rank(new.state):
        return old
    facts = {name: getattr(old, name) or getattr(new, name) for name in ("name", "model", "wwn", "size_bytes")}
    return replace(new, **facts, contents=old.contents or new.contents, started_at=old.started_at or new.started_at)


def _rank(state: str) -> int:
    return _ORDER.get(ErasureState(state), 0) if state in set(ErasureState) else 1


class AgentStage(StrEnum):
    """The stages of an agent's work on the node of its host."""

    PREPARING = "Preparing"
    STARTING = "Starting"
    RUNNING = "Running"


class HostAddress(ApiStruct, frozen=True, kw_only=True):
    """An address of a network interface of the host."""

    interface: Annotated[str, Field("Name of the interface.", max_length=MAX_INTERFACE)]
    address: Annotated[
        str, Field("IP address, without the length of its prefix.", min_length=1, max_length=MAX_ADDRESS)
    ]


class HostSystem(ApiStruct, frozen=True, kw_only=True):
    """The host's names, addresses, operating system and hardware, as its agent observes them."""

    hostname: Annotated[str | None, Field("Host name.", max_length=253)] = None
    address: Annotated[
        str | None, Field("Address from which the host reaches the API server.", max_length=MAX_ADDRESS)
    ] = None
    addresses: Annotated[
        tuple[HostAddress, ...],
        Field(
            "Global addresses of the host's network cards, and of bonds, VLANs and bridges on them.",
            max_items=MAX_ADDRESSES,
        ),
    ] = ()
    os_id: Annotated[str | None, Field("ID of /etc/os-release, such as ubuntu.", max_length=MAX_RELEASE)] = None
    os_version: Annotated[
        str | None, Field('VERSION_ID of /etc/os-release, such as "24.04".', max_length=MAX_RELEASE)
    ] = None
    os_codename: Annotated[str | None, Field("VERSION_CODENAME of /etc/os-release.", max_length=MAX_RELEASE)] = None
    kernel: Annotated[str | None, Field("Release of the running kernel.", max_length=128)] = None
    reboot_required: Annotated[
        bool, Field("True where the host's package manager asks for a reboot (/run/reboot-required).")
    ] = False
    reboot_packages: Annotated[
        tuple[Annotated[str, Field(max_length=MAX_PACKAGE)], ...],
        Field("Packages whose installation asks for the reboot (/run/reboot-required.pkgs).", max_items=MAX_LIST),
    ] = ()
    certificate_expires: Annotated[
        Time | None, Field("End of the validity of the agent's certificate, with which it reaches the API server.")
    ] = None
    hardware: Annotated[
        ReportedHardware | None, Field("Parts of the host that its system has. The agent reads them once an hour.")
    ] = None


class RescueSystem(ApiStruct, frozen=True, kw_only=True):
    """The SSH server of a HostRescue."""

    address: Annotated[str, Field("Address that the rescue system reported from.", max_length=64)]
    host_key: Annotated[str, Field("Public host key of its SSH server, made for this boot.", max_length=256)]


def is_ssh_key(line: str) -> bool:
    """Return whether the binary part of a public key is whole, and of the type that the line names."""
    kind, _, rest = line.partition(" ")
    blob = _blob(rest.partition(" ")[0])
    found = blob[:_LENGTH_BYTES], blob[_LENGTH_BYTES : _LENGTH_BYTES + len(kind)]
    return found == (len(kind).to_bytes(_LENGTH_BYTES, "big"), kind.encode()) and _is_whole(blob)


def host_key_fingerprint(line: str) -> str:
    """Return the fingerprint of a public key in the form "ssh-ed25519 AAAA… comment"."""
    return ssh_fingerprint(_blob(line.split()[1]))


def ssh_fingerprint(blob: bytes) -> str:
    """Return the fingerprint of a public key as `ssh-keygen -l` prints it: SHA256 and base64 without padding."""
    return f"SHA256:{base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip('=')}"


def rescue_text(system: RescueSystem) -> str:
    """Return how to connect to a rescue system, and the fingerprint of its host key, for the user."""
    key = host_key_fingerprint(system.host_key)
    return f"the rescue system runs: ssh root@{system.address}, host key {key} (ED25519)"


def _blob(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""


def _is_whole(blob: bytes) -> bool:
    """Return whether a key consists of fields with their lengths (RFC 4253, section 6.6), to its last byte."""
    at = 0
    while at < len(blob):
        at += _LENGTH_BYTES + int.from_bytes(blob[at : at + _LENGTH_BYTES], "big")
    return at == len(blob) > 0
