"""Plain kubectl against the server."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.apiserver.support import Client, eventually, golden_definitions, running

KUBECTL = shutil.which("kubectl")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]
LIMIT_S = 60


@dataclass
class Kubectl:
    kubeconfig: Path
    home: Path
    client: Client

    async def start(self, *arguments: str, **environment: str) -> asyncio.subprocess.Process:
        env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "KUBECONFIG": str(self.kubeconfig), **environment}
        return await asyncio.create_subprocess_exec(
            str(KUBECTL),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=env,
        )

    async def run(self, *arguments: str, stdin: Any = None, fails: bool = False, **environment: str) -> str:
        """Standard output; of a command that has to fail, standard error."""
        process = await self.start(*arguments, **environment)
        text = stdin if isinstance(stdin, str) else json.dumps(stdin) if stdin is not None else ""
        async with asyncio.timeout(LIMIT_S):
            out, err = await process.communicate(text.encode())
        assert (process.returncode != 0) is fails, f"kubectl {' '.join(arguments)}: {out.decode()}{err.decode()}"
        return (err if fails else out).decode()


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncIterator[Kubectl]:
    async with running(tmp_path / "data") as (server, client):
        command = Kubectl(server.kubeconfig_path, tmp_path, client)
        for definition in golden_definitions():
            await command.run("create", "-f", "-", stdin=definition)
        await command.run("wait", "--for=condition=Established", "crd", "--all", "--timeout=10s")
        yield command


def widget(name: str = "one", **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": 3, **spec}}


async def test_get_prints_the_columns_of_the_definition(kubectl: Kubectl) -> None:
    await kubectl.run("apply", "-f", "-", stdin=widget(ratio=0.5))
    assert (await kubectl.run("get", "wd")).split()[:6] == ["NAME", "COLOR", "SIZE", "READY", "PHASE", "AGE"]
    wide = (await kubectl.run("get", "widgets", "-o", "wide")).splitlines()
    assert "RATIO" in wide[0]
    assert "0.5" in wide[1]
    assert (await kubectl.run("get", "wd", "one", "-o", "jsonpath={.spec.color}")) == "red"
    assert json.loads(await kubectl.run("get", "wd", "one", "-o", "json"))["spec"]["size"] == 3
    assert yaml.safe_load(await kubectl.run("get", "wd", "one", "-o", "yaml"))["kind"] == "Widget"
    assert "NAMESPACE" in await kubectl.run("get", "wd", "-A")
    assert "one" in await kubectl.run("get", "all")
    assert "widget.example.com/one" in await kubectl.run("get", "wd", "-o", "name")


async def test_selectors(kubectl: Kubectl) -> None:
    await kubectl.run(
        "apply",
        "-f",
        "-",
        stdin={"apiVersion": "v1", "kind": "List", "items": [widget("a"), widget("b", color="green")]},
    )
    await kubectl.run("label", "wd", "a", "tier=1")
    assert (await kubectl.run("get", "wd", "-l", "tier=1", "-o", "name")).split() == ["widget.example.com/a"]
    by_field = await kubectl.run("get", "wd", "--field-selector", "spec.color=green", "-o", "name")
    assert by_field.split() == ["widget.example.com/b"]
    assert "field label not supported" in await kubectl.run("get", "wd", "--field-selector", "spec.size=3", fails=True)


async def test_apply_changes_and_removes_fields(kubectl: Kubectl) -> None:
    first = widget(title="hello", tags=["a"])
    assert "created" in await kubectl.run("apply", "-f", "-", stdin=first)
    assert "unchanged" in await kubectl.run("apply", "-f", "-", stdin=first)
    assert "configured" in await kubectl.run("apply", "-f", "-", stdin=widget(size=4, tags=["a"]))
    stored = await kubectl.client.get("/apis/example.com/v1/namespaces/default/widgets/one")
    assert stored["spec"]["size"] == 4
    assert "title" not in stored["spec"]
    assert stored["metadata"]["generation"] == 2


async def test_apply_of_a_secret_merges_its_data(kubectl: Kubectl) -> None:
    def secret(**data: str) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": data}

    await kubectl.run("apply", "-f", "-", stdin=secret(user="me", password="x"))
    await kubectl.run("apply", "-f", "-", stdin=secret(user="you"))
    stored = await kubectl.client.get("/api/v1/namespaces/default/secrets/s")
    assert stored["data"]["user"] == "eW91"
    assert "stringData" not in stored
    assert "s" in await kubectl.run("get", "secret")
    refused = await kubectl.run("apply", "-f", "-", stdin={**secret(), "bogus": 1}, fails=True)
    assert 'unknown field "bogus"' in refused


async def test_create_replace_and_delete(kubectl: Kubectl) -> None:
    await kubectl.run("create", "namespace", "lab")
    await kubectl.run("create", "configmap", "c", "--from-literal=a=1", "-n", "lab")
    await kubectl.run("create", "secret", "generic", "g", "--from-literal=k=v", "-n", "lab")
    await kubectl.run("create", "serviceaccount", "bot", "-n", "lab")
    assert (await kubectl.client.get("/api/v1/namespaces/lab/configmaps/c"))["data"] == {"a": "1"}
    assert (await kubectl.client.get("/api/v1/namespaces/lab/secrets/g"))["data"] == {"k": "dg=="}
    assert "already exists" in await kubectl.run("create", "namespace", "lab", fails=True)
    await kubectl.run("create", "-f", "-", stdin=widget())
    stored = await kubectl.client.get("/apis/example.com/v1/namespaces/default/widgets/one")
    stored["spec"]["size"] = 9
    await kubectl.run("replace", "-f", "-", stdin=stored)
    assert "Conflict" in await kubectl.run("replace", "-f", "-", stdin=stored, fails=True)
    await kubectl.run("replace", "--force", "-f", "-", stdin=widget(size=5))
    assert 'widget.example.com "one" deleted' in await kubectl.run("delete", "wd", "one")
    assert "NotFound" in await kubectl.run("get", "wd", "one", fails=True)
    await kubectl.run("delete", "namespace", "lab", "--timeout=20s")
    assert "NotFound" in await kubectl.run("get", "namespace", "lab", fails=True)


async def test_patches(kubectl: Kubectl) -> None:
    await kubectl.run("apply", "-f", "-", stdin=widget())
    await kubectl.run("patch", "wd", "one", "--type=merge", "-p", '{"spec":{"size":7}}')
    await kubectl.run("patch", "wd", "one", "--type=json", "-p", '[{"op":"add","path":"/spec/title","value":"hi"}]')
    await kubectl.run(
        "patch", "wd", "one", "--type=merge", "--subresource=status", "-p", '{"status":{"phase":"Ready"}}'
    )
    stored = await kubectl.client.get("/apis/example.com/v1/namespaces/default/widgets/one")
    assert (stored["spec"]["size"], stored["spec"]["title"], stored["status"]) == (7, "hi", {"phase": "Ready"})
    refused = await kubectl.run("patch", "wd", "one", "--type=merge", "-p", '{"spec":{"size":700}}', fails=True)
    assert "spec.size in body should be less than or equal to 100" in refused
    await kubectl.run("patch", "namespace", "default", "-p", '{"metadata":{"labels":{"a":"b"}}}')
    await kubectl.run("annotate", "wd", "one", "note=x")
    await kubectl.run("label", "wd", "one", "a=1")
    await kubectl.run("label", "wd", "one", "a-")
    stored = await kubectl.client.get("/apis/example.com/v1/namespaces/default/widgets/one")
    assert stored["metadata"]["annotations"]["note"] == "x"
    assert "labels" not in stored["metadata"]


async def test_edit(kubectl: Kubectl, tmp_path: Path) -> None:
    await kubectl.run("apply", "-f", "-", stdin=widget())
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/size: 3/size: 8/' \"$1\"\n")
    editor.chmod(0o755)
    assert "edited" in await kubectl.run("edit", "wd", "one", KUBE_EDITOR=str(editor))
    assert (await kubectl.client.get("/apis/example.com/v1/namespaces/default/widgets/one"))["spec"]["size"] == 8


async def test_wait_ends_when_it_comes_true(kubectl: Kubectl) -> None:
    await kubectl.run("apply", "-f", "-", stdin=widget())
    waits = [
        await kubectl.start("wait", "wd/one", "--for=condition=Ready", "--timeout=20s"),
        await kubectl.start("wait", "wd/one", "--for=jsonpath={.status.phase}=Ready", "--timeout=20s"),
    ]
    status = {"phase": "Ready", "conditions": [{"type": "Ready", "status": "True"}]}
    await kubectl.client.merge("/apis/example.com/v1/namespaces/default/widgets/one/status", {"status": status})
    gone = await kubectl.start("wait", "wd/one", "--for=delete", "--timeout=20s")
    async with asyncio.timeout(LIMIT_S):
        assert [await process.wait() for process in waits] == [0, 0]
        await kubectl.run("delete", "wd", "one")
        assert await gone.wait() == 0


async def test_get_watch_prints_changes(kubectl: Kubectl) -> None:
    process = await kubectl.start("get", "wd", "-w", "--no-headers")
    assert process.stdout is not None
    try:
        await kubectl.run("apply", "-f", "-", stdin=widget())
        async with asyncio.timeout(LIMIT_S):
            assert (await process.stdout.readline()).split()[:3] == [b"one", b"red", b"3"]
            await kubectl.run("patch", "wd", "one", "--type=merge", "-p", '{"spec":{"size":4}}')
            assert (await process.stdout.readline()).split()[:3] == [b"one", b"red", b"4"]
    finally:
        process.kill()
        await process.wait()


async def test_describe_shows_events(kubectl: Kubectl) -> None:
    await kubectl.run("apply", "-f", "-", stdin=widget())
    stored = await kubectl.client.get("/apis/example.com/v1/namespaces/default/widgets/one")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "one-"},
        "involvedObject": {
            "apiVersion": "example.com/v1",
            "kind": "Widget",
            "namespace": "default",
            "name": "one",
            "uid": stored["metadata"]["uid"],
        },
        "reason": "Polished",
        "message": "it shines",
        "type": "Normal",
        "source": {"component": "test"},
        "firstTimestamp": stored["metadata"]["creationTimestamp"],
        "lastTimestamp": stored["metadata"]["creationTimestamp"],
        "count": 1,
    }
    await kubectl.client.create("/api/v1/namespaces/default/events", event)
    described = await kubectl.run("describe", "wd", "one")
    assert "Polished" in described
    assert "it shines" in described
    assert "Polished" in await kubectl.run("get", "events")
    assert "Polished" in await kubectl.run("events", "--for", "widget/one")


async def test_nodes_and_cordon(kubectl: Kubectl) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    await kubectl.run("apply", "-f", "-", stdin=node)
    condition = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    await kubectl.run(
        "patch", "node", "n1", "--subresource=status", "-p", json.dumps({"status": {"conditions": [condition]}})
    )
    await kubectl.run("cordon", "n1")
    assert "Ready,SchedulingDisabled" in await kubectl.run("get", "nodes")
    await kubectl.run("taint", "node", "n1", "a=b:NoSchedule")
    stored = await kubectl.client.get("/api/v1/nodes/n1")
    assert {"key": "a", "value": "b", "effect": "NoSchedule"} in stored["spec"]["taints"]


async def test_explain_and_discovery(kubectl: Kubectl) -> None:
    assert "Size of the widget." in await kubectl.run("explain", "widget.spec.size")
    assert "conditions" in await kubectl.run("explain", "widget", "--recursive")
    assert "Confidential" in await kubectl.run("explain", "secret")
    resources = await kubectl.run("api-resources")
    assert "widgets" in resources
    assert "customresourcedefinitions" in resources
    assert "example.com/v1" in await kubectl.run("api-versions")
    assert "Server Version: v1.32" in await kubectl.run("version")
    assert (await kubectl.run("get", "--raw", "/readyz")) == "ok"


async def test_errors_are_those_of_kubernetes(kubectl: Kubectl) -> None:
    refused = await kubectl.run("apply", "-f", "-", stdin=widget(nope=1), fails=True)
    assert 'strict decoding error: unknown field "spec.nope"' in refused
    refused = await kubectl.run("create", "-f", "-", stdin=widget(size=0), fails=True)
    assert "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1" in refused
    refused = await kubectl.run("get", "nothings", fails=True)
    assert 'the server doesn\'t have a resource type "nothings"' in refused
    refused = await kubectl.run("delete", "namespace", "default", fails=True)
    assert "this namespace may not be deleted" in refused


async def test_a_deleted_definition_takes_its_objects_along(kubectl: Kubectl) -> None:
    await kubectl.run("apply", "-f", "-", stdin=widget())
    await kubectl.run("delete", "crd", "widgets.example.com", "--timeout=20s")
    refused = await kubectl.client.ask("GET", "/apis/example.com/v1/widgets")
    assert refused.status == 404
    await kubectl.run("create", "-f", "-", stdin=golden_definitions()[0])
    await kubectl.run("wait", "--for=condition=Established", "crd/widgets.example.com", "--timeout=10s")

    async def empty() -> bool:
        return bool((await kubectl.client.get("/apis/example.com/v1/widgets"))["items"] == [])

    await eventually(empty)


DEFINITIONS = Path(__file__).parents[2] / "deploy" / "crd"
MANIFESTS = """
apiVersion: unbounded-cloud.io/v1alpha3
kind: Machine
metadata: {name: m1, labels: {unbounded-cloud.io/site: lab}}
spec: {}
---
apiVersion: unbounded-cloud.io/v1alpha3
kind: MachineOperation
metadata: {name: op1}
spec: {machineRef: m1, operationKind: HostReboot}
"""


async def test_the_projects_own_resources(kubectl: Kubectl) -> None:
    await kubectl.run("apply", "-f", str(DEFINITIONS))
    await kubectl.run("wait", "--for=condition=Established", "crd", "--all", "--timeout=10s")
    await kubectl.run("apply", "-f", "-", stdin=MANIFESTS)
    printed = (await kubectl.run("get", "mop")).split()
    assert printed[:8] == ["NAME", "KIND", "MACHINE", "PHASE", "AGE", "op1", "HostReboot", "m1"]
    assert "HOST" in await kubectl.run("get", "machines")
    selected = await kubectl.run("get", "mop", "--field-selector", "spec.machineRef=m1", "-o", "name")
    assert selected.split() == ["machineoperation.unbounded-cloud.io/op1"]
    assert "Network boot" in await kubectl.run("explain", "machine.spec.pxe")
    changed = '{"spec":{"machineRef":"m2"}}'
    assert "machineRef cannot be changed" in await kubectl.run(
        "patch", "mop", "op1", "--type=merge", "-p", changed, fails=True
    )
    assert "unchanged" in await kubectl.run("apply", "-f", str(DEFINITIONS))


async def test_auth_and_tokens(kubectl: Kubectl) -> None:
    assert (await kubectl.run("auth", "can-i", "delete", "widgets")).strip() == "yes"
    assert "unbounded-admin" in await kubectl.run("auth", "whoami")
    await kubectl.run("create", "serviceaccount", "bot")
    await kubectl.run("create", "role", "reader", "--verb=get,list", "--resource=configmaps")
    await kubectl.run("create", "rolebinding", "bot", "--role=reader", "--serviceaccount=default:bot")
    assert "default/bot" in await kubectl.run("get", "rolebindings", "-o", "wide")
    bot = "--as=system:serviceaccount:default:bot"
    assert (await kubectl.run("auth", "can-i", "list", "configmaps", bot)).strip() == "yes"
    assert "configmaps" in await kubectl.run("auth", "can-i", "--list", bot)
    token = (await kubectl.run("create", "token", "bot", "--duration=1h")).strip()
    config = yaml.safe_load(kubectl.kubeconfig.read_text())
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    mine = kubectl.home / "bot.kubeconfig"
    mine.write_text(yaml.safe_dump(config))
    assert "system:serviceaccount:default:bot" in await kubectl.run("auth", "whoami", KUBECONFIG=str(mine))
    await kubectl.run("get", "configmaps", KUBECONFIG=str(mine))
    refused = await kubectl.run("get", "secrets", fails=True, KUBECONFIG=str(mine))
    assert (
        'secrets is forbidden: User "system:serviceaccount:default:bot" cannot list resource "secrets" '
        'in API group "" in the namespace "default"'
    ) in refused
