"""A rolling update replaces a machine with real firmware: drained, within a disruption budget, and proven.

The kubelet and the agent of the machine are simulated: its thin system reports cloud-init, and this test its Node.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.boot.rack import MACHINE, SEEN, Rack, blank_disk, rack, seen
from tests.boot.thin import DISK_BYTES, thin_image
from tests.cli.running import KUBECTL
from tests.fetch.layers import files, with_layer
from tests.fetch.registries import push
from tests.support.qemu import Hardware, Segment
from unbounded.api.names import API_VERSION, LABEL_SITE
from unbounded.kube.clock import rfc3339

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.soak,  # two installations
    pytest.mark.timeout(1800),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]

MAC: Final = "52:54:00:00:00:0a"
LIMIT_S: Final = 600.0
RUNS: Final = "guest: runs from its disk"
SELECTS: Final = {"matchLabels": {LABEL_SITE: "rack1"}}
CONFIGURATION: Final = {
    "apiVersion": API_VERSION,
    "kind": "MachineConfiguration",
    "metadata": {"name": "rack"},
    "spec": {
        "template": {"kubernetes": {"version": "v1.34.0"}},
        "machineSelector": SELECTS,
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"host": True}},
    },
}
BUDGET: Final = {
    "apiVersion": API_VERSION,
    "kind": "MachineDisruptionBudget",
    "metadata": {"name": "one"},
    "spec": {"machineSelector": SELECTS, "maxUnavailable": 1, "drain": {"evictUnmanaged": True}},
}
POD: Final = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web"}},
    "spec": {"nodeName": MACHINE, "containers": [{"name": "web", "image": "web"}]},
}
POD_BUDGET: Final = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
}


async def patch_status(it: Rack, *what: str, **status: Any) -> None:
    await it.up.kubectl("patch", *what, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))


def starts_of_system(it: Rack) -> int:
    """Return how often the installed system has started, 0 while it does not run."""
    runs = it.machine.running and it.machine.boots[-1:] == ["Hdd"]
    starts = it.machine.console().count(RUNS)
    return starts if runs and starts == it.machine.boots.count("Hdd") else 0


async def kubelet(it: Rack, *taints: dict[str, str]) -> None:
    """Report the Node while the installed system runs, with a boot ID for each start, and end evicted pods.

    Args:
        taints: that the Node registers with.
    """
    exists, reported = False, 0
    while True:
        await asyncio.sleep(2)
        start = starts_of_system(it)
        if not start:
            continue
        at = rfc3339(micro=True)
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": it.name, "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": it.name, "leaseDurationSeconds": 40, "renewTime": at},
        }
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": it.name}, "spec": {"taints": list(taints)}}
        node = [] if exists else [body]
        await it.up.apply(*node, lease)
        exists = True
        if start != reported:
            ready = {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "message": "",
                "lastTransitionTime": at,
            }
            found = (await it.up.get("node", it.name))["status"].get("conditions", [])
            others = [one for one in found if one["type"] != "Ready"]
            beat = {"lastHeartbeatTime": rfc3339(), "lastTransitionTime": rfc3339()}
            info = dict.fromkeys(
                (
                    "machineID",
                    "systemUUID",
                    "kernelVersion",
                    "osImage",
                    "containerRuntimeVersion",
                    "kubeletVersion",
                    "kubeProxyVersion",
                    "operatingSystem",
                    "architecture",
                ),
                "",
            )
            info["bootID"] = f"boot-{start}"
            await patch_status(it, "node", it.name, conditions=[*others, ready | beat], nodeInfo=info)
            reported = start
        for pod in (await it.up.get("pods", "--namespace=default"))["items"]:
            if pod["metadata"].get("deletionTimestamp"):
                name = pod["metadata"]["name"]
                await it.up.kubectl("delete", "pod", name, "--grace-period=0", "--force", "--ignore-not-found")


async def watch(it: Rack, found: list[str]) -> None:
    """Note each stage of the update, the disruption and the operation, and the starts of the system, in order."""

    def note(text: str) -> None:
        if text not in found:
            found.append(text)

    while True:
        await asyncio.sleep(0.2)
        status = (await it.up.get("machine", MACHINE))["status"]
        update, disruption, active = (status.get(name) for name in ("nodeUpdate", "disruption", "activeOperation"))
        if update:
            note(f"update {update['phase']}")
        if disruption:
            note(f"disruption {disruption['stage']}")
        if active:
            note(f"active {active['kind']}")
        if not it.machine.running:
            note("off")
        if it.machine.boots.count("Pxe") == 2:
            note("second network boot")


@asynccontextmanager
async def beside(endless: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a coroutine without end while inside; what ends it fails the block."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(endless)
        yield
        task.cancel()


async def rollout_of(it: Rack, phase: str) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        found = (await it.up.get("mc", "rack")).get("status", {}).get("rollout") or {}
        return found if found.get("phase") == phase and not found.get("updating") else None

    return await it.until(look, f"the rolling update is {phase}", within_s=LIMIT_S)


async def test_uefi_machine_is_replaced_within_a_budget_and_after_its_drain(net: Segment, tmp_path: Path) -> None:
    hardware = Hardware(mac=MAC, disk=blank_disk(tmp_path, DISK_BYTES))
    first = thin_image()
    async with rack(hardware, net, tmp_path) as it:
        await push(it.registry, "images/thin", "v1", first)
        await push(it.registry, "images/thin", "v2", with_layer(first, files({"disk/second": b"2"})))
        await it.add_machine("images/thin:v1", kubernetes={"nodeRef": {"name": MACHINE}})
        async with beside(kubelet(it)):
            await it.ask("HostReplace")
            status = await it.ended("HostReplace", within_s=LIMIT_S)
            assert status["phase"] == "Complete", status
            image = (await it.up.get("machine", MACHINE))["status"]["image"]
            assert image["image"] == f"{it.registry}/images/thin:v1"
            await is_replaced(it, image["digest"])


async def is_replaced(it: Rack, digest: str) -> None:
    """Request the second image, and check that the machine is drained, replaced and returned, in this order."""
    made = {"name": "rack", "version": 1, "versionName": "rack-v1"}
    await patch_status(it, "mach", MACHINE, agent={"waitsForGrants": True}, configuration=made)
    await it.up.apply(CONFIGURATION, BUDGET, POD, POD_BUDGET)
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": rfc3339()}
    await patch_status(it, "pod", "web", "--namespace=default", phase="Running", conditions=[ready])
    await it.up.kubectl("wait", "mdb/one", "--for=condition=Enforced", "--timeout=60s")
    assert (await rollout_of(it, "Complete"))["updated"] == 1

    stages = list[str]()
    async with beside(watch(it, stages)):
        change = {"spec": {"pxe": {"image": f"{it.registry}/images/thin:v2"}}}
        await it.up.kubectl("patch", "mach", MACHINE, "--type=merge", "-p", json.dumps(change))

        async def blocked() -> bool | None:
            waiting = ((await it.up.get("mc", "rack"))["status"]["rollout"].get("waiting") or {}).get("heldBy")
            return True if waiting == "PodDisruptionBudget default/web" else None

        await it.until(blocked, "the drain waits for the budget of the pod", within_s=120)
        node, budget = await it.up.get("node", MACHINE), await it.up.get("mdb", "one")
        assert node["spec"]["unschedulable"]
        assert [grant["holder"]["kind"] for grant in budget["status"]["grants"]] == ["HostReplace"]
        assert it.machine.boots == ["Pxe", "Hdd"], "nothing happens to the host before its drain"
        await it.up.kubectl("delete", "pdb", "web", "--namespace=default")
        rollout = await rollout_of(it, "Complete")

        async def returned() -> bool | None:
            return True if "disruption" not in (await it.up.get("machine", MACHINE))["status"] else None

        await it.until(returned, "the grant has ended", within_s=120)

    assert (rollout["updated"], rollout.get("outdated", 0), rollout.get("failed", [])) == (1, 0, [])
    order = [
        "update Replacing",
        "disruption Draining",
        "disruption Working",
        "off",
        "second network boot",
        "disruption Returning",
    ]
    assert [one for one in stages if one in order] == order, stages
    assert stages.index("disruption Draining") < stages.index("active HostReplace") < stages.index("off"), stages
    assert stages.index("update Complete") > stages.index("second network boot"), stages
    assert it.machine.boots == ["Pxe", "Hdd", "Pxe", "Hdd"]
    machine, node = await it.up.get("machine", MACHINE), await it.up.get("node", MACHINE)
    assert machine["status"]["image"]["image"].endswith("/images/thin:v2")
    assert machine["status"]["image"]["digest"] != digest
    assert "unschedulable" not in node["spec"]
    assert node["status"]["nodeInfo"]["bootID"] == "boot-2"
    assert not (await it.up.get("pods", "--namespace=default"))["items"]
    assert not (await it.up.get("mdb", "one"))["status"].get("grants")
    status = (await it.up.get("mop", machine["status"]["nodeUpdate"]["operation"]))["status"]
    assert status["phase"] == "Complete"
    assert seen(status) >= SEEN | {"the Node is Ready since the new boot"}
