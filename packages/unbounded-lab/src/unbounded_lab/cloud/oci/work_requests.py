"""Work requests: the progress of a launch or a termination, and the cause of a failure."""

from __future__ import annotations

from typing import Final

from unbounded_lab.cloud.oci.model import LabWorkRequest, OciInstance, WorkStatus
from unbounded_lab.cloud.oci.tenancy import Tenancy

ACCEPTED_S: Final = 0.1
"""Time for which a work request is ACCEPTED before it is IN_PROGRESS."""


def begin_work(tenancy: Tenancy, operation: str, instance: OciInstance, now: float) -> LabWorkRequest:
    work = LabWorkRequest(
        tenancy.new_id("coreservicesworkrequest"), operation, instance.compartment_id, instance.id, now
    )
    tenancy.work_requests.put(work, now)
    tenancy.agenda.put(now + ACCEPTED_S, lambda at: _start(tenancy, work, at))
    return work


def _start(tenancy: Tenancy, work: LabWorkRequest, at: float) -> None:
    if work.finished is None:
        work.started, work.status = at, WorkStatus.IN_PROGRESS
        tenancy.work_requests.put(work, at)


def end_work(tenancy: Tenancy, work: LabWorkRequest, at: float, *, error: tuple[str, str] | None = None) -> None:
    """Finish a work request; with an error (code and message), it has FAILED."""
    work.started = work.started if work.started is not None else at
    work.finished, work.error = at, error
    work.status = WorkStatus.SUCCEEDED if error is None else WorkStatus.FAILED
    if tenancy.dials.work_requests == "vanish":
        tenancy.work_requests.drop(work.id, at)
    else:
        tenancy.work_requests.put(work, at)
