"""The packaged agent on a host with a kernel of its own: no preflight error is ignored, all controllers are there.

The rules of cgroups for devices are in force: a machine opens what its unit allows, and nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.support.agent_release import AgentRelease
from tests.support.hosts import AgentTools, until
from tests.support.hosts.agent import COMMAND, START, NodeHost
from tests.support.hosts.images import Images
from tests.support.hosts.mirror import Mirror
from tests.support.hosts.plane import ControlPlane
from tests.support.hosts.virtual import VirtualHost, booted_vm
from tests.support.qemu import Segment

pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(1200, func_only=True)]
START_S: Final = 600.0
READY_S: Final = 300.0
LATER: Final = "/dev/vdb"
READS: Final = ("dd", f"if={LATER}", "of=/dev/null", "bs=1M", "count=1")
INSIDE: Final = ("systemd-run", "--machine=kube1", "--quiet", "--wait", "--pipe", "--collect", "--")
DENIED: Final = ("systemd-run", "--quiet", "--wait", "--pipe", "--collect", "--property=DevicePolicy=closed", "--")


async def test_agent_turns_a_virtual_machine_into_a_node_and_resets_it(
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
        await _a_disk_that_comes_later_reaches_the_node(host)
        await plane.operate("virtual-reboot", "virtual", "NodeReboot")
        ended = await plane.ended("virtual-reboot", within_s=READY_S)
        assert ended["status"]["phase"] == "Complete", ended["status"]
        await plane.operate("virtual-reset", "virtual", "AgentReset")
        ended = await plane.ended("virtual-reset", within_s=READY_S)
        assert ended["status"]["phase"] == "Complete", ended["status"]
        left = await host.run("sh", "-c", f"ls -A /var/lib/machines; ls {COMMAND}", check=False)
        assert not left.stdout, left.stdout


async def _a_disk_that_comes_later_reaches_the_node(host: VirtualHost) -> None:
    await host.plug_disk("later")
    await until(lambda: _has(host, LATER), within_s=60)
    await until(lambda: _has(host, LATER, *INSIDE), within_s=60)
    denied = await host.run(*DENIED, *READS, check=False)
    assert "Operation not permitted" in denied.stderr, "the rules are not in force on this host"
    await host.run(*INSIDE, *READS)
    await host.run(*INSIDE, "dd", "if=/dev/zero", f"of={LATER}", "bs=1M", "count=1", "oflag=sync")
    await host.unplug_disk("later")
    await until(lambda: _lacks(host, LATER, *INSIDE), within_s=60)


async def _has(host: VirtualHost, path: str, *inside: str) -> bool:
    return (await host.run(*inside, "test", "-b", path, check=False)).ok


async def _lacks(host: VirtualHost, path: str, *inside: str) -> bool:
    return not (await host.run(*inside, "test", "-e", path, check=False)).ok
