"""Rights of machina for hosts that it sets up, under its own account with the rights of deploy/, and their limits."""

from __future__ import annotations

import asyncio
import itertools
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import aiohttp
import pytest

from tests.apiserver.support import Client
from tests.support.waiting import eventually
from unbounded.api.core import CONFIG_MAPS, NODES, SECRETS, Node
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import (
    ANNOTATION_CORDONED_BY,
    ANNOTATION_NODE_APPLIED,
    FINALIZER_HOST_OPERATION,
    FINALIZER_RESET,
    LABEL_SITE,
)
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.servers import component_runtime, publish_cluster_info
from unbounded.join.bootstrap_tokens import site_token_manifest
from unbounded.join.cluster_facts import FactsFollower
from unbounded.join.token_finder import TokenFinder
from unbounded.kube.api import AlreadyExists, Forbidden
from unbounded.kube.cache import Cache
from unbounded.kube.client import HttpApi
from unbounded.kube.metrics import ControllerMetrics
from unbounded.machina.machines.credentials import SecretReader, credentials_of
from unbounded.machina.machines.deletion import reset_manifest
from unbounded.machina.machines.model import SetNodeRef, UpdateNode
from unbounded.machina.machines.nodes import node_actions
from unbounded.machina.machines.perform import MachineWriter

pytestmark = pytest.mark.slow

NUMBERS: Final = itertools.count(1)
ROLE: Final = "node-role.kubernetes.io/worker"
PEM: Final = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
KEY: Final = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"
SSH: Final = {"host": "10.0.0.1", "privateKeyRef": {"name": "ssh-rights", "namespace": "unbounded-kube"}}


@asynccontextmanager
async def machina(admin: HttpApi) -> AsyncIterator[HttpApi]:
    async with component_runtime("machina", admin, metrics=ControllerMetrics()) as runtime:
        assert isinstance(runtime.api, HttpApi)
        yield runtime.api


async def joined(admin: HttpApi) -> tuple[Machine, Node]:
    """A Machine, and the Node that kubelet has registered for it, as it is once the server has taken its taint away."""
    name = f"rights{next(NUMBERS)}"
    labels = {ROLE: "", "tier": "a"}
    spec = {"ssh": SSH, "kubernetes": {"nodeLabels": labels, "registerWithTaints": ["gpu=yes:NoSchedule"]}}
    made = await admin.create(MACHINES, {"metadata": {"name": name, "labels": {LABEL_SITE: "rights"}}, "spec": spec})
    await admin.create(NODES, {"metadata": {"name": name, "labels": {"tier": "old"}}})

    async def untainted() -> Node | None:
        node = await admin.get(NODES, name)
        return None if node.spec.taints else node

    node: Node = await eventually(untainted)
    return made, node


async def settle(api: HttpApi, machine: Machine, node: Node) -> tuple[Machine, Node]:
    """Carry out what is to be written for a Node, as machina does."""
    actions = [one for one in node_actions(machine, node, None) if isinstance(one, SetNodeRef | UpdateNode)]
    refused: list[str] = []
    caches = Cache(api, MACHINES), Cache(api, NODES)
    writer = MachineWriter(api, *caches, lambda _about, _type, _reason, message: refused.append(message))
    await writer.write(machine, actions)
    assert refused == []
    return await api.get(MACHINES, machine.name), await api.get(NODES, node.metadata.name)


async def test_machina_writes_what_a_node_and_a_deletion_need(admin: HttpApi) -> None:
    async with machina(admin) as api:
        machine, node = await settle(api, *await joined(admin))
        assert machine.spec.kubernetes is not None
        assert machine.spec.kubernetes.node_ref is not None
        assert (node.metadata.labels["tier"], node.metadata.labels[ROLE]) == ("a", "")
        name = machine.name
        await admin.patch(MACHINES, name, {"spec": {"kubernetes": {"registerWithTaints": ["new=:NoExecute"]}}})
        _, node = await settle(api, await api.get(MACHINES, name), node)
        assert [taint.key for taint in node.spec.taints] == ["new"]
        held = await api.patch(
            MACHINES, name, {"metadata": {"finalizers": [FINALIZER_RESET, FINALIZER_HOST_OPERATION]}}
        )
        await api.create(MACHINE_OPERATIONS, reset_manifest(held, f"{name}-reset-on-delete"))
        await api.patch(MACHINES, name, {"metadata": {"finalizers": []}})


async def test_machina_reads_keys_tokens_and_what_a_node_has_to_know(admin: HttpApi) -> None:
    machine, _ = await joined(admin)
    data = {"ssh-privatekey": b64encode(KEY.encode()).decode()}
    await admin.create(SECRETS, {"metadata": {"name": "ssh-rights"}, "data": data}, namespace="unbounded-kube")
    token = site_token_manifest("rights", now=datetime.now(UTC), good_for=timedelta(hours=1), default=True)
    await admin.create(SECRETS, token, namespace="kube-system")
    await publish_cluster_info(admin, "https://10.0.0.1:6443", PEM.encode())
    root = {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": PEM}}
    with suppress(AlreadyExists):
        await admin.create(CONFIG_MAPS, root, namespace="unbounded-kube")
    async with machina(admin) as api:
        reader = SecretReader(api)
        found = await credentials_of(machine, reader)
        assert (found.key, found.address) == (None, None)
        finder = TokenFinder(api, reader)
        default = await finder.find(machine)
        assert default.token is not None, default.need
        ref = {"spec": {"kubernetes": {"bootstrapTokenRef": {"name": f"bootstrap-token-{default.token.id}"}}}}
        assert (await finder.find(await admin.patch(MACHINES, machine.name, ref))).token == default.token
        follower = FactsFollower(api, api.version, root_ca_namespace="unbounded-kube")
        task = asyncio.create_task(follower.run())

        async def known() -> bool:
            return follower.facts is not None and follower._root.synced.is_set()

        await eventually(known)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await admin.delete(SECRETS, f"bootstrap-token-{default.token.id}", namespace="kube-system")
    await admin.delete(CONFIG_MAPS, "cluster-info", namespace="kube-public")


MACHINE_REFUSED: Final[list[tuple[dict[str, Any], str]]] = [
    ({"spec": {"joinCounter": 1}}, "machina may write only configurationRef and kubernetes.nodeRef"),
    (
        {"spec": {"kubernetes": {"nodeLabels": {"tier": "b"}}}},
        "machina may write only nodeRef in spec.kubernetes of a Machine",
    ),
    ({"spec": {"kubernetes": None}}, "machina may write only configurationRef and kubernetes.nodeRef"),
    ({"spec": {"ssh": {"host": "10.0.0.2"}}}, "machina may write only configurationRef and kubernetes.nodeRef"),
    (
        {"metadata": {"finalizers": ["example.com/other"]}},
        "only the finalizers unbounded-cloud.io/reset and unbounded-cloud.io/host-op",
    ),
    ({"metadata": {"labels": {"a": "b"}}}, "machina may change neither labels nor owners of a Machine"),
]
NODE_REFUSED: Final[list[tuple[dict[str, Any], str]]] = [
    (
        {"spec": {"unschedulable": True}},
        "machina may cordon a Node only with the annotation unbounded-cloud.io/cordoned-by",
    ),
    ({"spec": {"providerID": "x://y"}}, "machina may write only taints and unschedulable in the spec of a Node"),
    (
        {"metadata": {"annotations": {"other": "x"}}},
        "machina may write only the annotations unbounded-cloud.io/applied and unbounded-cloud.io/cordoned-by",
    ),
    (
        {"metadata": {"labels": {"unbounded-cloud.io/machine": "other"}}},
        "that machina sets on a Node must be the name of the Node",
    ),
    ({"metadata": {"finalizers": ["example.com/x"]}}, "machina may change neither finalizers nor owners of a Node"),
]


async def test_machina_is_refused_the_rest(admin: HttpApi) -> None:
    machine, node = await joined(admin)
    async with machina(admin) as api:
        for patch, words in MACHINE_REFUSED:
            with pytest.raises(Forbidden, match=words):
                await api.patch(MACHINES, machine.name, patch)
        for patch, words in NODE_REFUSED:
            with pytest.raises(Forbidden, match=words):
                await api.patch(NODES, node.metadata.name, patch)
        with pytest.raises(Forbidden, match="delete only one that it has cordoned, for a rolling update"):
            await api.delete(NODES, node.metadata.name)
        with pytest.raises(Forbidden, match='cannot list resource "secrets"'):
            await api.list(SECRETS, namespace="unbounded-kube")
        for namespace in ("default", "kube-public"):
            with pytest.raises(Forbidden, match='cannot get resource "secrets"'):
                await api.get(SECRETS, "x", namespace=namespace)
        for namespace in ("unbounded-kube", "kube-system"):
            with pytest.raises(Forbidden, match='cannot create resource "secrets"'):
                await api.create(SECRETS, {"metadata": {"name": "x"}}, namespace=namespace)


async def test_machina_deletes_a_node_that_it_has_cordoned(admin: HttpApi) -> None:
    _, node = await joined(admin)
    name = node.metadata.name
    async with machina(admin) as api:
        await admin.patch(NODES, name, {"spec": {"unschedulable": True}})
        with pytest.raises(Forbidden, match="delete only one that it has cordoned"):
            await api.delete(NODES, name)
        await admin.patch(NODES, name, {"spec": {"unschedulable": None}})
        notes = {"annotations": {ANNOTATION_CORDONED_BY: "uid"}}
        await api.patch(NODES, name, {"metadata": notes, "spec": {"unschedulable": True}})
        await api.delete(NODES, name, uid=node.metadata.uid)


async def test_a_host_writes_no_note_in_machinas_name(admin: HttpApi) -> None:
    """With one it could have labels and taints taken away that others have put on its Node."""
    async with machina(admin) as api:
        _, node = await settle(api, *await joined(admin))
    name = node.metadata.name
    login = await admin.config.credentials.login()
    connector = aiohttp.TCPConnector(ssl=admin.config.ssl_context(login.certificate) or True)
    told: list[tuple[int, str]] = []
    async with aiohttp.ClientSession(connector=connector) as session:
        client = Client(session, admin.config.server)
        headers = {"Impersonate-User": f"system:node:{name}", "Impersonate-Group": "system:nodes"}
        headers |= {"Content-Type": "application/merge-patch+json"}
        note = {"metadata": {"annotations": {ANNOTATION_NODE_APPLIED: '{"labels": {"theirs": "x"}}'}}}
        gone = {"metadata": {"annotations": {ANNOTATION_NODE_APPLIED: None}}}
        other = {"metadata": {"annotations": {"volumes": "x"}}}
        for path, body in ((name, note), (f"{name}/status", note), (name, gone), (name, other)):
            answer = await client.ask("PATCH", f"/api/v1/nodes/{path}", body, headers=headers)
            told.append((answer.status, answer.text))
    assert [status for status, _ in told] == [403, 403, 403, 200], told
    words = "only machina may change the annotations unbounded-cloud.io/applied and unbounded-cloud.io/cordoned-by"
    assert all(words in text for _, text in told[:3])
