"""The dials of a simulated Azure, and its misbehaviours, each as settings of dials.

The shared table has those of any cloud.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from unbounded_lab.cloud import misbehaviours as shared
from unbounded_lab.cloud.misbehaviours import COMMON, Misbehaviours


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureDials(shared.CloudDials):
    """Dials of an Azure. `_s` is seconds.

    Args:
        operation_errors: names from the table of errors; each of the next accepted operations ends with one.
        operation_errors_after: the operation is executed all the same.
        hanging: names of calls whose operations do not end as long as they are listed here; `*` stands for any letters.
    """

    older_apis: bool = False  # Compute serves older versions than the SDK's

    # Operations
    operation_errors: tuple[str, ...] = ()
    operation_errors_for: tuple[str, ...] = ("*",)  # names of the calls whose operations these errors apply to
    operation_errors_after: bool = False
    hanging: tuple[str, ...] = ()
    operations_forgotten: bool = False  # their status is answered with 404
    poll_hints: bool = True  # Retry-After for accepted and running operations
    concurrent: Literal["refused", "preempts"] = "refused"  # a change of a VM during another one

    # Creating
    failed_create_leaves: Literal["machine-and-disk", "machine", "nothing"] = "machine-and-disk"
    disk_conflicts: Literal["refused", "fail-later"] = "refused"  # an OS disk of that name exists
    cores_quota: int | None = None  # in a subscription, including deallocated VMs
    sizes_not_available: tuple[str, ...] = ()  # SkuNotAvailable for a request of one of these
    sizes_out_of_capacity: tuple[str, ...] = ()  # accepted, and AllocationFailed at the end, on create and start
    terms_accepted: bool = True  # of marketplace plans

    images_withdrawn: tuple[str, ...] = ()  # "publisher:offer:sku:version", for creations and for reads of images
    images_deprecated: tuple[str, ...] = ()  # likewise; `*` stands for any letters

    policy_refuses: bool = False  # every creation, with 403

    # Deleting
    locked: tuple[str, ...] = ()  # names of VMs, disks and NICs with a lock, which are not deleted
    delete_leaves: tuple[Literal["disks", "nics"], ...] = ()  # resources that survive their VM despite deleteOption

    # Lists
    page_size: int = 100  # items in a reply, before a link to the next

    # Login
    token_lifetime_s: float = 3600.0


IDEAL: Final = AzureDials()


# Operations


def operation_fails(dials: AzureDials) -> AzureDials:
    """The next operation that is accepted ends with InternalExecutionError; nothing was done."""
    return replace(dials, operation_errors=("InternalExecutionError",))


def operation_fails_after_acting(dials: AzureDials) -> AzureDials:
    """The next operation that is accepted is carried out, and ends with InternalExecutionError."""
    return replace(dials, operation_errors=("InternalExecutionError",), operation_errors_after=True)


def operation_status_vanishes(dials: AzureDials) -> AzureDials:
    """Operations are carried out; their status is answered with 404."""
    return replace(dials, operations_forgotten=True)


def no_polling_hints(dials: AzureDials) -> AzureDials:
    """Replies have no Retry-After for the status of an operation."""
    return replace(dials, poll_hints=False)


def operation_preempted(dials: AzureDials) -> AzureDials:
    """A change of a VM ends the one in progress with OperationPreempted, instead of being refused."""
    return replace(dials, concurrent="preempts")


def another_operation_is_running(dials: AzureDials) -> AzureDials:
    """The next three changes are refused with 409: they conflict with another request."""
    return replace(dials, of="changes", errors=(*dials.errors, *("Conflict",) * 3))


# Gateways and subscriptions


def gateway_unconnected(dials: AzureDials) -> AzureDials:
    """The next three requests are answered with 502: Resource Manager did not reach Compute."""
    return replace(dials, errors=(*dials.errors, *("BadGatewayConnection",) * 3))


def gateway_times_out(dials: AzureDials) -> AzureDials:
    """The next two changes are carried out, and answered with 504."""
    return replace(dials, of="changes", errors=("GatewayTimeout",) * 2, errors_after=True)


def subscription_disabled(dials: AzureDials) -> AzureDials:
    """Changes are refused with 409: the subscription is disabled, and can only be read."""
    return replace(dials, of="changes", errors=("ReadOnlyDisabledSubscription",), errors_go_on=True)


def subscription_not_registered(dials: AzureDials) -> AzureDials:
    """Changes are refused with 409: the subscription is not registered to use Compute."""
    return replace(dials, of="changes", errors=("MissingSubscriptionRegistration",), errors_go_on=True)


def older_apis(dials: AzureDials) -> AzureDials:
    """Every request to Compute is refused with 400: the cloud does not serve the SDK's version yet."""
    return replace(dials, older_apis=True)


# Power


def stop_never_ends(dials: AzureDials) -> AzureDials:
    """A VM that is powered off or deallocated never leaves stopping."""
    return replace(dials, hanging=(*dials.hanging, "VirtualMachines.PowerOff", "VirtualMachines.Deallocate"))


def restart_never_ends(dials: AzureDials) -> AzureDials:
    """A restart is accepted and never ends."""
    return replace(dials, hanging=(*dials.hanging, "VirtualMachines.Restart"))


# Deleting


def delete_gets_stuck(dials: AzureDials) -> AzureDials:
    """A VM that is deleted never leaves Deleting."""
    return replace(dials, hanging=(*dials.hanging, "VirtualMachines.Delete"))


def delete_fails_midway(dials: AzureDials) -> AzureDials:
    """The next deletion of a VM fails: its host is gone, and the VM accepts nothing but another deletion."""
    return replace(
        dials, operation_errors=("InternalExecutionError",), operation_errors_for=("VirtualMachines.Delete",)
    )


def delete_leaves_disks(dials: AzureDials) -> AzureDials:
    """Disks that should be deleted with their VM are left behind."""
    return replace(dials, delete_leaves=(*dials.delete_leaves, "disks"))


def delete_leaves_nics(dials: AzureDials) -> AzureDials:
    """Network interfaces that should be deleted with their VM are left behind."""
    return replace(dials, delete_leaves=(*dials.delete_leaves, "nics"))


# Creating


def create_never_ends(dials: AzureDials) -> AzureDials:
    """A VM that is created never leaves Creating."""
    return replace(dials, hanging=(*dials.hanging, "VirtualMachines.CreateOrUpdate"))


def create_fails_after_accepting(dials: AzureDials) -> AzureDials:
    """The next creation is accepted and ends with AllocationFailed: a VM without a host, with its OS disk, is left."""
    return replace(
        dials, operation_errors=("AllocationFailed",), operation_errors_for=("VirtualMachines.CreateOrUpdate",)
    )


def create_fails_and_is_gone(dials: AzureDials) -> AzureDials:
    """The next creation is accepted and ends with AllocationFailed: no VM is left, and no OS disk."""
    return replace(create_fails_after_accepting(dials), failed_create_leaves="nothing")


def zone_is_full(dials: AzureDials) -> AzureDials:
    """The next creation is accepted and ends with OverconstrainedZonalAllocationRequest, as AllocationFailed does."""
    return replace(create_fails_after_accepting(dials), operation_errors=("OverconstrainedZonalAllocationRequest",))


def image_deprecated(dials: AzureDials) -> AzureDials:
    """All versions of all images are deprecated: creations are refused with 404, and so are reads of images."""
    return replace(dials, images_deprecated=("*",))


def provisioning_times_out(dials: AzureDials) -> AzureDials:
    """The next creation ends with OSProvisioningTimedOut: the VM runs, and is shown as one that failed."""
    return replace(
        dials,
        operation_errors=("OSProvisioningTimedOut",),
        operation_errors_for=("VirtualMachines.CreateOrUpdate",),
        operation_errors_after=True,
    )


def disk_name_taken_is_found_later(dials: AzureDials) -> AzureDials:
    """A VM whose OS disk's name is taken is accepted, and its creation fails (ConflictingUserInput)."""
    return replace(dials, disk_conflicts="fail-later")


def size_not_available(dials: AzureDials) -> AzureDials:
    """The next creation is refused with SkuNotAvailable."""
    return _creation_refused(dials, "SkuNotAvailable")


def quota_exceeded(dials: AzureDials) -> AzureDials:
    """The next creation is refused: it would exceed the quota of cores."""
    return _creation_refused(dials, "QuotaExceeded")


def terms_not_accepted(dials: AzureDials) -> AzureDials:
    """Images with a purchase plan are refused: its terms are not accepted."""
    return replace(dials, terms_accepted=False)


def policy_refuses_creations(dials: AzureDials) -> AzureDials:
    """Every creation is refused with 403: a policy forbids it. Existing VMs continue until they are deleted."""
    return replace(dials, policy_refuses=True)


def _creation_refused(dials: AzureDials, error: str) -> AzureDials:
    return replace(dials, only=("VirtualMachines.CreateOrUpdate",), errors=(*dials.errors, error))


# Lists


def long_lists(dials: AzureDials) -> AzureDials:
    """Lists come two things at a time."""
    return replace(dials, page_size=2)


# Authentication


def short_tokens(dials: AzureDials) -> AzureDials:
    """Tokens are valid for 5 s."""
    return replace(dials, token_lifetime_s=5.0)


def token_refused(dials: AzureDials) -> AzureDials:
    """The next request's token is refused with 401."""
    return replace(dials, errors=(*dials.errors, "InvalidAuthenticationToken"))


def not_authorized(dials: AzureDials) -> AzureDials:
    """Changes are refused with 403: the role is missing."""
    return replace(dials, of="changes", errors=("AuthorizationFailed",), errors_go_on=True)


def login_unavailable(dials: AzureDials) -> AzureDials:
    """The next three logins are answered with 503."""
    return replace(dials, only=("Login.Token",), errors=("temporarily_unavailable",) * 3)


MISBEHAVIOURS: Final = Misbehaviours(
    IDEAL,
    (
        *COMMON,
        operation_fails,
        operation_fails_after_acting,
        operation_status_vanishes,
        no_polling_hints,
        operation_preempted,
        another_operation_is_running,
        gateway_unconnected,
        gateway_times_out,
        subscription_disabled,
        subscription_not_registered,
        older_apis,
        stop_never_ends,
        restart_never_ends,
        delete_gets_stuck,
        delete_fails_midway,
        delete_leaves_disks,
        delete_leaves_nics,
        create_never_ends,
        create_fails_after_accepting,
        create_fails_and_is_gone,
        zone_is_full,
        image_deprecated,
        provisioning_times_out,
        disk_name_taken_is_found_later,
        size_not_available,
        quota_exceeded,
        terms_not_accepted,
        policy_refuses_creations,
        long_lists,
        short_tokens,
        token_refused,
        not_authorized,
        login_unavailable,
    ),
)
