"""The faults of a simulated Azure, and its misbehaviours, each as settings of faults.

The shared table has those of any cloud.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from unbounded_lab.cloud import misbehaviours as shared
from unbounded_lab.cloud.misbehaviours import COMMON, Misbehaviours


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureFaults(shared.CloudFaults):
    """Faults of an Azure. `_s` is seconds.

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


IDEAL: Final = AzureFaults()


# Operations


def operation_fails(faults: AzureFaults) -> AzureFaults:
    """The next operation that is accepted ends with InternalExecutionError; nothing was done."""
    return replace(faults, operation_errors=("InternalExecutionError",))


def operation_fails_after_acting(faults: AzureFaults) -> AzureFaults:
    """The next operation that is accepted is carried out, and ends with InternalExecutionError."""
    return replace(faults, operation_errors=("InternalExecutionError",), operation_errors_after=True)


def operation_status_vanishes(faults: AzureFaults) -> AzureFaults:
    """Operations are carried out; their status is answered with 404."""
    return replace(faults, operations_forgotten=True)


def no_polling_hints(faults: AzureFaults) -> AzureFaults:
    """Replies have no Retry-After for the status of an operation."""
    return replace(faults, poll_hints=False)


def operation_preempted(faults: AzureFaults) -> AzureFaults:
    """A change of a VM ends the one in progress with OperationPreempted, instead of being refused."""
    return replace(faults, concurrent="preempts")


def another_operation_is_running(faults: AzureFaults) -> AzureFaults:
    """The next three changes are refused with 409: they conflict with another request."""
    return replace(faults, of="changes", errors=(*faults.errors, *("Conflict",) * 3))


# Gateways and subscriptions


def gateway_unconnected(faults: AzureFaults) -> AzureFaults:
    """The next three requests are answered with 502: Resource Manager did not reach Compute."""
    return replace(faults, errors=(*faults.errors, *("BadGatewayConnection",) * 3))


def gateway_times_out(faults: AzureFaults) -> AzureFaults:
    """The next two changes are carried out, and answered with 504."""
    return replace(faults, of="changes", errors=("GatewayTimeout",) * 2, errors_after=True)


def subscription_disabled(faults: AzureFaults) -> AzureFaults:
    """Changes are refused with 409: the subscription is disabled, and can only be read."""
    return replace(faults, of="changes", errors=("ReadOnlyDisabledSubscription",), errors_go_on=True)


def subscription_not_registered(faults: AzureFaults) -> AzureFaults:
    """Changes are refused with 409: the subscription is not registered to use Compute."""
    return replace(faults, of="changes", errors=("MissingSubscriptionRegistration",), errors_go_on=True)


def older_apis(faults: AzureFaults) -> AzureFaults:
    """Every request to Compute is refused with 400: the cloud does not serve the SDK's version yet."""
    return replace(faults, older_apis=True)


# Power


def stop_never_ends(faults: AzureFaults) -> AzureFaults:
    """A VM that is powered off or deallocated never leaves stopping."""
    return replace(faults, hanging=(*faults.hanging, "VirtualMachines.PowerOff", "VirtualMachines.Deallocate"))


def restart_never_ends(faults: AzureFaults) -> AzureFaults:
    """A restart is accepted and never ends."""
    return replace(faults, hanging=(*faults.hanging, "VirtualMachines.Restart"))


# Deleting


def delete_gets_stuck(faults: AzureFaults) -> AzureFaults:
    """A VM that is deleted never leaves Deleting."""
    return replace(faults, hanging=(*faults.hanging, "VirtualMachines.Delete"))


def delete_fails_midway(faults: AzureFaults) -> AzureFaults:
    """The next deletion of a VM fails: its host is gone, and the VM accepts nothing but another deletion."""
    return replace(
        faults, operation_errors=("InternalExecutionError",), operation_errors_for=("VirtualMachines.Delete",)
    )


def delete_leaves_disks(faults: AzureFaults) -> AzureFaults:
    """Disks that should be deleted with their VM are left behind."""
    return replace(faults, delete_leaves=(*faults.delete_leaves, "disks"))


def delete_leaves_nics(faults: AzureFaults) -> AzureFaults:
    """Network interfaces that should be deleted with their VM are left behind."""
    return replace(faults, delete_leaves=(*faults.delete_leaves, "nics"))


# Creating


def create_never_ends(faults: AzureFaults) -> AzureFaults:
    """A VM that is created never leaves Creating."""
    return replace(faults, hanging=(*faults.hanging, "VirtualMachines.CreateOrUpdate"))


def create_fails_after_accepting(faults: AzureFaults) -> AzureFaults:
    """The next creation is accepted and ends with AllocationFailed: a VM without a host, with its OS disk, is left."""
    return replace(
        faults, operation_errors=("AllocationFailed",), operation_errors_for=("VirtualMachines.CreateOrUpdate",)
    )


def create_fails_and_is_gone(faults: AzureFaults) -> AzureFaults:
    """The next creation is accepted and ends with AllocationFailed: no VM is left, and no OS disk."""
    return replace(create_fails_after_accepting(faults), failed_create_leaves="nothing")


def zone_is_full(faults: AzureFaults) -> AzureFaults:
    """The next creation is accepted and ends with OverconstrainedZonalAllocationRequest, as AllocationFailed does."""
    return replace(create_fails_after_accepting(faults), operation_errors=("OverconstrainedZonalAllocationRequest",))


def image_deprecated(faults: AzureFaults) -> AzureFaults:
    """All versions of all images are deprecated: creations are refused with 404, and so are reads of images."""
    return replace(faults, images_deprecated=("*",))


def provisioning_times_out(faults: AzureFaults) -> AzureFaults:
    """The next creation ends with OSProvisioningTimedOut: the VM runs, and is shown as one that failed."""
    return replace(
        faults,
        operation_errors=("OSProvisioningTimedOut",),
        operation_errors_for=("VirtualMachines.CreateOrUpdate",),
        operation_errors_after=True,
    )


def disk_name_taken_is_found_later(faults: AzureFaults) -> AzureFaults:
    """A VM whose OS disk's name is taken is accepted, and its creation fails (ConflictingUserInput)."""
    return replace(faults, disk_conflicts="fail-later")


def size_not_available(faults: AzureFaults) -> AzureFaults:
    """The next creation is refused with SkuNotAvailable."""
    return _creation_refused(faults, "SkuNotAvailable")


def quota_exceeded(faults: AzureFaults) -> AzureFaults:
    """The next creation is refused: it would exceed the quota of cores."""
    return _creation_refused(faults, "QuotaExceeded")


def terms_not_accepted(faults: AzureFaults) -> AzureFaults:
    """Images with a purchase plan are refused: its terms are not accepted."""
    return replace(faults, terms_accepted=False)


def policy_refuses_creations(faults: AzureFaults) -> AzureFaults:
    """Every creation is refused with 403: a policy forbids it. Existing VMs continue until they are deleted."""
    return replace(faults, policy_refuses=True)


def _creation_refused(faults: AzureFaults, error: str) -> AzureFaults:
    return replace(faults, only=("VirtualMachines.CreateOrUpdate",), errors=(*faults.errors, error))


# Lists


def long_lists(faults: AzureFaults) -> AzureFaults:
    """Lists come two things at a time."""
    return replace(faults, page_size=2)


# Authentication


def short_tokens(faults: AzureFaults) -> AzureFaults:
    """Tokens are valid for 5 s."""
    return replace(faults, token_lifetime_s=5.0)


def token_refused(faults: AzureFaults) -> AzureFaults:
    """The next request's token is refused with 401."""
    return replace(faults, errors=(*faults.errors, "InvalidAuthenticationToken"))


def not_authorized(faults: AzureFaults) -> AzureFaults:
    """Changes are refused with 403: the role is missing."""
    return replace(faults, of="changes", errors=("AuthorizationFailed",), errors_go_on=True)


def login_unavailable(faults: AzureFaults) -> AzureFaults:
    """The next three logins are answered with 503."""
    return replace(faults, only=("Login.Token",), errors=("temporarily_unavailable",) * 3)


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
