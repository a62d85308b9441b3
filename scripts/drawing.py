"""SVG drawings from lines, boxes and text, without a layout engine: the same input gives the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from xml.sax.saxutils import escape

INK: Final = "#1f2933"
LINE: Final = "#52606d"
PLAIN: Final = "#f5f7fa"
BLUE: Final = "#d9e8f6"
GREEN: Final = "#d3f2dd"
RED: Final = "#fde2e1"
YELLOW: Final = "#fdf3d0"
CHARACTER: Final = 6.6  # the mean width of a letter of 12 px
MARGIN: Final = 16.0

_HEAD: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<title>{title}</title>
<rect width="100%" height="100%" rx="6" fill="#ffffff"/>
<g font-family="system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif" font-size="12" fill="{ink}">
"""


def text_width(text: str) -> float:
    """Estimate the width of a text in pixels."""
    return len(text) * CHARACTER


@dataclass
class Drawing:
    """Elements of one picture; the canvas grows with them."""

    title: str
    width: float = 0.0
    height: float = 0.0
    elements: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, fill: str = PLAIN, radius: float = 4.0) -> None:
        self._grow(x + width, y + height)
        self.elements.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" fill="{fill}" '
            f'stroke="{LINE}"/>'
        )

    def text(
        self, x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False, small: bool = False
    ) -> None:
        """Write one line; `y` is its middle."""
        style = (' font-weight="600"' if bold else "") + (f' font-size="11" fill="{LINE}"' if small else "")
        end = {"start": text_width(text), "middle": text_width(text) / 2, "end": 0.0}[anchor]
        self._grow(x + end, y)
        self.elements.append(f'<text x="{x:g}" y="{y + 4:g}" text-anchor="{anchor}"{style}>{escape(text)}</text>')

    def path(
        self, points: Sequence[tuple[float, float]], *, colour: str = LINE, dashed: bool = False, arrow: bool = True
    ) -> None:
        """Draw a line through the points, with an arrow at its end."""
        for x, y in points:
            self._grow(x, y)
        steps = " L".join(f"{x:g} {y:g}" for x, y in points)
        style = ' stroke-dasharray="5 3"' if dashed else ""
        self.elements.append(f'<path d="M{steps}" fill="none" stroke="{colour}" stroke-width="1.3"{style}/>')
        if arrow:
            self._arrow_head(points[-2], points[-1], colour)

    def _arrow_head(self, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
        """Draw a triangle at the end of a horizontal or vertical line."""
        dx, dy = (_sign(end[0] - start[0]), _sign(end[1] - start[1]))
        back = (end[0] - 8 * dx, end[1] - 8 * dy)
        corners = (end, (back[0] - 4 * dy, back[1] - 4 * dx), (back[0] + 4 * dy, back[1] + 4 * dx))
        self.elements.append(f'<path d="M{" L".join(f"{x:g} {y:g}" for x, y in corners)} z" fill="{colour}"/>')

    def dot(self, x: float, y: float, colour: str = LINE) -> None:
        self.elements.append(f'<circle cx="{x:g}" cy="{y:g}" r="2.4" fill="{colour}"/>')

    def svg(self) -> str:
        """Return the file."""
        head = _HEAD.format(
            width=f"{self.width + MARGIN:.0f}", height=f"{self.height + MARGIN:.0f}", title=escape(self.title), ink=INK
        )
        return head + "\n".join((*self.elements, "</g>", "</svg>", ""))

    def _grow(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


@dataclass(frozen=True)
class Node:
    """A box of a flow, by its place in a grid."""

    column: float
    row: float
    label: str
    lines: tuple[str, ...] = ()
    fill: str = PLAIN
    columns: float = 1.0


@dataclass(frozen=True)
class Edge:
    """An arrow between two boxes of a flow; `bend` is the distance of its middle from the straight line."""

    start: str
    end: str
    label: str = ""
    dashed: bool = False
    bend: float = 0.0


CELL: Final = (236.0, 104.0)
BOX_WIDTH: Final = 196.0
_PADDING: Final = 10.0
_LINE_HEIGHT: Final = 17.0


def flow(title: str, nodes: Sequence[Node], edges: Sequence[Edge], *, cell: tuple[float, float] = CELL) -> str:
    """Draw boxes in a grid, and arrows between their sides."""
    drawing = Drawing(title)
    places: dict[str, tuple[float, float, float, float]] = {}
    for node in nodes:
        x, y = MARGIN + node.column * cell[0], MARGIN + node.row * cell[1]
        width = BOX_WIDTH + (node.columns - 1) * cell[0]
        height = 2 * _PADDING + _LINE_HEIGHT * (1 + len(node.lines))
        places[node.label] = (x, y, width, height)
        drawing.box(x, y, width, height, node.fill)
        drawing.text(x + width / 2, y + _PADDING + 8, node.label, anchor="middle", bold=True)
        for number, line in enumerate(node.lines, start=1):
            drawing.text(x + width / 2, y + _PADDING + 8 + number * _LINE_HEIGHT, line, anchor="middle", small=True)
    for edge in edges:
        _connect(drawing, places[edge.start], places[edge.end], edge)
    return drawing.svg()


def _connect(
    drawing: Drawing, start: tuple[float, float, float, float], end: tuple[float, float, float, float], edge: Edge
) -> None:
    left, right = (start, end) if start[0] <= end[0] else (end, start)
    if left[0] + left[2] < right[0]:  # beside each other: between their vertical sides
        sign = 1 if start is left else -1
        x1 = start[0] + (start[2] if sign > 0 else 0)
        x2 = end[0] + (0 if sign > 0 else end[2])
        y1, y2 = start[1] + start[3] / 2 + edge.bend, end[1] + end[3] / 2 + edge.bend
        middle = (x1 + x2) / 2
        points = [(x1, y1), (middle, y1), (middle, y2), (x2, y2)] if abs(y1 - y2) > 1 else [(x1, y1), (x2, y2)]
        drawing.path(points, dashed=edge.dashed)
        drawing.text(middle, (y1 + y2) / 2 - 9, edge.label, anchor="middle", small=True)
        return
    sign = 1 if start[1] <= end[1] else -1
    x = max(start[0], end[0]) + min(start[2], end[2]) / 2 + edge.bend
    y1 = start[1] + (start[3] if sign > 0 else 0)
    y2 = end[1] + (0 if sign > 0 else end[3])
    drawing.path([(x, y1), (x, y2)], dashed=edge.dashed)
    drawing.text(x + 6, (y1 + y2) / 2, edge.label, small=True)


@dataclass(frozen=True)
class Message:
    """One arrow of a sequence, or, with one participant, a note at its line."""

    start: str
    end: str
    label: str
    dashed: bool = False


_LANE: Final = 250.0
_ROW: Final = 38.0
_HEAD_HEIGHT: Final = 34.0


def sequence(title: str, participants: Sequence[str], messages: Sequence[Message]) -> str:
    """Draw participants as vertical lines, and messages between them from top to bottom."""
    drawing = Drawing(title)
    middle = {name: MARGIN + BOX_WIDTH / 2 + number * _LANE for number, name in enumerate(participants)}
    bottom = MARGIN + _HEAD_HEIGHT + (len(messages) + 0.7) * _ROW
    for name, x in middle.items():
        drawing.path([(x, MARGIN + _HEAD_HEIGHT), (x, bottom)], arrow=False, dashed=True)
        drawing.box(x - BOX_WIDTH / 2, MARGIN, BOX_WIDTH, _HEAD_HEIGHT, BLUE)
        drawing.text(x, MARGIN + _HEAD_HEIGHT / 2, name, anchor="middle", bold=True)
    for number, message in enumerate(messages, start=1):
        _send(drawing, middle, message, MARGIN + _HEAD_HEIGHT + number * _ROW)
    return drawing.svg()


def _send(drawing: Drawing, middle: dict[str, float], message: Message, y: float) -> None:
    start, end = middle[message.start], middle[message.end]
    if start == end:
        width = text_width(message.label) + 16
        drawing.box(start - width / 2, y - 11, width, 22, YELLOW)
        drawing.text(start, y, message.label, anchor="middle")
        return
    drawing.path([(start, y), (end, y)], dashed=message.dashed)
    width = text_width(message.label) + 8
    x = (start + end) / 2
    drawing.elements.append(
        f'<rect x="{x - width / 2:g}" y="{y - 18:g}" width="{width:g}" height="15" fill="#ffffff"/>'
    )
    drawing.text(x, y - 11, message.label, anchor="middle")
