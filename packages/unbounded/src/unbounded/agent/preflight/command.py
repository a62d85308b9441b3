"""The command `preflight`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from unbounded.agent.host.commands import HostCommands
from unbounded.agent.host.facts import host_facts
from unbounded.agent.host.units import Systemctl
from unbounded.agent.layout import Layout
from unbounded.agent.preflight.report import IgnoredChecks, as_json, as_text
from unbounded.agent.preflight.run import NOTHING, run_preflight
from unbounded.agent.settings import load_config
from unbounded.api.failures import Rejected
from unbounded.join.agent_config import AgentConfig


def run(
    file: Path | None,
    environ: Mapping[str, str],
    *,
    ignored: IgnoredChecks | None = None,
    fail_on_warnings: bool,
    json: bool,
    colour: bool,
    layout: Layout | None = None,
) -> int:
    """Print the report of this host; return the exit status."""
    layout = layout or Layout()
    commands = HostCommands()
    config: AgentConfig | Rejected
    unknown_keys: tuple[str, ...] = ()
    try:
        given = load_config(file, environ, layout)
        config, unknown_keys = given.config, given.unknown_keys
    except Rejected as failure:
        config = failure
    report = asyncio.run(
        run_preflight(
            config,
            host_facts(layout, environ),
            layout,
            commands,
            Systemctl(commands),
            unknown_keys=unknown_keys,
            ignored=ignored or NOTHING,
            fail_on_warnings=fail_on_warnings,
        )
    )
    print(as_json(report) if json else as_text(report, colour=colour))
    return 1 if report.failed else 0
