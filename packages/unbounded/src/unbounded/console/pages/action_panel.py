"""Buttons of actions on a page, and the panel in which the user reads the plan and confirms."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from unbounded.api.failures import Failure
from unbounded.console.actions import (
    LABELS,
    ConsoleAction,
    PlannedAction,
    PlanOutdated,
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
        self._uid = ""  # of the object now; empty where there is none
        self._planned: PlannedAction | None = None
        self._planning: asyncio.Task[None] | None = None
        self._pressed: ConsoleAction | None = None
        self._writes = False
        self._typed = ""
        self._offered: dict[ConsoleAction, Button] = {}
        with box("div", "stack") as whole:
            whole.on("keydown.escape", lambda _event: self._leave(), args=[])
            self._buttons = box("div", "line")
            self._buttons.props.update(role="group", **{"aria-label": "Actions"})
            self._panel = box("section", "card stack hidden")
            self._panel.props.update(tabindex="-1", role="region", **{"aria-label": "Confirmation"})

    def offer(self, uid: str, actions: Sequence[ConsoleAction]) -> None:
        """Show the buttons of these actions on the object with this UID, and of no others.

        A plan for an earlier object of the same name is shown no more.
        """
        if uid != self._uid:
            self._uid = uid
            self._end_plan_of_another()
        if tuple(actions) == tuple(self._offered):
            return
        self._offered = {}
        self._buttons.clear()
        with self._buttons:
            for action in actions:
                classes = "danger" if action in DANGEROUS else ""
                self._offered[action] = Button(LABELS[action], partial(self._press, action), classes)

    def close(self) -> None:
        """Show nothing of a plan any more, also not of one that is being made."""
        self._end_plan()
        self._panel.clear()
        set_class(self._panel, "hidden", on=True)

    # ---- a plan

    def _press(self, action: ConsoleAction) -> None:
        if self._writes:
            return
        self._end_plan()
        self._pressed = action
        self._open(self._title(action), "Being planned …")
        self._planning = self._view.spawn(self._plan(action))

    async def _plan(self, action: ConsoleAction) -> None:
        try:
            planned = await plan_action(self._view.api, action, self._name, utc_now())
        except Failure as error:
            self._fail(action, f"Not possible: {error}", error)
        else:
            self._ask(planned)
        self._planning = None

    def _end_plan(self) -> None:
        """Forget a plan, and end one that is being made."""
        self._planned = None
        if self._planning is not None:
            self._planning.cancel()
            self._planning = None

    def _end_plan_of_another(self) -> None:
        is_current = self._planned is not None and self._planned.uid == self._uid  # the page had an older state
        if is_current or (self._planned is None and self._planning is None):
            return
        self._end_plan()
        what = "was deleted and created again" if self._uid else "was deleted"
        self._open("No plan", f"{self._name} {what}, so its plan is void. Nothing was changed.")
        with self._panel, box("div", "line"):
            Button("Close", self._leave)

    def _title(self, action: ConsoleAction) -> str:
        return f"{LABELS[action]}: {self._name}"

    # ---- the panel

    def _open(self, title: str, note: str) -> None:
        self._planned, self._typed = None, ""
        self._panel.clear()
        set_class(self._panel, "hidden", on=False)
        with self._panel:
            heading(2, title)
            paragraph(note)
        self._view.announce(note)

    def _fail(self, action: ConsoleAction, text: str, error: Exception) -> None:
        self._open(self._title(action), text)
        step = error.next_step if isinstance(error, IntentRejected) else ""
        with self._panel:
            paragraph(step, "faint")
            self._same(action)
            with box("div", "line"):
                Button("Plan again", partial(self._press, action))
                Button("Close", self._leave)

    def _same(self, action: ConsoleAction) -> None:
        with box("p"):
            TextElement("span", "The same on the command line: ", "faint")
            TextElement("code", command_of(action, self._name))

    def _ask(self, planned: PlannedAction) -> None:
        self._open(self._title(planned.action), "The plan. Nothing was changed yet.")
        self._planned = planned
        with self._panel:
            TextElement("pre", "\n".join(planned.lines), "plan")
            self._same(planned.action)
            if planned.is_refused:
                paragraph("It would be rejected, so it is not offered.")
            elif planned.consent:
                paragraph(planned.question, "banner denied")
                with box("form") as form:
                    form.on("submit.prevent", lambda _event: self._perform(), args=[])
                    InputField(
                        f"Type {planned.consent} to continue", "", self._on_typed, name="consent", hint=planned.consent
                    )
            with box("div", "line"):
                if not planned.is_refused:
                    classes = "danger" if planned.consent else "primary"
                    self._confirm = Button(LABELS[planned.action], self._perform, classes)
                    self._confirm.enable(enabled=not planned.consent)
                Button("Do nothing", self._leave)

    def _on_typed(self, text: str) -> None:
        self._typed = text
        if self._planned is not None:
            self._confirm.enable(enabled=self._has_consent(self._planned))

    def _has_consent(self, planned: PlannedAction) -> bool:
        return self._typed.strip() == planned.consent

    def _leave(self) -> None:
        """Close the panel for the user, who is back at the button then."""
        if self._writes:
            return
        self.close()
        button = None if self._pressed is None else self._offered.get(self._pressed)
        if button is not None:
            self._view.focus(button)

    # ---- the write

    def _perform(self) -> None:
        planned, typed = self._planned, self._typed
        if planned is None or planned.is_refused or not self._has_consent(planned):
            return
        self._planned, self._writes = None, True  # a second press of the button finds none
        self._confirm.enable(enabled=False)
        self._view.spawn(self._write(planned, typed))

    async def _write(self, planned: PlannedAction, typed: str) -> None:
        try:
            done = await perform_action(self._view.api, planned, typed)
        except (Failure, PlanOutdated) as error:
            self._fail(planned.action, f"Failed: {error}", error)
            return
        finally:
            self._writes = False
        self._open(self._title(planned.action), f"Done: {done.text}.")
        with self._panel, box("div", "line"):
            Link(f"Show {done.path.rpartition('/')[2]}", done.path, "button")
            Button("Close", self._leave)
