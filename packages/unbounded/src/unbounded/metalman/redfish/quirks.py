"""Differences of BMCs, as tables: values to send, their order, and the meaning of unusual answers.

Each row names the BMCs that were observed to need it. Other code reads these tables and knows no vendor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from unbounded.metalman.redfish.bmc_interface import BootEnabled, BootOverride, BootTarget, ResetType


@dataclass(frozen=True, slots=True)
class ResetChoice:
    """ResetType that can replace a requested one.

    `listed_only`: sent only if the BMC lists it. `only_when_on`: sent only directly after a reading of On.
    """

    value: str
    listed_only: bool = False
    only_when_on: bool = False


# PushPowerButton toggles the power. For On it is never sent: executed late, it would switch off a host that has just
# started. For a graceful shutdown it is the only way that iLO 4 and older Supermicro boards offer (an ACPI button
# event).
RESET_CHOICES: Final[Mapping[ResetType, tuple[ResetChoice, ...]]] = {
    ResetType.ON: (ResetChoice("On"), ResetChoice("ForceOn")),
    ResetType.FORCE_OFF: (ResetChoice("ForceOff"),),
    ResetType.GRACEFUL_SHUTDOWN: (
        ResetChoice("GracefulShutdown"),
        ResetChoice("PushPowerButton", listed_only=True, only_when_on=True),
    ),
}


def choices(desired: ResetType, allowable: tuple[str, ...] | None) -> tuple[ResetChoice, ...]:
    """Return the values that may be sent for `desired`, best first; none if the BMC lists only other values.

    An empty list counts as no list (observed on boards whose host was off when the list was made).
    """
    rows = RESET_CHOICES[desired]
    if not allowable:
        return tuple(choice for choice in rows if not choice.listed_only)
    return tuple(choice for choice in rows if choice.value in allowable)[:1]


# Reset of the BMC itself, best first. A BMC that lists none is sent the first that it accepts.
MANAGER_RESETS: Final = ("GracefulRestart", "ForceRestart")


def manager_resets(allowable: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the values that may be sent to restart a BMC, best first; none if it lists only other values."""
    return tuple(value for value in MANAGER_RESETS if value in allowable)[:1] if allowable else MANAGER_RESETS


def _unchanged(etag: str) -> str:
    return etag


def _other_strength(etag: str) -> str:
    return etag.removeprefix("W/") if etag.startswith("W/") else f"W/{etag}"


def _any(_etag: str) -> str:
    return "*"


# If-Match of a PATCH, tried in this order on 412 and 428, which both mean that nothing was done. The first has none:
# many BMCs reject an unsolicited one. Then the ETag as read, then with its W/ added or removed (AMI compares weak ones
# as strings; HPE sends weak ones and requires strong ones), then any. An action POST has none (iDRAC answers 412 to
# one).
IF_MATCH: Final[tuple[Callable[[str], str] | None, ...]] = (None, _unchanged, _other_strength, _any)
PRECONDITION: Final = frozenset({412, 428})

# Return to booting from disk, tried in this order while the answer is Unsupported or the value has no effect. Some BMCs
# require a target beside Disabled; sushy-tools accepts Disabled and does nothing.
BOOT_DISABLE: Final = (
    BootOverride(BootEnabled.DISABLED),
    BootOverride(BootEnabled.DISABLED, BootTarget.NONE),
    BootOverride(BootEnabled.CONTINUOUS, BootTarget.HDD),
)
# Sent with every override, as Supermicro falls back to Legacy without it.
DEFAULT_BOOT_MODE: Final = "UEFI"

# Media types of a drive that shows an ISO image; older iLOs call it a DVD.
MEDIA_TYPES: Final = frozenset({"CD", "DVD"})
# Fields beside Image of InsertMedia, tried in this order while the answer is Unsupported. Inserted and WriteProtected
# have these values where they are missing (DSP2046), and some BMCs reject a field that they do not know; Supermicro's
# demand both, and others the protocol although the URL has it.
INSERT_FIELDS: Final[tuple[Mapping[str, object], ...]] = (
    {},
    {"Inserted": True, "WriteProtected": True},
    {"TransferProtocolType": "HTTPS"},
    {"Inserted": True, "WriteProtected": True, "TransferProtocolType": "HTTPS", "TransferMethod": "Stream"},
)
# EjectMedia has no parameters; HPE's and Huawei's want an empty object, and some reject a body.
EJECT_BODIES: Final[tuple[Mapping[str, object] | None, ...]] = ({}, None)

# Answers to a log-in that mean "no sessions here": basic auth is used.
NO_SESSIONS: Final = frozenset({404, 405, 501})
SESSION_LIMIT: Final = re.compile(r"SessionLimitExceeded|sessions?\b.*\b(?:limit|maximum|exceeded|too many)|"
                                  r"(?:limit|maximum|too many)\b.*\bsessions?", re.IGNORECASE)  # fmt: skip
# iLO 4 answers 400 to a wrong password.
LOGIN_REFUSED: Final = re.compile(
    r"UnauthorizedLoginAttempt|ResourceAtUriUnauthorized|InvalidCredentials|AccountLocked|NoValidSession", re.IGNORECASE
)

# Errors that may mean that the state is already reached: iDRAC PSU501 (409), iLO InvalidOperationForSystemState (400),
# Base NoOperation. A reading decides, as some BMCs use the same id for "not now".
ALREADY: Final = re.compile(r"\balready\b|NoOperation|InvalidOperationForSystemState|PSU501", re.IGNORECASE)
ALREADY_STATUS: Final = frozenset({400, 409})

# Errors that resolve themselves, in a 400 answer or a failed task.
PASSING: Final = re.compile(
    r"ServiceTemporarilyUnavailable|ServiceShuttingDown|ServiceInUnknownState|ResourceInUse|ResourceInStandby|"
    r"ResourceNotReady|CouldNotEstablishConnection",
    re.IGNORECASE,
)
# Errors of a task that a retry does not resolve.
LASTING: Final = re.compile(
    r"ActionNotSupported|ActionParameter(?:NotSupported|ValueNotInList|ValueTypeError|Unknown|Missing)|"
    r"PropertyValueNotInList|InsufficientPrivilege|LicenseRequired|NotSupported",
    re.IGNORECASE,
)

TASK_RUNNING: Final = frozenset(
    {"New", "Starting", "Running", "Suspended", "Interrupted", "Pending", "Stopping", "Cancelling", "Service"}
)
TASK_DONE: Final = "Completed"

# Members of FirmwareInventory that no component runs: iDRAC lists earlier versions and those in its store, too.
NOT_INSTALLED: Final = ("Previous-", "Available-")
