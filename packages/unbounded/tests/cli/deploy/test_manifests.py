"""Manifests of deploy/ and of the command line: Kubernetes' schemas, Pod security, priority, networks, volumes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import yaml
from kubernetes_validate import ValidationError, validate

from tests.cli.deploy.test_deploy_files import rendered
from tests.cli.plugin.conftest import Cli
from tests.support.paths import ROOT
from tests.support.pod_security import baseline, restricted
from unbounded.api.core import NAMESPACES
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploy.console_workload import ConsoleOidc, ConsoleWorkload, SecretKey, console_objects
from unbounded.cli.deploy.pods import MODES, PRIORITY, PRIVILEGED, RESTRICTED
from unbounded.cli.deploy.server_side_apply import DEPLOYMENTS
from unbounded.cli.deploy.workloads import (
    MachinaWorkload,
    MachineOpsWorkload,
    MetalmanWorkload,
    machina_config,
    machine_ops_objects,
    metalman_objects,
    stages,
)
from unbounded.kube.client import HttpApi

Raw = dict[str, Any]

RELEASE = "1.36"  # of Kubernetes
FOREIGN = ("kustomize.config.k8s.io", "monitoring.coreos.com")  # kinds that are not of Kubernetes itself
RESTRICTED_POD: Raw = {
    "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
    "volumes": [{"name": "tmp", "emptyDir": {}}],
    "containers": [
        {"name": "c", "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}
    ],
}


@cache
def files() -> tuple[Raw, ...]:
    """Every object of deploy/, but for the Helm chart, whose rendering another test compares with these."""
    paths = sorted(path for path in (ROOT / "deploy").rglob("*.yaml") if "templates" not in path.parts)
    bodies = (body for path in paths for body in yaml.load_all(path.read_bytes(), Loader=yaml.CSafeLoader))
    return tuple(body for body in bodies if "kind" in body and not body["apiVersion"].startswith(FOREIGN))


@cache
def brought() -> tuple[Raw, ...]:
    """Everything that the command line may bring to a cluster, with a site, an interface, two clouds and a provider."""
    clouds = machine_ops_objects(
        (MachineOpsWorkload("image", "west", "AzureVM"), MachineOpsWorkload("image", "", "OCIInstance")), {}
    )
    oidc = ConsoleOidc("https://idp.example.com", "kubernetes", SecretKey("idp", "client-secret"), "PEM", ("groups",))
    console = console_objects(ConsoleWorkload("image", allow_operations=True, oidc=oidc))
    others = (*metalman_objects(MetalmanWorkload("image", "rack1", "eth1")), *clouds, *console)
    wanted = stages(MachinaWorkload("image", machina_config()), others, level=PRIVILEGED)
    return tuple(body for stage in wanted for body in stage.objects)


def deployments(bodies: tuple[Raw, ...]) -> list[tuple[str, Raw]]:
    return [(body["metadata"]["name"], body["spec"]["template"]) for body in bodies if body["kind"] == "Deployment"]


@pytest.mark.slow
def test_every_manifest_is_valid_by_the_strict_schemas_of_kubernetes() -> None:
    bodies = [*files(), *(body for body in brought() if body not in files())]
    assert len(files()) > 90
    assert {body["kind"] for body in brought()} <= {body["kind"] for body in bodies}
    for body in bodies:
        validate(body, RELEASE, strict=True)


@pytest.mark.slow
def test_an_overlay_is_valid_by_the_strict_schemas_of_kubernetes() -> None:
    found = [body for body in rendered("examples/kustomize") if not body["apiVersion"].startswith(FOREIGN)]
    bodies = [body for body in found if body not in files()]
    assert {body["kind"] for body in bodies} >= {"ConfigMap", "Deployment", "Namespace", "NetworkPolicy"}
    for body in bodies:
        validate(body, RELEASE, strict=True)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "replicas"), "2"),
        (("spec", "template", "spec", "priorityClass"), PRIORITY),
        (("spec", "template", "spec", "containers"), {}),
        (("spec", "template", "spec", "containers"), [{"image": "without a name"}]),
    ],
)
def test_the_schemas_reject_an_unknown_field_and_a_wrong_type(path: tuple[str, ...], value: Any) -> None:
    body = copy.deepcopy(next(body for body in brought() if body["kind"] == "Deployment"))
    inner = body
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    with pytest.raises(ValidationError):
        validate(body, RELEASE, strict=True)


@pytest.mark.parametrize("bodies", [files(), brought()], ids=["deploy", "command line"])
def test_every_workload_complies_with_the_pod_security_that_its_namespace_enforces(bodies: tuple[Raw, ...]) -> None:
    found = {name: template["spec"] for name, template in deployments(bodies)}
    for name, pod in found.items():
        if name.startswith("metalman"):
            assert baseline(pod) == ["hostNetwork", "metalman: capabilities ['NET_RAW']"]
        else:
            assert restricted(pod) == []
    assert {name.partition("-")[0] for name in found} >= {"machina", "machine", "metalman", "unbounded"}


def test_the_namespace_is_privileged_only_with_a_metalman() -> None:
    def labels(bodies: tuple[Raw, ...]) -> Mapping[str, str]:
        (found,) = (body for body in bodies if body["kind"] == "Namespace")
        given: Mapping[str, str] = found["metadata"]["labels"]
        return given

    assert labels(files()) == dict.fromkeys(MODES, RESTRICTED)
    assert labels(brought()) == dict.fromkeys(MODES, PRIVILEGED)


@pytest.mark.slow
def test_an_overlay_with_a_metalman_makes_the_namespace_privileged() -> None:
    bodies = rendered("examples/kustomize")
    (found,) = (body for body in bodies if body["kind"] == "Namespace")
    assert any(name.startswith("metalman") for name, _ in deployments(bodies))
    assert found["metadata"]["labels"] == dict.fromkeys(MODES, PRIVILEGED)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"hostPID": True}, "hostPID"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "hostPath volume v"),
        ({"volumes": [{"name": "v", "nfs": {"server": "s", "path": "/"}}]}, "volume v"),
        ({"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}, "c: runAsNonRoot"),
        ({"securityContext": {"runAsNonRoot": True}}, "c: seccompProfile"),
        ({"securityContext": {**RESTRICTED_POD["securityContext"], "runAsUser": 0}}, "c: runAsUser 0"),
        (
            {"securityContext": {**RESTRICTED_POD["securityContext"], "sysctls": [{"name": "vm.x", "value": "1"}]}},
            "sysctl vm.x",
        ),
        ({"containers": [{"name": "c"}]}, "c: allowPrivilegeEscalation"),
        ({"initContainers": [{"name": "i", "securityContext": {"privileged": True}}]}, "i: privileged"),
        ({"containers": [{"name": "c", "ports": [{"hostPort": 80}]}]}, "c: hostPort"),
        ({"containers": [{"name": "c", "livenessProbe": {"httpGet": {"host": "h"}}}]}, "c: host of a probe"),
        (
            {"containers": [{"name": "c", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]},
            "c: capabilities ['SYS_ADMIN']",
        ),
        (
            {"containers": [{"name": "c", "securityContext": {"seLinuxOptions": {"type": "spc_t"}}}]},
            "c: seLinuxOptions",
        ),
    ],
)
def test_pod_security_finds_a_violation(change: Raw, wrong: str) -> None:
    assert restricted(RESTRICTED_POD) == []
    assert wrong in restricted(RESTRICTED_POD | change)


@pytest.mark.parametrize("bodies", [files(), brought()], ids=["deploy", "command line"])
def test_every_pod_has_a_priority_and_resources_and_bounds_its_volumes(bodies: tuple[Raw, ...]) -> None:
    (priority,) = (body for body in bodies if body["kind"] == "PriorityClass")
    for name, template in deployments(bodies):
        pod = template["spec"]
        assert pod["priorityClassName"] == priority["metadata"]["name"] == PRIORITY
        for container in pod["containers"]:
            assert set(container["resources"]["requests"]) == {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]
        volumes = [volume["emptyDir"] for volume in pod["volumes"] if "emptyDir" in volume]
        assert volumes, name
        assert all(volume["sizeLimit"] for volume in volumes), name


def flows(bodies: tuple[Raw, ...], pod: Raw, way: str, protocol: str, port: int | str) -> bool:
    """Return whether the policies let a Pod accept (`Ingress`) or open (`Egress`) a connection, for any peer."""
    policies = [
        body["spec"] for body in bodies if body["kind"] == "NetworkPolicy" and way in body["spec"]["policyTypes"]
    ]
    selecting = [spec for spec in policies if spec["podSelector"]["matchLabels"].items() <= pod["labels"].items()]
    return not selecting or any(
        _allows(rule, protocol, port) for spec in selecting for rule in spec.get(way.lower(), ())
    )


def _allows(rule: Raw, protocol: str, port: int | str) -> bool:
    ports = rule.get("ports")
    return ports is None or any(one["protocol"] == protocol and one.get("port", port) == port for one in ports)


@pytest.mark.parametrize("bodies", [files(), brought()], ids=["deploy", "command line"])
def test_a_controller_reaches_what_it_needs_and_is_reached_by_scrapes_alone(bodies: tuple[Raw, ...]) -> None:
    controllers = [template for _, template in deployments(bodies) if not template["spec"].get("hostNetwork")]
    assert len(controllers) == len(deployments(bodies)) - 1
    for template in controllers:
        pod = template["metadata"]
        for port in (443, 6443, 22, 2222, 53):  # the API server, hosts, names
            assert flows(bodies, pod, "Egress", "TCP", port)
        assert flows(bodies, pod, "Egress", "UDP", 53)
        assert not flows(bodies, pod, "Egress", "UDP", 69)
        assert flows(bodies, pod, "Ingress", "TCP", "metrics")
        assert not flows(bodies, pod, "Ingress", "TCP", "health")
        assert not flows(bodies, pod, "Ingress", "TCP", 22)
    other = {"labels": {"app.kubernetes.io/part-of": "unbounded", "app.kubernetes.io/name": "other"}}
    assert not flows(bodies, other, "Egress", "TCP", 443)
    assert not flows(bodies, other, "Ingress", "TCP", "metrics")


@pytest.mark.slow
async def test_install_keeps_the_namespace_privileged_while_a_metalman_is_deployed(
    cluster_cli: Cli, cluster_api: HttpApi
) -> None:
    image = ("--image-registry", "registry.example.com")

    async def level() -> set[str]:
        labels = (await cluster_api.get(NAMESPACES.raw(), NAMESPACE))["metadata"]["labels"]
        return {labels[mode] for mode in MODES}

    async def ran(*words: str) -> None:
        done = await cluster_cli(*words)
        assert done.status == 0, done.err

    await ran("site", "deploy-pxe", "--site", "rack7", *image)
    assert await level() == {PRIVILEGED}
    await ran("install", "--wait=false", *image)
    assert await level() == {PRIVILEGED}
    await cluster_api.delete(DEPLOYMENTS, "metalman-controller-rack7", namespace=NAMESPACE)
    await ran("install", "--wait=false", *image)
    assert await level() == {RESTRICTED}
