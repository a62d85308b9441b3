"""The power goes in the middle of an upgrade and of a recreation: afterwards there is a working agent and node.

The whole host is killed through its cgroup at a random moment, and started again on the same disk. The moments come
from a seed, which a failure names; UNBOUNDED_SEED sets it.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Set
from pathlib import Path
from typing import Final

import pytest

from tests.agent.e2e.conftest import HostOf
from tests.support.agent_release import AgentRelease, release_like
from tests.support.hosts import until
from tests.support.hosts.agent import WINDOW_S, AgentHost
from tests.support.seeds import first_seed
from unbounded.agent.model import Slot
from unbounded.api.core import LEASES, NODES

pytestmark = [pytest.mark.slow, pytest.mark.root]
SEED: Final = int(os.environ.get("UNBOUNDED_SEED") or first_seed())
CUTS: Final = 3  # of each kind; 25 in a soak
SOAK_CUTS: Final = 25
UPGRADE_S: Final = WINDOW_S + 4.0  # about as long as one takes
RECREATION_S: Final = 8.0
BACK_S: Final = 120.0
SLOTS: Final = frozenset(slot.value for slot in Slot)


@pytest.mark.timeout(600, func_only=True)
async def test_an_agent_and_a_node_work_after_every_power_cut(
    agent_host: HostOf, release: AgentRelease, tmp_path: Path
) -> None:
    await _both(agent_host, release, tmp_path, CUTS)


@pytest.mark.soak
@pytest.mark.timeout(4000, func_only=True)
async def test_an_agent_and_a_node_work_after_fifty_power_cuts(
    agent_host: HostOf, release: AgentRelease, tmp_path: Path
) -> None:
    await _both(agent_host, release, tmp_path, SOAK_CUTS)


async def _both(agent_host: HostOf, release: AgentRelease, folder: Path, cuts: int) -> None:
    """Run two hosts at the same time: one upgrades, one recreates its node."""
    print(f"power cuts with UNBOUNDED_SEED={SEED}")
    async with asyncio.TaskGroup() as group:
        group.create_task(_while_upgrading(agent_host, release, folder, cuts))
        group.create_task(_while_recreating(agent_host, release, cuts))


async def _while_upgrading(agent_host: HostOf, release: AgentRelease, folder: Path, cuts: int) -> None:
    moments = random.Random(SEED)
    async with agent_host("upgrading", 21) as agent:
        node = await agent.joined(release)
        releases = [release_like(release, folder / text, version=text) for text in ("7.0.0", "7.0.1")]
        for count in range(cuts):
            made = releases[count % 2]
            url = agent.mirror.add(f"/upgrading-{made.version}.tar.gz", made.archive)
            before = await agent.agent_version()
            name = f"upgrade-{count}"
            await agent.plane.operate(name, agent.machine, "AgentUpgrade", downloadURL=url, retryFailedDigest="true")
            moment = moments.uniform(0.0, UPGRADE_S)
            await _cut(agent, moment)
            ended = await agent.plane.ended(name, within_s=BACK_S)
            where = f"cut {count} after {moment:.2f} s (UNBOUNDED_SEED={SEED}): {ended['status']}"
            if ended["status"]["phase"] == "Failed":  # a good one as well, when the host takes too long to be back
                assert ended["status"]["reason"] == "DaemonFailed", where
            wanted = made.version if ended["status"]["phase"] == "Complete" else before
            assert await agent.agent_version() == wanted, where
            await until(agent.daemon_active, within_s=BACK_S)
            assert await _selected(agent) in {"blue", "green"}, where
            await _node_works(agent, node["metadata"]["uid"], where)


async def _while_recreating(agent_host: HostOf, release: AgentRelease, cuts: int) -> None:
    moments = random.Random(SEED + 1)
    async with agent_host("recreating", 22) as agent:
        node = await agent.joined(release)
        for count in range(cuts):
            uid = node["metadata"]["uid"]
            (old,) = await agent.slots()
            await agent.plane.kubectl("delete", "node", agent.machine)
            moment = moments.uniform(0.0, RECREATION_S)
            await _cut(agent, moment)
            where = f"cut {count} after {moment:.2f} s (UNBOUNDED_SEED={SEED})"
            await _only(agent, SLOTS - {old}, where)  # also if another client wrote a Node in between
            node = await agent.plane.ready(agent.machine, but=uid, within_s=BACK_S)
            await _node_works(agent, node["metadata"]["uid"], where)
            assert await agent.daemon_active(), where


async def _cut(agent: AgentHost, after_s: float) -> None:
    await asyncio.sleep(after_s)
    agent.host.cut()
    await agent.host.up()


async def _selected(agent: AgentHost) -> str:
    target = (await agent.host.run("readlink", "-f", "/usr/local/bin/unbounded-agent-current")).stdout.strip()
    return Path(target).parent.name


async def _node_works(agent: AgentHost, uid: str, where: str) -> None:
    """kubelet renews the Lease of this Node from the slot that runs, since now."""
    began = time.time()

    async def renewed() -> bool:
        lease = await agent.plane.get(LEASES, agent.machine, namespace="kube-node-lease")
        text = str(lease.get("spec", {}).get("renewTime", ""))
        return text > time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(began - 10))

    await until(renewed, within_s=BACK_S)
    seen = await agent.plane.ready(agent.machine, within_s=BACK_S)
    assert seen["metadata"]["uid"] == uid, where
    (slot,) = await agent.slots()
    boot = (await agent.inside(slot, "cat", "/proc/sys/kernel/random/boot_id")).strip()

    async def told() -> bool:
        seen = await agent.plane.get(NODES, agent.machine)
        return str(seen["status"]["nodeInfo"]["bootID"]) == boot

    await until(told, within_s=BACK_S)


async def _only(agent: AgentHost, slots: Set[str], where: str) -> None:
    """These slots run, and nothing of another one is left."""

    async def so() -> bool:
        kept = {slot for slot in SLOTS if agent.host.exists(f"/var/lib/machines/{slot}")}
        return kept == slots == set(await agent.slots())

    try:
        await until(so, within_s=BACK_S)
    except AssertionError as error:
        error.add_note(where)
        raise
