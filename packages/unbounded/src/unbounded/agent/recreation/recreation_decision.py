"""Decision whether a node needs a recreation: pure, from the records on disk, the Machine, and its Node."""

from __future__ import annotations

from dataclasses import dataclass

from unbounded.agent.model import BuildRecord
from unbounded.agent.node_spec import DesiredNode, same_node
from unbounded.agent.recreation.plan import RecreationLimits
from unbounded.agent.recreation.state_store import FailedRecreation
from unbounded.api.core import Node


@dataclass(frozen=True)
class NodeObservation:
    """Observation of a node while no recreation is under way.

    Args:
        applied: record of its slot's build.
        boot_id: of the machine in the slot, where it was read; empty where the machine does not run.
        node: None when there is none.
        wanted: None while the configuration is unknown.
        failed: the last recreation that failed.
        is_rolled: a rolling update decides when the node is recreated next, by the deletion of its Node.
        joining_s: seconds for which it has been observed without a Node; failed_s: for which the failure is known.
    """

    applied: BuildRecord
    node: Node | None
    desired: DesiredNode | None
    failed: FailedRecreation | None = None
    boot_id: str = ""
    is_rolled: bool = False
    joining_s: float = 0.0
    failed_s: float = 0.0

    @property
    def is_own_node(self) -> bool:
        """True where the Node is the one that this slot registered."""
        return self.node is not None and bool(self.uid) and self.node.metadata.uid == self.uid

    @property
    def uid(self) -> str:
        return self.applied.node_uid

    @property
    def is_reported_by_slot(self) -> bool:
        """True where the running machine of this slot has reported the Node."""
        info = self.node.status.node_info if self.node is not None else None
        return info is not None and bool(self.boot_id) and info.boot_id == self.boot_id


@dataclass(frozen=True)
class NoRecreation:
    """No action now.

    Args:
        requeue_after_s: seconds until the next check; None to wait for a change.
    """

    requeue_after_s: float | None = None


@dataclass(frozen=True)
class Registered:
    """The slot has registered this Node, whose UID is to be recorded."""

    node_uid: str


@dataclass(frozen=True)
class ForgetFailure:
    """The node matches its desired goal: the record of the failure is obsolete."""


@dataclass(frozen=True)
class Recreate:
    """A recreation is due.

    Args:
        why: for users.
        lost_node: UID of the Node that is gone; empty where none was registered.
    """

    why: str
    lost_node: str = ""
    attempt: int = 1


Verdict = NoRecreation | Registered | ForgetFailure | Recreate


def needs_boot_id(applied: BuildRecord, failed: FailedRecreation | None, node: Node | None) -> bool:
    """Return whether the verdict depends on the boot id of the machine in the slot, whose read costs a few commands."""
    return node is not None and (not applied.node_uid or (failed is not None and failed.stranded))


def verdict(view: NodeObservation, limits: RecreationLimits) -> Verdict:
    """Return the verdict about a node while no recreation is under way."""
    failed = view.failed
    if view.is_own_node:
        return _about_failure(view, failed, limits) if failed is not None else NoRecreation()
    if failed is not None and failed.stranded:
        return _stranded(view, failed, limits)
    if view.uid:
        name = view.applied.goal.machine
        newer_node = "" if view.node is None else "; the existing Node is newer"
        return Recreate(f"Node {name} ({view.uid}) does not exist any more{newer_node}", view.uid)
    return _joining(view, limits)


def _joining(view: NodeObservation, limits: RecreationLimits) -> Verdict:
    if view.node is not None and view.is_reported_by_slot:
        return Registered(view.node.metadata.uid)
    if view.joining_s < limits.join_s:
        return NoRecreation(limits.join_s - view.joining_s)
    return Recreate(f"the node did not join within {limits.join_s:.0f} s")


def _stranded(view: NodeObservation, failed: FailedRecreation, limits: RecreationLimits) -> Verdict:
    """Decide while no node works: retry without end, at growing intervals, as there is nothing to lose."""
    if view.node is not None and view.is_reported_by_slot and view.node.ready:
        return Registered(view.node.metadata.uid)
    if view.desired is not None and not same_node(view.desired.goal, failed.goal):
        return Recreate("no node works, and the requested one has changed", view.uid)
    left_s = limits.retry_after(failed.attempts) - view.failed_s
    if left_s > 0:
        return NoRecreation(left_s)
    return Recreate("no node works", view.uid, failed.attempts + 1)


def _about_failure(view: NodeObservation, failed: FailedRecreation, limits: RecreationLimits) -> Verdict:
    """Decide while the old node works: retry when the desired goal has changed, and a bounded number of times."""
    if view.desired is None:
        return NoRecreation()
    if view.desired.same:
        return ForgetFailure()
    if view.is_rolled:
        return NoRecreation()
    if not same_node(view.desired.goal, failed.goal):
        return Recreate("the requested node differs from the one that failed")
    if failed.attempts >= limits.attempts:
        return NoRecreation()
    left_s = limits.retry_after(failed.attempts) - view.failed_s
    return NoRecreation(left_s) if left_s > 0 else Recreate("retrying", attempt=failed.attempts + 1)


def retry_message(failed: FailedRecreation, limits: RecreationLimits) -> str:
    """Return the time of the next attempt, for users."""
    if failed.stranded or failed.attempts < limits.attempts:
        minutes = limits.retry_after(failed.attempts) / 60
        return f"attempt {failed.attempts}; the next one in {minutes:.0f} min, or when the request changes"
    return (
        f"after {failed.attempts} attempts, the next one follows only when the request changes or the Node is deleted"
    )
