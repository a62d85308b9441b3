"""Where BMCs differ, as tables: what is sent, in which order, and how odd answers are read.

Each row says who was seen to need it. Code elsewhere walks these tables and knows no vendor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from unbounded.metalman.redfish.ports import BootEnabled, BootOverride, BootTarget, ResetType


@dataclass(frozen=True, slots=True)
class Choice:
    """A ResetType that may stand for a wanted one.

    `listed_only`: sent only if the BMC lists it. `only_when_on`: sent only after a reading of On just before.
    """

    value: str
    listed_only: bool = False
    only_when_on: bool = False


# PushPowerButton toggles. For On it is never sent: pressed late, it would switch off what has just come up. For a
# graceful shutdown it is the only way that iLO 4 and older Supermicro boards offer (an ACPI button event).
RESET_CHOICES: Final[Mapping[ResetType, tuple[Choice, ...]]] = {
    ResetType.ON: (Choice("On"), Choice("ForceOn")),
    ResetType.FORCE_OFF: (Choice("ForceOff"),),
    ResetType.GRACEFUL_SHUTDOWN: (
        Choice("GracefulShutdown"),
        Choice("PushPowerButton", listed_only=True, only_when_on=True),
    ),
}


def choices(wanted: ResetType, allowable: tuple[str, ...] | None) -> tuple[Choice, ...]:
    """What may be sent for `wanted`, best first; nothing when the BMC lists its values and none of them will do.

    An empty list counts as not said (seen on boards whose host was off when the list was made).
    """
    rows = RESET_CHOICES[wanted]
    if not allowable:
        return tuple(choice for choice in rows if not choice.listed_only)
    return tuple(choice for choice in rows if choice.value in allowable)[:1]


def _same(etag: str) -> str:
    return etag


def _other_strength(etag: str) -> str:
    return etag.removeprefix("W/") if etag.startswith("W/") else f"W/{etag}"


def _any(_etag: str) -> str:
    return "*"


# If-Match on a PATCH, tried in this order on 412 and 428 (which both say that nothing was done). First none: many
# BMCs refuse one that they did not ask for. Then the ETag as read, then with its W/ added or taken away (AMI compares
# weak ones as strings; HPE sends them weak and wants them strong), then any. An action POST is sent without (iDRAC
# answers 412 to one).
IF_MATCH: Final[tuple[Callable[[str], str] | None, ...]] = (None, _same, _other_strength, _any)
PRECONDITION: Final = frozenset({412, 428})

# "Boot from disk again", tried in this order while the answer is Unsupported, or nothing comes of it. Some want a
# target beside Disabled; sushy-tools takes Disabled and does nothing.
BOOT_DISABLE: Final = (
    BootOverride(BootEnabled.DISABLED),
    BootOverride(BootEnabled.DISABLED, BootTarget.NONE),
    BootOverride(BootEnabled.CONTINUOUS, BootTarget.HDD),
)
# Sent with every override, as Supermicro falls back to Legacy where the mode is left out.
DEFAULT_BOOT_MODE: Final = "UEFI"

# A log-in that gets these means "no sessions here": basic auth is used.
NO_SESSIONS: Final = frozenset({404, 405, 501})
SESSION_LIMIT: Final = re.compile(r"SessionLimitExceeded|sessions?\b.*\b(?:limit|maximum|exceeded|too many)|"
                                  r"(?:limit|maximum|too many)\b.*\bsessions?", re.IGNORECASE)  # fmt: skip
# iLO 4 says 400 to a wrong password.
LOGIN_REFUSED: Final = re.compile(
    r"UnauthorizedLoginAttempt|ResourceAtUriUnauthorized|InvalidCredentials|AccountLocked|NoValidSession", re.IGNORECASE
)

# A refusal that may mean "it is so already": iDRAC PSU501 (409), iLO InvalidOperationForSystemState (400), Base
# NoOperation. A reading decides, as some send the same id for "not now".
ALREADY: Final = re.compile(r"\balready\b|NoOperation|InvalidOperationForSystemState|PSU501", re.IGNORECASE)
ALREADY_STATUS: Final = frozenset({400, 409})

# A 400 or a failed task with one of these passes by itself.
PASSING: Final = re.compile(
    r"ServiceTemporarilyUnavailable|ServiceShuttingDown|ServiceInUnknownState|ResourceInUse|ResourceInStandby|"
    r"ResourceNotReady|CouldNotEstablishConnection",
    re.IGNORECASE,
)
# A task that failed with one of these fails again.
LASTING: Final = re.compile(
    r"ActionNotSupported|ActionParameter(?:NotSupported|ValueNotInList|ValueTypeError|Unknown|Missing)|"
    r"PropertyValueNotInList|InsufficientPrivilege|LicenseRequired|NotSupported",
    re.IGNORECASE,
)

TASK_RUNNING: Final = frozenset(
    {"New", "Starting", "Running", "Suspended", "Interrupted", "Pending", "Stopping", "Cancelling", "Service"}
)
TASK_DONE: Final = "Completed"
