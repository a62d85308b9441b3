"""Parts of a view: facts, tables, stages, blockers and trees, as frozen data that a page shows as they are.

Every text is data: a page never interprets it as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, TypeVar

from unbounded.api.machine import MachinePhase
from unbounded.api.operation import OperationPhase, StagePhase
from unbounded.console import urls
from unbounded.explain.links import ExplainLink, Topic, UnreadFact
from unbounded.explain.results import Explanation
from unbounded.explain.timeline import StageState

T = TypeVar("T")

NONE: Final = "–"
MAX_ROWS: Final = 200  # of a table: each cell is an element of the server, too


class Tone(StrEnum):
    """Meaning of a text beside its words, which a page shows as a colour and never as a colour alone."""

    CALM = "calm"
    GOOD = "good"
    BUSY = "busy"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class ViewText:
    """A text in a view.

    Attributes:
        path: of the view that shows the object it names; empty for none.
    """

    text: str
    path: str = ""
    tone: Tone = Tone.CALM


@dataclass(frozen=True, slots=True)
class FactList:
    """Properties of one object, by name."""

    title: str
    facts: tuple[tuple[str, ViewText], ...]


@dataclass(frozen=True, slots=True)
class ViewTable:
    """A table.

    Attributes:
        empty: stands in place of a table without rows.
        more: number of rows that are left out.
        note: stands below it: what it leaves out because it could not be read.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[ViewText, ...], ...]
    empty: str = "None."
    more: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class StageStep:
    """A stage of an operation.

    Attributes:
        began: time of its begin; empty where it is not recorded.
        spent: the time that its limit counts; empty where it is not recorded.
        share: spent time as a part of the limit, 0 to 1; None where it is not known.
    """

    name: str
    state: StageState
    waits_for: str
    limit: str
    began: str = ""
    spent: str = ""
    share: float | None = None


@dataclass(frozen=True, slots=True)
class StageTimeline:
    """The stages of an operation, in their order.

    Attributes:
        note: stands above them: what is left out.
    """

    title: str
    steps: tuple[StageStep, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class BlockerStep:
    """A link of an explanation: an object, what it waits for, and commands that help.

    Attributes:
        fixes: commands with their effects.
    """

    about: ViewText
    what: str
    notes: tuple[str, ...] = ()
    fixes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class BlockerChain:
    """The blockers of an object, down to the first cause.

    Attributes:
        unread: what the explanation leaves out.
    """

    title: str
    steps: tuple[BlockerStep, ...]
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TreeRow:
    """An object of a tree of objects, `depth` levels below its root."""

    depth: int
    what: ViewText
    phase: ViewText
    message: str


@dataclass(frozen=True, slots=True)
class ObjectRows:
    """A tree of objects, its rows from the root down."""

    title: str
    rows: tuple[TreeRow, ...]


ViewSection = FactList | ViewTable | StageTimeline | BlockerChain | ObjectRows


@dataclass(frozen=True, slots=True)
class ViewData:
    """Everything that a view shows.

    Attributes:
        state: of its subject, beside the title.
        runs: the subject is at work, so that its durations grow without a change of an object.
    """

    title: str
    state: ViewText
    sections: tuple[ViewSection, ...]
    runs: bool = False


@dataclass(frozen=True, slots=True)
class NotRead:
    """Stands in place of objects that are not known; `why` is for the user."""

    why: str


def known(found: Sequence[T] | NotRead) -> Sequence[T]:
    """Return the objects that are known."""
    return () if isinstance(found, NotRead) else found


def note_unread(table: ViewTable, *found: Sequence[Any] | NotRead) -> ViewTable:
    """Return a table with a note on the objects that are not known, which it does not call missing."""
    reasons = tuple(dict.fromkeys(one.why for one in found if isinstance(one, NotRead)))
    return replace(table, empty="", note=" ".join(reasons)) if reasons else table


def words(text: str | None, path: str = "", tone: Tone = Tone.CALM) -> ViewText:
    """Return a text of a cell; a dash where there is none."""
    return ViewText(text, path, tone) if text else ViewText(NONE)


def facts(title: str, found: Iterable[tuple[str, str | ViewText | None]]) -> FactList:
    """Return a list of the facts that are known."""
    return FactList(
        title,
        tuple((name, value if isinstance(value, ViewText) else ViewText(value)) for name, value in found if value),
    )


_TONES: Final = {
    MachinePhase.READY.value: Tone.GOOD,
    OperationPhase.COMPLETE.value: Tone.GOOD,
    "True": Tone.CALM,
    "Drained": Tone.GOOD,
    "OK": Tone.GOOD,
    "available": Tone.GOOD,
    "provisioned": Tone.GOOD,
    "externally provisioned": Tone.GOOD,
    "reachable": Tone.GOOD,
    MachinePhase.FAILED.value: Tone.BAD,
    "NotReady": Tone.BAD,
    "Missing": Tone.BAD,
    StagePhase.HALTED.value: Tone.BAD,
    "RolledBack": Tone.BAD,
    "error": Tone.BAD,
    "Critical": Tone.BAD,
    "Warning": Tone.WARN,
    "unreachable": Tone.BAD,
    "refused": Tone.BAD,
    "Contested": Tone.BAD,
    MachinePhase.PROVISIONING.value: Tone.BUSY,
    MachinePhase.JOINING.value: Tone.BUSY,
    MachinePhase.REBOOTING.value: Tone.BUSY,
    OperationPhase.IN_PROGRESS.value: Tone.BUSY,
    StagePhase.SOAKING.value: Tone.BUSY,
    "RollingBack": Tone.BUSY,
    "provisioning": Tone.BUSY,
    "deprovisioning": Tone.BUSY,
    "registering": Tone.BUSY,
    "inspecting": Tone.BUSY,
    "Draining": Tone.BUSY,
    "Working": Tone.BUSY,
    OperationPhase.PENDING.value: Tone.WARN,
    StagePhase.PAUSED.value: Tone.WARN,
    "Waiting": Tone.WARN,
    "Deleting": Tone.WARN,
}


def phase(text: str | None, path: str = "") -> ViewText:
    """Return a phase, with the tone of its meaning."""
    return words(text, path, _TONES.get(text or "", Tone.CALM))


def duration(seconds: float) -> str:
    """Return a duration for a person: 45 s, 3 min 20 s, 2 h 5 min."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    large, small, units = (
        (whole // 60, whole % 60, ("min", "s")) if whole < 3600 else (whole // 3600, whole % 3600 // 60, ("h", "min"))
    )
    return f"{large} {units[0]}" + (f" {small} {units[1]}" if small else "")


def size(count: int | None) -> str:
    """Return a size in bytes for a person, in powers of ten as makers of disks count: 480 GB; empty for none."""
    if count is None:
        return ""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if count >= factor:
            return f"{count / factor:.4g} {unit}"
    return f"{count} B"


def memory(count: int | None) -> str:
    """Return a size of memory for a person, in powers of two: 512 GiB; empty for none."""
    return "" if count is None else f"{count / 2**30:.4g} GiB"


_PATHS: Final = {
    **dict.fromkeys((one.value for one in (Topic.MACHINE, Topic.PAUSE, Topic.LOCK, Topic.CONDITION)), urls.machine),
    Topic.OPERATION.value: urls.operation,
}
_SCOPED: Final = {Topic.HOST.value: urls.host, Topic.CLUSTER.value: urls.cluster}


def link_path(link: ExplainLink) -> str:
    """Return the path of the view of a link's object; empty where no view shows it."""
    if link.topic in _PATHS and link.name:
        return _PATHS[link.topic](link.name)
    if link.topic in _SCOPED and link.name:
        return _SCOPED[link.topic](link.namespace, link.name)
    return urls.ROLLOUTS if link.topic == Topic.CONFIGURATION.value else ""


def blockers(explanation: Explanation | None) -> BlockerChain:
    """Return the chain of an explanation; without steps until it is known."""
    title = "What blocks it"
    if explanation is None:
        return BlockerChain(title, ())
    return BlockerChain(title, tuple(map(_blocker, explanation.links)), unread_notes(explanation.unread))


def unread_notes(unread: Sequence[UnreadFact]) -> tuple[str, ...]:
    """Return a note for each fact that is left out."""
    return tuple(f"{fact.text}; left out" for fact in unread)


def _blocker(link: ExplainLink) -> BlockerStep:
    notes = (
        f"held by {link.held_by}" if link.held_by else "",
        f"since {link.since}" if link.since else "",
        link.end,
        f"next: {link.next_step}" if link.next_step else "",
    )
    return BlockerStep(
        about=ViewText(link.about, link_path(link)),
        what=link.what,
        notes=tuple(filter(None, notes)),
        fixes=tuple((fix.command, fix.does) for fix in link.fixes),
    )
