"""The stand-in for kubelet, compared with the requests of a real kubelet, and with the embedded server."""

from __future__ import annotations

import asyncio
import base64
import csv
import json
import os
import re
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.apiserver.support import Client
from tests.cli.deployed import running
from tests.support.hosts.kubelet_standin import wire
from tests.support.hosts.mirror import kubelet_program
from tests.support.paths import GOLDENS
from tests.support.waiting import eventually

KUBELET = GOLDENS / "kubelet"
EXCHANGES = KUBELET / "exchanges.json"
ROLES = "/apis/rbac.authorization.k8s.io/v1"
DEFAULT = "/api/v1/namespaces/default"
LONG = r'apiserver_longrunning_requests\{.*?resource="(\w+)".*?\} [1-9]'
POD = {
    "metadata": {"name": "app"},
    "spec": {
        "nodeName": "node-1",
        "containers": [{"name": "c", "image": "i"}],
        "volumes": [
            {"name": "settings", "configMap": {"name": "settings"}},
            {"name": "password", "secret": {"secretName": "password"}},
        ],
    },
}
TOKEN = "abcdef.0123456789abcdef"
# Requests of the recorded kubelet for static Pods, requests to itself, and repeated Events.
LEFT_OUT = frozenset({"POST pods", "POST tokenreviews", "POST subjectaccessreviews", "PATCH events"})


def sent(method: str, path: str) -> tuple[dict[str, Any], bytes]:
    """Return the first such body of the recorded kubelet: as JSON, and as it was sent."""
    for one in json.loads(EXCHANGES.read_text()):
        if one["client"] == "kubelet" and one["method"] == method and one["path"].split("?")[0] == path:
            return one["request"], base64.b64decode(one["requestProtobuf"])
    raise LookupError(path)


def seconds(text: str) -> tuple[int, int]:
    at = datetime.fromisoformat(text)
    return int(at.timestamp()), at.microsecond * 1000


def test_an_event_is_as_kubelet_sends_it() -> None:
    event, data = sent("POST", "/api/v1/namespaces/default/events")
    when = seconds(event["firstTimestamp"])[0]
    made = wire.event(event["metadata"]["name"], "node-1", event["reason"], event["message"], when)
    assert made == data


def test_a_csi_node_is_as_kubelet_sends_it() -> None:
    node, data = sent("POST", "/apis/storage.k8s.io/v1/csinodes")
    meta = node["metadata"]
    assert wire.csi_node("node-1", meta["ownerReferences"][0]["uid"], meta["annotations"]) == data


def test_a_lease_is_as_kubelet_sends_it() -> None:
    lease, data = sent("POST", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases")
    owner = ("node-1", lease["metadata"]["ownerReferences"][0]["uid"], "v1")
    meta = wire.meta("node-1", namespace="kube-node-lease", node=owner)
    assert wire.lease(meta, "node-1", 40, seconds(lease["spec"]["renewTime"])) == data


def test_a_node_is_as_kubelet_sends_it() -> None:
    node, data = sent("POST", "/api/v1/nodes")
    meta, status = node["metadata"], node["status"]
    metadata = wire.meta(meta["name"], labels=meta["labels"], annotations=meta["annotations"])
    when = seconds(status["conditions"][0]["lastHeartbeatTime"])[0]
    made = wire.node(metadata, node["spec"]["taints"], status, when)
    assert made == data


def test_a_token_request_is_as_kubelet_sends_it() -> None:
    request, data = sent("POST", "/api/v1/namespaces/demo/serviceaccounts/app/token")
    spec = request["spec"]
    assert wire.token_request([], spec["expirationSeconds"], "app", spec["boundObjectRef"]["uid"]) == data


def test_a_deletion_of_a_pod_is_as_kubelet_sends_it() -> None:
    options, data = sent("DELETE", "/api/v1/namespaces/demo/pods/app")
    assert wire.pod_deletion(options["preconditions"]["uid"]) == data


def test_a_deletion_of_slices_is_as_kubelet_sends_it() -> None:
    assert wire.envelope(*wire.DELETE_OPTIONS) == sent("DELETE", "/apis/resource.k8s.io/v1/resourceslices")[1]


async def prepare(client: Client) -> None:
    """Let a bootstrap token request client certificates of nodes, which are approved automatically."""
    secret = {"token-id": TOKEN[:6], "token-secret": TOKEN[7:], "usage-bootstrap-authentication": "true"}
    metadata = {"name": f"bootstrap-token-{TOKEN[:6]}", "namespace": "kube-system"}
    body = {"metadata": metadata, "type": "bootstrap.kubernetes.io/token", "stringData": secret}
    await client.create("/api/v1/namespaces/kube-system/secrets", body)
    signing = "system:certificates.k8s.io:certificatesigningrequests:nodeclient"
    for number, role in enumerate(("system:node-bootstrapper", signing)):
        group = {"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "system:bootstrappers"}
        reference = {"kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": role}
        binding = {"metadata": {"name": f"b{number}"}, "subjects": [group], "roleRef": reference}
        await client.create(f"{ROLES}/clusterrolebindings", binding)


@asynccontextmanager
async def standin(folder: Path, admin: Path) -> AsyncIterator[None]:
    """Run it while inside, as node-1."""
    config = yaml.safe_load(admin.read_text())
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": TOKEN}}]
    (folder / "bootstrap").write_text(json.dumps(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "config").write_text(json.dumps({"healthzPort": port, "nodeLeaseDurationSeconds": 2}))
    (folder / "kubelet").write_bytes(kubelet_program("1.36.2"))
    with socket.socket(socket.AF_UNIX) as runtime:
        runtime.bind(str(folder / "cri"))
        runtime.listen(64)
        flags = {
            "bootstrap-kubeconfig": folder / "bootstrap",
            "kubeconfig": folder / "kubeconfig",
            "cert-dir": folder / "pki",
            "config": folder / "config",
            "hostname-override": "node-1",
            "node-labels": "example.com/tier=edge",
            "register-with-taints": "example.com/starting=:NoSchedule",
            "container-runtime-endpoint": f"unix://{folder / 'cri'}",
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, folder / "kubelet"),
            *(f"--{name}={value}" for name, value in flags.items()),
            env={"PATH": os.environ["PATH"]},
        )
        try:
            yield
        finally:
            process.terminate()
            await process.wait()


async def conditions_of_pod(client: Client) -> list[dict[str, Any]]:
    return list((await client.get(f"{DEFAULT}/pods/app"))["status"].get("conditions") or [])


async def ready(client: Client) -> dict[str, Any] | None:
    """Return the Ready condition of the Node, None where there is none."""
    answer = await client.ask("GET", "/api/v1/nodes/node-1")
    conditions = answer.json()["status"].get("conditions") or [] if answer.status == 200 else []
    return next((one for one in conditions if one["type"] == "Ready"), None)


def recorded_requests() -> set[tuple[str, str]]:
    """Return verb and resource of the recorded kubelet's requests, as the metrics name them."""
    found = set()
    for row in csv.DictReader((KUBELET / "requests.tsv").open(), delimiter="\t"):
        parts = [part for part in re.sub(r"/namespaces/\{namespace\}", "", row["path"]).split("/") if part]
        resource, name, part = (*parts[2 if parts[0] == "api" else 3 :], "", "")[:3]
        verb = {"GET": "GET" if name else "WATCH" if "watch=true" in row["query"] else "LIST"}.get(row["method"])
        verb = verb or ("DELETECOLLECTION" if row["method"] == "DELETE" and not name else row["method"])
        resource = f"{resource}/{part}" if part else resource
        if row["client"] == "kubelet" and f"{verb} {resource}" not in LEFT_OUT:
            found.add((verb, resource))
    return found


def counted(metrics: str) -> set[tuple[str, str]]:
    """Return verb and resource of the answered requests."""
    found = re.findall(r"apiserver_request_total\{(.*?)\} [1-9]", metrics)
    labels = [dict(re.findall(r'(\w+)="(.*?)"', one)) for one in found]
    return {(one["verb"], f"{one['resource']}/{one['subresource']}".rstrip("/")) for one in labels}


@pytest.mark.slow
async def test_the_standin_asks_for_all_that_kubelet_asks_for(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as (server, client):
        await prepare(client)
        async with standin(tmp_path, server.kubeconfig_path):

            async def is_ready() -> bool:
                return (await ready(client) or {}).get("status") == "True"

            await eventually(is_ready)
            await client.create(f"{DEFAULT}/configmaps", {"metadata": {"name": "settings"}, "data": {"a": "b"}})
            await client.create(f"{DEFAULT}/pods", POD)

            async def is_pending() -> bool:
                return any(one["type"] == "PodScheduled" for one in await conditions_of_pod(client))

            await eventually(is_pending)
            assert (await client.get(f"{DEFAULT}/pods/app"))["status"]["phase"] == "Pending"  # its Secret is missing
            await client.create(f"{DEFAULT}/secrets", {"metadata": {"name": "password"}})

            async def is_running() -> bool:
                return bool((await client.get(f"{DEFAULT}/pods/app"))["status"]["phase"] == "Running")

            await eventually(is_running)
            watching = re.findall(LONG, (await client.ask("GET", "/metrics")).text)
            await client.ask("DELETE", f"{DEFAULT}/pods/app")

            async def is_gone() -> bool:
                return (await client.ask("GET", f"{DEFAULT}/pods/app")).status == 404

            await eventually(is_gone)
            missing = recorded_requests()
            assert len(missing) > 20
            missing -= {("WATCH", resource) for resource in watching}

            async def all_asked() -> bool:  # some, such as its Events, come in its own time
                missing.difference_update(counted((await client.ask("GET", "/metrics")).text))
                return not missing

            await eventually(all_asked, lambda: missing)
            node = await client.get("/api/v1/nodes/node-1")
    assert node["metadata"]["labels"]["example.com/tier"] == "edge"
    assert "example.com/starting" in [taint["key"] for taint in node["spec"]["taints"]]


@pytest.mark.slow
async def test_the_standin_is_not_ready_without_its_csi_node(tmp_path: Path) -> None:
    """As kubelet: a server that refused CSINodes once made no Node Ready, and the tests did not notice."""
    policies = "/apis/admissionregistration.k8s.io/v1"
    async with running(tmp_path / "data") as (server, client):
        await prepare(client)
        rule = {"apiGroups": ["storage.k8s.io"], "apiVersions": ["*"], "operations": ["*"], "resources": ["csinodes"]}
        spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "false"}]}
        name = {"metadata": {"name": "none"}}
        await client.create(f"{policies}/validatingadmissionpolicies", {**name, "spec": spec})
        binding = {"policyName": "none", "validationActions": ["Deny"]}
        await client.create(f"{policies}/validatingadmissionpolicybindings", {**name, "spec": binding})
        async with standin(tmp_path, server.kubeconfig_path):

            async def waits() -> bool:
                condition = await ready(client) or {}
                text = condition.get("message")
                return condition.get("status") == "False" and text == "CSINode is not yet initialized"

            await eventually(waits)
