"""kubectl delete and wait."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.conformance.support import Kubectl, config_map, needs_kubectl, pod, unique
from tests.support.waiting import eventually

pytestmark = needs_kubectl


async def test_a_finalizer_holds_an_object(kubectl: Kubectl) -> None:
    held = kubectl.widget()
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await kubectl.apply(held)
    widgets = f"widgets.{kubectl.group}"
    assert "deleted" in await kubectl("delete", widgets, "one", "--wait=false")
    assert "deletionTimestamp" in (await kubectl.json(widgets, "one"))["metadata"]
    waiting = await kubectl.start("wait", f"{widgets}/one", "--for=delete", "--timeout=30s")
    refused = await kubectl.fails("delete", widgets, "one", "--timeout=1s")
    assert "timed out waiting for the condition" in refused
    await kubectl("patch", widgets, "one", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    assert await kubectl.ended(waiting) == 0
    assert await kubectl("get", widgets, "--ignore-not-found") == ""


def owned(name: str, owner: dict[str, Any]) -> dict[str, Any]:
    reference = {key: owner[key] for key in ("apiVersion", "kind")} | {
        key: owner["metadata"][key] for key in ("name", "uid")
    }
    obj = config_map(name)
    obj["metadata"]["ownerReferences"] = [{**reference, "blockOwnerDeletion": True}]
    return obj


@pytest.mark.parametrize("cascade", ["background", "foreground", "orphan"])
async def test_what_an_object_owns_goes_along_or_stays(kubectl: Kubectl, cascade: str) -> None:
    await kubectl.apply(kubectl.widget())
    owner = await kubectl.json(f"widgets.{kubectl.group}", "one")
    await kubectl.apply(owned("dependent", owner))
    await kubectl("delete", f"widgets.{kubectl.group}", "one", f"--cascade={cascade}", "--timeout=60s")
    if cascade == "orphan":
        kept = await kubectl.json("configmap", "dependent")
        assert "ownerReferences" not in kept["metadata"]
        return

    async def gone() -> bool:
        return await kubectl("get", "configmap", "dependent", "--ignore-not-found") == ""

    if cascade == "foreground":
        assert await gone()
    await eventually(gone, within_s=60)


async def test_collections(kubectl: Kubectl) -> None:
    await kubectl.apply(*(config_map(f"m{n}", {"half": str(n % 2)}) for n in range(4)))
    deleted = await kubectl("delete", "configmaps", "-l", "half=1")
    assert deleted.splitlines() == ['configmap "m1" deleted', 'configmap "m3" deleted']
    await kubectl.apply(kubectl.widget("a"), kubectl.widget("b"))
    await kubectl("delete", f"widgets.{kubectl.group}", "--all")
    assert await kubectl("get", f"widgets.{kubectl.group}", "-o", "name") == ""
    path = f"/api/v1/namespaces/{kubectl.namespace}/configmaps/m0"
    assert '"status":"Success"' in await kubectl("delete", "--raw", path)
    refused = await kubectl.fails("delete", "configmap", "m0")
    assert refused == 'Error from server (NotFound): configmaps "m0" not found\n'


async def test_a_pod_is_given_time_or_none(kubectl: Kubectl) -> None:
    """The node does not exist, so that only this test deletes the pod."""
    named = pod("p", "no-such-node")
    named["spec"]["terminationGracePeriodSeconds"] = 300
    named["spec"]["tolerations"] = [{"operator": "Exists"}]
    await kubectl.apply(named)
    await kubectl("delete", "pod", "p", "--wait=false", "--grace-period=200")
    assert (await kubectl.json("pod", "p"))["metadata"]["deletionGracePeriodSeconds"] == 200
    assert "Terminating" in await kubectl("get", "pods")
    _, warned = await kubectl.both("delete", "pod", "p", "--force", "--grace-period=0")
    assert "Immediate deletion does not wait for confirmation" in warned
    assert await kubectl("get", "pods", "--ignore-not-found") == ""


async def test_wait_ends_when_it_comes_true(kubectl: Kubectl) -> None:
    name = f"widgets.{kubectl.group}/one"
    created = await kubectl.start("wait", name, "--for=create", "--timeout=30s")
    await kubectl.apply(kubectl.widget())
    assert await kubectl.ended(created) == 0
    waits = [
        await kubectl.start("wait", name, "--for=condition=Ready", "--timeout=30s"),
        await kubectl.start("wait", name, "--for=condition=Stuck=false", "--timeout=30s"),
        await kubectl.start("wait", name, "--for=jsonpath={.status.phase}=Ready", "--timeout=30s"),
        await kubectl.start("wait", name, "--for=jsonpath={.status.observedGeneration}", "--timeout=30s"),
    ]
    conditions = '[{"type":"Ready","status":"True"},{"type":"Stuck","status":"False"}]'
    status = f'{{"status":{{"phase":"Ready","observedGeneration":1,"conditions":{conditions}}}}}'
    await kubectl("patch", name, "--type=merge", "--subresource=status", "-p", status)
    assert await asyncio.gather(*(kubectl.ended(wait) for wait in waits)) == [0, 0, 0, 0]
    refused = await kubectl.fails("wait", name, "--for=condition=Never", "--timeout=1s")
    assert "timed out waiting for the condition" in refused


async def test_wait_for_several_objects(kubectl: Kubectl) -> None:
    await kubectl.apply(config_map("a", {"set": "x"}, k="1"), config_map("b", {"set": "x"}, k="1"))
    met = await kubectl("wait", "configmaps", "-l", "set=x", "--for=jsonpath={.data.k}=1", "--timeout=30s")
    assert met.splitlines() == ["configmap/a condition met", "configmap/b condition met"]
    gone = await kubectl.start("wait", "configmaps", "-l", "set=x", "--for=delete", "--timeout=30s")
    await kubectl("delete", "configmaps", "-l", "set=x")
    assert await kubectl.ended(gone) == 0
    refused = await kubectl.fails("wait", "pods", "--all", "--for=condition=Ready", "--timeout=1s")
    assert refused == "error: no matching resources found\n"
    refused = await kubectl.fails("wait", "configmap/c", "--for=condition=Ready", "--timeout=1s")
    assert refused == 'Error from server (NotFound): configmaps "c" not found\n'
    refused = await kubectl.fails("wait", "configmap/c", "--for=create", "--timeout=1s")
    assert refused == "error: timed out waiting for the condition\n"


async def test_a_definition_takes_its_objects_along(kubectl: Kubectl) -> None:
    group = f"{unique('conformance')}.example.com"
    names = {"plural": "passings", "singular": "passing", "kind": "Passing", "listKind": "PassingList"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"passings.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }
    passing = {"apiVersion": f"{group}/v1", "kind": "Passing", "metadata": {"name": "p"}}
    for _ in range(2):
        await kubectl.apply(definition)
        await kubectl("wait", "--for=condition=Established", f"crd/passings.{group}", "--timeout=60s")

        async def created() -> bool:
            process = await kubectl.start("create", "-f", "-")
            await process.communicate(json.dumps(passing).encode())
            return process.returncode == 0

        await eventually(created)  # the second time, nothing is left of the first
        await kubectl("delete", "crd", f"passings.{group}", "--timeout=60s")
    assert "the server doesn't have a resource type" in await kubectl.fails("get", f"passings.{group}")


async def test_a_protected_namespace_stays(kubectl: Kubectl) -> None:
    refused = await kubectl.fails("delete", "namespace", "default", "--dry-run=server")
    assert 'namespaces "default" is forbidden: this namespace may not be deleted' in refused
