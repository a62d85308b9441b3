"""A rolling update of three hosts with a version that fails on one of them: it halts, and it is rolled back.

The hosts with systemd, the agents, the nspawn machines with containerd, and the control plane are real. kubelet is the
stand-in of `tests.support.hosts`: Pods are evicted and end, and have no processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.agent.e2e.conftest import HostOf
from tests.docs.runner import Shell
from tests.support.agent_release import AgentRelease
from tests.support.hosts.agent import AgentHost
from tests.support.hosts.plane import ControlPlane, is_ready
from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS, MACHINE_CONFIGURATIONS
from unbounded.api.core import NODES, PODS
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS
from unbounded.api.machine import MACHINES

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(1800, func_only=True)]
CONFIGURATION: Final = "roll"
NAMES: Final = ("roll-1", "roll-2", "roll-3")
SELECTOR: Final = {"matchLabels": {"pool": CONFIGURATION}}
NETWORK: Final = "10.99.0.0/16"  # of all hosts but the first
NOT_READY: Final = "is not Ready"  # the Node, in the messages of its agent
MORE: Final = {"Recreation": {"VerifySeconds": 15, "RetrySeconds": 3600}}
WITHIN_S: Final = 180.0
UPDATE_S: Final = 600.0  # of all three, each of which builds a root file system


@dataclass
class Fleet:
    """Three Nodes of one configuration, each with a Pod, under a disruption budget.

    Args:
        most_away: the most Nodes that were missing, not Ready or cordoned at one time since the beginning.
    """

    agents: dict[str, AgentHost]
    shell: Shell
    uids: dict[str, str] = field(default_factory=dict)
    most_away: int = 0

    @property
    def plane(self) -> ControlPlane:
        return next(iter(self.agents.values())).plane

    async def configure(self, strategy: dict[str, Any], **template: Any) -> None:
        """Create the configuration, or change its template to a new version."""
        image = self.agents[NAMES[0]].node_image
        template = {"agent": {"image": image}, "kubernetes": {"version": "v1.34.0"}, **template}
        settings = {"type": "RollingUpdate", "maxUnavailable": 1, "rollingUpdate": strategy}
        spec = {"template": template, "machineSelector": SELECTOR, "updateStrategy": settings}
        await self.plane.apply(_manifest("MachineConfiguration", CONFIGURATION, spec))

    async def phase(self, phase: str, version: int, updated: int = 3) -> dict[str, Any]:
        """Wait until the update has a phase, and none of its Machines is disrupted any more; its status."""

        def reached(seen: dict[str, Any]) -> bool:
            rollout = seen.get("status", {}).get("rollout", {})
            return [rollout.get(one) for one in ("phase", "version", "updated")] == [phase, version, updated]

        found = await self.plane.wait(MACHINE_CONFIGURATIONS, CONFIGURATION, reached, within_s=UPDATE_S)
        for name in NAMES:
            await self.plane.wait(MACHINES, name, lambda one: "disruption" not in one["status"], within_s=WITHIN_S)
        return dict(found["status"]["rollout"])

    async def works(self, expected: dict[str, tuple[int, str]]) -> None:
        """Check that each Node is Ready, usable, and made from a version, in the one slot that runs."""
        for name, (version, slot) in expected.items():
            node = await self.plane.ready(name, within_s=WITHIN_S)
            assert not node["spec"].get("unschedulable"), name
            assert [one for one in node["metadata"]["annotations"] if "cordoned-by" in one] == [], name
            machine = await self.plane.get(MACHINES, name)
            assert machine["status"]["configuration"]["version"] == version, machine["status"]
            assert await self.agents[name].slots() == [slot], name
            boot_id = await self.agents[name].inside(slot, "cat", "/proc/sys/kernel/random/boot_id")
            assert node["status"]["nodeInfo"]["bootID"] == boot_id.strip(), name
        await self.plane.wait(  # released after the record of the disruption
            MACHINE_DISRUPTION_BUDGETS,
            CONFIGURATION,
            lambda budget: not budget["status"].get("grants"),
            within_s=WITHIN_S,
        )
        assert self.most_away == 1

    async def replaced(self) -> set[str]:
        """Return the Nodes that were created again since the last call."""
        nodes = {name: await self.plane.get(NODES, name) for name in NAMES}
        before, self.uids = self.uids, {name: node["metadata"]["uid"] for name, node in nodes.items()}
        return {name for name, uid in self.uids.items() if before.get(name) != uid}

    async def pods(self) -> set[str]:
        """Return the Nodes whose Pod is still there."""
        return {name for name in NAMES if await self.plane.get(PODS, f"web-{name}", namespace="default")}

    async def events(self, about: str) -> set[str]:
        """Return the reasons of the Events about an object."""
        listed = json.loads(await self.plane.kubectl("get", "events", "-o", "json"))["items"]
        return {one["reason"] for one in listed if one["involvedObject"]["name"] == about}

    async def why(self, about: str) -> str:
        return " ".join((await self.shell.run(f"kubectl unbounded why {about}")).split())


def _manifest(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "unbounded-cloud.io/v1alpha3", "kind": kind, "metadata": {"name": name}, "spec": spec}


Join = Callable[[dict[str, Any]], Awaitable[Fleet]]


@pytest.fixture
async def joined(agent_host: HostOf, release: AgentRelease, tmp_path: Path) -> AsyncIterator[Join]:
    """Three hosts; the returned function makes them Nodes of version 1 of the configuration, with a strategy."""
    async with AsyncExitStack() as stack:
        hosts = (stack.enter_async_context(agent_host(name, 51 + number)) for number, name in enumerate(NAMES))
        agents = dict(zip(NAMES, await asyncio.gather(*hosts), strict=True))

        async def join(strategy: dict[str, Any]) -> Fleet:
            for agent in agents.values():
                agent.more = MORE
            await asyncio.gather(*(agent.joined(release, within_s=WITHIN_S) for agent in agents.values()))
            fleet = Fleet(agents, Shell(tmp_path, agents[NAMES[0]].plane.kubeconfig, {}))
            await _protect(fleet)
            await fleet.configure(strategy)
            await fleet.plane.kubectl("label", "mach", *NAMES, f"pool={CONFIGURATION}")
            rollout = await fleet.phase("Complete", 1)
            assert rollout["lastGood"] == 1, rollout
            await fleet.replaced()
            await stack.enter_async_context(_counted(fleet))
            return fleet

        yield join


async def _protect(fleet: Fleet) -> None:
    """Create a disruption budget and a Pod on each Node, and wait until the Pods run."""
    drain = {"evictUnmanaged": True}
    spec = {"machineSelector": SELECTOR, "maxUnavailable": 1, "minReadySeconds": 1, "drain": drain}
    await fleet.plane.apply(_manifest("MachineDisruptionBudget", CONFIGURATION, spec))
    for name in NAMES:
        meta, spec = {"name": f"web-{name}"}, {"nodeName": name, "containers": [{"name": "web", "image": "web"}]}
        await fleet.plane.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    for name in NAMES:
        await fleet.plane.wait(PODS, f"web-{name}", _runs, namespace="default", within_s=WITHIN_S)


def _runs(pod: dict[str, Any]) -> bool:
    return bool(pod.get("status", {}).get("phase") == "Running")


@asynccontextmanager
async def _counted(fleet: Fleet) -> AsyncIterator[None]:
    """Count the Nodes that are away, a few times a second."""

    async def count() -> None:
        async with fleet.plane.api() as admin:
            while True:
                listed = (await admin.list(NODES.raw())).items
                usable = {one["metadata"]["name"] for one in listed if is_ready(one) and not _is_cordoned(one)}
                fleet.most_away = max(fleet.most_away, len(set(NAMES) - usable))
                await asyncio.sleep(0.1)

    counting = asyncio.create_task(count())
    try:
        yield
        assert not counting.done(), counting.exception()
    finally:
        counting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await counting


def _is_cordoned(node: dict[str, Any]) -> bool:
    return bool(node["spec"].get("unschedulable"))


async def _in_network(fleet: Fleet, but: Collection[str]) -> None:
    """Give the hosts addresses in the network."""
    for number, name in enumerate(NAMES):
        if name not in but:
            await fleet.agents[name].host.run("ip", "address", "add", f"10.99.0.{11 + number}/16", "dev", "host0")


async def test_version_that_fails_on_one_host_halts_and_is_rolled_back(joined: Join) -> None:
    """Version 2 needs an address that the first host lacks; then its kubelet stays not Ready on the second."""
    fleet = await joined({"onFailure": "Halt"})
    await _in_network(fleet, but={"roll-1"})
    await fleet.configure({"onFailure": "Halt"}, kubelet={"nodeIP": NETWORK})
    text = f"nodeIP {NETWORK}: this host has no address in this network"

    def is_said(seen: dict[str, Any]) -> bool:
        return text in seen["status"]["rollout"].get("message", "")

    await fleet.plane.wait(MACHINE_CONFIGURATIONS, CONFIGURATION, is_said, within_s=WITHIN_S)
    assert await fleet.replaced() == set(), "no Node is disturbed, so the version may still change"

    fleet.agents["roll-1"].mirror.add_kubernetes("1.35.0", dials="not-ready@host-roll-2")
    version = {"kubernetes": {"version": "v1.35.0"}, "kubelet": {"maxPods": 42}}
    await fleet.configure({"onFailure": "Halt"}, **version)
    rollout = await fleet.phase("Halted", 2, updated=1)
    assert (rollout["outdated"], rollout["waiting"]["reason"]) == (2, "Halted")
    assert [one["machine"] for one in rollout["failed"]] == ["roll-2"]
    message = rollout["failed"][0]["message"]
    assert NOT_READY in message
    await fleet.works({"roll-1": (2, "kube2"), "roll-2": (1, "kube1"), "roll-3": (1, "kube1")})
    assert (await fleet.plane.get(NODES, "roll-1"))["status"]["allocatable"]["pods"] == "42"
    assert await fleet.replaced() == {"roll-1", "roll-2"}
    assert await fleet.pods() == {"roll-3"}, "nothing has started there"
    assert {"UpdateInProgress", "UpdateHalted"} <= await fleet.events(CONFIGURATION)
    assert "NodeUpdateFailed" in await fleet.events("roll-2")
    text = await fleet.why(f"configuration/{CONFIGURATION}")
    assert "Halted version 2: 1 of 3 Nodes has version 2; halted, nothing starts: roll-2" in text
    assert "kubectl unbounded why machine/roll-2" in text
    assert NOT_READY in await fleet.why("machine/roll-2")
    assert "to version 2 has not reached it" in await fleet.why("machine/roll-3")

    await fleet.configure({"onFailure": "Rollback"}, **version)
    rollout = await fleet.phase("RolledBack", 1)
    assert (rollout.get("outdated", 0), rollout.get("failed", [])) == (0, [])
    await fleet.works(dict.fromkeys(NAMES, (1, "kube1")))
    assert (await fleet.plane.get(NODES, "roll-1"))["status"]["allocatable"]["pods"] == "110"
    assert await fleet.replaced() == {"roll-1"}, "all others have the version already"
    assert await fleet.pods() == {"roll-3"}
    await _is_bad(fleet, 2, "roll-2")
    assert {"VersionBad", "UpdateRollingBack", "UpdateRolledBack"} <= await fleet.events(CONFIGURATION)
    assert "version 2 is Bad" in await fleet.why(f"configuration/{CONFIGURATION}")


async def _is_bad(fleet: Fleet, version: int, failed: str) -> None:
    found = await fleet.plane.get(MACHINE_CONFIGURATION_VERSIONS, f"{CONFIGURATION}-v{version}")
    (bad,) = (one for one in found["status"]["conditions"] if one["type"] == "Bad")
    assert bad["status"] == "True"
    assert f"after 1 failure; {failed}: " in bad["message"]


@pytest.mark.soak
async def test_node_that_never_serves_on_one_host_rolls_all_back(joined: Join) -> None:
    """Version 2 works everywhere, and version 3 has a kubelet that stays not Ready on the second host."""
    strategy = {"onFailure": "Rollback"}
    fleet = await joined(strategy)
    mirror = fleet.agents["roll-1"].mirror
    for version, dials in (("1.35.0", ""), ("1.36.0", "not-ready@host-roll-2"), ("1.36.1", "")):
        mirror.add_kubernetes(version, dials=dials)
    await fleet.configure(strategy, kubernetes={"version": "v1.35.0"})
    assert (await fleet.phase("Complete", 2))["lastGood"] == 2
    await fleet.works(dict.fromkeys(NAMES, (2, "kube2")))
    assert await fleet.replaced() == set(NAMES)

    await fleet.configure(strategy, kubernetes={"version": "v1.36.0"})
    await fleet.phase("RolledBack", 2)
    await fleet.works(dict.fromkeys(NAMES, (2, "kube2")))
    assert await fleet.replaced() == {"roll-1", "roll-2"}
    await _is_bad(fleet, 3, "roll-2")
    assert {"UpdateRollingBack", "UpdateRolledBack"} <= await fleet.events(CONFIGURATION)

    await fleet.plane.kubectl("drain", "roll-2", "--force", "--timeout=60s")
    await fleet.configure(strategy, kubernetes={"version": "v1.36.1"})
    await fleet.plane.wait(MACHINE_CONFIGURATIONS, CONFIGURATION, _waits_for("Machine roll-2"), within_s=WITHIN_S)
    assert await fleet.replaced() == set(), "the Node that the user has drained uses maxUnavailable"
    await fleet.plane.kubectl("uncordon", "roll-2")
    assert (await fleet.phase("Complete", 4))["lastGood"] == 4
    await fleet.works(dict.fromkeys(NAMES, (4, "kube1")))


def _waits_for(held_by: str) -> Callable[[dict[str, Any]], bool]:
    def waits(seen: dict[str, Any]) -> bool:
        return bool(seen["status"]["rollout"].get("waiting", {}).get("heldBy") == held_by)

    return waits
