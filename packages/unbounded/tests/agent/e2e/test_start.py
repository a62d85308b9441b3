"""`start` is killed at each of its steps, in downloads and in unpacking, and run again: in the end there is a node."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.agent.e2e.conftest import HostOf
from tests.support.agent_release import AgentRelease
from tests.support.hosts import until
from tests.support.hosts.agent import STARTS, AgentHost
from tests.support.hosts.mirror import Dial
from unbounded.agent.steps.start_steps import start_steps
from unbounded.api.core import NODES
from unbounded.api.machine import MACHINES

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(600, func_only=True)]
_STEP: Final = re.compile(r"step (started|completed)\s+step=(?:'([^']+)'|(\S+))")
# Each is a file or two of the slot, and represented by "containerd" and "fetch containerd"
ALIKE: Final = frozenset(
    name for one in ("kubelet", "kubectl", "kube-proxy", "runc", "crictl", "cni") for name in (one, f"fetch {one}")
) | {"sandbox image", "contract"}
# These are interrupted on made-up hosts: tests/agent/test_reset.py
NOTHING_TO_DO: Final = frozenset({"packages", "swap", "docker guard", "configured-sysctl"})  # of these hosts
AT_ONCE: Final = frozenset(  # they begin together, and most of them are done before the kill for the first comes
    {"upgrade drop-ins", "kernel modules", "sysctl", "nftables", "agent release", "agent configuration"}
)
ONCE: Final = frozenset({"survey", "identity"})  # one begins with those above, and once done they do not begin again
UNIT: Final = "start.service"
STARTS_AT_MOST: Final = 60
FETCH: Final = "fetch containerd"
SLOW: Final = 4 << 20  # bytes a second: there is time to be killed in
CRAWL: Final = 64 << 10


async def test_start_killed_at_each_distinct_step_is_completed_by_the_next(
    agent_host: HostOf, release: AgentRelease
) -> None:
    await _killed_everywhere(agent_host, release, spared=ALIKE)


@pytest.mark.soak
@pytest.mark.timeout(900, func_only=True)
async def test_start_killed_at_any_step_is_completed_by_the_next_start(
    agent_host: HostOf, release: AgentRelease
) -> None:
    await _killed_everywhere(agent_host, release, spared=frozenset())


@dataclass(frozen=True)
class Kill:
    """A start that was killed a moment after it began a step.

    Args:
        during: the steps that it was in the middle of.
        before: those that it had completed meanwhile, as the kill comes late on a busy machine.
    """

    step: str
    during: frozenset[str]
    before: frozenset[str]


async def _killed_everywhere(agent_host: HostOf, release: AgentRelease, *, spared: frozenset[str]) -> None:
    moments = random.Random(5)
    async with agent_host("killed", 31) as agent:
        await agent.configure()
        await agent.unpack(release)
        kinds = {step.name for step in start_steps(debootstrap=False)}
        tried, killed, passed = set[str](), set[str](), set[str]()
        agent.mirror.dials[agent.mirror.path_of("containerd")] = Dial(bytes_per_s=CRAWL)  # no kill is too late
        for _ in range(STARTS_AT_MOST):
            known = tried | (spared if tried | passed >= ONCE else kinds - ONCE)
            kill = await _killed_in_a_new_step(agent, known, moments)
            if kill is None:
                break
            tried.add(kill.step)
            killed |= kill.during
            passed |= kill.before
            if FETCH in killed:
                agent.mirror.dials.clear()
        else:
            pytest.fail(f"still not finished: {tried}")
        assert FETCH in killed
        missed = kinds - killed - passed
        assert missed <= NOTHING_TO_DO | AT_ONCE, (killed, missed)
        assert {"image", "root file system"} <= killed | passed
        await _works(agent)


async def _killed_in_a_new_step(
    agent: AgentHost, known: frozenset[str] | set[str], moments: random.Random
) -> Kill | None:
    """Run start, and kill it a moment after it began a step that is not known; None when it ends by itself."""
    process = await agent.host.spawn(UNIT, *STARTS)
    assert process.stdout is not None
    said, killed_in = "", ""
    begun, completed = set[str](), set[str]()
    async for line in process.stdout:
        said += line.decode()
        found = _STEP.search(line.decode().strip())
        if found is None:
            continue
        name = found[2] or found[3]
        if found[1] == "completed":
            completed.add(name)
            continue
        begun.add(name)
        if not killed_in and name not in known:
            killed_in = name
            begun -= completed
            completed.clear()
            await asyncio.sleep(moments.choice((0.0, 0.0, 0.05, 0.5)))
            agent.host.kill(UNIT)
    status = await process.wait()
    if killed_in:
        return Kill(killed_in, frozenset(begun - completed), frozenset(completed))
    assert status == 0, said
    return None


async def test_a_start_that_is_killed_in_downloads_and_unpacking_goes_on(
    agent_host: HostOf, release: AgentRelease
) -> None:
    """Its Machine existed before, and has labels for the node; the configuration has others."""
    async with agent_host("cut", 32) as agent:
        await agent.configure()
        spec = {"kubernetes": {"version": "v1.34.0", "nodeLabels": {"tier": "core"}}}
        made = {"apiVersion": "unbounded-cloud.io/v1alpha3", "kind": "Machine", "metadata": {"name": agent.machine}}
        await agent.plane.apply({**made, "spec": spec})
        await agent.unpack(release)
        path = agent.mirror.path_of("containerd")
        agent.mirror.asked.clear()
        agent.mirror.dials[path] = Dial(bytes_per_s=SLOW)
        try:
            await _killed_when(agent, lambda: _partly_there(agent) > 0, 0.5)
            there = _partly_there(agent)
            await _killed_when(agent, lambda: _partly_there(agent) > there, 0.2)
            assert any(asked.path == path and asked.begins > 0 for asked in agent.mirror.asked), "it goes on"
        finally:
            agent.mirror.dials.clear()
        for more_s in (0.1, 0.4, 0.8):
            await _killed_when(agent, lambda: any(agent.host.outside("/var/lib/machines").iterdir()), more_s)
        started = await agent.start()
        assert f"Node {agent.machine} exists" in started.stdout
        await _works(agent)
        node = await agent.plane.get(NODES, agent.machine)
        assert node["metadata"]["labels"]["tier"] == "core"
        machine = await agent.plane.wait(MACHINES, agent.machine, _is_set_up, within_s=90)
        said = {one["type"]: one["reason"] for one in machine["status"]["conditions"]}
        assert said["RepavePending"] == "Applied", "what was just made is not pending to be made anew"


def _is_set_up(machine: dict[str, Any]) -> bool:
    found = machine.get("status", {}).get("conditions", ())
    return any((one["type"], one["status"]) == ("AgentBootstrapped", "True") for one in found)


def _partly_there(agent: AgentHost) -> int:
    """Bytes of containerd's archive that are on the disk; 0 when it is not there or is whole."""
    archive = (agent.host.tools.artifacts / "containerd.tar.gz").read_bytes()
    found = agent.host.outside("/var/lib/unbounded/agent").rglob(f"*{hashlib.sha256(archive).hexdigest()}*.partial")
    return max((path.stat().st_size for path in found), default=0)


async def _killed_when(agent: AgentHost, seen: Callable[[], bool], more_s: float) -> None:
    """Run start, and kill it so long after something is seen."""
    process = await agent.host.spawn(UNIT, *STARTS)

    async def so() -> bool:
        return seen() or process.returncode is not None

    await until(so, within_s=180)
    await asyncio.sleep(more_s)
    agent.host.kill(UNIT)
    await process.communicate()


async def _works(agent: AgentHost) -> None:
    await agent.plane.ready(agent.machine, within_s=90)
    assert await agent.slots() == ["kube1"]
    assert await agent.daemon_active()
    left = [path.name for path in agent.host.outside("/var/lib/machines").iterdir() if not path.name.startswith(".#")]
    assert left == ["kube1"], left
