"""The command `reset`."""

from __future__ import annotations

from unbounded.agent.console import FAILED, ProgressOutput, run_to_end
from unbounded.agent.host.commands import HostCommands
from unbounded.agent.host.units import Systemctl
from unbounded.agent.layout import Layout
from unbounded.agent.node.nodes import HostNodes
from unbounded.agent.reset.parts import ResetContext
from unbounded.agent.reset.reset import reset
from unbounded.agent.steps.step import StepHost


def reset_context(layout: Layout) -> ResetContext:
    """Return the reset of this host."""
    commands = HostCommands()
    units = Systemctl(commands)
    return ResetContext(StepHost(layout, commands, units), HostNodes(layout, commands, units))


def run(layout: Layout | None = None) -> int:
    """Reset this host and print what remains; return the exit status."""

    async def main() -> int:
        done = await reset(reset_context(layout or Layout()), ProgressOutput())
        print("\n".join(done.lines()))
        return 0 if done.whole else FAILED

    return run_to_end(main)
