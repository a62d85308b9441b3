"""kubectl cordon, taint and drain, on a Node that is stored and has no kubelet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conformance.support import CLUSTER, Kubectl, needs_kubectl, pod, unique

pytestmark = needs_kubectl


@pytest.fixture
async def node(kubectl: Kubectl) -> AsyncIterator[str]:
    name = unique("conformance")
    await kubectl.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    condition = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    patch = json.dumps({"status": {"conditions": [condition]}})
    await kubectl("patch", "node", name, "--subresource=status", "-p", patch)
    yield name
    await kubectl("delete", "node", name)


def tolerant(name: str, node: str, **meta: Any) -> dict[str, Any]:
    """A pod that no taint drives off."""
    obj = pod(name, node, **meta)
    obj["spec"]["tolerations"] = [{"operator": "Exists"}]
    return obj


def owned_by(kind: str) -> dict[str, Any]:
    reference = {"apiVersion": "apps/v1", "kind": kind, "name": "owner", "uid": "1", "controller": True}
    return {"ownerReferences": [reference]}


async def test_cordon_and_taint(kubectl: Kubectl, node: str) -> None:
    await kubectl("cordon", node)
    assert "Ready,SchedulingDisabled" in await kubectl("get", "node", node)
    await kubectl("uncordon", node)
    await kubectl("taint", "node", node, "conformance=b:NoSchedule")
    taints = (await kubectl.json("node", node))["spec"]["taints"]
    assert {"key": "conformance", "value": "b", "effect": "NoSchedule"} in taints
    assert "conformance=b:NoSchedule" in await kubectl("describe", "node", node)
    await kubectl("taint", "node", node, "conformance-")
    taints = (await kubectl.json("node", node))["spec"].get("taints", [])
    assert "conformance" not in [taint["key"] for taint in taints]


async def test_drain_evicts_what_may_go(kubectl: Kubectl, node: str) -> None:
    await kubectl.apply(tolerant("bare", node))
    refused = await kubectl.fails("drain", node, "--pod-selector=!none")
    assert "cannot delete Pods that declare no controller (use --force to override)" in refused
    assert "SchedulingDisabled" in await kubectl("get", "node", node)
    tried = await kubectl("drain", node, "--force", "--dry-run=server", "--ignore-daemonsets")
    assert f"evicting pod {kubectl.namespace}/bare (server dry run)" in tried
    done = await kubectl("drain", node, "--force", "--ignore-daemonsets", "--timeout=60s")
    assert f"node/{node} drained" in done
    assert await kubectl("get", "pods", "--ignore-not-found") == ""


async def ready(kubectl: Kubectl, name: str) -> None:
    status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    await kubectl("patch", "pod", name, "--subresource=status", "-p", json.dumps(status))


async def test_drain_waits_for_a_budget_and_goes_on_when_it_is_free(kubectl: Kubectl, node: str) -> None:
    await kubectl("create", "poddisruptionbudget", "guard", "--selector=app=guarded", "--min-available=1")
    await kubectl.apply(tolerant("first", node, labels={"app": "guarded"}))
    await ready(kubectl, "first")
    await kubectl("wait", "pdb/guard", "--for=jsonpath={.status.currentHealthy}=1", "--timeout=30s")
    assert (await kubectl("get", "pdb")).splitlines()[1].split()[:4] == ["guard", "1", "N/A", "0"]
    draining = await kubectl.start("drain", node, "--force", "--ignore-daemonsets", "--timeout=60s")
    assert draining.stderr is not None
    async with asyncio.timeout(30):
        while b"will retry after 5s" not in (refused := await draining.stderr.readline()):
            assert refused, "kubectl ended"
    assert b"Cannot evict pod as it would violate the pod's disruption budget." in refused
    assert "first" in await kubectl("get", "pods")

    await kubectl.apply(tolerant("second", "", labels={"app": "guarded"}))
    await ready(kubectl, "second")
    assert await kubectl.ended(draining) == 0
    assert (await kubectl("get", "pods", "-o", "name")).split() == ["pod/second"]


async def test_disruption_budgets_are_created_applied_and_described(kubectl: Kubectl) -> None:
    await kubectl("create", "pdb", "half", "--selector=app in (a,b),!old", "--max-unavailable=50%")
    made = await kubectl.json("pdb", "half")
    terms = [{"key": "app", "operator": "In", "values": ["a", "b"]}, {"key": "old", "operator": "DoesNotExist"}]
    assert made["spec"] == {"maxUnavailable": "50%", "selector": {"matchExpressions": terms}}
    described = await kubectl("describe", "pdb", "half")
    assert all(part in described for part in ("Max unavailable:  50%", "app in (a,b),!old", "Allowed disruptions:"))
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "mine"}}
    spec = {"minAvailable": 2, "selector": {"matchLabels": {"app": "a"}}, "unhealthyPodEvictionPolicy": "AlwaysAllow"}
    await kubectl("apply", "--server-side", "--field-manager=one", "-f", "-", stdin={**budget, "spec": spec})
    await kubectl("wait", "pdb/mine", "--for=condition=DisruptionAllowed=False", "--timeout=30s")
    fewer = {**budget, "spec": {**spec, "minAvailable": 1}}
    conflict = await kubectl.fails("apply", "--server-side", "--field-manager=two", "-f", "-", stdin=fewer)
    assert 'conflict with "one"' in conflict
    assert ".spec.minAvailable" in conflict
    await kubectl("wait", "pdb/mine", "--for=jsonpath={.status.observedGeneration}=1", "--timeout=30s")
    owners = (await kubectl.json("pdb", "mine", "--show-managed-fields"))["metadata"]["managedFields"]
    (applied,) = [one for one in owners if one["manager"] == "one"]
    own: dict[str, Any] = {
        "f:minAvailable": {},
        "f:selector": {},
        "f:unhealthyPodEvictionPolicy": {},
    }  # the selector as a whole
    assert applied["fieldsV1"] == {"f:spec": own}
    refused = await kubectl.fails("patch", "pdb", "mine", "--type=merge", "-p", '{"spec": {"maxUnavailable": 1}}')
    assert "minAvailable and maxUnavailable cannot be both set" in refused
    explained = await kubectl("explain", "pdb.spec")
    assert "maxUnavailable\t<IntOrString>" in explained
    assert "enum: AlwaysAllow, IfHealthyBudget" in explained


async def test_drain_without_evictions_deletes(kubectl: Kubectl, node: str) -> None:
    await kubectl.apply(tolerant("bare", node))
    done = await kubectl("drain", node, "--force", "--disable-eviction", "--ignore-daemonsets", "--timeout=60s")
    assert f"node/{node} drained" in done
    assert await kubectl("get", "pods", "--ignore-not-found") == ""


async def test_drain_does_not_lose_data_unasked(kubectl: Kubectl, node: str) -> None:
    volatile = tolerant("volatile", node)
    volatile["spec"]["volumes"] = [{"name": "v", "emptyDir": {}}]
    await kubectl.apply(volatile)
    refused = await kubectl.fails("drain", node, "--force", "--ignore-daemonsets")
    assert "cannot delete Pods with local storage (use --delete-emptydir-data to override)" in refused
    await kubectl("drain", node, "--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s")


async def test_drain_leaves_what_the_node_itself_made(kubectl: Kubectl, node: str) -> None:
    await kubectl.apply(tolerant("mirror", node, annotations={"kubernetes.io/config.mirror": "x"}))
    await kubectl("drain", node, "--ignore-daemonsets", "--timeout=60s")
    assert "mirror" in await kubectl("get", "pods", "-o", "name")
    await kubectl("delete", "pod", "mirror", "--force", "--grace-period=0")


async def test_drain_forces_pods_out_whose_daemon_set_is_not_there(kubectl: Kubectl, node: str) -> None:
    """A cluster with a garbage collector that knows DaemonSets may be faster."""
    owned = tolerant("owned", node, **owned_by("DaemonSet"))
    await kubectl.apply(owned)
    if not CLUSTER:
        refused = await kubectl.fails("drain", node, "--ignore-daemonsets")
        assert f"(get daemonsets.apps owner): {kubectl.namespace}/owned" in refused
    assert f"node/{node} drained" in await kubectl("drain", node, "--force", "--ignore-daemonsets", "--timeout=60s")
    assert await kubectl("get", "pods", "--ignore-not-found") == ""


async def test_what_needs_a_kubelet_or_other_kinds_says_so(kubectl: Kubectl, node: str) -> None:
    await kubectl.apply(tolerant("p", node))
    for command in (("logs", "p"), ("exec", "p", "--", "true")):
        assert "Error from server" in await kubectl.fails(*command)
    await kubectl("delete", "pod", "p", "--force", "--grace-period=0")
