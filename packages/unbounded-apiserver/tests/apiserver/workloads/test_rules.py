"""Defaults of Pods and Services, what is wrong with them, and what is printed of them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from unbounded_apiserver.decoding import normalize
from unbounded_apiserver.resource_model import Resource
from unbounded_apiserver.workloads.pods import PODS, seconds_left, service_class
from unbounded_apiserver.workloads.services import SERVICES

CONTAINER = {"name": "c", "image": "nginx:1"}


def pod(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    obj = {"metadata": {"name": "p"}, "spec": {"containers": [{**CONTAINER, **(container or {})}], **spec}}
    return settled(PODS, obj)


def service(**spec: Any) -> dict[str, Any]:
    return settled(SERVICES, {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], **spec}})


def settled(resource: Resource, obj: dict[str, Any], old: dict[str, Any] | None = None) -> dict[str, Any]:
    """As a write leaves it, before it is judged."""
    obj = copy.deepcopy(obj)
    assert normalize(resource, obj) == []
    resource.type.prepare(obj, old)
    return obj


def said(resource: Resource, obj: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
    return [f"{error.field}: {error.message}" for error in resource.type.validate(obj, old)]


def test_a_pod_gets_the_defaults_of_kubernetes() -> None:
    spec = pod(
        {"readinessProbe": {"httpGet": {"port": 80}}, "ports": [{"containerPort": 80}]}, volumes=[{"name": "v"}]
    )["spec"]
    assert spec["restartPolicy"] == "Always"
    assert spec["dnsPolicy"] == "ClusterFirst"
    assert spec["terminationGracePeriodSeconds"] == 30
    assert spec["schedulerName"] == "default-scheduler"
    assert spec["volumes"] == [{"name": "v", "emptyDir": {}}]
    container = spec["containers"][0]
    assert container["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert container["readinessProbe"] == {
        "httpGet": {"path": "/", "port": 80, "scheme": "HTTP"},
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("nginx", "Always"),
        ("nginx:latest", "Always"),
        ("nginx:1", "IfNotPresent"),
        ("registry:5000/nginx", "Always"),
        ("registry:5000/nginx:1", "IfNotPresent"),
        ("nginx@sha256:abc", "IfNotPresent"),
    ],
)
def test_an_image_without_a_fixed_tag_is_always_pulled(image: str, policy: str) -> None:
    assert pod({"image": image})["spec"]["containers"][0]["imagePullPolicy"] == policy


def test_limits_stand_for_requests_that_are_left_out() -> None:
    resources = {"limits": {"cpu": "1000m", "memory": "1Gi"}, "requests": {"cpu": "500m"}}
    assert pod({"resources": resources})["spec"]["containers"][0]["resources"] == {
        "limits": {"cpu": "1", "memory": "1Gi"},
        "requests": {"cpu": "500m", "memory": "1Gi"},
    }


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "0"}}, "BestEffort"),
        ({"limits": {"example.com/gpu": "1"}}, "BestEffort"),
    ],
)
def test_the_class_of_service_follows_from_the_resources(resources: dict[str, Any], expected: str) -> None:
    assert service_class(pod({"resources": resources})["spec"]) == expected


WRONG_PODS: dict[str, tuple[dict[str, Any], str]] = {
    "no containers": (pod() | {"spec": {**pod()["spec"], "containers": None}}, "spec.containers: Required value"),
    "no image": (pod({"image": ""}), "spec.containers[0].image: Required value"),
    "a bad name": (
        pod({"name": "Bad_Name"}),
        'spec.containers[0].name: Invalid value: "Bad_Name": a lowercase RFC 1123 label must consist of',
    ),
    "a name twice": (
        pod(initContainers=[CONTAINER]),
        'spec.initContainers[0].name: Duplicate value: "c"',
    ),
    "no such volume": (
        pod({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}),
        'spec.containers[0].volumeMounts[0].name: Not found: "v"',
    ),
    "two sources": (
        pod(volumes=[{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]),
        "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type",
    ),
    "a port out of range": (
        pod({"ports": [{"containerPort": 70000}]}),
        "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
    ),
    "no handler": (
        pod({"livenessProbe": {}}),
        "spec.containers[0].livenessProbe: Required value: must specify a handler type",
    ),
    "requests above limits": (
        pod({"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}}),
        'spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
    ),
    "a restart policy": (
        pod(restartPolicy="Sometimes"),
        'spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"',
    ),
    "an environment": (
        pod({"env": [{"name": "A", "valueFrom": {}}]}),
        'spec.containers[0].env[0].valueFrom: Invalid value: "": must specify one of: `fieldRef`, ',
    ),
    "a toleration": (
        pod(tolerations=[{"key": "a", "operator": "Is"}]),
        'spec.tolerations[0].operator: Unsupported value: "Is": supported values: "Equal", "Exists"',
    ),
    "a host alias": (
        pod(hostAliases=[{"ip": "here"}]),
        'spec.hostAliases[0].ip: Invalid value: "here": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)',
    ),
}


@pytest.mark.parametrize("name", WRONG_PODS)
def test_what_is_wrong_with_a_pod_is_said_as_kubernetes_says_it(name: str) -> None:
    obj, expected = WRONG_PODS[name]
    errors = said(PODS, obj)
    assert len(errors) == 1, errors
    assert errors[0].startswith(expected)


def test_a_pod_can_change_its_images_and_gain_tolerations() -> None:
    old = pod(tolerations=[{"key": "a", "operator": "Exists"}])
    new = copy.deepcopy(old)
    new["spec"]["containers"][0]["image"] = "nginx:2"
    new["spec"]["tolerations"].append({"operator": "Exists"})
    new["spec"]["activeDeadlineSeconds"] = 5
    assert said(PODS, new, old) == []


@pytest.mark.parametrize("change", [{"nodeName": "n2"}, {"hostNetwork": True}, {"volumes": [{"name": "v"}]}])
def test_the_rest_of_a_pod_is_fixed(change: dict[str, Any]) -> None:
    old = pod()
    errors = said(PODS, pod(**change), old)
    assert [e.startswith("spec: Forbidden: pod updates may not change fields other than") for e in errors] == [True]


def test_a_toleration_is_not_taken_away() -> None:
    errors = said(PODS, pod(), pod(tolerations=[{"key": "a", "operator": "Exists"}]))
    assert errors == [
        "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"
    ]


@pytest.mark.parametrize(
    ("spec", "phase", "asked", "left"),
    [
        ({}, "Pending", None, 0),  # no node, no kubelet to wait for
        ({}, "Pending", 60, 0),
        ({"nodeName": "n"}, "Running", None, 30),
        ({"nodeName": "n"}, "Running", 5, 5),
        ({"nodeName": "n"}, "Running", 0, 0),
        ({"nodeName": "n"}, "Running", -1, 1),
        ({"nodeName": "n", "terminationGracePeriodSeconds": 7}, "Running", None, 7),
        ({"nodeName": "n"}, "Succeeded", None, 0),
    ],
)
def test_a_deletion_leaves_time_to_what_a_kubelet_runs(
    spec: dict[str, Any], phase: str, asked: int | None, left: int
) -> None:
    obj = pod(**spec)
    obj["status"]["phase"] = phase
    assert seconds_left(obj, asked) == left


def test_a_service_gets_the_defaults_of_kubernetes() -> None:
    spec = service()["spec"]
    assert spec["type"] == "ClusterIP"
    assert spec["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    assert spec["sessionAffinity"] == "None"
    assert spec["internalTrafficPolicy"] == "Cluster"
    assert "clusterIP" not in spec  # nothing gives out addresses
    assert service(clusterIP="10.0.0.1")["spec"]["clusterIPs"] == ["10.0.0.1"]
    balanced = service(type="LoadBalancer", sessionAffinity="ClientIP")["spec"]
    assert balanced["externalTrafficPolicy"] == "Cluster"
    assert balanced["allocateLoadBalancerNodePorts"] is True
    assert balanced["sessionAffinityConfig"] == {"clientIP": {"timeoutSeconds": 10800}}


WRONG_SERVICES: dict[str, tuple[dict[str, Any], str]] = {
    "no ports": (service(ports=[]), "spec.ports: Required value"),
    "a port": (
        service(ports=[{"port": 0}]),
        "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
    ),
    "names of two ports": (
        service(ports=[{"port": 1, "name": "a"}, {"port": 2}]),
        "spec.ports[1].name: Required value",
    ),
    "the same port": (
        service(ports=[{"port": 1, "name": "a"}, {"port": 1, "name": "b", "targetPort": 2}]),
        "spec.ports[1]: Duplicate value: ",
    ),
    "a type": (
        service(type="Other"),
        'spec.type: Unsupported value: "Other": supported values: "ClusterIP", "ExternalName", "LoadBalancer", "Node',
    ),
    "an address": (
        service(clusterIP="here"),
        'spec.clusterIPs[0]: Invalid value: "here": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)',
    ),
    "an external name": (service(type="ExternalName"), "spec.externalName: Required value"),
    "a target": (
        service(ports=[{"port": 1, "targetPort": "a--b"}]),
        'spec.ports[0].targetPort: Invalid value: "a--b": must not contain consecutive hyphens',
    ),
}


@pytest.mark.parametrize("name", WRONG_SERVICES)
def test_what_is_wrong_with_a_service_is_said_as_kubernetes_says_it(name: str) -> None:
    obj, expected = WRONG_SERVICES[name]
    errors = [error for error in said(SERVICES, obj) if "targetPort: Invalid value: 0" not in error]
    assert len(errors) == 1, errors
    assert errors[0].startswith(expected)


def test_the_address_of_a_service_stays() -> None:
    old = service(clusterIP="10.0.0.1")
    errors = said(SERVICES, service(clusterIP="10.0.0.2"), old)
    assert errors == ['spec.clusterIPs[0]: Invalid value: ["10.0.0.2"]: may not change once set']
    kept = settled(SERVICES, {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}, old)
    assert kept["spec"]["clusterIP"] == "10.0.0.1"


def container_status(**state: Any) -> dict[str, Any]:
    apart = ("ready", "restartCount", "lastState", "started")
    extra: dict[str, Any] = {key: state.pop(key) for key in apart if key in state}
    return {"name": "c", "ready": False, "restartCount": 0, "lastState": {}, "state": state, **extra}


def printed(resource: Resource, obj: dict[str, Any]) -> dict[str, Any]:
    return {column.name: column.cell(obj) for column in resource.columns if column.cell and column.name != "Age"}


RUNNING = container_status(running={}, ready=True)
STATES: dict[str, tuple[dict[str, Any], tuple[str, str, str]]] = {
    "nothing known": ({"phase": "Pending"}, ("0/1", "Pending", "0")),
    "running": ({"phase": "Running", "containerStatuses": [RUNNING]}, ("1/1", "Running", "0")),
    "cannot be pulled": (
        {"phase": "Pending", "containerStatuses": [container_status(waiting={"reason": "ErrImagePull"})]},
        ("0/1", "ErrImagePull", "0"),
    ),
    "was killed": (
        {"phase": "Running", "containerStatuses": [container_status(terminated={"exitCode": 137, "signal": 9})]},
        ("0/1", "Signal:9", "0"),
    ),
    "ended badly": (
        {"phase": "Failed", "containerStatuses": [container_status(terminated={"exitCode": 3})]},
        ("0/1", "ExitCode:3", "0"),
    ),
    "an init container failed": (
        {
            "phase": "Pending",
            "initContainerStatuses": [container_status(terminated={"exitCode": 1, "reason": "Error"}, restartCount=2)],
        },
        ("0/1", "Init:Error", "2"),
    ),
    "evicted": ({"phase": "Failed", "reason": "Evicted"}, ("0/1", "Evicted", "0")),
    "gated": (
        {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]},
        ("0/1", "SchedulingGated", "0"),
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_the_state_of_a_pod_is_printed_as_kubernetes_prints_it(name: str) -> None:
    status, expected = STATES[name]
    shown = printed(PODS, pod() | {"status": status})
    assert (shown["Ready"], shown["Status"], shown["Restarts"]) == expected


def test_a_sidecar_counts_as_a_container() -> None:
    obj = pod(initContainers=[{"name": "s", "image": "i:1", "restartPolicy": "Always"}])
    obj["status"] = {
        "phase": "Running",
        "initContainerStatuses": [
            container_status(running={}, ready=True, started=True, restartCount=1) | {"name": "s"}
        ],
        "containerStatuses": [RUNNING],
    }
    shown = printed(PODS, obj)
    assert (shown["Ready"], shown["Status"], shown["Restarts"]) == ("2/2", "Running", "1")


def test_a_pod_that_is_being_deleted_is_terminating() -> None:
    obj = pod()
    obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert printed(PODS, obj)["Status"] == "Terminating"


def test_the_addresses_and_ports_of_a_service_are_printed() -> None:
    obj = service(type="NodePort", clusterIP="10.0.0.1", ports=[{"port": 80, "nodePort": 30080}], selector={"a": "b"})
    shown = printed(SERVICES, obj)
    assert (shown["Cluster-IP"], shown["External-IP"]) == ("10.0.0.1", "<none>")
    assert (shown["Port(s)"], shown["Selector"]) == ("80:30080/TCP", "a=b")
    assert printed(SERVICES, service(type="LoadBalancer"))["External-IP"] == "<pending>"
    balanced = service(type="LoadBalancer")
    balanced["status"]["loadBalancer"] = {"ingress": [{"ip": "1.2.3.4"}, {"hostname": "lb.example"}]}
    assert printed(SERVICES, balanced)["External-IP"] == "1.2.3.4,lb.example"
