"""kubectl describe, events, explain, and what it finds out about the server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conformance.support import Kubectl, config_map, needs_kubectl, pod, unique

pytestmark = needs_kubectl


def event(about: dict[str, Any], reason: str, message: str) -> dict[str, Any]:
    meta = about["metadata"]
    regarding = {
        "apiVersion": about["apiVersion"],
        "kind": about["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        **({"namespace": meta["namespace"]} if "namespace" in meta else {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": unique(meta["name"]), "namespace": meta.get("namespace", "default")},
        "involvedObject": regarding,
        "reason": reason,
        "message": message,
        "type": "Warning",
        "source": {"component": "conformance"},
        "firstTimestamp": meta["creationTimestamp"],
        "lastTimestamp": meta["creationTimestamp"],
        "count": 1,
    }


async def test_describe_shows_what_happened_to_an_object(kubectl: Kubectl) -> None:
    await kubectl.apply(kubectl.widget())
    stored = await kubectl.json(f"widgets.{kubectl.group}", "one")
    await kubectl("create", "-f", "-", stdin=event(stored, "Polished", "it shines"))
    described = await kubectl("describe", f"widgets.{kubectl.group}", "one")
    assert described[described.index("Events:") :].splitlines()[3].split()[:2] == ["Warning", "Polished"]
    assert "it shines" in described
    shown = (await kubectl("get", "events")).splitlines()
    assert shown[0].split() == ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    assert shown[1].split()[1:] == ["Warning", "Polished", "widget/one", "it", "shines"]
    assert "Polished" in await kubectl("events", "--for", f"widgets.{kubectl.group}/one", "--types=Warning")
    by_field = await kubectl("get", "events", "--field-selector", "involvedObject.name=one,reason=Polished")
    assert "it shines" in by_field


async def test_describe_shows_events_of_built_in_kinds_too(kubectl: Kubectl) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "x"}}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "x"}}
    ports = {"clusterIP": "None", "ports": [{"port": 80}]}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": ports}
    await kubectl.apply(config_map("x"), account, lease, service, pod("x"))
    kinds = ("configmap", "serviceaccount", "lease", "service", "pod")
    stored = (await kubectl.json(*(f"{kind}/x" for kind in kinds)))["items"]
    events = [event(obj, f"Seen{obj['kind']}", "was looked at") for obj in stored]
    await kubectl("create", "-f", "-", stdin={"apiVersion": "v1", "kind": "List", "items": events})
    described = await kubectl("describe", *(f"{kind}/x" for kind in kinds))
    for obj in stored:
        assert described.count(f"Seen{obj['kind']} ") == 1
    assert "SeenPod" in await kubectl("events", "--for", "pod/x")


async def test_describe_of_every_kind(kubectl: Kubectl) -> None:
    """All objects of the namespace, and every object that a cluster has from the start."""
    await kubectl("create", "role", "r", "--verb=get", "--resource=pods")
    await kubectl("create", "rolebinding", "r", "--role=r", "--user=jane")
    named = await kubectl("api-resources", "--verbs=list,get", "--namespaced", "-o", "name")
    described = await kubectl("describe", ",".join(named.split()))
    assert "jane" in described
    await kubectl("describe", "validatingadmissionpolicies,validatingadmissionpolicybindings")
    assert "cluster-admin" in await kubectl("describe", "clusterroles,clusterrolebindings", "cluster-admin")


async def test_describe_of_the_built_in_kinds(kubectl: Kubectl) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s"},
        "spec": {"clusterIP": "None", "ports": [{"port": 80}]},
    }
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "l"},
        "spec": {"holderIdentity": "me"},
    }
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}, "stringData": {"k": "hidden"}}
    await kubectl.apply(config_map("a", key="value"), secret, service, lease, pod("p"))
    described = await kubectl("describe", "configmap/a", "secret/x", "service/s", "lease/l", "pod/p")
    assert "key:\n----\nvalue" in described
    assert "k:  6 bytes" in described
    assert "hidden" not in described
    assert "Holder Identity:  me" in described
    assert "80/TCP" in described
    assert "QoS Class:" in described
    assert "Status:" in await kubectl("describe", "namespace", kubectl.namespace)
    assert "Established" in await kubectl("describe", "crd", f"widgets.{kubectl.group}")


async def test_explain(kubectl: Kubectl) -> None:
    widget = ("explain", f"widgets.{kubectl.group}")
    assert "Size of the widget." in await kubectl("explain", f"widgets.{kubectl.group}.spec.size")
    assert "conditions\t<[]Object>" in await kubectl(*widget, "--recursive")
    older = await kubectl(*widget, "--output=plaintext-openapiv2")
    assert "A widget." in older
    beta = await kubectl("explain", "gadgets", f"--api-version={kubectl.group}/v1beta1")
    assert "VERSION:    v1beta1" in beta
    refused = await kubectl.fails("explain", f"widgets.{kubectl.group}.spec.nothing")
    assert 'field "nothing" does not exist' in refused


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("pod.spec.containers.livenessProbe.httpGet.port", "<IntOrString>"),
        ("pod.spec.volumes.projected.sources.serviceAccountToken", "<ServiceAccountTokenProjection>"),
        ("service.spec.ports", "<[]ServicePort>"),
        ("secret.data", "<map[string]string>"),
        ("node.spec.taints", "<[]Taint>"),
    ],
)
async def test_explain_of_the_built_in_kinds(kubectl: Kubectl, path: str, kind: str) -> None:
    explained = await kubectl("explain", path)
    assert f"FIELD: {path.rpartition('.')[2]} {kind}" in explained


# kubectl takes the group for fields of the `events` of the core group, as their names begin alike.
EXPLAINED_OTHERWISE = {"events.events.k8s.io": ("events", "--api-version=events.k8s.io/v1")}


async def test_explain_of_every_kind(kubectl: Kubectl) -> None:
    named = (await kubectl("api-resources", "-o", "name")).split()
    async with asyncio.TaskGroup() as group:
        limit = asyncio.Semaphore(4)

        async def explained(name: str) -> None:
            which = EXPLAINED_OTHERWISE.get(name, (name,))
            async with limit:
                assert "FIELDS:" in await kubectl("explain", *which, "--recursive")

        for name in named:
            group.create_task(explained(name))


async def test_what_the_server_has(kubectl: Kubectl) -> None:
    resources = await kubectl("api-resources", "--no-headers", "-o", "wide")
    rows = {row.split()[0]: row for row in resources.splitlines() if f"{kubectl.group}/" in row or " v1 " in row}
    assert "wd" in rows["widgets"].split()
    assert "all,examples" in rows["widgets"]
    assert "Pod " in rows["pods"]
    narrowed = await kubectl("api-resources", f"--api-group={kubectl.group}", "--namespaced=false", "-o", "name")
    assert narrowed.split() == [f"gadgets.{kubectl.group}"]
    versions = (await kubectl("api-versions")).split()
    assert {"v1", "coordination.k8s.io/v1", f"{kubectl.group}/v1", f"{kubectl.group}/v1beta1"} <= set(versions)
    assert "Server Version: v1." in await kubectl("version")
    assert "Kubernetes control plane" in await kubectl("cluster-info")


async def test_a_deprecated_version_warns(kubectl: Kubectl) -> None:
    _, warned = await kubectl.both("get", f"gadgets.v1beta1.{kubectl.group}")
    assert f"Warning: {kubectl.group}/v1beta1 Gadget is deprecated; use v1" in warned
