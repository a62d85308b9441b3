"""Drawing of a `ViewData`: sections as cards, updated in place, so that a browser gets only what has changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

from nicegui.element import Element

from unbounded.console.models.parts import (
    MAX_ROWS,
    BlockerChain,
    BlockerStep,
    FactList,
    ObjectRows,
    StageStep,
    StageTimeline,
    Tone,
    TreeRow,
    ViewData,
    ViewSection,
    ViewTable,
    ViewText,
)
from unbounded.console.widgets import Badge, TextElement, box, heading, paragraph, set_attribute, set_class
from unbounded.explain.timeline import StageState

K = TypeVar("K", bound=Hashable)
D = TypeVar("D")

WIDE: Final = frozenset({"Message", "Observation", "Source", "Waits for", "Consequence", "Result", "State"})
_STATES: Final = {
    StageState.DONE: ("done", Tone.GOOD),
    StageState.CURRENT: ("current", Tone.BUSY),
    StageState.FAILED: ("failed here", Tone.BAD),
    StageState.PASSED: ("passed, or not needed", Tone.CALM),
    StageState.AHEAD: ("ahead", Tone.CALM),
}


class DrawnText(TextElement):
    """A text that leads to its view, if it has one, in the color of its tone."""

    def __init__(self, text: ViewText) -> None:
        super().__init__("a")
        self._tone = Tone.CALM
        self.show(text)

    def show(self, text: ViewText) -> None:
        self.set(text.text)
        set_attribute(self, "href", text.path or None)
        if text.tone is not self._tone:
            for name in ("badge", str(self._tone)):
                set_class(self, name, on=False)
            if text.tone is not Tone.CALM:
                self.classes(add=f"badge {text.tone}")
            self._tone = text.tone
            self.update()


class ViewDrawing:
    """A view on the page, with room for actions below its title."""

    def __init__(self) -> None:
        with box("div", "line"):
            self._title = heading(1, "")
            self._state = Badge()
        self._note = paragraph("", "faint")
        self.actions = box("div", "stack")
        self._sections: _Children[_SectionKey, Callable[[Any], None]] = _Children(box("div", "stack sections"))
        self._parts: dict[_SectionKey, ViewSection] = {}

    def say(self, title: str, note: str) -> None:
        """Show a note, and nothing of an object."""
        self._title.set(title)
        self._note.set(note)
        set_class(self._state, "hidden", on=True)
        self._sections.clear()
        self._parts = {}

    def show(self, data: ViewData) -> None:
        """Show a view in place of the one before."""
        self._title.set(data.title)
        self._note.set("")
        set_class(self._state, "hidden", on=False)
        self._state.show(data.state.text, data.state.tone)
        parts = {(type(part), part.title): part for part in data.sections}
        drawn = self._sections.arrange(parts, lambda key: self._draw(parts[key]))
        for (key, part), show in zip(parts.items(), drawn, strict=True):
            if self._parts.get(key) != part:
                show(part)
        self._parts = parts

    def _draw(self, part: ViewSection) -> tuple[Element, Callable[[Any], None]]:
        """Draw the frame of a section; return it, and what shows a section of its type there."""
        with box("section", "card stack") as section:
            heading(2, part.title)
            match part:
                case FactList():
                    return section, _Facts().show
                case ViewTable():
                    return section, _Rows(part).show
                case StageTimeline():
                    return section, _Timeline().show
                case BlockerChain():
                    return section, _Chain().show
                case ObjectRows():
                    return section, _Tree().show


_SectionKey = tuple[type[ViewSection], str]


class _Children(Generic[K, D]):
    """Elements in a box, by their keys. Those that stay are not drawn anew, so that they keep the focus."""

    def __init__(self, around: Element) -> None:
        self._box = around
        self._drawn: dict[K, tuple[Element, D]] = {}

    def clear(self) -> None:
        self._box.clear()
        self._drawn = {}

    def arrange(self, keys: Iterable[K], draw: Callable[[K], tuple[Element, D]]) -> list[D]:
        """Have an element for each key, in their order, which is the same at each call; return what `draw` gave."""
        desired = list(keys)
        for gone in self._drawn.keys() - set(desired):
            self._drawn.pop(gone)[0].delete()
        for place, key in enumerate(desired):
            if key not in self._drawn:
                with self._box:
                    self._drawn[key] = draw(key)
                self._drawn[key][0].move(target_index=place)
        return [self._drawn[key][1] for key in desired]


class _Facts:
    def __init__(self) -> None:
        self._facts: _Children[str, DrawnText] = _Children(box("dl", "facts"))

    def show(self, part: FactList) -> None:
        values = dict(part.facts)
        for drawn, value in zip(self._facts.arrange(values, _fact), values.values(), strict=True):
            drawn.show(value)


def _fact(name: str) -> tuple[Element, DrawnText]:
    with box("div") as fact:
        TextElement("dt", name)
        with box("dd"):
            return fact, DrawnText(ViewText(""))


class _Rows:
    """A table. On a narrow screen each row is a card."""

    def __init__(self, part: ViewTable) -> None:
        self._heads = part.heads
        self._empty = paragraph("", "faint")
        with box("div", "table-box") as self._frame, _role("table", "table", "live"):
            TextElement("caption", part.title, "sr-only")
            with _role("thead", "rowgroup"), _role("tr", "row"):
                for head in part.heads:
                    cell = TextElement("th", head)
                    cell.props.update(scope="col", role="columnheader")
            self._body = _role("tbody", "rowgroup")
        # a table that can be scrolled sideways is reached by keyboard
        self._frame.props.update(tabindex="0", role="region", **{"aria-label": part.title})
        self._more = paragraph("", "faint")
        self._rows: list[tuple[Element, list[DrawnText]]] = []

    def show(self, part: ViewTable) -> None:
        rows = part.rows[:MAX_ROWS]
        left = len(part.rows) - len(rows) + part.more
        self._empty.set("" if rows else part.empty)
        self._more.set(" ".join(filter(None, (f"{left:,} more are not shown." if left else "", part.note))))
        set_class(self._frame, "hidden", on=not rows)
        with self._body:
            while len(self._rows) < len(rows):
                self._rows.append(self._row(rows[len(self._rows)]))
        for (_, drawn), cells in zip(self._rows, rows, strict=False):
            for one, cell in zip(drawn, cells, strict=True):
                one.show(cell)
        for row, _ in self._rows[len(rows) :]:
            row.delete()
        del self._rows[len(rows) :]

    def _row(self, cells: Sequence[ViewText]) -> tuple[Element, list[DrawnText]]:
        drawn = []
        with _role("tr", "row") as row:
            for head, cell in zip(self._heads, cells, strict=True):
                with _role("td", "cell", "wide" if head in WIDE else "") as place:
                    place.props["data-label"] = head
                    drawn.append(DrawnText(cell))
        return row, drawn


def _role(tag: str, role: str, classes: str = "") -> Element:
    element = box(tag, classes)
    element.props["role"] = role
    return element


class _Timeline:
    def __init__(self) -> None:
        self._left_out = paragraph("", "faint")
        self._list = box("ol", "timeline")
        self._steps: list[_TimelineStep] = []

    def show(self, part: StageTimeline) -> None:
        self._left_out.set(part.note)
        with self._list:
            while len(self._steps) < len(part.steps):
                self._steps.append(_TimelineStep())
        for drawn, step in zip(self._steps, part.steps, strict=False):
            drawn.show(step)
        for drawn in self._steps[len(part.steps) :]:
            drawn.item.delete()
        del self._steps[len(part.steps) :]


class _TimelineStep:
    def __init__(self) -> None:
        with box("li") as self.item:
            with box("div", "line"):
                self._name = TextElement("strong")
                self._state = Badge()
                self._time = TextElement("span", "", "faint")
            with box("div", "track") as track:
                track.props["aria-hidden"] = "true"
                self._fill = box("div", "fill")
            self._note = paragraph("", "faint")
        self._look = ("", "")

    def show(self, step: StageStep) -> None:
        self._name.set(step.name)
        words, tone = _STATES[step.state]
        self._state.show(words, tone)
        limit = f"at most {step.limit}" if step.limit else ""
        began = f"began {step.began}" if step.began else ""
        self._time.set(", ".join(filter(None, (began, step.spent, limit))))
        self._note.set(f"waits for {step.waits_for}" if step.waits_for else "")
        set_class(self.item, "ahead", on=step.state is StageState.AHEAD)
        if step.state is StageState.CURRENT:
            set_attribute(self.item, "aria-current", "step")
        else:
            set_attribute(self.item, "aria-current", None)
        look = (str(tone), f"{100 * (step.share or 0):.0f}%")
        if look != self._look:
            self._fill.classes(replace=f"fill {look[0]}")
            self._fill.style(replace=f"width: {look[1]}")
            self._look = look


class _Chain:
    """Blockers and the commands that help. It is drawn anew where it differs: it changes seldom."""

    def __init__(self) -> None:
        self._box = box("div", "stack")

    def show(self, part: BlockerChain) -> None:
        self._box.clear()
        with self._box:
            if not part.steps:
                paragraph("Being explained …", "faint")
            with box("ol", "chain"):
                for number, step in enumerate(part.steps):
                    self._step(step, first=not number)
            for note in part.unread:
                paragraph(note, "faint")

    def _step(self, step: BlockerStep, *, first: bool) -> None:
        with box("li", "stack"):
            with box("p"):
                if not first:
                    TextElement("span", "because ", "faint")
                DrawnText(step.about).classes("strong")
                TextElement("span", f" {step.what}", "text")
            if step.notes:
                paragraph("; ".join(step.notes), "faint")
            for command, does in step.fixes:
                with box("div", "fix line"):
                    TextElement("code", command)
                    TextElement("span", does, "faint")


class _Tree:
    def __init__(self) -> None:
        self._list = box("ul", "tree")
        self._rows: list[_TreeItem] = []

    def show(self, part: ObjectRows) -> None:
        with self._list:
            while len(self._rows) < len(part.rows):
                self._rows.append(_TreeItem())
        for drawn, row in zip(self._rows, part.rows, strict=False):
            drawn.show(row)
        for drawn in self._rows[len(part.rows) :]:
            drawn.item.delete()
        del self._rows[len(part.rows) :]


class _TreeItem:
    def __init__(self) -> None:
        with box("li", "line") as self.item:
            self._what = DrawnText(ViewText(""))
            self._phase = DrawnText(ViewText(""))
            self._message = TextElement("span", "", "faint")
        self._depth = -1

    def show(self, row: TreeRow) -> None:
        if row.depth != self._depth:
            self.item.style(replace=f"margin-left: {1.4 * row.depth:.1f}rem")
            self._depth = row.depth
        self._what.show(row.what)
        self._phase.show(row.phase)
        self._message.set(row.message)
