"""Nodes recreated by the packaged agent on hosts with a real systemd, through a control plane and kubectl."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.agent_release import AgentRelease, agent_release
from tests.support.hosts import AgentTools, booted
from tests.support.hosts.agent import AgentHost
from tests.support.hosts.images import Images
from tests.support.hosts.mirror import Mirror
from tests.support.hosts.plane import ControlPlane
from tests.support.qemu import Segment
from tests.support.seeds import first_seed
from unbounded.api.core import NODES
from unbounded.api.machine import MACHINES

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(900)]

SOAK: Final = bool(os.environ.get("UNBOUNDED_SOAK"))
CUTS: Final = 50 if SOAK else 6
HOSTS: Final = 2  # that lose their power at the same time
VERIFY_S: Final = 15
WITHIN_S: Final = 180.0


@dataclass
class Lab:
    """The environment of the hosts of these tests."""

    tools: AgentTools
    lan: Segment
    disks: Path
    plane: ControlPlane
    mirror: Mirror
    images: Images
    release: AgentRelease
    versions: set[str] = field(default_factory=lambda: {"1.34.0"})

    @asynccontextmanager
    async def node(self, machine: str, number: int) -> AsyncIterator[NodeHost]:
        """A host whose node has joined."""
        async with booted(self.tools, self.lan, self.disks, f"rec-{machine}", f"10.88.0.{number}") as host:
            more = {"Recreation": {"VerifySeconds": VERIFY_S, "RetrySeconds": 3600}}
            agent = AgentHost(host, self.plane, self.mirror, self.images, machine, more=more)
            try:
                began = time.monotonic()
                await agent.joined(self.release, within_s=WITHIN_S)
                yield NodeHost(self, agent, time.monotonic() - began)
            except BaseException as error:
                error.add_note(f"{machine}: {await agent.trouble()}")
                raise

    def serve(self, version: str, dials: str = "") -> None:
        if version not in self.versions:
            self.versions.add(version)
            self.mirror.add_kubernetes(version, dials=dials)


@dataclass
class NodeHost:
    lab: Lab
    agent: AgentHost
    joined_s: float

    @property
    def name(self) -> str:
        return self.agent.machine

    async def want(self, version: str) -> None:
        patch = {"spec": {"kubernetes": {"version": f"v{version}"}}}
        await self.lab.plane.kubectl("patch", "machine", self.name, "--type=merge", "-p", json.dumps(patch))

    async def uid(self) -> str:
        """Of its Node; empty when there is none."""
        node = await self.lab.plane.get(NODES, self.name)
        return str(node["metadata"]["uid"]) if node else ""

    async def delete_node(self) -> str:
        uid = await self.uid()
        await self.lab.plane.kubectl("delete", "node", self.name, "--wait=false")
        return uid

    async def condition(self, kind: str) -> dict[str, str]:
        return condition_of(await self.lab.plane.get(MACHINES, self.name), kind)

    async def updated(self, reason: str, *, but: str = "") -> dict[str, Any]:
        """Wait until a recreation has ended so; the Machine. but: the UID of the last one before."""

        def ended(machine: dict[str, Any]) -> bool:
            status = machine["status"]
            recent = [one for one in status.get("recentOperations", ()) if one["kind"] == "NodeRecreation"]
            over = "activeOperation" not in status and recent and recent[-1]["uid"] != but
            return bool(over) and condition_of(machine, "NodeUpdated").get("reason") == reason

        return await self.lab.plane.wait(MACHINES, self.name, ended, within_s=WITHIN_S)

    async def works(self, version: str) -> None:
        """The one machine that runs is the Node, as this version, and the other slot is gone."""
        node = await self.lab.plane.ready(self.name, within_s=WITHIN_S)
        slots = await self.agent.slots()
        assert len(slots) == 1, slots
        info = node["status"]["nodeInfo"]
        assert info["kubeletVersion"] == f"v{version}"
        boot_id = await self.agent.inside(slots[0], "cat", "/proc/sys/kernel/random/boot_id")
        assert info["bootID"] == boot_id.strip()
        there = await self.agent.host.run("ls", "-A", "/var/lib/machines")
        assert [name for name in there.stdout.split() if not name.endswith(".lck")] == slots  # nspawn's own locks
        assert not (await self.agent.host.run("ls", "/etc/unbounded/agent/recreation.json", check=False)).ok


def condition_of(machine: dict[str, Any], kind: str) -> dict[str, str]:
    return next((one for one in machine["status"].get("conditions", ()) if one["type"] == kind), {})


def _is_applied(machine: dict[str, Any]) -> bool:
    """Return whether the daemon, which `start` does not wait for, has reported that nothing is pending."""
    return condition_of(machine, "RepavePending").get("reason") == "Applied"


@pytest.fixture
def lab(hosts: AgentTools, lan: Segment, disks: Path, plane: ControlPlane, mirror: Mirror, images: Images) -> Lab:
    return Lab(hosts, lan, disks, plane, mirror, images, agent_release())


async def test_bad_version_rolls_back_and_a_corrected_one_is_applied(lab: Lab) -> None:
    async with lab.node("anew", 31) as node:
        await lab.plane.wait(MACHINES, node.name, _is_applied, within_s=WITHIN_S)
        lab.serve("1.36.0", "not-ready")
        await node.want("1.36.0")
        await node.delete_node()
        machine = await node.updated("RolledBack")
        assert await node.agent.slots() == ["kube1"]
        await node.works("1.34.0")
        said = condition_of(machine, "NodeUpdated")["message"]
        assert "is not Ready" in said
        assert condition_of(machine, "RepavePending")["reason"] == "RolledBack"

        lab.serve("1.35.0")
        await node.want("1.35.0")
        machine = await node.updated("Succeeded", but=machine["status"]["recentOperations"][-1]["uid"])
        assert await node.agent.slots() == ["kube2"]
        await node.works("1.35.0")
        assert condition_of(machine, "RepavePending")["reason"] == "Applied"


@pytest.mark.soak  # tests/agent/e2e cuts the power in every run
@pytest.mark.timeout(7000 if SOAK else 900)
async def test_recreation_with_power_loss_ends_with_one_working_node(lab: Lab) -> None:
    """Each cut hits one recreation, somewhere between the deletion of the Node and the end of all that follows."""
    seed = int(os.environ.get("UNBOUNDED_SEED", first_seed()))
    lab.serve("1.35.0")

    async def life(machine: str, number: int) -> None:
        chance = random.Random(seed + number)
        async with lab.node(machine, number) as node:
            for count in range(CUTS // HOSTS):
                version = ("1.35.0", "1.34.0")[count % 2]
                await node.want(version)
                before = await _last(node)
                await node.delete_node()
                moment = chance.uniform(0.1, node.joined_s)  # a recreation takes about as long, on this machine now
                await asyncio.sleep(moment)
                await asyncio.to_thread(node.agent.host.cut)
                await node.agent.host.up()
                try:
                    await node.updated("Succeeded", but=before)
                    await node.works(version)
                    print(f"{machine}: cut {moment:.1f} s in; back as v{version}", flush=True)
                except BaseException as error:
                    error.add_note(f"UNBOUNDED_SEED={seed}: cut {count} of {machine}, {moment:.2f} s in")
                    raise

    async with asyncio.TaskGroup() as tasks:
        for number in range(HOSTS):
            tasks.create_task(life(f"cut{number}", 41 + number))


async def _last(node: NodeHost) -> str:
    machine = await node.lab.plane.get(MACHINES, node.name)
    recent = machine["status"].get("recentOperations", ())
    return str(recent[-1]["uid"]) if recent else ""
