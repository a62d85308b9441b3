"""The dials of a simulated Azure, beyond those that every cloud has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from unbounded_lab.cloud import dials as shared


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
