"""Policies of Container Cloud on the embedded server: refusals by their words, and what they let pass."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.test_container_cloud_rules import SEED
from tests.cli.running import KUBECTL
from tests.containercloud.machines import views
from tests.containercloud.objects import (
    DISTRIBUTIONS,
    NODE_LABELS,
    NUMBERS,
    Raw,
    cluster,
    machine,
    machine_body,
    project,
)
from unbounded.api.container_cloud.cluster import CLUSTER_RELEASES, CLUSTERS, MACHINE_POOLS
from unbounded.api.container_cloud.host import BARE_METAL_HOST_PROFILES, BARE_METAL_HOSTS
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, DeletionPolicy
from unbounded.api.core import NODES, SECRETS
from unbounded.api.crd import CONTAINER_CLOUD_DEFINITIONS, custom_resource_definition
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.manifests import container_cloud_sources
from unbounded.cli.servers import component_runtime
from unbounded.containercloud.machines.deletion import plan_deletion
from unbounded.containercloud.machines.report import status_change
from unbounded.kube.api import Forbidden, InvalidObject
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.credentials import Impersonation
from unbounded.kube.metrics import ControllerMetrics

pytestmark = [pytest.mark.slow, pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")]

PIN = "metal3.io/BareMetalHost"
CLUSTER_LABEL, PROVIDER_LABEL = "cluster.sigs.k8s.io/cluster-name", "kaas.mirantis.com/provider"
ROLE_LABEL = "cluster.sigs.k8s.io/control-plane"


async def refusal(api: HttpApi, namespace: str, body: Raw, kind: Kind[Any] = CONTAINER_CLOUD_MACHINES) -> str:
    """The message with which the server refuses an object; empty where it takes it."""
    try:
        await api.create(kind, body, namespace=namespace)
    except (Forbidden, InvalidObject) as error:
        return str(error)
    return ""


async def refused_patch(api: HttpApi, namespace: str, name: str, patch: Raw) -> str:
    try:
        await api.patch(CONTAINER_CLOUD_MACHINES, name, patch, namespace=namespace)
    except (Forbidden, InvalidObject) as error:
        return str(error)
    return ""


async def allowing(api: HttpApi, namespace: str, name: str = "example-cluster", field: str = "releaseRefs") -> None:
    """Give a Cluster the status that its controller writes for a release."""
    current = {
        "name": "release",
        "allowedNodeLabels": list(NODE_LABELS),
        "allowedDistributions": [{"id": one["id"], "default": "default" in one} for one in DISTRIBUTIONS],
    }
    status = {"status": {"providerStatus": {field: {"current": current}}}}
    await api.patch(CLUSTERS, name, status, namespace=namespace, subresource="status")


async def claimed(api: HttpApi, namespace: str, name: str) -> None:
    execution = {"stage": "Planning", "host": {"namespace": namespace, "name": "master-0", "uid": "1"}}
    await api.patch(
        CONTAINER_CLOUD_MACHINES, name, {"status": {"execution": execution}}, namespace=namespace, subresource="status"
    )


async def test_a_machine_needs_the_provider_and_a_cluster(admin: HttpApi) -> None:
    namespace = await project(admin)
    for label, value, words in (
        (PROVIDER_LABEL, None, "label kaas.mirantis.com/provider must be baremetal"),
        (PROVIDER_LABEL, "openstack", "label kaas.mirantis.com/provider must be baremetal"),
        (CLUSTER_LABEL, None, "label cluster.sigs.k8s.io/cluster-name must name a Cluster"),
        (CLUSTER_LABEL, "", "label cluster.sigs.k8s.io/cluster-name must name a Cluster"),
    ):
        body = machine_body("m")
        body["metadata"]["labels"] |= {label: value}
        assert words in await refusal(admin, namespace, body), (label, value)
    assert await refusal(admin, namespace, machine_body("m")) == ""


async def test_the_cluster_of_a_machine_never_changes(admin: HttpApi) -> None:
    namespace = await project(admin)
    await machine(admin, namespace, "m")
    found = await refused_patch(admin, namespace, "m", {"metadata": {"labels": {CLUSTER_LABEL: "other"}}})
    assert "cannot be changed from example-cluster: create another Machine" in found


async def test_role_and_pin_of_a_machine_are_fixed_once_a_host_is_claimed(admin: HttpApi) -> None:
    namespace = await project(admin)
    await machine(admin, namespace, "m")
    role: Raw = {"metadata": {"labels": {ROLE_LABEL: ""}}}
    assert await refused_patch(admin, namespace, "m", role) == ""
    await claimed(admin, namespace, "m")
    assert await refused_patch(admin, namespace, "m", {"metadata": {"labels": {ROLE_LABEL: "false"}}}) == ""
    found = await refused_patch(admin, namespace, "m", {"metadata": {"labels": {ROLE_LABEL: None}}})
    assert f"the role, cannot be changed once host {namespace}/master-0 is claimed" in found
    other: Raw = {"metadata": {"annotations": {PIN: f"{namespace}/master-1"}}}
    assert f"cannot be changed once host {namespace}/master-0 is claimed" in await refused_patch(
        admin, namespace, "m", other
    )
    own: Raw = {"metadata": {"annotations": {PIN: f"{namespace}/master-0"}}}
    assert await refused_patch(admin, namespace, "m", own) == ""
    none: Raw = {"metadata": {"annotations": {PIN: None}}}
    assert "cannot be changed once" in await refused_patch(admin, namespace, "m", none)


@pytest.mark.parametrize("pin", ["master-0", "default/", "/master-0", "a/b/c"])
async def test_a_pin_names_namespace_and_host(admin: HttpApi, pin: str) -> None:
    namespace, body = await project(admin), machine_body("m")
    body["metadata"]["annotations"] = {PIN: pin}
    assert "must be NAMESPACE/NAME of a BareMetalHost" in await refusal(admin, namespace, body)


async def test_a_machine_is_not_created_for_deletion(admin: HttpApi) -> None:
    namespace = await project(admin)
    found = await refusal(admin, namespace, machine_body("m", delete=True))
    assert "spec.providerSpec.value.delete: a new Machine cannot be one to delete" in found
    await machine(admin, namespace, "m", delete=False)
    delete: Raw = {"spec": {"providerSpec": {"value": {"delete": True}}}}
    assert await refused_patch(admin, namespace, "m", delete) == ""


@pytest.mark.parametrize("default", DeletionPolicy)
async def test_a_default_policy_is_only_loosened_once_the_deletion_has_started(
    admin: HttpApi, default: DeletionPolicy
) -> None:
    """The controller writes the default that it follows into the status, from which on the rule holds."""
    namespace, ranks = await project(admin), list(DeletionPolicy)
    await machine(admin, namespace, "m")
    leaving = views.machine("Guarding", manager=False, delete=True)
    seen = views.view(leaving, node=views.node(), default_policy=default)
    status = status_change(seen, plan_deletion(seen))
    assert status["providerStatus"]["delete"]
    change = {"spec": {"providerSpec": {"value": {"delete": True}}}}
    await admin.patch(CONTAINER_CLOUD_MACHINES, "m", change, namespace=namespace)
    await admin.patch(CONTAINER_CLOUD_MACHINES, "m", {"status": status}, namespace=namespace, subresource="status")

    async def sets(policy: DeletionPolicy | None) -> bool:
        value = {"deletionPolicy": policy}
        change = {"spec": {"providerSpec": {"value": value}}}
        found = await refused_patch(admin, namespace, "m", change)
        assert found == "" or "deletionPolicy can only be loosened" in found, found
        return found == ""

    follows = default
    for policy in ranks:  # from the tightest
        is_looser = ranks.index(policy) >= ranks.index(follows)
        assert await sets(policy) is is_looser, (default, policy)
        follows = policy if is_looser else follows
    assert follows == DeletionPolicy.FORCED
    assert not await sets(None)


@pytest.mark.parametrize("field", ["releaseRefs", "releaseRef"])
async def test_node_labels_are_those_that_the_cluster_allows(admin: HttpApi, field: str) -> None:
    namespace = await project(admin)
    for name in ("example-cluster", "other"):
        await cluster(admin, namespace, name)
    ceph = [{"key": "ceph", "value": "1"}]
    assert await refusal(admin, namespace, machine_body("early", nodeLabels=ceph)) == "", "the release is not known yet"
    await allowing(admin, namespace, field=field)
    listed = "is not among allowedNodeLabels of Cluster example-cluster: stacklight=enabled, rack"
    for labels, words in (
        (ceph, f"nodeLabels: ceph {listed}"),
        ([{"key": "stacklight", "value": "no"}], f"nodeLabels: stacklight=no {listed}"),
        ([{"key": "stacklight"}], f"nodeLabels: stacklight= {listed}"),
        ([{"key": "stacklight", "value": "enabled"}, {"key": "rack", "value": "any"}], ""),
    ):
        found = await refusal(admin, namespace, machine_body(f"m{len(str(labels))}", nodeLabels=labels))
        assert words in found
        assert bool(words) == bool(found)
    assert await refusal(admin, namespace, machine_body("elsewhere", "other", nodeLabels=ceph)) == ""
    kept = {"spec": {"providerSpec": {"value": {"maintenance": True}}}}
    assert await refused_patch(admin, namespace, "early", kept) == "", "what it had before stays accepted"


async def test_a_distribution_is_one_of_the_release_in_any_case(admin: HttpApi) -> None:
    namespace = await project(admin)
    await cluster(admin, namespace)
    await allowing(admin, namespace)
    found = await refusal(admin, namespace, machine_body("m", distribution="ubuntu/xenial"))
    words = "distribution: ubuntu/xenial is not among allowedDistributions of Cluster example-cluster"
    assert f"{words}: ubuntu/jammy, ubuntu/focal" in found
    for name, distribution in (("a", "Ubuntu/FOCAL"), ("b", ""), ("c", "ubuntu/jammy")):
        assert await refusal(admin, namespace, machine_body(name, distribution=distribution)) == ""


async def test_a_strict_cluster_rejects_machines_and_pools_without_a_distribution(admin: HttpApi) -> None:
    namespace = await project(admin)
    await cluster(admin, namespace)
    await allowing(admin, namespace)
    await machine(admin, namespace, "older")
    required = {"status": {"providerStatus": {"distributionRequired": True}}}
    await admin.patch(CLUSTERS, "example-cluster", required, namespace=namespace, subresource="status")
    words = "distribution must be one of ubuntu/jammy, ubuntu/focal: container-cloud has the setting"
    assert words in await refusal(admin, namespace, machine_body("m"))
    assert words in await refusal(admin, namespace, pool_body(), MACHINE_POOLS)
    assert await refusal(admin, namespace, machine_body("m", distribution="ubuntu/focal")) == ""
    assert await refusal(admin, namespace, pool_body(distribution="ubuntu/focal"), MACHINE_POOLS) == ""
    kept = {"spec": {"providerSpec": {"value": {"maintenance": True}}}}
    assert await refused_patch(admin, namespace, "older", kept) == "", "what it had before stays accepted"
    without: Raw = {"spec": {"providerSpec": {"value": {"distribution": None}}}}
    assert words in await refused_patch(admin, namespace, "m", without)


async def test_a_list_of_labels_that_is_too_long_is_cut(admin: HttpApi) -> None:
    namespace = await project(admin)
    await cluster(admin, namespace)
    labels = [{"key": f"a-rather-long-name-of-a-label-{number}", "value": "v" * 60} for number in range(256)]
    current = {"name": "release", "allowedNodeLabels": labels}
    status = {"status": {"providerStatus": {"releaseRefs": {"current": current}}}}
    await admin.patch(CLUSTERS, "example-cluster", status, namespace=namespace, subresource="status")
    found = await refusal(admin, namespace, machine_body("m", nodeLabels=[{"key": "ceph"}]))
    assert "nodeLabels: ceph is not among allowedNodeLabels of Cluster example-cluster: a-rather-long-name" in found
    assert ", …" in found
    assert len(found) < 2500


def pool_body(**value: Any) -> Raw:
    template = machine_body("pool", **value)
    return {
        "metadata": {"name": "pool", "labels": {CLUSTER_LABEL: "example-cluster"}},
        "spec": {"replicas": 1, "machineSpec": template["spec"]},
    }


async def test_the_template_of_a_pool_is_checked_as_a_machine_is(admin: HttpApi) -> None:
    namespace = await project(admin)
    await cluster(admin, namespace)
    await allowing(admin, namespace)
    found = await refusal(admin, namespace, pool_body(nodeLabels=[{"key": "ceph"}]), MACHINE_POOLS)
    assert "nodeLabels: ceph is not among allowedNodeLabels of Cluster example-cluster" in found
    without: Raw = pool_body()
    without["metadata"].pop("labels")
    assert "cluster-name must name a Cluster" in await refusal(admin, namespace, without, MACHINE_POOLS)
    assert await refusal(admin, namespace, pool_body(), MACHINE_POOLS) == ""


async def test_a_cluster_needs_the_provider(admin: HttpApi) -> None:
    namespace = await project(admin)
    value = {"apiVersion": "baremetal.k8s.io/v1alpha1", "kind": "BaremetalClusterProviderSpec", "release": "none"}
    body = {"metadata": {"name": "c"}, "spec": {"providerSpec": {"value": value}}}
    assert "label kaas.mirantis.com/provider must be baremetal" in await refusal(admin, namespace, body, CLUSTERS)


async def apply(kubeconfig: Path, text: str, *arguments: str) -> str:
    """Apply manifests with kubectl, and return all that it prints."""
    command = [
        KUBECTL or "kubectl",
        "--kubeconfig",
        str(kubeconfig),
        "apply",
        "--validate=strict",
        "-f",
        "-",
        *arguments,
    ]
    done = await asyncio.to_thread(subprocess.run, command, input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


async def test_the_example_of_the_reference_is_accepted_as_it_stands(admin: HttpApi, server: Path) -> None:
    namespace = await project(admin)
    text = SEED.replace("namespace: example-ns", f"namespace: {namespace}")
    found = await apply(server, text, "--dry-run=server")  # another test has it claim the host
    assert found == "machine.cluster.k8s.io/example-control-plane created (server dry run)\n"


async def test_fields_without_effect_are_named_by_a_warning(admin: HttpApi, server: Path) -> None:
    namespace = await project(admin)
    body = machine_body("m", userData={"name": "x"}, day1Deployment="auto")
    body["spec"]["taints"] = []
    bmc = {"address": "redfish://192.0.2.1/redfish/v1/Systems/1", "disableCertificateVerification": True}
    consumer = {"kind": "Machine", "apiVersion": "cluster.k8s.io/v1alpha1", "name": "other", "uid": "1"}
    host: Raw = {"image": {"url": "http://x"}, "automatedCleaningMode": "disabled", "bmc": bmc, "consumerRef": consumer}
    host |= {"bootMode": "UEFISecureBoot"}
    release = {
        "version": "17.3.0",
        "kubernetes": {"version": "v1.34.0"},
        "allowedDistributions": list(DISTRIBUTIONS),
        "agent": {"version": "1.2.3", "sha256": "0" * 64},
    }
    partitions = [{"name": "root", "size": 0, "wipe": True}]
    profile: Raw = {
        "devices": [{"device": {"useFor": "data", "minSize": "8Gi"}, "partitions": partitions}],
        "fileSystems": [{"fileSystem": "ext4", "partition": "root", "mountPoint": "/"}],
    }
    pool: Raw = pool_body(maintenance=True, deletionPolicy="graceful", disable=True)
    objects: list[tuple[Kind[Any], Raw]] = [
        (CONTAINER_CLOUD_MACHINES, body),
        (BARE_METAL_HOSTS, {"metadata": {"name": "h"}, "spec": host}),
        (BARE_METAL_HOST_PROFILES, {"metadata": {"name": "p"}, "spec": profile}),
        (MACHINE_POOLS, pool),
        (CLUSTER_RELEASES, {"metadata": {"name": f"r-{namespace}"}, "spec": release}),
    ]
    for kind, each in objects:
        each |= {"apiVersion": kind.api_version, "kind": kind.kind}
        each["metadata"] |= {"namespace": namespace} if kind.namespaced else {}
    found = await apply(server, yaml.safe_dump_all([each for _, each in objects]))
    value = "spec.machineSpec.providerSpec.value"
    for fields in (
        "spec.taints, spec.providerSpec.value.userData, spec.providerSpec.value.day1Deployment",
        "spec.image, spec.automatedCleaningMode, spec.bootMode, spec.bmc.disableCertificateVerification, "
        "spec.consumerRef.uid",
        "spec.devices[].device.useFor, spec.devices[].partitions[].wipe",
        f"{value}.disable, {value}.maintenance",
        "spec.agent.version, spec.agent.sha256",
    ):
        assert f"kept without effect: {fields}\n" in found
    assert "kept" not in await apply(server, yaml.safe_dump({**body, **named(machine_body("other"), namespace)}))


def named(body: Raw, namespace: str) -> Raw:
    return {**body, "metadata": body["metadata"] | {"namespace": namespace}}


@pytest.fixture
async def account(admin: HttpApi) -> AsyncIterator[HttpApi]:
    """container-cloud, with its rights."""
    async with component_runtime("container-cloud", admin, metrics=ControllerMetrics()) as runtime:
        assert isinstance(runtime.api, HttpApi)
        yield runtime.api


async def test_the_component_writes_only_logins_of_bmcs(admin: HttpApi, account: HttpApi) -> None:
    namespace = await project(admin)
    labels = {"environment.metal3.io": "baremetal"}
    for name, body in (
        ("plain", {"type": "Opaque"}),
        ("token", {"type": "bootstrap.kubernetes.io/token", "metadata": {"labels": labels}}),
    ):
        full: Raw = {**body, "metadata": {**body.get("metadata", {}), "name": name}}  # type: ignore[dict-item]
        with pytest.raises(Forbidden, match="may write only Opaque Secrets with the label"):
            await account.create(SECRETS, full, namespace=namespace)
    login: Raw = {"metadata": {"name": "login", "labels": labels}, "type": "Opaque", "data": {"password": "YQ=="}}
    await account.create(SECRETS, login, namespace=namespace)
    await account.patch(SECRETS, "login", {"data": {"password": "Yg=="}}, namespace=namespace)
    without: Raw = {"metadata": {"labels": {"environment.metal3.io": None}}}
    with pytest.raises(Forbidden, match="may write only Opaque Secrets with the label"):
        await account.patch(SECRETS, "login", without, namespace=namespace)
    with pytest.raises(Forbidden):
        await account.delete(SECRETS, "login", namespace=namespace)
    await account.create(SECRETS, login, namespace="unbounded-kube")
    await account.delete(SECRETS, "login", namespace="unbounded-kube")


async def test_the_component_writes_only_the_provider_id_of_a_node(admin: HttpApi, account: HttpApi) -> None:
    await admin.create(NODES, {"metadata": {"name": "n1"}})
    await account.patch(NODES, "n1", {"spec": {"providerID": "metal3://default/master-0"}})
    changes: tuple[tuple[Raw, str], ...] = (
        ({"spec": {"unschedulable": True}}, "may write only spec.providerID"),
        ({"metadata": {"labels": {"a": "b"}}}, "neither labels, annotations nor finalizers"),
    )
    for change, words in changes:
        with pytest.raises(Forbidden, match=words):
            await account.patch(NODES, "n1", change)
    await account.delete(NODES, "n1")


async def test_the_component_may_exceed_a_disruption_budget(account: HttpApi) -> None:
    spec = {"operationKind": "HostPowerOff", "machineRef": "m1", "override": "deletionPolicy unsafe"}
    await account.create(MACHINE_OPERATIONS, {"metadata": {"name": "off-1"}, "spec": spec})


def test_every_field_without_effect_is_in_the_warning() -> None:
    (policy,) = (
        body
        for body in yaml.load_all(container_cloud_sources()["container_cloud/policy.yaml"], Loader=yaml.CSafeLoader)
        if body["metadata"]["name"] == "unbounded-container-cloud-without-effect" and body["kind"].endswith("Policy")
    )
    text = json.dumps(policy)
    fields = {
        name
        for definition in CONTAINER_CLOUD_DEFINITIONS
        for name in free_fields(custom_resource_definition(definition)["spec"]["versions"][0]["schema"])
    }
    assert len(fields) > 25
    assert {"userData", "useFor", "disableCertificateVerification", "fieldPath"} <= fields
    assert {name for name in fields if f"'{name}'" not in text} == set()


def free_fields(schema: Any, name: str = "") -> set[str]:
    """The names of the fields below a schema that are kept, and have no effect."""
    if not isinstance(schema, dict):
        return set()
    found = {name} if str(schema.get("description")).startswith("Kept. It has no effect") else set()
    for key, child in schema.items():
        below = child.items() if key == "properties" and isinstance(child, dict) else ((name, child),)
        for inner, each in below:
            found |= free_fields(each, inner)
    return found


async def granted(api: HttpApi, user: str, rules: list[Raw], namespace: str = "") -> None:
    """Grant rights to a user: in a namespace, or in the whole cluster."""
    group, name, scope = "rbac.authorization.k8s.io", f"rights-{next(NUMBERS)}", "" if namespace else "Cluster"
    for kind, plural, body in (
        (f"{scope}Role", f"{scope.lower()}roles", {"rules": rules}),
        (
            f"{scope}RoleBinding",
            f"{scope.lower()}rolebindings",
            {
                "roleRef": {"apiGroup": group, "kind": f"{scope}Role", "name": name},
                "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
            },
        ),
    ):
        what: Kind[Raw] = Kind(group, "v1", kind, plural, dict, namespaced=bool(namespace))
        await api.create(what, {"metadata": {"name": name}, **body}, namespace=namespace)


async def test_a_pin_into_another_project_needs_use_on_that_host(admin: HttpApi, server: Path) -> None:
    own, other = await project(admin), await project(admin)
    rules: list[Raw] = [{"apiGroups": ["cluster.k8s.io"], "resources": ["machines"], "verbs": ["create"]}]
    await granted(admin, "alice", rules, own)
    body = machine_body("m")
    body["metadata"]["annotations"] = {PIN: f"{other}/h1"}
    async with HttpApi(from_kubeconfig(server, acting_as=Impersonation("alice"))) as alice:
        lacks = "it needs the verb use on baremetalhosts.metal3.io, and alice does not have it for"
        assert f"{lacks} {other}/h1" in await refusal(alice, own, body)
        use: Raw = {"apiGroups": ["metal3.io"], "resources": ["baremetalhosts"], "resourceNames": ["h1"]}
        await granted(admin, "alice", [use | {"verbs": ["use"]}], other)
        assert await refusal(alice, own, body) == ""


async def test_the_token_of_a_host_needs_the_right_to_read_it(admin: HttpApi, server: Path) -> None:
    own = await project(admin)
    user = f"carol-{own}"  # its rights in the whole cluster outlast this test
    rules: list[Raw] = [{"apiGroups": ["metal3.io"], "resources": ["baremetalhosts"], "verbs": ["create"]}]
    await granted(admin, user, rules, own)
    annotation = "unbounded-cloud.io/bootstrap-token"
    body: Raw = {"metadata": {"name": "h1", "annotations": {annotation: "bootstrap-token-abcdef"}}, "spec": {}}
    other: Raw = {"metadata": {"name": "h2", "annotations": {annotation: "kube-root"}}, "spec": {}}
    async with HttpApi(from_kubeconfig(server, acting_as=Impersonation(user))) as carol:
        lacks = f"needs the verb get on secrets of kube-system, and {user} does not have it for bootstrap-token-abcdef"
        assert lacks in await refusal(carol, own, body, BARE_METAL_HOSTS)
        assert "must name a Secret of kube-system" in await refusal(admin, own, other, BARE_METAL_HOSTS)
        read: Raw = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["bootstrap-token-abcdef"]}
        await granted(admin, user, [read | {"verbs": ["get"]}], "kube-system")
        assert await refusal(carol, own, body, BARE_METAL_HOSTS) == ""


async def test_the_adoption_of_a_machine_needs_update_on_it(admin: HttpApi, server: Path) -> None:
    own = await project(admin)
    user = f"bob-{own}"  # its rights in the whole cluster outlast this test
    rules: list[Raw] = [{"apiGroups": ["metal3.io"], "resources": ["baremetalhosts"], "verbs": ["create"]}]
    await granted(admin, user, rules, own)
    body: Raw = {"metadata": {"name": "h1", "annotations": {"unbounded-cloud.io/machine": "rack1-01"}}, "spec": {}}
    async with HttpApi(from_kubeconfig(server, acting_as=Impersonation(user))) as bob:
        lacks = (
            f"needs the verb update on machines.unbounded-cloud.io, and {user} does not have it for Machine rack1-01"
        )
        assert lacks in await refusal(bob, own, body, BARE_METAL_HOSTS)
        update: Raw = {"apiGroups": ["unbounded-cloud.io"], "resources": ["machines"], "resourceNames": ["rack1-01"]}
        await granted(admin, user, [update | {"verbs": ["update"]}])
        assert await refusal(bob, own, body, BARE_METAL_HOSTS) == ""


async def test_an_adopted_machine_is_given_to_installs_by_those_only_that_may_update_it(
    admin: HttpApi, server: Path
) -> None:
    own = await project(admin)
    user = f"erin-{own}"  # its rights in the whole cluster outlast this test
    rules: list[Raw] = [{"apiGroups": ["metal3.io"], "resources": ["baremetalhosts"], "verbs": ["get", "patch"]}]
    await granted(admin, user, rules, own)
    body: Raw = {"metadata": {"name": "h1", "annotations": {"unbounded-cloud.io/machine": "rack1-02"}}}
    await admin.create(BARE_METAL_HOSTS, body | {"spec": {"externallyProvisioned": True}}, namespace=own)
    async with HttpApi(from_kubeconfig(server, acting_as=Impersonation(user))) as erin:
        await erin.patch(BARE_METAL_HOSTS, "h1", {"spec": {"online": False}}, namespace=own)
        install: Raw = {"spec": {"externallyProvisioned": False}}
        with pytest.raises(Forbidden, match=f"{user} does not have it for Machine rack1-02"):
            await erin.patch(BARE_METAL_HOSTS, "h1", install, namespace=own)
        update: Raw = {"apiGroups": ["unbounded-cloud.io"], "resources": ["machines"], "resourceNames": ["rack1-02"]}
        await granted(admin, user, [update | {"verbs": ["update"]}])
        await erin.patch(BARE_METAL_HOSTS, "h1", install, namespace=own)
