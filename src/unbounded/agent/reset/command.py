"""The command `reset`."""

from __future__ import annotations

from unbounded.agent.console import FAILED, Progress, run_to_end
from unbounded.agent.host.commands import HostCommands
from unbounded.agent.host.units import Systemctl
from unbounded.agent.layout import Layout
from unbounded.agent.node.nodes import HostNodes
from unbounded.agent.reset.parts import Resetting
from unbounded.agent.reset.reset import reset
from unbounded.agent.steps.host import Host


def resetting(layout: Layout) -> Resetting:
    """Return the reset of this host."""
    commands = HostCommands()
    units = Systemctl(commands)
    return Resetting(Host(layout, commands, units), HostNodes(layout, commands, units))


def run(layout: Layout | None = None) -> int:
    """Reset this host and print what remains; return the exit status."""

    async def main() -> int:
        done = await reset(resetting(layout or Layout()), Progress())
        print("\n".join(done.lines()))
        return 0 if done.whole else FAILED

    return run_to_end(main)
