"""Faults of a simulated Oracle cloud, and its misbehaviours, beside those that every cloud has.

`owner/repository#number` is a thread on GitHub where a misbehaviour was seen. Without one, the docstring names the
source.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from unbounded_lab.cloud import misbehaviours as shared
from unbounded_lab.cloud.misbehaviours import COMMON, Misbehaviours

MOST_ON_A_PAGE: Final = 1000
LAUNCH: Final = ("LaunchInstance",)
WRITES: Final = ("LaunchInstance", "InstanceAction", "TerminateInstance", "UpdateInstance")


@dataclass(frozen=True, slots=True, kw_only=True)
class OciFaults(shared.CloudFaults):
    """All faults. Counts are of the named events, from the moment they are set, or FOR_EVER; `_s` is seconds."""

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


IDEAL: Final = OciFaults()

COUNTS: Final = frozenset({"lost_launches", "deaf_actions", "failing_starts", "images_first", "moves_first"})


# Launching


def out_of_host_capacity(faults: OciFaults) -> OciFaults:
    """The next two launches are refused: 500 InternalError, "Out of host capacity.".

    jpetazzo/ampernetacle#54, oracle-devrel/leagueoflegends-optimizer#34.
    """
    return replace(faults, only=LAUNCH, errors=("InternalErrorOutOfHostCapacity",) * 2)


def out_of_host_capacity_by_its_code(faults: OciFaults) -> OciFaults:
    """The next two launches are refused: 500 OutOfHostCapacity.

    The code that Oracle's table of API errors has for it.
    """
    return replace(faults, only=LAUNCH, errors=("OutOfHostCapacity",) * 2)


def capacity_is_missing_later(faults: OciFaults) -> OciFaults:
    """The next launch is accepted, and its instance TERMINATED when it should be RUNNING; its work request FAILED.

    No thread names this one; it is how work requests report what a launch only finds out later.
    """
    return replace(faults, lost_launches=1)


def over_the_limit(faults: OciFaults) -> OciFaults:
    """The next launch is refused: 400 LimitExceeded.

    mohankumarpaluru/oracle-freetier-instance-creation#15 (without an instance that would have used the limit).
    """
    return replace(faults, only=LAUNCH, errors=("LimitExceeded",))


def over_the_quota(faults: OciFaults) -> OciFaults:
    """The next launch is refused: 400 QuotaExceeded.

    Oracle's table of API errors.
    """
    return replace(faults, only=LAUNCH, errors=("QuotaExceeded",))


def launch_is_invalid(faults: OciFaults) -> OciFaults:
    """The next launch is refused: 400 InvalidParameter.

    Oracle's table of API errors. What the service refuses of a launch by itself, it refuses at any time.
    """
    return replace(faults, only=LAUNCH, errors=("InvalidParameter",))


def launch_lacks_a_parameter(faults: OciFaults) -> OciFaults:
    """The next launch is refused: 400 MissingParameter.

    Oracle's table of API errors.
    """
    return replace(faults, only=LAUNCH, errors=("MissingParameter",))


def launch_names_what_is_not_there(faults: OciFaults) -> OciFaults:
    """The next launch is refused: 400 RelatedResourceNotAuthorizedOrNotFound.

    Oracle's table of API errors: the policy does not allow something that the request's body names, or it is gone.
    """
    return replace(faults, only=LAUNCH, errors=("RelatedResourceNotAuthorizedOrNotFound",))


def launch_never_ends(faults: OciFaults) -> OciFaults:
    """A new instance stays PROVISIONING.

    No thread names this one; every wait has to have an end.
    """
    return replace(faults, launch_never_ends=True)


def vnic_comes_late(faults: OciFaults) -> OciFaults:
    """A new instance has no VNIC attachment for 30 s, while it is RUNNING already.

    No thread names this one; VNIC and instance are resources of two services.
    """
    return replace(faults, vnic_late_s=30.0)


def retry_tokens_are_forgotten(faults: OciFaults) -> OciFaults:
    """A retry token is forgotten at once: the same launch twice makes two instances.

    The token of a real launch ends after 24 hours, or with what it made.
    """
    return replace(faults, retry_token_s=0.0)


def retry_tokens_are_invalidated(faults: OciFaults) -> OciFaults:
    """The next launch is refused: 409 InvalidatedRetryToken.

    Oracle's table of API errors: what was made with the token has changed since.
    """
    return replace(faults, only=LAUNCH, errors=("InvalidatedRetryToken",))


# Power


def ignores_actions(faults: OciFaults) -> OciFaults:
    """The next two power actions are answered with success and not carried out.

    No thread names this one; BMCs do it, and what is not observed is not known.
    """
    return replace(faults, deaf_actions=2)


def is_imaged_first(faults: OciFaults) -> OciFaults:
    """The next power action finds an image being made: 409 IncorrectState, CREATING_IMAGE for 60 s, then as before.

    The documentation of CreateImage: an instance is shut down while its image is made.
    """
    return replace(faults, images_first=1)


def is_moved_first(faults: OciFaults) -> OciFaults:
    """The next power action finds the instance being moved: 409 IncorrectState, MOVING for 30 s, then as before.

    No thread names this one; MOVING is one of the states that the documentation lists.
    """
    return replace(faults, moves_first=1)


def hides_resets(faults: OciFaults) -> OciFaults:
    """An instance is shown RUNNING all through a RESET.

    No thread names this one; a client that waits for RUNNING must not take this for the end.
    """
    return replace(faults, reset_shown="running")


def resets_at_once(faults: OciFaults) -> OciFaults:
    """A RESET is over as soon as it is answered; the answer still shows the instance STOPPING.

    No thread names this one; a client that polls rarely sees no more of a fast RESET either.
    """
    return replace(faults, reset_s=0.0)


def resets_unseen(faults: OciFaults) -> OciFaults:
    """A RESET is over as soon as it is answered, and no state shows it; it has a work request, which a list shows.

    No thread names this one. The reference does not mention work requests of power actions.
    """
    return replace(faults, reset_s=0.0, reset_shown="running", action_work="listed")


def actions_have_work_requests(faults: OciFaults) -> OciFaults:
    """A power action has a work request, which its answer names; Retry-After requires 5 s between two reads of it.

    Other answers of Compute have the header, and the reference of GetWorkRequest names Retry-After.
    """
    return replace(faults, action_work="told", work_again_s=5.0)


def accepts_what_is_so_already(faults: OciFaults) -> OciFaults:
    """A power action into the state that the instance is in is answered with success, not with 409.

    Which of both is answered is not documented.
    """
    return replace(faults, already="accepted")


def os_ignores_shutdown(faults: OciFaults) -> OciFaults:
    """SOFTSTOP and SOFTRESET take 15 minutes: the operating system does not listen.

    The documentation of InstanceAction.
    """
    return replace(faults, os_ignores_shutdown=True)


def stop_never_ends(faults: OciFaults) -> OciFaults:
    """A stopped instance stays STOPPING.

    No thread names this one; every wait has to have an end.
    """
    return replace(faults, stop_never_ends=True)


def starts_fail(faults: OciFaults) -> OciFaults:
    """The next two starts end in STOPPED again, a start after a RESET included.

    No thread names this one; a stopped instance has given its host away.
    """
    return replace(faults, failing_starts=2)


def busy_after_changes(faults: OciFaults) -> OciFaults:
    """For 10 s after a change of an instance others are refused: 409 Conflict, "currently being modified".

    oracle/terraform-provider-oci#1282.
    """
    return replace(faults, busy_s=10.0)


def conflicts(faults: OciFaults) -> OciFaults:
    """The next two changes are refused with 409 IncorrectState.

    Oracle's table of API errors allows a retry; the SDK's own retries do so.
    """
    return replace(faults, only=WRITES, errors=("IncorrectState",) * 2)


# Terminating


def terminate_gets_stuck(faults: OciFaults) -> OciFaults:
    """A terminated instance stays TERMINATING.

    No thread names this one; oracle/terraform-provider-oci#663 reports VNIC attachments that stay DETACHING.
    """
    return replace(faults, terminate="stuck")


def terminate_leaves_the_boot_volume(faults: OciFaults) -> OciFaults:
    """An instance is TERMINATED and its boot volume is still there, with no attachment.

    No thread names this one; it is a delete that is done by half.
    """
    return replace(faults, terminate="leaves-boot-volume")


def terminate_leaves_the_vnic(faults: OciFaults) -> OciFaults:
    """An instance is TERMINATED and its VNIC is still there, and keeps its address.

    No thread names this one; it is a delete that is done by half.
    """
    return replace(faults, terminate="leaves-vnic")


def terminated_is_gone_at_once(faults: OciFaults) -> OciFaults:
    """A TERMINATED instance is not shown any more: 404.

    The documentation promises 12 hours, and nothing after them.
    """
    return replace(faults, terminated_shown=False)


def work_requests_vanish(faults: OciFaults) -> OciFaults:
    """A work request is gone (404) when it has ended.

    No thread names this one; the documentation keeps them for 12 hours.
    """
    return replace(faults, work_requests="vanish")


# Access and throttling


def bad_gateway(faults: OciFaults) -> OciFaults:
    """The next two changes are answered with 502 and not carried out.

    turbot/steampipe-plugin-oci#652.
    """
    return replace(faults, only=WRITES, errors=("BadGateway",) * 2)


def gateway_times_out(faults: OciFaults) -> OciFaults:
    """The next two changes are carried out and answered with 504.

    No thread names this one; a gateway does not know what becomes of what it has passed on.
    """
    return replace(faults, of="changes", errors=("GatewayTimeout",) * 2, errors_after=True)


def throttles_the_tenancy(faults: OciFaults) -> OciFaults:
    """The next five requests are refused with 429 "for the tenant", without Retry-After, as for users.

    ManageIQ/manageiq#22936; zoom/karpenter-oci#52 shows that there is no Retry-After.
    """
    return replace(faults, errors=("TooManyRequestsOfTenant",) * 5, retry_after_s=None)


def key_is_revoked(faults: OciFaults) -> OciFaults:
    """The API key is not known any more: 401.

    Oracle's table of API errors.
    """
    return replace(faults, key_revoked=True)


def clock_is_ahead(faults: OciFaults) -> OciFaults:
    """The service's clock is ten minutes ahead: each signature is too old for it, 401.

    The documentation of request signatures allows five minutes.
    """
    return replace(faults, clock_ahead_s=600.0)


def no_permission(faults: OciFaults) -> OciFaults:
    """Changes are answered with 404 NotAuthorizedOrNotFound, as if the instance were not there.

    oracle/oci-python-sdk#430: a policy is missing, and the answer is the same as for a missing resource.
    """
    return replace(faults, only=WRITES, errors=("NotAuthorizedOrNotFound",), errors_go_on=True)


def forbidden(faults: OciFaults) -> OciFaults:
    """Changes are answered with 403 NotAuthorized.

    Oracle's table of API errors.
    """
    return replace(faults, only=WRITES, errors=("NotAuthorized",), errors_go_on=True)


def no_permission_to_look(faults: OciFaults) -> OciFaults:
    """Instances are answered with 404 NotAuthorizedOrNotFound, as if they were not there; lists are shown.

    oracle/oci-python-sdk#430: as for changes.
    """
    return _not_found_for(faults, "GetInstance")


def no_permission_for_networks(faults: OciFaults) -> OciFaults:
    """VNICs and subnets are answered with 404 NotAuthorizedOrNotFound, as if they were not there.

    oracle/oci-python-sdk#430; the network has policies of its own.
    """
    return _not_found_for(faults, "GetVnic", "GetSubnet")


def no_permission_for_volumes(faults: OciFaults) -> OciFaults:
    """Boot volumes are answered with 404 NotAuthorizedOrNotFound, as if they were not there.

    oracle/oci-python-sdk#430; volumes have policies of their own.
    """
    return _not_found_for(faults, "GetBootVolume")


def _not_found_for(faults: OciFaults, *calls: str) -> OciFaults:
    return replace(faults, only=calls, errors=("NotAuthorizedOrNotFound",), errors_go_on=True)


TABLE: Final = Misbehaviours(
    IDEAL,
    (
        *COMMON,
        out_of_host_capacity,
        out_of_host_capacity_by_its_code,
        capacity_is_missing_later,
        over_the_limit,
        over_the_quota,
        launch_is_invalid,
        launch_lacks_a_parameter,
        launch_names_what_is_not_there,
        launch_never_ends,
        vnic_comes_late,
        retry_tokens_are_forgotten,
        retry_tokens_are_invalidated,
        ignores_actions,
        is_imaged_first,
        is_moved_first,
        hides_resets,
        resets_at_once,
        resets_unseen,
        actions_have_work_requests,
        accepts_what_is_so_already,
        os_ignores_shutdown,
        stop_never_ends,
        starts_fail,
        busy_after_changes,
        conflicts,
        terminate_gets_stuck,
        terminate_leaves_the_boot_volume,
        terminate_leaves_the_vnic,
        terminated_is_gone_at_once,
        work_requests_vanish,
        bad_gateway,
        gateway_times_out,
        throttles_the_tenancy,
        key_is_revoked,
        clock_is_ahead,
        no_permission,
        forbidden,
        no_permission_to_look,
        no_permission_for_networks,
        no_permission_for_volumes,
    ),
)
