"""The page of rollouts and budgets."""

from __future__ import annotations

from typing import Final

from unbounded.api.configuration import MACHINE_CONFIGURATIONS
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.console.models.parts import ViewData
from unbounded.console.models.rollouts import rollouts_view
from unbounded.console.pages.live_page import LivePage
from unbounded.console.view import View

KINDS: Final = (MACHINE_CONFIGURATIONS, MACHINE_OPERATIONS, MACHINE_DISRUPTION_BUDGETS, MACHINES)


def show(view: View) -> None:
    """Draw all rollouts and budgets."""
    RolloutsPage(view, "Rollouts and budgets", (), KINDS).begin()


class RolloutsPage(LivePage):
    """The page of one browser. It shows the kinds that its user may read."""

    def data(self) -> ViewData | str:
        return rollouts_view(
            self.found(MACHINE_CONFIGURATIONS),
            self.found(MACHINE_OPERATIONS),
            self.found(MACHINE_DISRUPTION_BUDGETS),
            self.found(MACHINES),
        )
