"""The dials of a simulated Azure, beyond those that every cloud has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from unbounded.lab.cloud import dials as shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Dials(shared.Dials):
    """`_s` is seconds.

    Args:
        operation_errors: names from the table of errors; the next operations that are accepted end with them, one
            each.
        operation_errors_after: what was asked for is done all the same.
        hanging: names of calls whose operations do not end as long as they stand here; `*` stands for any letters.
    """

    older_apis: bool = False  # Compute's are older than those of the SDK

    # Operations
    operation_errors: tuple[str, ...] = ()
    operation_errors_for: tuple[str, ...] = ("*",)  # names of the calls whose operations these errors are for
    operation_errors_after: bool = False
    hanging: tuple[str, ...] = ()
    operations_forgotten: bool = False  # their status answers 404
    poll_hints: bool = True  # Retry-After with what was accepted and what is in progress
    concurrent: Literal["refused", "preempts"] = "refused"  # a change of a VM while another is in progress

    # Creating
    failed_create_leaves: Literal["machine-and-disk", "machine", "nothing"] = "machine-and-disk"
    disk_conflicts: Literal["refused", "fail-later"] = "refused"  # an OS disk of that name exists
    cores_quota: int | None = None  # in a subscription; deallocated VMs count, too
    sizes_not_available: tuple[str, ...] = ()  # SkuNotAvailable when one of these is asked for
    sizes_out_of_capacity: tuple[str, ...] = ()  # accepted, and AllocationFailed at the end, on create and start
    terms_accepted: bool = True  # of marketplace plans

    images_withdrawn: tuple[str, ...] = ()  # "publisher:offer:sku:version", for creations and whoever looks
    images_deprecated: tuple[str, ...] = ()  # the same; `*` stands for any letters

    policy_refuses: bool = False  # every creation, with 403

    # Deleting
    locked: tuple[str, ...] = ()  # names of VMs, disks and NICs with a lock on them: they are not deleted
    delete_leaves: tuple[Literal["disks", "nics"], ...] = ()  # what should be deleted with the VM and is not

    # Lists
    page_size: int = 100  # so many in an answer, and a link to the next

    # Login
    token_lifetime_s: float = 3600.0


IDEAL: Final = Dials()
