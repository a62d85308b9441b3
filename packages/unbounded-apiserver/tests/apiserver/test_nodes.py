"""Rights of a node: reads of its own objects, and no other writes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.apiserver.support import Client, client_of, refusal, running
from unbounded_apiserver import metadata
from unbounded_apiserver.access.node_authorizer import NodeGraph, NodeRules, references
from unbounded_apiserver.access.node_restriction import NodeRestriction, is_own_label
from unbounded_apiserver.auth import AuthAttributes, AuthDecision, User
from unbounded_apiserver.builtin_resources import SERVICE_ACCOUNTS
from unbounded_apiserver.resource_model import Resource, ResourcePath
from unbounded_apiserver.server import ApiServer
from unbounded_apiserver.status import StatusError
from unbounded_apiserver.store import Store

NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
NODE = User("system:node:n1", ("system:nodes", "system:authenticated"))
MERGE = {"Content-Type": "application/merge-patch+json"}
PODS = Resource("", "v1", "Pod", "pods", "pod", True, SERVICE_ACCOUNTS.type)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    async with running(tmp_path) as (server, client):
        yield server, client


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = Store()
    await opened.open(tmp_path)
    try:
        yield opened
    finally:
        await opened.close()


def pod(name: str = "p", node: str = "n1", **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "default", "uid": f"uid-of-{name}"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"nodeName": node, **spec}}


async def put(store: Store, obj: dict[str, Any], resource: str = "pods") -> None:
    meta = obj["metadata"]
    key = f"{meta['namespace']}/{meta['name']}" if "namespace" in meta else meta["name"]
    await store.write(resource, key, lambda revision: metadata.encode(obj, revision))


async def drop(store: Store, obj: dict[str, Any]) -> None:
    key = f"default/{obj['metadata']['name']}"
    await store.write("pods", key, lambda revision: metadata.encode(obj, revision), deleted=True)


@pytest.mark.slow
async def test_a_node_registers_itself_and_no_other(served: tuple[ApiServer, Client]) -> None:
    server, _ = served
    async with client_of(server, "system:node:n1", "system:nodes") as node:
        labels = {"kubernetes.io/hostname": "n1", "example.com/rack": "7"}
        await node.create(NODES, {"metadata": {"name": "n1", "labels": labels}})
        assert (await node.ask("GET", f"{NODES}/n1")).status == 200
        assert (await node.ask("GET", f"{NODES}?fieldSelector=metadata.name%3Dn1")).status == 200
        merged = await node.merge(f"{NODES}/n1/status", {"metadata": {"labels": {"example.com/rack": "8"}}})
        assert merged["metadata"]["labels"]["example.com/rack"] == "8"
        labels = {"node-restriction.kubernetes.io/a": "b", "x.k8s.io/c": "d", "example.com/e": "f"}
        refused = await node.ask("PATCH", f"{NODES}/n1/status", {"metadata": {"labels": labels}}, headers=MERGE)
        assert refused.status == 403
        assert refused.json()["message"] == (
            'nodes "n1" is forbidden: is not allowed to modify labels: node-restriction.kubernetes.io/a, x.k8s.io/c'
        )
        refused = await node.ask("POST", NODES, {"metadata": {"name": "n1", "labels": {"a.kubernetes.io/b": ""}}})
        assert refused.json()["message"] == (
            'nodes "n1" is forbidden: node "n1" is not allowed to set the following labels: a.kubernetes.io/b'
        )
        taint = {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}
        for path in ("n1", "n1/status"):
            refused = await node.ask("PATCH", f"{NODES}/{path}", taint, headers=MERGE)
            assert refused.json()["message"].endswith('node "n1" is not allowed to modify taints')
        owner = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "name": "gone",
            "uid": "none",
        }  # its absence would end the Node
        for path in ("n1", "n1/status"):
            change = {"metadata": {"ownerReferences": [owner]}}
            refused = await node.ask("PATCH", f"{NODES}/{path}", change, headers=MERGE)
            assert refused.json()["message"].endswith('node "n1" is not allowed to modify ownerReferences')
        assert (await node.ask("PATCH", f"{NODES}/n1", {"spec": {"unschedulable": True}}, headers=MERGE)).status == 200


@pytest.mark.slow
async def test_rights_beside_do_not_lift_the_restriction(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    group = {"kind": "Group", "name": "system:nodes"}
    reference = {"kind": "ClusterRole", "name": "cluster-admin"}
    body = {"metadata": {"name": "x"}, "roleRef": reference, "subjects": [group]}
    await admin.create(f"{RBAC}/clusterrolebindings", body)
    await admin.create(NODES, {"metadata": {"name": "n2"}})
    async with client_of(server, "system:node:n1", "system:nodes") as node:
        assert (await node.ask("GET", NODES)).status == 200
        for method, path, sent in (
            ("DELETE", f"{NODES}/n2", None),
            ("PUT", f"{NODES}/n2", {"metadata": {"name": "n2"}}),
            ("POST", LEASES, {"metadata": {"name": "n2"}}),
            ("POST", LEASES.replace("kube-node-lease", "default"), {"metadata": {"name": "n1"}}),
            ("PUT", f"{LEASES}/n2", {"metadata": {"name": "n2"}}),
        ):
            refused = await node.ask(method, path, sent)
            assert refused.status == 403, path
            assert "cannot" not in refused.json()["message"]
        assert (await node.ask("PUT", f"{LEASES}/n1", {"metadata": {"name": "n1"}})).status == 201


@pytest.mark.slow
async def test_who_has_the_name_or_the_group_alone_is_no_node(served: tuple[ApiServer, Client]) -> None:
    server, _ = served
    for user, group in (("system:node:n1", "other"), ("n1", "system:nodes")):
        async with client_of(server, user, group) as nobody:
            assert (await nobody.ask("GET", f"{NODES}/n1")).status == 403
    async with client_of(server, "system:node:", "system:nodes") as nameless:
        refused = await nameless.ask("GET", f"{NODES}/n1")
        assert refused.json()["message"].endswith('unknown node for user "system:node:"')


@pytest.mark.slow
async def test_the_rules_of_a_node_cannot_be_listed_in_full(served: tuple[ApiServer, Client]) -> None:
    server, _ = served
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": "default"}}
    async with client_of(server, "system:node:n1", "system:nodes") as node:
        told = await node.create("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body)
        assert told["status"]["incomplete"] is True
        assert told["status"]["evaluationError"] == "node authorizer does not support user rule resolution"


async def test_node_may_read_secrets_only_while_its_pods_reference_them(store: Store) -> None:
    rules = NodeRules(store)

    def may_read(name: str) -> bool:
        return rules.decide(NODE, AuthAttributes("get", "", "secrets", "", "default", name)).allowed

    volume = {"name": "v", "secret": {"secretName": "a"}}
    await put(store, pod("one", volumes=[volume, volume]))
    await put(store, pod("two", volumes=[volume]))
    await put(store, pod("elsewhere", "n2", volumes=[{"name": "v", "secret": {"secretName": "b"}}]))
    assert (may_read("a"), may_read("b")) == (True, False)
    await put(store, pod("one"))
    assert may_read("a")
    await drop(store, pod("two", volumes=[volume]))
    assert not may_read("a")
    mirror = pod("mirror", imagePullSecrets=[{"name": "a"}])
    mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    await put(store, mirror)
    assert not may_read("a")
    assert rules.decide(NODE, AuthAttributes("get", "", "pods", "", "default", "mirror")).allowed


STEPS = st.tuples(st.sampled_from("ab"), st.sampled_from(["n1", "n2", ""]), st.sampled_from("xyz"), st.booleans())


@pytest.mark.slow
@settings(max_examples=20)
@given(st.lists(STEPS))
async def test_the_graph_is_that_of_the_stored_pods(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, str, bool]]
) -> None:
    store = Store()
    await store.open(tmp_path_factory.mktemp("data"))
    try:
        graph = NodeGraph(store)
        stored: dict[str, tuple[str, str]] = {}
        for name, node, secret, gone in steps:
            obj = pod(name, node, imagePullSecrets=[{"name": secret}])
            if gone and name in stored:
                del stored[name]
                await drop(store, obj)
            elif not gone:
                stored[name] = (node, secret)
                await put(store, obj)
            for asked in ("n1", "n2"):
                related = {s for s in "xyz" if graph.related(asked, "secrets", "default", s)}
                assert related == {s for n, s in stored.values() if n == asked}
    finally:
        await store.close()


def test_references_of_every_kind_are_found() -> None:
    env = [
        {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s1", "key": "k"}}},
        {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "c1", "key": "k"}}},
        {"name": "C", "value": "x"},
    ]
    volumes = [
        {"secret": {"secretName": "s3"}},
        {"configMap": {"name": "c3"}},
        {"projected": {"sources": [{"secret": {"name": "s4"}}, {"configMap": {"name": "c4"}}, {"downwardAPI": {}}]}},
        {"csi": {"driver": "d", "nodePublishSecretRef": {"name": "s5"}}},
        {"azureFile": {"secretName": "s6"}},
        {"rbd": {"secretRef": {"name": "s7"}}},
        {"emptyDir": {}},
    ]
    from_all = [{"secretRef": {"name": "s2"}}, {"configMapRef": {"name": "c2"}}]
    content: dict[str, Any] = {
        "containers": [{"env": env}],
        "initContainers": [{"envFrom": from_all}],
        "imagePullSecrets": [{"name": "s8"}],
        "serviceAccountName": "bot",
        "volumes": volumes,
    }
    found = set(references(pod(**content)))
    expected = {("secrets", f"s{i}") for i in range(1, 9)} | {("configmaps", f"c{i}") for i in range(1, 5)}
    assert found == expected | {("serviceaccounts", "bot")}


SCOPED = "can only list/watch pods with spec.nodeName field selector"
LEASE = "can only get, create, update, patch, or delete a node lease"
TOKEN = "can only create token subresource of serviceaccount"
STRANGE = "no relationship found between node 'n1' and this object"
ONE_TOKEN = "can only create tokens for individual service accounts"


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (AuthAttributes("list", "", "secrets", "", "default"), "No Object name found"),
        (AuthAttributes("get", "", "secrets", "", "", "a"), "can only read namespaced object of this type"),
        (AuthAttributes("update", "", "configmaps", "", "default", "a"), "can only read resources of this type"),
        (AuthAttributes("create", "", "serviceaccounts", "", "default", "a"), TOKEN),
        (AuthAttributes("list", "", "serviceaccounts", "", "default"), ONE_TOKEN),
        (AuthAttributes("get", "", "serviceaccounts", "", "default", "a"), STRANGE),
        (AuthAttributes("list", "", "pods", "", ""), SCOPED),
        (AuthAttributes("list", "", "pods", "", "", selector="spec.nodeName=n2"), SCOPED),
        (AuthAttributes("list", "", "pods", "", "", selector="spec.nodeName!=n1"), SCOPED),
        (AuthAttributes("list", "coordination.k8s.io", "leases", "", "kube-node-lease"), LEASE),
        (AuthAttributes("get", "", "nodes", "", "", "n2"), "node 'n1' cannot read 'n2', only its own Node object"),
        (AuthAttributes("delete", "", "nodes", "", "", "n1"), ""),
        (AuthAttributes("get", path="/metrics"), ""),
        (AuthAttributes("list", "apps", "daemonsets"), ""),
    ],
)  # fmt: skip
def test_what_a_node_may_not_ask(asked: AuthAttributes, why: str) -> None:
    decision = NodeRules(Store()).decide(NODE, asked)
    assert (decision.allowed, decision.reason) == (False, why)


@pytest.mark.parametrize(
    "asked",
    [
        AuthAttributes("watch", "", "pods", "", "", selector="spec.nodeName=n1,status.phase!=Failed"),
        AuthAttributes("create", "", "events", "", "default"),
        AuthAttributes("create", "authentication.k8s.io", "tokenreviews"),
        AuthAttributes("watch", "certificates.k8s.io", "certificatesigningrequests"),
        AuthAttributes("patch", "", "pods", "status", "default", "p"),
        AuthAttributes("list", "", "services"),
    ],
)
def test_what_a_node_may_ask(asked: AuthAttributes) -> None:
    assert NodeRules(Store()).decide(NODE, asked).allowed
    assert not NodeRules(Store()).decide(User("n1", ("system:nodes",)), asked).allowed


def mirror(**changes: Any) -> dict[str, Any]:
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1", "controller": True}
    obj = pod()
    obj["metadata"] |= {"annotations": {"kubernetes.io/config.mirror": "x"}, "ownerReferences": [owner]}
    obj["metadata"] |= {k: v for k, v in changes.items() if k in {"annotations", "ownerReferences"}}
    obj["spec"] |= {k: v for k, v in changes.items() if k not in obj["metadata"]}
    return obj


OWNER = mirror()["metadata"]["ownerReferences"][0]
SECRET = [{"name": "v", "secret": {"secretName": "a"}}]
CLAIM = [{"name": "v", "persistentVolumeClaim": {"claimName": "a"}}]
BUNDLE = [{"name": "v", "projected": {"sources": [{"clusterTrustBundle": {"path": "x"}}]}}]
PULLS = [{"envFrom": [{"configMapRef": {"name": "a"}}]}]


@pytest.mark.parametrize(
    ("obj", "why"),
    [
        (mirror(), ""),
        (mirror(annotations={}), 'pod does not have "kubernetes.io/config.mirror" annotation'),
        (mirror(nodeName="n2"), 'can only create pods with spec.nodeName'),
        (mirror(ownerReferences=[]), 'can only create pods with an owner reference'),
        (mirror(ownerReferences=[OWNER] * 2), 'can only create pods with a single owner reference'),
        (mirror(ownerReferences=[{**OWNER, "name": "n2"}]), 'can only create pods with an owner reference'),
        (mirror(ownerReferences=[{**OWNER, "controller": False}]), 'can only create pods with a controller'),
        (mirror(ownerReferences=[{**OWNER, "blockOwnerDeletion": True}]), 'must not set blockOwnerDeletion'),
        (mirror(ownerReferences=[{**OWNER, "uid": "u2"}]), "node n1 UID mismatch: expected u2 got u1"),
        (mirror(serviceAccountName="bot"), 'that reference a service account'),
        (mirror(volumes=SECRET), 'that reference secrets'),
        (mirror(containers=PULLS), 'that reference configmaps'),
        (mirror(volumes=BUNDLE), 'that reference clustertrustbundles'),
        (mirror(volumes=CLAIM), 'that reference persistentvolumeclaims'),
    ],
)  # fmt: skip
async def test_a_node_makes_mirror_pods_alone(store: Store, obj: dict[str, Any], why: str) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "u1"}}
    await put(store, node, "nodes")
    restriction = NodeRestriction(store, decide)
    refused = refusal(StatusError, partial(restriction.check_content, NODE, PODS, "", obj, None))
    assert (refused is not None) is bool(why)
    assert why in str(refused or "")
    assert refusal(StatusError, partial(restriction.check_content, User("admin"), PODS, "", obj, None)) is None


async def test_a_node_changes_the_status_of_its_pods_and_ends_them(store: Store) -> None:
    restriction = NodeRestriction(store, decide)
    own, other = pod(), pod("q", "n2")
    for obj in (own, other):
        await put(store, obj)

    def why(verb: str, obj: dict[str, Any], subresource: str = "") -> str:
        place = ResourcePath(PODS, "default", obj["metadata"]["name"], subresource)
        return str(refusal(StatusError, partial(restriction.check_path, NODE, verb, place)) or "")

    def why_not(new: dict[str, Any], old: dict[str, Any], subresource: str) -> str:
        return str(refusal(StatusError, partial(restriction.check_content, NODE, PODS, subresource, new, old)) or "")

    assert (why("delete", own), why("create", own, "eviction"), why_not(own, own, "status")) == ("", "", "")
    assert why("delete", other).endswith('node "n1" can only delete pods with spec.nodeName set to itself')
    assert why("create", other, "eviction").endswith("node n1 can only evict pods with spec.nodeName set to itself")
    assert why("create", own, "binding").endswith(
        "unexpected pod subresource \"binding\", only 'status' and 'eviction' are allowed"
    )
    assert "can only update pod status for pods" in why_not(other, other, "status")
    labelled = {**own, "metadata": {**own["metadata"], "labels": {"a": "b"}}}
    assert "cannot update labels through pod status" in why_not(labelled, own, "status")
    assert 'unexpected operation "UPDATE"' in why_not(own, own, "")


@pytest.mark.parametrize(
    ("bound", "code", "why"),
    [
        (None, 403, "node requested token not bound to a pod"),
        ({"kind": "Secret", "apiVersion": "v1", "name": "p"}, 403, "node requested token not bound to a pod"),
        (
            {"kind": "Pod", "apiVersion": "v1", "name": "p"},
            403,
            "node requested token with a pod binding without a uid",
        ),
        ({"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "x"}, 403, "does not match the UID in record"),
        ({"kind": "Pod", "apiVersion": "v1", "name": "none", "uid": "x"}, 404, 'pods "none" not found'),
        ({"kind": "Pod", "apiVersion": "v1", "name": "q", "uid": "uid-of-q"}, 403, "scheduled on a different node"),
        ({"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "uid-of-p"}, 0, ""),
    ],
)
async def test_a_node_gets_tokens_for_its_pods_alone(
    store: Store, bound: dict[str, str] | None, code: int, why: str
) -> None:
    for obj in (pod(volumes=projected({})), pod("q", "n2")):
        await put(store, obj)
    place = ResourcePath(SERVICE_ACCOUNTS, "default", "bot", "token")
    request = {"spec": {"boundObjectRef": bound}}
    refused = refusal(StatusError, partial(NodeRestriction(store, decide).check_token, NODE, place, request))
    assert (refused.code if refused else 0) == code
    assert why in str(refused or "")


def projected(*sources: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the volumes of a pod that requests tokens."""
    return [{"name": "t", "projected": {"sources": [{"serviceAccountToken": one} for one in sources]}}]


def decide(user: User, asked: AuthAttributes) -> AuthDecision:
    """The right that a credential provider of kubelet needs, for one audience and account."""
    wanted = AuthAttributes("request-serviceaccounts-token-audience", "", "registry", "", "default", "bot")
    return AuthDecision(user is NODE and asked == wanted)


@pytest.mark.slow
async def test_a_node_gets_tokens_for_the_audiences_of_its_pod_alone(store: Store) -> None:
    csi = [{"name": "c", "csi": {"driver": "d.example.com"}}]
    await put(store, pod(volumes=[*projected({"audience": "vault"}), *csi]))
    await put(store, pod("api", volumes=projected({"expirationSeconds": 3607, "path": "token"})))
    driver: dict[str, Any] = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver"}
    driver |= {"metadata": {"name": "d.example.com"}, "spec": {"tokenRequests": [{"audience": "store"}]}}
    await put(store, driver, "csidrivers.storage.k8s.io")
    place = ResourcePath(SERVICE_ACCOUNTS, "default", "bot", "token")

    def why_not(name: str, *audiences: str) -> str:
        bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": f"uid-of-{name}"}
        request = {"spec": {"boundObjectRef": bound, "audiences": list(audiences)}}
        check = partial(NodeRestriction(store, decide).check_token, NODE, place, request)
        refused = refusal(StatusError, check)
        return "" if refused is None else str(refused)

    not_found = (
        'serviceaccounts "bot" is forbidden: audience "%s" not found in pod spec volume,'
        " system:node:n1 is not authorized to request tokens for this audience"
    )
    assert why_not("p", "vault") == why_not("p", "store") == why_not("api") == why_not("p", "registry") == ""
    assert why_not("p") == not_found % ""
    assert why_not("api", "vault") == not_found % "vault"
    assert why_not("p", "vault", "store").endswith("node may only request 0 or 1 audiences")


@pytest.mark.slow
async def test_an_administrator_grants_nodes_an_audience(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    await admin.create(NODES, {"metadata": {"name": "n1"}})
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    await admin.create(accounts, {"metadata": {"name": "bot"}})
    spec = {"nodeName": "n1", "serviceAccountName": "bot", "containers": [{"name": "c", "image": "i"}]}
    made = await admin.create("/api/v1/namespaces/default/pods", {"metadata": {"name": "p"}, "spec": spec})
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": made["metadata"]["uid"]}
    request = {"spec": {"boundObjectRef": bound, "audiences": ["registry"]}}
    async with client_of(server, "system:node:n1", "system:nodes") as node:
        assert (await node.ask("POST", f"{accounts}/bot/token", {"spec": {"boundObjectRef": bound}})).status == 201
        assert (await node.ask("POST", f"{accounts}/bot/token", request)).status == 403
        rule = {"verbs": ["request-serviceaccounts-token-audience"], "apiGroups": [""], "resources": ["registry"]}
        await admin.create(f"{RBAC}/clusterroles", {"metadata": {"name": "x"}, "rules": [rule]})
        reference, group = {"kind": "ClusterRole", "name": "x"}, {"kind": "Group", "name": "system:nodes"}
        binding = {"metadata": {"name": "x"}, "roleRef": reference, "subjects": [group]}
        await admin.create(f"{RBAC}/clusterrolebindings", binding)
        assert (await node.ask("POST", f"{accounts}/bot/token", request)).status == 201


@pytest.mark.parametrize(
    ("key", "own"),
    [
        ("plain", True),
        ("example.com/a", True),
        ("kubernetes.io/hostname", True),
        ("topology.kubernetes.io/zone", True),
        ("kubelet.kubernetes.io/a", True),
        ("x.node.kubernetes.io/a", True),
        ("node-role.kubernetes.io/control-plane", False),
        ("kubernetes.io/role", False),
        ("node-restriction.kubernetes.io/a", False),
        ("x.node-restriction.kubernetes.io/a", False),
        ("k8s.io/a", False),
        ("notkubernetes.io/a", True),
    ],
)
def test_labels_that_a_node_may_set_of_itself(key: str, own: bool) -> None:
    assert is_own_label(key) is own
