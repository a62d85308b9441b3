"""The plugin whose console has one more page: /failing fails at its button, and as long as a Machine `fails` exists."""

from __future__ import annotations

import sys

from unbounded.api.machine import MACHINES
from unbounded.cli.plugin.main import main
from unbounded.console import pages
from unbounded.console.pages import PageRoute
from unbounded.console.view import View
from unbounded.console.widgets import Button, TextElement


def show(view: View) -> None:
    """Draw the number of Machines."""
    number = TextElement("h1")

    def refresh() -> None:
        machines = view.live.of(MACHINES).cache
        if machines.get("fails") is not None:
            raise ValueError("a Machine that fails this page")
        number.set(f"counted {len(machines)}")

    def press() -> None:
        raise ValueError("a button that fails this page")

    Button("Fail", press)
    view.follow((MACHINES,), refresh)


if __name__ == "__main__":
    vars(pages)["PAGES"] = (*pages.PAGES, PageRoute("/failing", "Failing", "failing_page:show"))
    sys.exit(main())
