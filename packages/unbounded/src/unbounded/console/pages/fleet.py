"""The page of the fleet: counts, sites, and a list with filters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.console import urls
from unbounded.console.live import LiveState
from unbounded.console.models.failures import FailingRollout, FailingRollouts
from unbounded.console.models.fleet import PAGE_ROWS, FleetFilter, FleetIndex, FleetPage, FleetRow, FleetSummary, Need
from unbounded.console.models.parts import Tone, ViewText, phase
from unbounded.console.view import Refresher, View
from unbounded.console.widgets import (
    Badge,
    Bar,
    Bars,
    Button,
    Column,
    InputField,
    Link,
    Table,
    TextElement,
    box,
    heading,
    set_class,
)

ALL: Final = ("", "all")
SITES_SHOWN: Final = 5  # the list of Machines is on the first screen
ROLLOUTS_SHOWN: Final = 3  # likewise
NEEDS: Final = {
    Need.ATTENTION: "needs attention",
    Need.FAILED: "operation failed",
    Need.BLOCKED: "blocked",
    Need.WORKING: "at work",
    Need.PAUSED: "paused",
    Need.MAINTENANCE: "maintenance",
    Need.CALM: "",
}
IN_ORDER: Final = "in order"  # in the choice of a state
NEED_TONES: Final = {
    Need.ATTENTION: Tone.BAD,
    Need.FAILED: Tone.BAD,
    Need.BLOCKED: Tone.WARN,
    Need.WORKING: Tone.BUSY,
    Need.PAUSED: Tone.CALM,
    Need.MAINTENANCE: Tone.CALM,
    Need.CALM: Tone.CALM,
}
COLUMNS: Final = (
    Column("Machine", "link", wide=True),
    Column("State", "badge"),
    Column("Phase", "badge"),
    Column("Site", "link"),
    Column("Reason"),
    Column("Operation", "link"),
    Column("Power"),
    Column("Cause", wide=True),
)


def show(view: View) -> None:
    """Draw the fleet."""
    FleetView(view)


class FleetView:
    """The page of one browser."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._filter = FleetFilter.from_query(view.query)
        self._first = _first_of(view.query.get("first", ""))
        self._index = view.live.derived(FleetIndex)
        self._failing = view.live.derived(FailingRollouts)
        self._refresher: Refresher | None = None
        with box("div", "line"):
            heading(1, "Fleet")
            with box("p", "faint"):
                self._total = TextElement("span")
                self._urgent = Link("", "")
                self._comma = TextElement("span")
                self._failed = Link("", "")
        with box("div", "columns"):
            with box("section", "card stack") as self._chart:
                heading(2, "Phases")
                self._phases = Bars()
            with box("section", "card stack"):
                heading(2, "Sites")
                self._sites = Table(
                    "Sites", (Column("Site", "link"), Column("Machines", "number"), Column("Need attention", "number"))
                )
                self._more_sites = TextElement("p", "", "faint")
            self._rollouts = _RolloutList()
        with box("section", "card stack"):
            heading(2, "Machines")
            self._draw_filters()
            self._fault = TextElement("p", "", "banner hidden")
            self._table = Table("Machines, those that need attention first", COLUMNS)
            self._draw_pager()
        kinds = dict.fromkeys((*FleetIndex.kinds, *FailingRollouts.kinds))
        self._refresher = view.follow(kinds, self._refresh)

    def _draw_filters(self) -> None:
        given = self._filter
        with box("form", "filters") as form:
            form.props["role"] = "search"
            form.props["aria-label"] = "Filter the Machines"
            form.on("submit.prevent", lambda _event: None, args=[])
            self._fields = {
                "text": InputField(
                    "Search", given.text, self._changer("text"), name="text", hint="Press / to search", search=True
                ),
                "state": InputField("State", given.state, self._changer("state"), name="state", options=[ALL]),
                "site": InputField("Site", given.site, self._changer("site"), name="site", options=[ALL]),
                "phase": InputField("Phase", given.phase, self._changer("phase"), name="phase", options=[ALL]),
                "reason": InputField("Reason", given.reason, self._changer("reason"), name="reason", options=[ALL]),
                "labels": InputField(
                    "Labels", given.labels, self._changer("labels"), name="labels", hint="rack=r1,!spare"
                ),
            }

    def _draw_pager(self) -> None:
        with box("div", "line"):
            self._back = Button("Previous", lambda: self._turn(-PAGE_ROWS))
            self._next = Button("Next", lambda: self._turn(PAGE_ROWS))
            self._range = TextElement("p", "", "faint")

    def _changer(self, name: str) -> Callable[[str], None]:
        def changed(value: str) -> None:
            self._filter = self._filter.but(**{name: value})
            self._first = 0
            self._show_again()
            self._view.announce(self._range.text)

        return changed

    def _turn(self, rows: int) -> None:
        self._first = max(0, self._first + rows)
        self._show_again()
        self._view.announce(self._range.text)

    def _show_again(self) -> None:
        first = {"first": str(self._first)} if self._first else {}
        self._view.set_url(urls.fleet(**self._filter.query(), **first))
        if self._refresher is not None:
            self._refresher.now()

    def _refresh(self) -> None:
        summary = self._index.summary()
        self._show_counts(summary)
        self._rollouts.show(self._failing.all())
        self._offer(summary)
        fault = self._filter.fault
        self._fault.set(fault)
        set_class(self._fault, "hidden", not fault)
        if not fault:
            self._show_page(self._index.page(self._filter, self._first))

    def _show_counts(self, summary: FleetSummary) -> None:
        state = self._view.live.of(MACHINES).state
        if state is LiveState.LOADING:
            self._total.set("loading the Machines …")
        elif state is LiveState.DENIED:  # there may be any number of them
            self._total.set("You may not read machines.")
            for link in (self._urgent, self._failed):
                link.lead("", "")
            self._comma.set("")
        else:
            urgent = summary.needs.get(Need.ATTENTION, 0)
            self._total.set(f"{_machines(summary.machines)}, ")
            text = f"{urgent:,} {'needs' if urgent == 1 else 'need'} attention"
            self._urgent.lead(text, urls.fleet(state=Need.ATTENTION.state) if urgent else "")
            failed = summary.needs.get(Need.FAILED, 0)
            self._comma.set(", " if failed else "")
            text = f"{failed:,} with {'a failed operation' if failed == 1 else 'failed operations'}" if failed else ""
            self._failed.lead(text, urls.fleet(state=Need.FAILED.state) if failed else "")
        set_class(self._chart, "hidden", not summary.phases)
        self._phases.show(
            [
                Bar(name, count, phase(name).tone, urls.fleet(**self._filter.but(phase=name).query()))
                for name, count in summary.phases.items()
            ]
        )
        worst = sorted(summary.sites.items(), key=lambda one: (-one[1][1], -one[1][0], one[0]))
        self._sites.show(
            [
                (
                    ViewText(site, urls.fleet(**self._filter.but(site=site).query())),
                    ViewText(f"{count:,}"),
                    ViewText(f"{urgent:,}"),
                )
                for site, (count, urgent) in worst[:SITES_SHOWN]
            ]
        )
        left = len(worst) - SITES_SHOWN
        self._more_sites.set(f"{left:,} more sites: choose one below" if left > 0 else "")

    def _offer(self, summary: FleetSummary) -> None:
        """Offer the values that there are, and the chosen one."""
        states = [(need.state, NEEDS[need] or IN_ORDER) for need in Need if need in summary.needs]
        if self._filter.state and self._filter.state not in dict(states):
            states.append((self._filter.state, self._filter.state))
        self._fields["state"].offer([ALL, *states])
        for name, values in (("site", summary.sites), ("phase", summary.phases), ("reason", summary.reasons)):
            chosen = getattr(self._filter, name)
            found = sorted({*values, *([chosen] if chosen else [])})
            self._fields[name].offer([ALL, *((one, one) for one in found)])

    def _show_page(self, page: FleetPage) -> None:
        self._first = page.first
        self._table.show([self._cells(row) for row in page.rows])
        last = page.first + len(page.rows)
        none = "" if self._view.live.of(MACHINES).state is LiveState.DENIED else "No Machine"
        self._range.set(f"{page.first + 1:,} to {last:,} of {_machines(page.selected)}" if page.rows else none)
        self._back.enable(enabled=page.first > 0)
        self._next.enable(enabled=last < page.selected)

    def _cells(self, row: FleetRow) -> tuple[ViewText, ...]:
        operations = self._view.live.of(MACHINE_OPERATIONS).cache
        exists = operations.get(row.operation_name) is not None
        return (
            ViewText(row.name, urls.machine(row.name)),
            ViewText(NEEDS[row.need], tone=NEED_TONES[row.need]),
            phase(row.phase),
            ViewText(row.site, urls.site(row.site) if row.site else ""),
            ViewText(row.reason),
            ViewText(row.operation, urls.operation(row.operation_name) if exists else ""),
            ViewText(row.power),
            ViewText(row.cause),
        )


class _RolloutList:
    """The rollouts with failures; hidden where there are none."""

    def __init__(self) -> None:
        with box("div", "card stack hidden") as self._card:
            self._card.props.update(role="region", **{"aria-label": "Failing rollouts"})
            heading(2, "Failing rollouts")
            self._list = box("ul", "notes")
            self._more = Link("", "")
        self._lines: list[_RolloutLine] = []

    def show(self, found: Sequence[FailingRollout]) -> None:
        shown = found[:ROLLOUTS_SHOWN]
        set_class(self._card, "hidden", on=not found)
        with self._list:
            while len(self._lines) < len(shown):
                self._lines.append(_RolloutLine())
        for line, one in zip(self._lines, shown, strict=False):
            line.show(one)
        for line in self._lines[len(shown) :]:
            line.item.delete()
        del self._lines[len(shown) :]
        left = len(found) - len(shown)
        self._more.lead(f"{left:,} more" if left else "", urls.ROLLOUTS if left else "")


class _RolloutLine:
    def __init__(self) -> None:
        with box("li") as self.item:
            with box("div", "line"):
                self._name = Link("", "")
                self._state = Badge("", Tone.BAD)
            self._detail = TextElement("p", "", "faint clamp")

    def show(self, one: FailingRollout) -> None:
        self._name.lead(one.name, one.path)
        self._state.show(one.state, Tone.BAD)
        self._detail.set(one.detail)


def _machines(count: int) -> str:
    return f"{count:,} Machine{'' if count == 1 else 's'}"


def _first_of(text: str) -> int:
    return int(text) // PAGE_ROWS * PAGE_ROWS if text.isascii() and text.isdigit() and len(text) < 10 else 0
