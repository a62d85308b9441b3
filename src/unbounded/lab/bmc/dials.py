"""The dials of a simulated BMC: every way in which it can be turned away from good behaviour.

The defaults are a BMC without faults. Several dials can be turned at once and while the BMC runs. `misbehaviours/`
names the settings that were seen in the field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

RESET_TYPES: Final = (
    "On",
    "ForceOn",
    "ForceOff",
    "GracefulShutdown",
    "GracefulRestart",
    "ForceRestart",
    "PowerCycle",
    "PushPowerButton",
)

BOOT_TARGETS: Final = ("None", "Pxe", "Hdd", "Cd", "Usb", "BiosSetup", "UefiHttp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dials:
    """All dials of one BMC. Counts are of requests from the moment they are set, or FOR_EVER; `_s` is seconds."""

    # The host
    ignores_shutdown: bool = False
    ignores_override: bool = False  # the firmware boots from disk, whatever the BMC was told
    comes_back_s: float | None = None
    power_restore: Literal["AlwaysOn", "AlwaysOff", "LastState"] = "AlwaysOff"

    # What the BMC says of the power
    power_lie_s: float = 0.0  # how long it shows the state from before an action
    power_cache_s: float = 0.0  # how old the shown state may be
    transitions: Literal["named", "hidden", "null", "unknown", "starting", "absent"] = "named"
    empty_in_transition: bool = False  # the system is an empty body while its power changes

    # Reset
    deaf_resets: int = 0  # answered with success, not carried out
    failing_resets: int = 0  # answered with 500, not carried out
    already_status: int = 204  # the answer to a reset into the state that the host is in
    reset_types: tuple[str, ...] = RESET_TYPES
    reset_types_shown: Literal["both", "inline", "action-info", "nowhere"] = "both"
    reset_task: Literal["none", "succeeds", "fails", "vanishes"] = "none"
    task_s: float = 5.0

    # Boot override
    override: Literal["kept", "dropped", "refused", "continuous", "fails-when-off"] = "kept"
    boot_targets: tuple[str, ...] = BOOT_TARGETS
    override_mode_reverts: bool = False  # to Legacy, in a PATCH that does not name the mode

    # Sessions and accounts
    session_service: Literal["works", "absent", "refuses"] = "works"
    session_limit: int = 32
    leaked_sessions: int = 0  # places taken by sessions that nobody closes
    session_timeout_s: float = 1800.0
    session_requests: int | None = None  # a session is gone after so many requests
    lockout_after: int = 0  # wrong passwords; 0: never
    lockout_s: float = 300.0
    password_expired: bool = False

    # ETags
    etags: Literal["strong", "weak", "none", "double-quoted"] = "strong"
    if_match_on_patch: Literal["optional", "required", "refused"] = "optional"
    if_match_on_post: Literal["optional", "refused"] = "optional"

    # HTTP and below
    stalls: int = 0
    stall_s: float = 30.0
    stall_then: Literal["acted-before", "acts-after"] = "acted-before"
    slow_s: tuple[float, float] = (0.0, 0.0)  # each answer takes a time between these two
    lost_before: int = 0  # changing requests: the connection is closed and nothing was done
    lost_after: int = 0  # changing requests: it was done, then the connection is closed
    truncated: int = 0  # reads that end in the middle of the JSON
    cut_off: int = 0  # reads whose connection ends in the middle of the body
    doubled: int = 0  # reads that hold an error document and then the resource
    content_type: str = "application/json; charset=utf-8"
    closes: bool = False  # the connection, after each answer
    unavailable_s: float = 0.0  # 503 for so long, from the moment it was set
    restart_s: float = 3.0  # 503 for so long after a reset of the BMC itself, or when the mains come back
    busy_above_per_s: float | None = None  # 503 for more requests a second than this
    refused_s: float = 0.0  # no listener for so long, from the moment it was set; FOR_EVER
    flaps_s: tuple[float, float] | None = None  # listens so long, then does not for so long
    plain_http: Literal["closed", "redirects", "serves"] = "closed"
    certificate: int = 0  # another number is another certificate

    # Names
    systems: tuple[str, ...] = ("1",)
    slashes: Literal["either", "redirected"] = "either"  # redirected: a path without a slash at its end


IDEAL: Final = Dials()

COUNTS: Final = frozenset(
    {"deaf_resets", "failing_resets", "stalls", "lost_before", "lost_after", "truncated", "cut_off", "doubled"}
)
