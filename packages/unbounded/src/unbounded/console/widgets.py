"""Elements of the pages: safe by construction, as texts are set as texts, and URLs come from `urls`.

NiceGUI's own elements with Vue templates are not used: the browser would have to compile them, which the
Content-Security-Policy forbids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nicegui import ui
from nicegui.element import Element

from unbounded.console.models.parts import Tone, ViewText

STATIC: Final = Path(__file__).parent / "static"


class TextElement(Element):
    """An HTML element with a text that can change."""

    def __init__(self, tag: str, text: str = "", classes: str = "") -> None:
        super().__init__(tag)
        self._text = text
        if classes:
            self.classes(classes)

    @property
    def text(self) -> str:
        return self._text or ""

    def set(self, text: str) -> None:
        """Show another text; nothing is sent where it is the same."""
        if text != self._text:
            self._text = text
            self.update()


def box(tag: str = "div", classes: str = "") -> Element:
    """Return an element for others: `with box("section", "card"): …`."""
    element = ui.element(tag)
    return element.classes(classes) if classes else element


def heading(level: int, text: str) -> TextElement:
    return TextElement(f"h{level}", text)


def paragraph(text: str, classes: str = "") -> TextElement:
    return TextElement("p", text, classes)


def set_attribute(element: Element, name: str, value: str | None) -> None:
    """Set an attribute, or remove it; nothing is sent where it is the same."""
    if element.props.get(name) == value:
        return
    if value is None:
        element.props.pop(name, None)
    else:
        element.props[name] = value


def set_class(element: Element, name: str, on: bool) -> None:  # as DOM's toggle has it
    """Set or remove a class; nothing is sent where nothing changes."""
    if (name in element.classes) != on:
        element.classes(**{"add" if on else "remove": name})


class Link(TextElement):
    """A link to a page of the console."""

    def __init__(self, text: str, url: str, classes: str = "") -> None:
        super().__init__("a", text, classes)
        set_attribute(self, "href", url or None)

    def lead(self, text: str, url: str) -> None:
        """Show another text and lead to another page; to none where the URL is empty."""
        self.set(text)
        set_attribute(self, "href", url or None)


class Button(TextElement):
    """A button."""

    def __init__(self, text: str, pressed: Callable[[], Any], classes: str = "") -> None:
        super().__init__("button", text, classes)
        self.props["type"] = "button"
        self.on("click", lambda _event: pressed(), args=[])

    def enable(self, *, enabled: bool) -> None:
        set_attribute(self, "disabled", None if enabled else "")


class Badge(TextElement):
    """A state in its color."""

    def __init__(self, text: str = "", tone: Tone = Tone.CALM) -> None:
        super().__init__("span", text, f"badge {tone}")
        self._tone = tone

    def show(self, text: str, tone: Tone) -> None:
        self.set(text)
        if tone is not self._tone:
            self.classes(remove=str(self._tone), add=str(tone))
            self._tone = tone


class InputField(Element, component=STATIC / "field.js"):
    """A text field with a label, or a choice.

    Args:
        name: of the control, for tests and password managers.
        changed: called with the value: of a text, shortly after the last key.
        options: (value, text) of a choice; None for a text field.
        search: the key `/` leads to this field.
    """

    def __init__(
        self,
        label: str,
        value: str,
        changed: Callable[[str], Any],
        *,
        name: str,
        options: Sequence[tuple[str, str]] | None = None,
        hint: str = "",
        search: bool = False,
    ) -> None:
        super().__init__()
        self.props.update(label=label, value=value, name=name, hint=hint, search=search)
        if options is not None:
            self.props["options"] = [list(one) for one in options]
        self.on("change", lambda event: changed(str(event.args)))

    def offer(self, options: Sequence[tuple[str, str]] | None) -> None:
        """Offer other values; None makes it a text field."""
        given = None if options is None else [list(one) for one in options]
        if self.props.get("options") != given:
            self.props["options"] = given

    def set(self, value: str) -> None:
        """Show another value."""
        # The browser's value may differ from the last one that was sent: what the user types is not sent back.
        self.props["value"] = value


class PageState(Element, component=STATIC / "page_state.js"):
    """The address of the page, its keys and its theme."""

    def __init__(self, theme: str, cookie: str) -> None:
        super().__init__()
        self.props.update(theme=theme, cookie=cookie, url="", focus="")
        self._focused = 0  # how often

    def set_url(self, url: str) -> None:
        """Show another address without loading the page."""
        set_attribute(self, "url", url)

    def focus(self, element: Element) -> None:
        """Move the focus to an element."""
        self._focused += 1  # each call is another value, also for the same element
        self.props["focus"] = f"{element.html_id} {self._focused}"


class LiveRegion(TextElement):
    """TextElement for screen readers."""

    def __init__(self) -> None:
        super().__init__("div", "", "sr-only")
        self.props["role"] = "status"
        self.props["aria-live"] = "polite"

    def say(self, text: str) -> None:
        self.set(text)


@dataclass(frozen=True)
class Column:
    """A column.

    Args:
        kind: "text", "link", "badge" or "number"; the same for all rows.
        wide: has a line of its own on a narrow screen.
    """

    title: str
    kind: str = "text"
    wide: bool = False


class Table:
    """A table whose rows are updated in place. On a narrow screen each row becomes a card.

    Args:
        caption: its name for screen readers.
    """

    def __init__(self, caption: str, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._rows: list[_Row] = []
        with box("div", "table-box"), box("table", "live") as table:
            table.props["role"] = "table"
            TextElement("caption", caption, "sr-only")
            with _part("thead", "rowgroup"), _part("tr", "row"):
                for column in columns:
                    head = TextElement("th", column.title, "number" if column.kind == "number" else "")
                    head.props["scope"] = "col"
                    head.props["role"] = "columnheader"
            self._body = _part("tbody", "rowgroup")

    def show(self, rows: Sequence[Sequence[ViewText]]) -> None:
        """Show rows in place of those before."""
        with self._body:
            while len(self._rows) < len(rows):
                self._rows.append(_Row(self._columns))
        for row, cells in zip(self._rows, rows, strict=False):
            row.show(cells)
        for row in self._rows[len(rows) :]:
            row.delete()
        del self._rows[len(rows) :]


class _Row:
    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._element = _part("tr", "row")
        self._cells: list[tuple[Element, TextElement]] = []
        with self._element:
            for column in columns:
                with _part("td", "cell") as cell:
                    cell.props["data-label"] = column.title
                    for name, on in (("wide", column.wide), ("number", column.kind == "number")):
                        set_class(cell, name, on)
                    self._cells.append((cell, _content(column.kind)))

    def show(self, cells: Sequence[ViewText]) -> None:
        for (element, content), cell in zip(self._cells, cells, strict=True):
            if isinstance(content, Link):
                content.lead(cell.text, cell.path)
            elif isinstance(content, Badge):
                content.show(cell.text, cell.tone)
            else:
                content.set(cell.text)
            set_class(element, "empty", not cell.text)
            if isinstance(content, Badge):
                set_class(content, "hidden", not cell.text)

    def delete(self) -> None:
        self._element.delete()


def _content(kind: str) -> TextElement:
    match kind:
        case "link":
            return Link("", "")
        case "badge":
            return Badge()
        case _:
            return TextElement("span")


def _part(tag: str, role: str) -> Element:
    element = box(tag)
    element.props["role"] = role
    return element


@dataclass(frozen=True)
class Bar:
    """A bar of a chart: a name, a number, and where the name leads."""

    name: str
    count: int
    tone: Tone
    url: str


class Bars:
    """A chart of bars. Screen readers read names and numbers."""

    def __init__(self) -> None:
        self._list = box("ul", "bars")
        self._bars: list[_BarElement] = []

    def show(self, bars: Sequence[Bar]) -> None:
        most = max((bar.count for bar in bars), default=0)
        with self._list:
            while len(self._bars) < len(bars):
                self._bars.append(_BarElement())
        for element, bar in zip(self._bars, bars, strict=False):
            element.show(bar, most)
        for element in self._bars[len(bars) :]:
            element.item.delete()
        del self._bars[len(bars) :]


class _BarElement:
    def __init__(self) -> None:
        with box("li") as self.item:
            self._name = Link("", "")
            with box("div", "track") as track:
                track.props["aria-hidden"] = "true"
                self._fill = box("div", "fill")
            self._count = TextElement("span", "", "count")
        self._shown: tuple[str, str] = ("", "")

    def show(self, bar: Bar, most: int) -> None:
        self._name.lead(bar.name, bar.url)
        self._count.set(f"{bar.count:,}")
        look = (str(bar.tone), f"{100 * bar.count / most if most else 0:.1f}%")
        if look != self._shown:
            self._fill.classes(replace=f"fill {look[0]}")
            self._fill.style(replace=f"width: {look[1]}")
            self._shown = look
