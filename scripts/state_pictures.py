"""Pictures of state machines, drawn from the tables that executors run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from scripts.drawing import BLUE, GREEN, PLAIN, RED, Drawing, text_width
from unbounded.workflow.procedure import CANCELLED, COMPLETE, Cancel, Procedure, Stage, Step

FAILED: Final = "Failed"
COLOURS: Final = ("#2563a8", "#a8552b", "#2f855a", "#7b3fa0", "#8a6d1a", "#b83280", "#0f766e")
FILLS: Final = {COMPLETE: GREEN, FAILED: RED, CANCELLED: PLAIN}
CANCELS: Final = {Cancel.AT_ONCE: "cancel at once", Cancel.UNDO: "cancel undoes", Cancel.TOO_LATE: "no cancel"}
_TITLE: Final = 26.0
_ROW: Final = 19.0
_GAP: Final = 14.0
_LEFT: Final = 16.0
_LANE: Final = 15.0


@dataclass(frozen=True)
class Row:
    """A line of a stage; with a target, an arrow leads there."""

    text: str
    target: str | None
    dashed: bool = False


@dataclass(frozen=True)
class Card:
    name: str
    note: str
    rows: tuple[Row, ...]

    @property
    def height(self) -> float:
        return _TITLE + _ROW * len(self.rows) + (4 if self.rows else 0)


def picture_name(kind: str, executor: str) -> str:
    """Return the name of the picture of a procedure, as a file and in links."""
    return f"{kind}-{executor}".lower().replace(" ", "-")


def procedure_picture(title: str, procedure: Procedure) -> str:
    """Draw the stages from top to bottom; each has a row for each of its ways onward."""
    cards = [_card(procedure, name, stage) for name, stage in procedure.stages.items()]
    ends = {row.target for card in cards for row in card.rows} - procedure.stages.keys()
    cards += [Card(end, "", ()) for end in FILLS if end in ends]
    return _draw(title, cards, procedure.start)


def ways(procedure: Procedure, stage: str) -> list[tuple[list[str], Step]]:
    """Return the steps of a stage that act or leave it, each with the facts that lead to it."""
    facts_of: dict[Step, list[str]] = {}
    for fact in procedure.facts:
        step = procedure.table[stage, fact]
        if step != Step(stage):
            facts_of.setdefault(step, []).append(str(fact))
    return [(facts, step) for step, facts in facts_of.items()]


def named(facts: list[str], procedure: Procedure) -> str:
    """Name the facts of a row; the last ones of all, when there are many, as a range."""
    last = [str(fact) for fact in procedure.facts][-len(facts) :]
    return f"{facts[0]} or later" if facts == last and len(facts) > 2 else ", ".join(facts)


def _card(procedure: Procedure, name: str, stage: Stage) -> Card:
    rows = [_row(_short(facts, procedure), name, step) for facts, step in ways(procedure, name)]
    limit = "no limit" if math.isinf(stage.limit_s) else f"limit {stage.limit_s:g} s"
    if stage.on_timeout is not None:
        rows.append(_row(limit, name, stage.on_timeout, dashed=True))
    elif stage.cleanup_stage is not None:
        rows.append(Row("failure", stage.cleanup_stage, dashed=True))
    if stage.undo is not None:
        rows.append(_row("cancel", name, stage.undo, dashed=True))
    return Card(name, f"{limit}, {CANCELS[stage.cancel]}", tuple(rows))


def _short(facts: list[str], procedure: Procedure) -> str:
    """Name the facts of a row, at most four of them."""
    name = named(facts, procedure)
    return name if name.count(",") < 4 else f"{facts[0]}, {facts[1]} and {len(facts) - 2} others"


def _row(facts: str, here: str, step: Step, *, dashed: bool = False) -> Row:
    action = f" / {step.action}" if step.action else ""
    if step.fail is not None:
        return Row(f"{facts}{action}: {step.fail}", FAILED, dashed)
    return Row(facts + action, None if step.stage == here else step.stage, dashed)


def _draw(title: str, cards: list[Card], start: str) -> str:
    drawing = Drawing(title)
    width = max(
        max(text_width(one.name + one.note) + 60, *(text_width(row.text) + 28 for row in one.rows), 0) for one in cards
    )
    heads: dict[str, float] = {}
    sources: dict[str, list[tuple[float, bool]]] = {}
    y = _LEFT
    for card in cards:
        heads[card.name] = y + _TITLE / 2
        _draw_card(drawing, card, y, width, FILLS.get(card.name, BLUE if card.name == start else PLAIN))
        for number, row in enumerate(card.rows):
            if row.target is not None:
                sources.setdefault(row.target, []).append((y + _TITLE + _ROW * (number + 0.5), row.dashed))
        y += card.height + _GAP
    _draw_arrows(drawing, heads, sources, _LEFT + width)
    return drawing.svg()


def _draw_card(drawing: Drawing, card: Card, y: float, width: float, fill: str) -> None:
    drawing.box(_LEFT, y, width, card.height, fill)
    drawing.text(_LEFT + 10, y + _TITLE / 2, card.name, bold=True)
    drawing.text(_LEFT + width - 10, y + _TITLE / 2, card.note, anchor="end", small=True)
    for number, row in enumerate(card.rows):
        text = row.text if row.target else f"↻ {row.text}"
        drawing.text(_LEFT + 18, y + _TITLE + _ROW * (number + 0.5), text)


def _draw_arrows(
    drawing: Drawing, heads: dict[str, float], sources: dict[str, list[tuple[float, bool]]], right: float
) -> None:
    """Draw one line for each target, in the first lane with room; all rows that lead to the target join it."""
    spans = {target: _span([heads[target], *(y for y, _ in rows)]) for target, rows in sources.items()}
    lanes: list[list[tuple[float, float]]] = []
    for number, target in enumerate(sorted(spans, key=lambda one: (spans[one][1] - spans[one][0], heads[one]))):
        lane = next((place for place, taken in enumerate(lanes) if not _overlaps(spans[target], taken)), len(lanes))
        if lane == len(lanes):
            lanes.append([])
        lanes[lane].append(spans[target])
        x, colour = right + 20 + _LANE * lane, COLOURS[number % len(COLOURS)]
        drawing.path([(x, y) for y in spans[target]], colour=colour, arrow=False)
        drawing.path([(x, heads[target]), (right + 1, heads[target])], colour=colour)
        for y, dashed in sources[target]:
            drawing.path([(right, y), (x, y)], colour=colour, dashed=dashed, arrow=False)
            drawing.dot(x, y, colour)


def _span(ys: Iterable[float]) -> tuple[float, float]:
    known = list(ys)
    return min(known), max(known)


def _overlaps(span: tuple[float, float], taken: list[tuple[float, float]]) -> bool:
    return any(span[0] <= high + 4 and low - 4 <= span[1] for low, high in taken)
