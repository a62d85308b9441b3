"""The command `status`."""

from __future__ import annotations

import asyncio

from unbounded.agent.host.commands import HostCommands
from unbounded.agent.host.units import Systemctl
from unbounded.agent.layout import Layout
from unbounded.agent.status.reader import StateReader
from unbounded.agent.status.show import as_json, as_text


def run(*, json: bool, layout: Layout | None = None) -> int:
    """Print the state of this host; return the exit status."""
    commands = HostCommands()
    looking = StateReader(layout or Layout(), Systemctl(commands), lambda slot: Systemctl(commands, machine=slot))
    state = asyncio.run(looking.state())
    print(as_json(state) if json else as_text(state))
    return 0
