"""What a caller needs of a BMC: reading one system, asking it to change power, and its boot override."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class Power(StrEnum):
    ON = "On"
    OFF = "Off"
    UNSETTLED = "Unsettled"  # between the two, null, missing, or a word that nobody knows


class ResetType(StrEnum):
    """What can be asked for. Each one sets a state, so asking twice is asking once."""

    ON = "On"
    FORCE_OFF = "ForceOff"
    GRACEFUL_SHUTDOWN = "GracefulShutdown"


class BootTarget(StrEnum):
    NONE = "None"
    PXE = "Pxe"
    HDD = "Hdd"
    UEFI_HTTP = "UefiHttp"


class BootEnabled(StrEnum):
    DISABLED = "Disabled"
    ONCE = "Once"
    CONTINUOUS = "Continuous"


@dataclass(frozen=True, slots=True)
class BootOverride:
    """Boot.BootSourceOverride*: as the BMC words it when read (None: not said), members of the enums when wanted."""

    enabled: str | None
    target: str | None = None
    mode: str | None = None  # UEFI or Legacy; None when wanted means: as it is now, else UEFI

    @property
    def leaves_disk(self) -> bool:
        """Whether it does not keep the host from its disk."""
        unset = self.enabled in (None, BootEnabled.DISABLED)
        return unset or (self.enabled, self.target) == (BootEnabled.CONTINUOUS, BootTarget.HDD)


@dataclass(frozen=True, slots=True)
class SystemState:
    """One reading of a system."""

    device_id: str  # the member that answered; the asked one, or the default
    power: Power
    power_text: str  # PowerState as the BMC wrote it, "" when it was null or missing
    allowable: tuple[str, ...] | None  # ResetTypes that the BMC lists; None: it does not say
    boot: BootOverride | None  # None: the system has no boot override
    boot_targets: tuple[str, ...] | None
    uuid: str | None
    etag: str | None


@dataclass(frozen=True, slots=True)
class Accepted:
    """A reset that the BMC took on. Whether it comes true is seen by reading the system."""

    sent: str  # the ResetType that was sent: a fallback where the BMC does not know the wanted one
    already: bool = False  # the BMC answered that the system is in that state, and a reading agreed
    settled: bool = True  # False: its task was still running when the limit was reached
    note: str = ""  # for people: which fallback was used, what the task said


@dataclass(frozen=True, slots=True)
class Access:
    """How one system is reached. Exactly the fields that decide whether two callers may share a connection.

    Args:
        url: of the BMC, with or without /redfish/v1; http:// sends the password in the clear and pins nothing.
        device_id: a member of Systems. "1" (or "") is the default: the only member is taken when there is no "1".
        cert_fingerprint: pinned SHA-256 of the leaf certificate, colon-separated hex.
        ca_bundle: PEM (or base64 of PEM); when given it decides instead of the pin, and the host name is checked.
        secret, secret_version: which Secret the password comes from and its resourceVersion. A refused password is
            offered again only when that Secret has another version.
    """

    url: str
    username: str
    password: str = field(repr=False)
    device_id: str = "1"
    cert_fingerprint: str | None = None
    ca_bundle: str | None = None
    secret: str = ""
    secret_version: str = ""


class PowerControl(Protocol):
    """Calls raise the failures of `unbounded.api.failures`; `failures.py` names the narrower ones.

    `leave_by` is a time of the event loop's clock: what changes something is sent before it, or not at all (Transient).
    Left out, it is `Limits.start_s` after the call.
    """

    async def system(self) -> SystemState:
        """Read the system now; never an answer from memory."""
        ...

    async def reset(self, wanted: ResetType, *, leave_by: float | None = None) -> Accepted:
        """Ask once, and return when the BMC has taken it on (a 202 task is followed to its end or limit).

        Raises:
            Unsupported: the BMC has nothing that does this; the message lists what it offers.
            Transient: not done: busy, unreachable, or the task failed, in the task's words.
            Uncertain: sent, and the answer or the task's end was lost.
        """
        ...

    async def close(self) -> None:
        """Give the BMC its session back now; the next call opens another one."""
        ...


class BootControl(Protocol):
    async def system(self) -> SystemState: ...

    async def set_boot_override(self, wanted: BootOverride, *, leave_by: float | None = None) -> BootOverride:
        """Write the boot override and return what is read back, which may differ: some BMCs accept and ignore.

        Raises:
            Unsupported: this BMC has no (such) boot override.
        """
        ...

    async def disable_boot_override(self, *, leave_by: float | None = None) -> BootOverride:
        """Let the machine boot from its disk: Disabled, or Hdd/Continuous where that is refused or has no effect. Read
        back as above."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds. The defaults suit real BMCs; tests of time limits make them small."""

    call_s: float = 30.0  # one request with its answer, the log-in before it included
    connect_s: float = 10.0  # name, TCP and TLS
    start_s: float = 10.0  # a changing request leaves within this time of the call, or not at all
    queue_s: float = 30.0  # a reading waits this long for its turn
    task_s: float = 30.0  # a 202 task is followed this long
    task_poll_s: float = 0.5  # first look at a task; then slower, up to task_poll_max_s
    task_poll_max_s: float = 3.0
    close_s: float = 2.0  # giving a session back, also when cancelled
    part_call_s: float = 10.0  # the same where nobody waits for it
    part_s: float = 2.0  # a session is given back so long after parting: longer than most polls, below a keep-alive
    idle_s: float = 15.0  # an unused session is given back after this time
    forget_s: float = 900.0  # an unused client is dropped after this time

    @property
    def act_s(self) -> float:
        """What was sent by `leave_by` has its answer, and its task its end or its limit, this long after it at most."""
        return self.call_s + self.task_s
