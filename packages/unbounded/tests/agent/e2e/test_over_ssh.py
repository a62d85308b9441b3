"""A host that loses its power while machina sets it up over SSH, and while it reboots."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any, Final

import pytest

from tests.agent.e2e.conftest import HostOf
from tests.agent.e2e.over_ssh import SITE, begun, settled
from tests.support.agent_release import AgentRelease
from tests.support.hosts.agent import AgentHost
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS

pytestmark = [pytest.mark.soak, pytest.mark.root, pytest.mark.timeout(1800, func_only=True)]

CUTS: Final = 6
READY_S: Final = 600.0


async def test_host_joins_over_ssh_despite_power_losses(
    agent_host: HostOf, release: AgentRelease, tmp_path: Path
) -> None:
    moments = random.Random(11)
    machine = f"{SITE}-cut"
    async with agent_host(machine, 42) as agent:
        shell = await begun(agent, release, tmp_path / "home")
        for _ in range(CUTS):
            await _at_work(agent)
            await asyncio.sleep(moments.uniform(0.0, 12.0))
            agent.host.cut()
            await agent.plane.wait(MACHINES, machine, lambda seen: _reachable(seen) == "False", within_s=READY_S)
            await agent.host.up()
            await shell.run(f"kubectl unbounded machine allow-join {machine} --force")  # tried again at once
        node = await settled(agent, within_s=READY_S)
        boot = await agent.host.boot_id()
        await agent.plane.operate("reboot", machine, "HostReboot")
        await agent.plane.wait(MACHINE_OPERATIONS, "reboot", _has_begun, within_s=180)
        await asyncio.sleep(moments.uniform(0.0, 2.0))
        agent.host.cut()
        await agent.host.up()
        ended = await agent.plane.ended("reboot", within_s=READY_S)
        assert ended["status"]["phase"] == "Complete", ended["status"]
        assert await agent.host.boot_id() != boot
        assert (await agent.plane.ready(machine, within_s=READY_S))["metadata"]["uid"] == node["metadata"]["uid"]
        seen = await agent.plane.get(MACHINES, machine)
        assert not seen["status"].get("activeOperation")


async def _at_work(agent: AgentHost) -> None:
    """A script runs, or it is over."""

    def so(seen: dict[str, object]) -> bool:
        status = seen.get("status")
        return isinstance(status, dict) and status.get("phase") in ("Provisioning", "Joining", "Ready")

    await agent.plane.wait(MACHINES, agent.machine, so, within_s=READY_S)


def _has_begun(seen: dict[str, Any]) -> bool:
    """Return whether it has begun, or has ended: on a busy machine all of it takes no longer than one observation."""
    return seen.get("status", {}).get("phase") in ("InProgress", "Complete", "Failed")


def _reachable(seen: dict[str, object]) -> str:
    status = seen.get("status")
    conditions = status.get("conditions", []) if isinstance(status, dict) else []
    return next((str(one["status"]) for one in conditions if one["type"] == "SSHReachable"), "")
