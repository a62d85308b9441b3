"""Records of recreations on disk: decision and phase, from which it resumes after a loss of power; and failures."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec

from unbounded.agent.model import NodeGoal, Slot
from unbounded.agent.paths import HostPaths
from unbounded.api.failures import Rejected
from unbounded.kube.durable_files import remove_durably, write_durably

FORMAT: Final = 1


class RecreationPhase(StrEnum):
    """Progress of a recreation. The first four can still return to the old slot; from Committed on the new slot is the
    node.
    """

    CLEARING = "Clearing"  # remains of an earlier node in the other slot are removed
    PREPARING = "Preparing"  # the new slot is built; kubelet in the old one is stopped
    SWITCHING = "Switching"  # the old machine stops
    STARTING = "Starting"
    VERIFYING = "Verifying"
    COMMITTED = "Committed"  # the new node is proven; the old slot is removed
    RETURNING = "Returning"  # the new machine stops
    RESTORING = "Restoring"  # the old slot starts again
    CHECKING = "Checking"  # whether the old node serves again
    ABANDONED = "Abandoned"  # the new slot is removed


class Transition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A recreation under way.

    Args:
        format: of this file; a file with a higher one than FORMAT is from a later agent and is not changed.
        uid: of the holder in the Machine's claim.
        goal: fixed at the decision; later changes of the desired state do not change it.
        why: its cause, for users.
        lost_node: UID of the Node that is gone; empty for a slot that never registered one.
        attempt: at this goal, from 1 on.
        since: time of the decision; display only.
        failure: why it returns to the old slot; empty while it does not.
        stranded: the old node did not return either.
    """

    uid: str
    phase: RecreationPhase
    source: Slot
    goal: NodeGoal
    why: str
    since: str
    lost_node: str = ""
    attempt: int = 1
    failure: str = ""
    stranded: bool = False
    format: int = FORMAT

    @property
    def target(self) -> Slot:
        return self.source.other


class FailedRecreation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The last recreation that failed, while no later one has succeeded.

    Args:
        attempts: at this goal.
        at: display only.
        stranded: no node has worked since.
    """

    uid: str
    goal: NodeGoal
    attempts: int
    why: str
    at: str
    stranded: bool = False
    format: int = FORMAT


class RecreationStore(Protocol):
    """Store of both records. A completed write survives a loss of power.

    Reading raises Rejected for a record of a later agent, and for a damaged one.
    """

    def current(self) -> Transition | None: ...
    def write(self, transition: Transition) -> None: ...
    def clear(self) -> None: ...
    def failed(self) -> FailedRecreation | None: ...
    def fail(self, failed: FailedRecreation) -> None: ...
    def forget(self) -> None: ...


T = TypeVar("T", Transition, FailedRecreation)


class DiskStore:
    """Store in two files of the host. Methods block for as long as the disk takes to sync a small file."""

    def __init__(self, paths: HostPaths) -> None:
        self._current, self._failed = paths.recreation, paths.recreation_failed

    def current(self) -> Transition | None:
        return _read(self._current, Transition)

    def write(self, transition: Transition) -> None:
        _write(self._current, transition)

    def clear(self) -> None:
        remove_durably(self._current)

    def failed(self) -> FailedRecreation | None:
        return _read(self._failed, FailedRecreation)

    def fail(self, failed: FailedRecreation) -> None:
        _write(self._failed, failed)

    def forget(self) -> None:
        if self._failed.exists():
            remove_durably(self._failed)


class _Format(msgspec.Struct):
    format: int = FORMAT


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = msgspec.json.decode(content, type=_Format).format
        if found <= FORMAT:
            return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise Rejected(f"{path}: {error}; the agent does not change it") from error
    raise Rejected(
        f"{path} has format {found}, but this agent supports {FORMAT}: a later agent wrote it, and this "
        "one does not change it"
    )


def _write(path: Path, content: Transition | FailedRecreation) -> None:
    write_durably(path, msgspec.json.format(msgspec.json.encode(content)))
