"""The packaged agent on a host with a kernel of its own: no preflight error is ignored, all controllers are there."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.support.agent_release import AgentRelease
from tests.support.hosts import AgentTools
from tests.support.hosts.agent import COMMAND, START, NodeHost
from tests.support.hosts.images import Images
from tests.support.hosts.mirror import Mirror
from tests.support.hosts.plane import ControlPlane
from tests.support.hosts.virtual import booted_vm
from tests.support.qemu import Segment

pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(1200, func_only=True)]
START_S: Final = 600.0
READY_S: Final = 300.0


async def test_the_agent_makes_a_node_of_a_virtual_machine_and_takes_it_back(
    hosts: AgentTools,
    lan: Segment,
    plane: ControlPlane,
    mirror: Mirror,
    images: Images,
    release: AgentRelease,
    tmp_path: Path,
) -> None:
    async with booted_vm(hosts, lan, tmp_path, "virtual", "10.88.0.61") as host:
        agent = NodeHost(host, plane, mirror, images, "virtual", starts=START)
        node = await agent.joined(release, within_s=READY_S, start_s=START_S)
        kernel = (await host.run("uname", "-r")).stdout.strip()
        assert node["status"]["nodeInfo"]["kernelVersion"] == kernel
        await plane.operate("virtual-reboot", "virtual", "NodeReboot")
        ended = await plane.ended("virtual-reboot", within_s=READY_S)
        assert ended["status"]["phase"] == "Complete", ended["status"]
        await plane.operate("virtual-reset", "virtual", "AgentReset")
        ended = await plane.ended("virtual-reset", within_s=READY_S)
        assert ended["status"]["phase"] == "Complete", ended["status"]
        left = await host.run("sh", "-c", f"ls -A /var/lib/machines; ls {COMMAND}", check=False)
        assert not left.stdout, left.stdout
