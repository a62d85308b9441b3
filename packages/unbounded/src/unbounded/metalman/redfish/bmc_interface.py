"""Interface of a BMC: the values that its calls take and return, and its failures. `pool.PooledBmc` has the calls.

Each failure is a narrower subclass of the class in `unbounded.api.failures` that decides who acts next. Their texts
come from the extended error, cleaned for display.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

from unbounded.api.failures import Rejected, Transient, Uncertain


class BmcPowerState(StrEnum):
    ON = "On"
    OFF = "Off"
    UNSETTLED = "Unsettled"  # between the two, null, missing, or an unknown value


class ResetType(StrEnum):
    """Requested power change. Each value sets a state, so a repeated request has no further effect."""

    ON = "On"
    FORCE_OFF = "ForceOff"
    GRACEFUL_SHUTDOWN = "GracefulShutdown"


class BootTarget(StrEnum):
    NONE = "None"
    PXE = "Pxe"
    HDD = "Hdd"
    CD = "Cd"
    UEFI_HTTP = "UefiHttp"


class BootEnabled(StrEnum):
    DISABLED = "Disabled"
    ONCE = "Once"
    CONTINUOUS = "Continuous"


@dataclass(frozen=True, slots=True)
class BootOverride:
    """Boot.BootSourceOverride*: the BMC's values in a reading (None: absent), members of the enums in a request."""

    enabled: str | None
    target: str | None = None
    mode: str | None = None  # UEFI or Legacy; None in a request keeps the present mode, else UEFI

    @property
    def leaves_disk(self) -> bool:
        """Return whether the host boots from its disk with this override."""
        unset = self.enabled in (None, BootEnabled.DISABLED)
        return unset or (self.enabled, self.target) == (BootEnabled.CONTINUOUS, BootTarget.HDD)


@dataclass(frozen=True, slots=True)
class WebSocketOffer:
    """A console over a web socket."""

    uri: str
    interactive: bool


@dataclass(frozen=True, slots=True)
class SshOffer:
    """A console over SSH.

    Args:
        command: enters the console, where the service is shared with other consoles or the BMC's command line.
    """

    port: int
    command: str | None


@dataclass(frozen=True, slots=True)
class ConsoleOffers:
    """Consoles of a system that can be opened, the preferred one first, and the names of the others."""

    usable: tuple[WebSocketOffer | SshOffer, ...] = ()
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SystemState:
    """State of a system at one time."""

    device_id: str  # member that answered: the requested one, or the default
    power: BmcPowerState
    power_text: str  # PowerState as the BMC wrote it; "" if it was null or missing
    allowable: tuple[str, ...] | None  # ResetTypes that the BMC lists; None: no list
    boot: BootOverride | None  # None: the system has no boot override
    boot_targets: tuple[str, ...] | None
    uuid: str | None
    etag: str | None
    model: str = ""  # manufacturer and model; "" if the BMC names neither
    consoles: ConsoleOffers = ConsoleOffers()


@dataclass(frozen=True, slots=True)
class ManagerState:
    """State of a BMC's own manager at one time."""

    manager_id: str
    last_reset: str  # LastResetTime as the BMC wrote it; "" if it reports none


@dataclass(frozen=True, slots=True)
class InstalledFirmware:
    """Version of one component of a machine, as its BMC lists it."""

    name: str  # id in the FirmwareInventory
    version: str
    updateable: bool


class UpdateState(StrEnum):
    RUNNING = "Running"
    DONE = "Done"
    FAILED = "Failed"
    VANISHED = "Vanished"  # the BMC does not know the task any more


@dataclass(frozen=True, slots=True)
class UpdateProgress:
    """State of a firmware update by its task, with the BMC's words."""

    state: UpdateState
    text: str


@dataclass(frozen=True, slots=True)
class BmcUser:
    """The account of a BMC that metalman logs in with, after a log-in of its own.

    Args:
        password_in_use: the password of that log-in.
        is_next_rejected: the BMC has rejected the next password in this process.
        min_length, max_length: of a password, as the BMC lists them; None: not listed.
    """

    path: str
    password_in_use: str = field(repr=False)
    is_next_rejected: bool = False
    min_length: int | None = None
    max_length: int | None = None


@dataclass(frozen=True, slots=True)
class ResetAcceptance:
    """Reset that the BMC accepted. Only a reading of the system shows its effect."""

    sent: str  # ResetType that was sent: a fallback if the BMC lacks the requested one
    already: bool = False  # the BMC answered that the system is in that state, and a reading agreed
    settled: bool = True  # False: its task still ran when the limit was reached
    note: str = ""  # for the user: the fallback, and the message of the task


@dataclass(frozen=True, slots=True)
class BmcAccount:
    """Access to one system: exactly the fields that decide whether two callers may share a connection.

    Args:
        url: of the BMC, with or without /redfish/v1; http:// sends the password in the clear and pins nothing.
        device_id: a member of Systems. "1" (or "") is the default: the only member is used if there is no "1".
        cert_fingerprint: pinned SHA-256 of the leaf certificate, colon-separated hex.
        ca_bundle: PEM (or base64 of PEM); it replaces the pin, and the host name is checked.
        secret, secret_version: name and resourceVersion of the Secret with the password. A rejected password is offered
            again only if that Secret has another version.
        next_password: of a rotation that has begun and not ended; offered once the BMC has rejected `password`.
    """

    url: str
    username: str
    password: str = field(repr=False)
    device_id: str = "1"
    cert_fingerprint: str | None = None
    ca_bundle: str | None = None
    secret: str = ""
    secret_version: str = ""
    next_password: str = field(default="", repr=False)


TrustHostKey = Callable[[str], Awaitable[None]]
"""Stores the fingerprint of a first host key; raises if that is not possible."""


class SerialConsole(Protocol):
    """An open console.

    Attributes:
        over: the way to it, for messages.
        interactive: it takes input.
    """

    over: str
    interactive: bool

    async def read(self) -> bytes:
        """Return the next output, as soon as there is some; empty at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Send input; returns when the BMC can take more.

        Raises:
            BmcUnreachable: the connection broke.
        """
        ...


@dataclass(frozen=True, slots=True)
class BmcLimits:
    """Time limits in seconds. The defaults suit real BMCs; tests of time limits shorten them."""

    call_s: float = 30.0  # one request with its answer, the log-in before it included
    connect_s: float = 10.0  # name, TCP and TLS
    start_s: float = 10.0  # a changing request leaves within this time of the call, or not at all
    queue_s: float = 30.0  # a read waits for its turn at most so long
    task_s: float = 30.0  # a 202 task is followed at most so long
    task_poll_s: float = 0.5  # until the first read of a task; later pauses grow to task_poll_max_s
    task_poll_max_s: float = 3.0
    change_s: float = 3.0  # from an accepted new password to the log-in with it: some BMCs need a moment
    close_s: float = 2.0  # deletion of a session, also after cancellation
    release_call_s: float = 10.0  # the same if no caller waits
    # from the end of work to the deletion of its session: longer than most polls, shorter than a keep-alive
    release_s: float = 2.0
    idle_s: float = 120.0  # until an unused session is deleted: longer than most hosts need to shut down
    forget_s: float = 900.0  # until an unused client is forgotten
    silence_s: float = 4 * 3600.0  # until a stream without a byte is opened again

    @property
    def act_s(self) -> float:
        """Time after `leave_by` within which a sent request has its answer, and its task its end or limit."""
        return self.call_s + self.task_s


class BmcUnreachable(Transient):
    """No answer, and nothing changed: refused, unknown host, TLS failed, timed out, or cut off while reading."""


class BmcAnswerLost(Uncertain):
    """A changing request was sent, and its answer was lost."""


class BmcBusy(Transient):
    """The BMC or its queue has no capacity now, and nothing was done. `retry_after_s` is the BMC's, else None."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class CircuitOpen(BmcBusy):
    """No call was made, as the last calls got no answer; the message has the start and the end of the pause."""


class Garbled(Transient):
    """The answer to a read was cut off, or is not JSON."""


class TaskFailed(Transient):
    """The BMC accepted the action, and its task failed; the message is the task's."""


class PasswordRejected(Rejected):
    """The BMC rejected the password, which is not offered again until the Secret changes."""


class CertificateUntrusted(Rejected):
    """The CA bundle does not verify the BMC's certificate, or nothing is pinned yet. No password was sent."""


class CertificateChanged(CertificateUntrusted):
    """The BMC presents another certificate than the pinned one. No password was sent."""

    def __init__(self, message: str, *, pinned: str, seen: str) -> None:
        super().__init__(message)
        self.pinned = pinned
        self.seen = seen


class InvalidBmcUrl(Rejected):
    """`spec.pxe.redfish.url` is not an address of a BMC. Nothing was sent."""


class Unsupported(Rejected):
    """The BMC does not support the call, by its status (400, 404, 405, 410, 501) or its lists."""


MESSAGE_CHARS: Final = 1024
_HIDDEN: Final = "***"
_IMAGE_TICKET: Final = re.compile(r"(?<=/)[0-9a-f]{1,12}\.[a-z2-7]{32}(?![a-z2-7])")
"""Secret part of the URL of a boot image (`media.tickets`), which BMCs repeat when they refuse the image."""


def clean(text: str, *, hide: Iterable[str] = ()) -> str:
    """Return one line of printable text, at most 1024 characters, without the secrets in `hide` and URLs of images."""
    text = _IMAGE_TICKET.sub(_HIDDEN, text)
    for secret in sorted(filter(None, hide), key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    text = text[: 8 * MESSAGE_CHARS]
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text)
    line = " ".join(text.split())
    return line if len(line) <= MESSAGE_CHARS else line[: MESSAGE_CHARS - 1] + "…"


def error_text(document: Mapping[str, Any]) -> str:
    """Return ids and texts of a Redfish error (DSP0266, 8.6): the extended messages, else its code and message."""
    error = document.get("error")
    error = error if isinstance(error, Mapping) else document
    return "; ".join(dict.fromkeys(extended(error))) or _id_and_text(error.get("code"), error.get("message"))


def extended(holder: Mapping[str, Any]) -> Iterator[str]:
    """Yield each message of `@Message.ExtendedInfo`, or of a Task's `Messages`, as "Id: text"."""
    for key in ("@Message.ExtendedInfo", "Messages"):
        found = holder.get(key)
        for message in found if isinstance(found, list) else [found]:
            if isinstance(message, Mapping):
                text = _id_and_text(message.get("MessageId"), message.get("Message"))
                if text:
                    yield text
            elif isinstance(message, str):
                yield message


def _id_and_text(identity: object, text: object) -> str:
    return ": ".join(part for part in (identity, text) if isinstance(part, str) and part)
