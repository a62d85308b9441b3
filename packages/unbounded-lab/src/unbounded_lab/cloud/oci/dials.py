"""The dials of a simulated Oracle cloud, beyond those that every cloud has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from unbounded_lab.cloud import misbehaviours as shared

MOST_ON_A_PAGE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class OciDials(shared.CloudDials):
    """All dials. Counts are of the named events, from the moment they are set, or FOR_EVER; `_s` is seconds."""

    # Launching
    shape_limit: int | None = None  # maximum number of instances of a shape; LimitExceeded above it
    lost_launches: int = 0  # accepted, and TERMINATED in place of RUNNING: there is no host
    launch_never_ends: bool = False  # PROVISIONING for ever
    vnic_late_s: float = 0.5  # time for which a new instance has no VNIC
    retry_token_s: float = 24 * 3600.0  # lifetime of a retry token

    # Power
    deaf_actions: int = 0  # answered with success, not executed
    images_first: int = 0  # power actions that find an image of the instance in progress
    moves_first: int = 0  # power actions that find a move of the instance in progress
    already: Literal["refused", "accepted"] = "refused"  # a power action into the state that the instance has already
    reset_shown: Literal["transitions", "running"] = "transitions"  # the shown state during RESET
    reset_s: float | None = None  # duration of a RESET; None: that of a stop and a start
    os_ignores_shutdown: bool = False  # SOFTSTOP and SOFTRESET take until the power is cut
    stop_never_ends: bool = False  # STOPPING for ever, or until it is terminated
    failing_starts: int = 0  # STARTING, and then STOPPED again
    busy_s: float = 0.0  # time after a change of an instance for which others are refused with Conflict

    # Terminating
    terminate: Literal["works", "stuck", "leaves-boot-volume", "leaves-vnic"] = "works"
    terminated_shown: bool = True  # TERMINATED instances are shown for a while; False: 404 at once

    # Lists
    page_size: int = MOST_ON_A_PAGE  # maximum size of a page, despite a larger limit in the request

    # Work requests
    work_requests: Literal["shown", "vanish"] = "shown"
    # work requests of power actions: `listed` shows them in lists, `told` also in replies
    action_work: Literal["none", "listed", "told"] = "none"
    work_again_s: float | None = None  # Retry-After of a work request

    # Login
    clock_ahead_s: float = 0.0  # the service's clock, relative to the dates of signed requests
    key_revoked: bool = False


IDEAL: Final = OciDials()

COUNTS: Final = frozenset({"lost_launches", "deaf_actions", "failing_starts", "images_first", "moves_first"})
