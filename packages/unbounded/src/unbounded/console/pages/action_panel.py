"""Buttons of actions on a page, and the panel in which the user reads the plan and confirms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from unbounded.api.failures import Failure
from unbounded.console.actions import (
    LABELS,
    ConsentMissing,
    ConsoleAction,
    PlannedAction,
    command_of,
    perform_action,
    plan_action,
)
from unbounded.console.view import View
from unbounded.console.widgets import (
    Button,
    InputField,
    Link,
    TextElement,
    box,
    heading,
    paragraph,
    set_class,
)
from unbounded.intents.rejections import IntentRejected
from unbounded.kube.clock import utc_now

DANGEROUS: Final = frozenset({ConsoleAction.REPLACE})


class ActionPanel:
    """The actions on one object. Their events come over the websocket of the page, and from nowhere else."""

    def __init__(self, view: View, name: str) -> None:
        self._view, self._name = view, name
        self._planned: PlannedAction | None = None
        self._typed = ""
        self._shown: tuple[ConsoleAction, ...] = ()
        self._plans = False
        self._closed = 0  # how often
        self._buttons = box("div", "line")
        self._buttons.props.update(role="group", **{"aria-label": "Actions"})
        self._panel = box("section", "card stack hidden")
        self._panel.props.update(tabindex="-1", role="region", **{"aria-label": "Confirmation"})

    def offer(self, actions: Sequence[ConsoleAction]) -> None:
        """Show the buttons of these actions, and of no others."""
        if tuple(actions) == self._shown:
            return
        self._shown = tuple(actions)
        self._buttons.clear()
        with self._buttons:
            for action in actions:
                classes = "danger" if action in DANGEROUS else ""
                Button(LABELS[action], partial(self._press, action), classes)

    def _press(self, action: ConsoleAction) -> None:
        if not self._plans:  # one plan at a time
            self._plans = True
            self._view.spawn(self._plan(action))

    async def _plan(self, action: ConsoleAction) -> None:
        before = self._closed
        try:
            self._open(f"{LABELS[action]}: {self._name}", "Being planned …")
            planned = await plan_action(self._view.api, action, self._name, utc_now())
            if before == self._closed:
                self._ask(planned)
        except Failure as error:
            if before == self._closed:
                self._fail(action, error)
        finally:
            self._plans = False

    def _open(self, title: str, note: str) -> None:
        self._planned, self._typed = None, ""
        self._panel.clear()
        set_class(self._panel, "hidden", on=False)
        with self._panel:
            heading(2, title)
            paragraph(note)
        self._view.announce(note)

    def _fail(self, action: ConsoleAction, error: Exception) -> None:
        self._open(f"{LABELS[action]}: {self._name}", f"Not possible: {error}")
        step = error.next_step if isinstance(error, IntentRejected) else ""
        with self._panel:
            paragraph(step, "faint")
            self._same(action)
            Button("Close", self.close)

    def _same(self, action: ConsoleAction) -> None:
        with box("p"):
            TextElement("span", "The same on the command line: ", "faint")
            TextElement("code", command_of(action, self._name))

    def _ask(self, planned: PlannedAction) -> None:
        self._open(f"{LABELS[planned.action]}: {self._name}", "The plan. Nothing was changed yet.")
        self._planned = planned
        with self._panel:
            TextElement("pre", "\n".join(planned.lines), "plan")
            self._same(planned.action)
            self._error = paragraph("", "banner denied hidden")
            if planned.is_refused:
                paragraph("It would be rejected, so it is not offered.")
            elif planned.consent:
                paragraph(planned.question, "banner denied")
                InputField(
                    f"Type {planned.consent} to continue", "", self._on_typed, name="consent", hint=planned.consent
                )
            with box("div", "line"):
                if not planned.is_refused:
                    classes = "danger" if planned.consent else "primary"
                    self._confirm = Button(LABELS[planned.action], self._perform, classes)
                    self._confirm.enable(enabled=not planned.consent)
                Button("Do nothing", self.close)

    def _on_typed(self, text: str) -> None:
        self._typed = text
        if self._planned is not None:
            self._confirm.enable(enabled=text.strip() == self._planned.consent)

    def _perform(self) -> None:
        planned, typed, self._planned = self._planned, self._typed, None
        if planned is not None:  # a second press of the button finds none
            self._confirm.enable(enabled=False)
            self._view.spawn(self._write(planned, typed))

    async def _write(self, planned: PlannedAction, typed: str) -> None:
        try:
            done = await perform_action(self._view.api, planned, typed)
        except (Failure, ConsentMissing) as error:
            self._error.set(str(error))
            set_class(self._error, "hidden", on=False)
            self._view.announce(str(error))
            return
        self._open(f"{LABELS[planned.action]}: {self._name}", f"Done: {done.text}.")
        with self._panel, box("div", "line"):
            Link(f"Show {done.path.rpartition('/')[2]}", done.path, "button")
            Button("Close", self.close)

    def close(self) -> None:
        """Show nothing of a plan any more, also not of one that is being made."""
        self._planned = None
        self._closed += 1
        self._panel.clear()
        set_class(self._panel, "hidden", on=True)
