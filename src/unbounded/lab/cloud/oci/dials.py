"""The dials of a simulated Oracle cloud, beyond those that every cloud has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from unbounded.lab.cloud import dials as shared

MOST_ON_A_PAGE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Dials(shared.Dials):
    """All dials. Counts are of what they name, from the moment they are set, or FOR_EVER; `_s` is seconds."""

    # Launching
    shape_limit: int | None = None  # so many instances of a shape; LimitExceeded for more
    lost_launches: int = 0  # accepted, and TERMINATED when they should be RUNNING: there is no host
    launch_never_ends: bool = False  # PROVISIONING for good
    vnic_late_s: float = 0.5  # how long a new instance has no VNIC
    retry_token_s: float = 24 * 3600.0  # how long a retry token is known

    # Power
    deaf_actions: int = 0  # answered with success, not carried out
    images_first: int = 0  # power actions that come just after somebody has begun an image of the instance
    moves_first: int = 0  # power actions that come just after somebody has begun to move the instance
    already: Literal["refused", "accepted"] = "refused"  # a power action into the state that the instance is in
    reset_shown: Literal["transitions", "running"] = "transitions"  # the state that is shown during RESET
    reset_s: float | None = None  # how long a RESET takes; None: as long as a stop and a start
    os_ignores_shutdown: bool = False  # SOFTSTOP and SOFTRESET take until the power is taken away
    stop_never_ends: bool = False  # STOPPING for good, or until it is terminated
    failing_starts: int = 0  # STARTING, and then STOPPED again
    busy_s: float = 0.0  # so long after a change of an instance others are refused with Conflict

    # Terminating
    terminate: Literal["works", "stuck", "leaves-boot-volume", "leaves-vnic"] = "works"
    terminated_shown: bool = True  # TERMINATED instances are shown for a time; False: 404 at once

    # Lists
    page_size: int = MOST_ON_A_PAGE  # no page has more, whatever is asked for

    # Work requests
    work_requests: Literal["shown", "vanish"] = "shown"
    action_work: Literal["none", "listed", "told"] = "none"  # of power actions: there are such, answers name them too
    work_again_s: float | None = None  # when one is to be asked for again

    # Login
    clock_ahead_s: float = 0.0  # the service's clock, against the dates that requests are signed with
    key_revoked: bool = False


IDEAL: Final = Dials()

COUNTS: Final = frozenset({"lost_launches", "deaf_actions", "failing_starts", "images_first", "moves_first"})
