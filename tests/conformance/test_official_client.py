"""The official Python client: typed, custom objects, dynamic, watch, leader election."""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from tests.conformance.conftest import Cluster
from tests.conformance.support import unique

pytestmark = pytest.mark.slow
LIMIT_S = 60

# Its types do not allow plain dicts, and most of it has none: so it is used without them.
client: Any = importlib.import_module("kubernetes.client")
config: Any = importlib.import_module("kubernetes.config")
dynamic: Any = importlib.import_module("kubernetes.dynamic")
electionconfig: Any = importlib.import_module("kubernetes.leaderelection.electionconfig")
leaderelection: Any = importlib.import_module("kubernetes.leaderelection.leaderelection")
leaselock: Any = importlib.import_module("kubernetes.leaderelection.resourcelock.leaselock")
watch: Any = importlib.import_module("kubernetes.watch")

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"


@pytest.fixture
def api(cluster: Cluster) -> Iterator[Any]:
    with config.new_client_from_config(str(cluster.kubeconfig)) as connected:
        yield connected


@pytest.fixture
def core(api: Any) -> Any:
    return client.CoreV1Api(api)


def config_map(name: str, labels: dict[str, str] | None = None, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels or {}}, "data": data}


def said(error: ApiException) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(error.body or "")
    assert status["kind"] == "Status"
    assert status["code"] == error.status
    return status


def test_objects_are_created_read_replaced_and_deleted(core: Any, namespace: str) -> None:
    made = core.create_namespaced_config_map(namespace, config_map("a", key="1"))
    assert made.metadata.uid
    made.data["key"] = "2"
    replaced = core.replace_namespaced_config_map("a", namespace, made)
    assert replaced.data == {"key": "2"}
    with pytest.raises(ApiException) as stale:
        core.replace_namespaced_config_map("a", namespace, made)
    assert (stale.value.status, said(stale.value)["reason"]) == (409, "Conflict")
    assert core.read_namespaced_config_map("a", namespace).metadata.resource_version != made.metadata.resource_version
    another = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="another"))
    with pytest.raises(ApiException) as wrong:
        core.delete_namespaced_config_map("a", namespace, body=another)
    assert said(wrong.value)["reason"] == "Conflict"
    core.delete_namespaced_config_map("a", namespace, dry_run="All")
    core.read_namespaced_config_map("a", namespace)
    core.delete_namespaced_config_map("a", namespace, propagation_policy="Background")
    with pytest.raises(ApiException) as gone:
        core.read_namespaced_config_map("a", namespace)
    assert said(gone.value)["details"] == {"name": "a", "kind": "configmaps"}


def test_lists_are_read_in_pages(core: Any, namespace: str) -> None:
    for number in range(5):
        core.create_namespaced_config_map(namespace, config_map(f"m{number}", {"ours": "yes"}))
    names: list[str] = []
    token = None
    while token is None or token:
        more: dict[str, str] = {"_continue": token} if token else {}
        page = core.list_namespaced_config_map(namespace, label_selector="ours=yes", limit=2, **more)
        assert len(page.items) <= 2
        names += [item.metadata.name for item in page.items]
        token = page.metadata.var_continue or ""
    assert names == [f"m{number}" for number in range(5)]
    one = core.list_namespaced_config_map(namespace, field_selector="metadata.name=m3")
    assert [item.metadata.name for item in one.items] == ["m3"]
    core.delete_collection_namespaced_config_map(namespace, label_selector="ours=yes")
    assert core.list_namespaced_config_map(namespace, label_selector="ours=yes").items == []


def test_a_watch_goes_on_from_a_list(core: Any, namespace: str) -> None:
    start = core.list_namespaced_config_map(namespace).metadata.resource_version
    core.create_namespaced_config_map(namespace, config_map("a", {"ours": "yes"}, key="1"))
    core.patch_namespaced_config_map("a", namespace, {"data": {"key": "2"}})
    core.delete_namespaced_config_map("a", namespace)
    seen = []
    watcher = watch.Watch()
    listed = {"label_selector": "ours=yes", "resource_version": start, "timeout_seconds": LIMIT_S}
    for event in watcher.stream(core.list_namespaced_config_map, namespace, **listed):
        seen.append((event["type"], event["object"].data["key"]))
        if event["type"] == "DELETED":
            watcher.stop()
    assert seen == [("ADDED", "1"), ("MODIFIED", "2"), ("DELETED", "2")]


def test_patches_of_every_kind(core: Any, namespace: str) -> None:
    core.create_namespaced_config_map(namespace, config_map("a", key="1"))
    patch = core.patch_namespaced_config_map
    added = [{"op": "add", "path": "/data/json", "value": "x"}]
    assert patch("a", namespace, added, _content_type=JSON_PATCH).data == {"key": "1", "json": "x"}
    merged = patch("a", namespace, {"data": {"json": None, "merge": "y"}}, _content_type=MERGE_PATCH)
    assert merged.data == {"key": "1", "merge": "y"}
    body = {"metadata": {"finalizers": ["example.com/a"]}, "data": {"$patch": "replace", "only": "z"}}
    strategic = patch("a", namespace, body, _content_type=STRATEGIC_PATCH)
    assert (strategic.data, strategic.metadata.finalizers) == ({"only": "z"}, ["example.com/a"])
    with pytest.raises(ApiException) as failed:
        patch("a", namespace, [{"op": "test", "path": "/data/only", "value": "other"}], _content_type=JSON_PATCH)
    assert failed.value.status == 422
    patch("a", namespace, {"metadata": {"finalizers": None}}, _content_type=MERGE_PATCH)


def test_configurations_are_applied(core: Any, namespace: str) -> None:
    def apply(manager: str, *, force: bool = False, **data: str) -> Any:
        head = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
        how = {"field_manager": manager, "force": force, "_content_type": APPLY_PATCH}
        return core.patch_namespaced_config_map("a", namespace, {**head, "data": data}, **how)

    assert apply("one", key="1", mine="x").data == {"key": "1", "mine": "x"}
    with pytest.raises(ApiException) as conflict:
        apply("two", key="2")
    assert (conflict.value.status, said(conflict.value)["reason"]) == (409, "Conflict")
    (cause,) = said(conflict.value)["details"]["causes"]
    assert cause == {"reason": "FieldManagerConflict", "message": 'conflict with "one"', "field": ".data.key"}
    forced = apply("two", force=True, key="2")
    assert forced.data == {"key": "2", "mine": "x"}
    entries = forced.metadata.managed_fields
    assert {(entry.manager, entry.operation) for entry in entries} == {("one", "Apply"), ("two", "Apply")}
    assert apply("one").data == {"key": "2"}


def test_custom_objects(api: Any, cluster: Cluster, namespace: str) -> None:
    custom = client.CustomObjectsApi(api)
    where = (cluster.group, "v1", namespace, "widgets")
    widget = {"apiVersion": f"{cluster.group}/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 3}}
    made: Any = custom.create_namespaced_custom_object(*where, widget)
    assert made["spec"]["color"] == "red"
    patched: Any = custom.patch_namespaced_custom_object(*where, "w", {"spec": {"size": 4}}, _content_type=MERGE_PATCH)
    assert patched["metadata"]["generation"] == 2
    status: Any = custom.patch_namespaced_custom_object_status(
        *where, "w", {"status": {"phase": "Ready"}}, _content_type=MERGE_PATCH
    )
    assert status["status"] == {"phase": "Ready"}
    with pytest.raises(ApiException) as invalid:
        custom.create_namespaced_custom_object(*where, {**widget, "metadata": {"name": "x"}, "spec": {"size": 0}})
    causes = said(invalid.value)["details"]["causes"]
    assert [(c["reason"], c["field"]) for c in causes] == [("FieldValueInvalid", "spec.size")]
    listed: Any = custom.list_namespaced_custom_object(*where)
    assert [item["metadata"]["name"] for item in listed["items"]] == ["w"]
    custom.delete_namespaced_custom_object(*where, "w")


def test_the_dynamic_client_finds_kinds_by_discovery(api: Any, cluster: Cluster, namespace: str) -> None:
    found = dynamic.DynamicClient(api)
    widgets = found.resources.get(api_version=f"{cluster.group}/v1", kind="Widget")
    assert (widgets.name, widgets.namespaced) == ("widgets", True)
    widget = {"apiVersion": f"{cluster.group}/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 3}}
    made = widgets.create(body=widget, namespace=namespace)
    made.spec.size = 5
    replaced = widgets.replace(body=made.to_dict(), namespace=namespace)
    assert replaced.spec.size == 5
    widgets.patch(body={"spec": {"size": 6}}, name="w", namespace=namespace, content_type=MERGE_PATCH)
    version = made.metadata.resourceVersion
    event = next(iter(widgets.watch(namespace=namespace, resource_version=version, timeout=LIMIT_S)))
    assert (event["type"], event["object"].spec.size) == ("MODIFIED", 5)
    applied = widgets.server_side_apply(
        body={**widget, "spec": {"size": 7}}, namespace=namespace, field_manager="tests", force_conflicts=True
    )
    assert applied.spec.size == 7
    widgets.delete(name="w", namespace=namespace)
    with pytest.raises(dynamic.exceptions.NotFoundError):
        widgets.get(name="w", namespace=namespace)
    pods = found.resources.get(api_version="v1", kind="Pod")
    assert "eviction" in pods.subresources


def test_leaders_are_elected_on_a_lease(core: Any, api: Any, namespace: str) -> None:
    """The second candidate leads after the first has given up, as its lease is not renewed any more.

    Both end by an error of what they do while they lead: nothing else stops them.
    """
    led: list[str] = []
    both = threading.Event()

    def candidate(identity: str, work: Any) -> Any:
        lock = leaselock.LeaseLock("leader", namespace, identity)
        lock.api_instance = client.CoordinationV1Api(api)
        settings: Any = {"lease_duration": 3, "renew_deadline": 2, "retry_period": 1}
        settings |= {"onstarted_leading": work, "onstopped_leading": lambda: None}
        return leaderelection.LeaderElection(electionconfig.Config(lock, **settings))

    def fail() -> None:
        led.append("first")
        raise RuntimeError("gives up")

    def lead() -> None:
        led.append("second")
        both.set()
        raise RuntimeError("has led enough")

    candidate("first", fail).run()  # returns when it has stopped to lead
    second = threading.Thread(target=candidate("second", lead).run, daemon=True)
    second.start()
    assert both.wait(LIMIT_S), led
    assert led == ["first", "second"]
    second.join(LIMIT_S)
    assert not second.is_alive()
    lease = client.CoordinationV1Api(api).read_namespaced_lease("leader", namespace)
    assert lease.spec.holder_identity == "second"


def test_a_token_is_as_good_as_a_certificate(core: Any, api: Any, cluster: Cluster, namespace: str) -> None:
    core.create_namespaced_service_account(namespace, {"metadata": {"name": "bot"}})
    roles = client.RbacAuthorizationV1Api(api)
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]
    roles.create_namespaced_role(namespace, {"metadata": {"name": "reader"}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "bot", "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    binding = {"metadata": {"name": "bot"}, "subjects": [subject], "roleRef": reference}
    roles.create_namespaced_role_binding(namespace, binding)
    asked = {"spec": {"audiences": [], "expirationSeconds": 600}}
    token = core.create_namespaced_service_account_token("bot", namespace, asked).status.token

    given = api.configuration
    mine = client.Configuration(host=given.host)
    mine.ssl_ca_cert = given.ssl_ca_cert
    mine.verify_ssl = given.verify_ssl
    mine.api_key = {"authorization": f"Bearer {token}"}
    with client.ApiClient(mine) as other:
        limited = client.CoreV1Api(other)
        reviewing = client.AuthenticationV1Api(other)
        reviewed = reviewing.create_self_subject_review({})
        assert reviewed.status.user_info.username == f"system:serviceaccount:{namespace}:bot"
        assert limited.list_namespaced_config_map(namespace).kind is not None
        with pytest.raises(ApiException) as refused:
            limited.list_namespaced_secret(namespace)
        assert said(refused.value)["reason"] == "Forbidden"
        mine.api_key = {"authorization": f"Bearer {unique('nonsense')}"}
        with pytest.raises(ApiException) as unknown:
            limited.list_namespaced_config_map(namespace)
        assert (unknown.value.status, said(unknown.value)["reason"]) == (401, "Unauthorized")


def test_pods_and_nodes_are_as_the_client_knows_them(core: Any, namespace: str) -> None:
    container = client.V1Container(
        name="c", image="registry.invalid/none:1", ports=[client.V1ContainerPort(container_port=80)]
    )
    gate = client.V1PodSchedulingGate(name="example.com/held")
    pod = client.V1Pod(
        metadata=client.V1ObjectMeta(name="p"),
        spec=client.V1PodSpec(containers=[container], scheduling_gates=[gate]),
    )
    made = core.create_namespaced_pod(namespace, pod)
    assert (made.status.phase, made.spec.restart_policy) == ("Pending", "Always")
    assert made.spec.containers[0].ports[0].protocol == "TCP"
    evicted = core.create_namespaced_pod_eviction("p", namespace, client.V1Eviction(metadata={"name": "p"}))
    assert evicted is not None
    with pytest.raises(ApiException) as gone:
        core.read_namespaced_pod("p", namespace)
    assert gone.value.status == 404
