"""Faults of a simulated BMC: every deviation from good behaviour.

The defaults are a BMC without faults. Several faults can be set together, also while the BMC runs. `misbehaviours/`
names the combinations that occur in the field.
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
class BmcFaults:
    """All faults of one BMC. Counts are of requests from the moment they are set, or FOR_EVER; `_s` is seconds."""

    # The host
    ignores_shutdown: bool = False
    ignores_override: bool = False  # the firmware boots from disk despite the BMC's override
    comes_back_s: float | None = None
    power_restore: Literal["AlwaysOn", "AlwaysOff", "LastState"] = "AlwaysOff"

    # A host that boots
    disk_bytes: int | None = None  # size of its disks, where the BMC reports another one
    lost_nics: int = 0  # NICs that the BMC reports and the installer does not find, from the last on
    second_client: bool = False  # another client takes part in each boot of the installer
    never_joins: bool = False  # the agent of the installed system does not start

    # Reported power
    power_lie_s: float = 0.0  # time for which it shows the state from before an action
    power_cache_s: float = 0.0  # maximum age of the shown state
    transitions: Literal["named", "hidden", "null", "unknown", "starting", "absent"] = "named"
    empty_in_transition: bool = False  # the system is an empty body while its power changes

    # Reset
    deaf_resets: int = 0  # answered with success, not executed
    failing_resets: int = 0  # answered with 500, not executed
    already_status: int = 204  # the answer to a reset into the state that the host is in
    reset_types: tuple[str, ...] = RESET_TYPES
    reset_types_shown: Literal["both", "inline", "action-info", "nowhere"] = "both"
    reset_task: Literal["none", "succeeds", "fails", "vanishes"] = "none"
    task_s: float = 5.0

    # Firmware
    firmware_update: Literal["works", "same-version", "vanishes", "absent"] = "works"
    update_protocols: tuple[str, ...] | None = ("HTTP", "HTTPS")
    update_s: float = 60.0

    # The BMC itself
    manager_reset: Literal["restarts", "ignored", "absent"] = "restarts"  # ignored: answered with success
    last_reset_shown: bool = True

    # Boot override
    override: Literal["kept", "dropped", "refused", "continuous", "fails-when-off"] = "kept"
    boot_targets: tuple[str, ...] = BOOT_TARGETS
    override_mode_reverts: bool = False  # to Legacy, in a PATCH that does not name the mode

    # Virtual media
    media: Literal["system", "manager", "absent"] = "system"  # the place of the CD drive
    media_refused: Literal["nothing", "plain", "without-fields"] = "nothing"  # insertions that are answered with 400
    media_shown_after_s: float = 0.0  # an insertion is shown so much later
    media_shows: Literal["url", "name", "nothing"] = "url"  # of an image that is inserted
    media_lost_at_reset: bool = False  # a reset of the host ejects the image
    second_ejection: Literal["accepted", "refused"] = "accepted"

    # Sessions and accounts
    session_service: Literal["works", "absent", "refuses"] = "works"
    session_limit: int = 32
    leaked_sessions: int = 0  # sessions of others that are never closed
    session_timeout_s: float = 1800.0
    session_requests: int | None = None  # a session ends after this many requests
    lockout_after: int = 0  # wrong passwords; 0: never
    lockout_s: float = 300.0
    password_expired: bool = False
    rotation: Literal["works", "refused", "ignored", "action", "absent"] = "works"
    # refused: by the BMC's rules; ignored: answered with success; action: by ChangePassword only, with the old password
    rotation_after_s: float = 0.0  # a change takes effect so much later
    password_lengths: tuple[int, int] | None = None  # the shown limits
    rotation_ends_sessions: bool = False

    # ETags
    etags: Literal["strong", "weak", "none", "double-quoted"] = "strong"
    if_match_on_patch: Literal["optional", "required", "refused"] = "optional"
    if_match_on_post: Literal["optional", "refused"] = "optional"

    # HTTP and below
    stalls: int = 0
    stall_s: float = 30.0
    stall_then: Literal["acted-before", "acts-after"] = "acted-before"
    slow_s: tuple[float, float] = (0.0, 0.0)  # each reply takes a time between these two
    lost_before: int = 0  # changing requests: the connection is closed before the change
    lost_after: int = 0  # changing requests: the connection is closed after the change
    truncated: int = 0  # reads that end in the middle of the JSON
    cut_off: int = 0  # reads whose connection ends in the middle of the body
    doubled: int = 0  # reads with an error document before the resource
    content_type: str = "application/json; charset=utf-8"
    closes: bool = False  # the connection, after each reply
    unavailable_s: float = 0.0  # 503 for this time, from the moment it is set
    restart_s: float = 3.0  # 503 for this time after a reset of the BMC itself, or when the mains are back
    restart_gone_s: float = 2.0  # no listener for this part of it, after a reset
    busy_above_per_s: float | None = None  # 503 for more requests a second than this
    refused_s: float = 0.0  # no listener for this time, from the moment it is set; FOR_EVER
    flaps_s: tuple[float, float] | None = None  # times with and without a listener, in turns
    plain_http: Literal["closed", "redirects", "serves"] = "closed"
    certificate: int = 0  # each number is a different certificate

    # Events
    event_service: Literal["absent", "works", "mute"] = "absent"  # mute: the stream opens and stays empty
    event_delay_s: float = 0.0  # from a change to its event
    event_copies: int = 1
    event_reversed_s: float = 0.0  # events of so long are sent at its end, the newest first; 0: in their order
    event_stream_s: float | None = None  # the BMC closes a stream after this time
    event_streams: int = 8  # the limit on open streams; another one is answered with 503
    event_origin: Literal["link", "text", "absent"] = "link"  # the form of OriginOfCondition
    event_lines: Literal["one", "many"] = "one"  # lines of an event's data

    # Serial console
    console: Literal["absent", "disabled", "websocket", "ssh", "both"] = "absent"
    console_output: Literal["echo", "flood", "silent", "hangs"] = "echo"
    # hangs: a request for a web socket gets no answer
    console_drops_after: int | None = None  # the BMC closes a console after this many bytes of input
    console_sessions: int = 1  # of each system, at once
    console_denied: bool = False  # the account has no right to consoles
    console_host_key: int = 0  # generation of the SSH host key

    # Names
    systems: tuple[str, ...] = ("1",)
    slashes: Literal["either", "redirected"] = "either"  # redirected: a path without a slash at its end


IDEAL: Final = BmcFaults()

COUNTS: Final = frozenset(
    {"deaf_resets", "failing_resets", "stalls", "lost_before", "lost_after", "truncated", "cut_off", "doubled"}
)
