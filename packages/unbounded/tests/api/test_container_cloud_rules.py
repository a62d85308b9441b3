"""Objects of Container Cloud that the API refuses and accepts."""

from typing import Any

import msgspec
import pytest
import yaml

from tests.api.checking import CRDS, SCHEMAS, Object, assert_refused, made, refusals
from unbounded.api.container_cloud.cluster import ClusterRelease
from unbounded.api.container_cloud.machine import ContainerCloudMachine, DeletionPolicy

MACHINE, HOST = "Machine.cluster.k8s.io", "BareMetalHost.metal3.io"
RELEASE, TEMPLATE, SUBNET = (
    "ClusterRelease.kaas.mirantis.com",
    "L2Template.ipam.mirantis.com",
    "Subnet.ipam.mirantis.com",
)
SEED = """
apiVersion: cluster.k8s.io/v1alpha1
kind: Machine
metadata:
  name: example-control-plane
  namespace: example-ns
  annotations:
    metal3.io/BareMetalHost: default/master-0
  labels:
    kaas.mirantis.com/provider: baremetal
    cluster.sigs.k8s.io/cluster-name: example-cluster
    cluster.sigs.k8s.io/control-plane: "true" # remove for worker
spec:
  providerSpec:
    value:
      apiVersion: baremetal.k8s.io/v1alpha1
      kind: BareMetalMachineProviderSpec
      bareMetalHostProfile:
        name: default
        namespace: default
      l2TemplateIfMappingOverride:
        - eno1
        - enp0s0
      l2TemplateSelector:
        label: l2-template1-label-1
      hostSelector:
        matchLabels:
          kaas.mirantis.com/baremetalhost-id: hw-master-0
      kind: BareMetalMachineProviderSpec
      nodeLabels:
      - key: stacklight
        value: enabled
      distribution: ubuntu/jammy
      delete: false
      deletionPolicy: graceful
"""  # the example of the reference; its kind stands there twice
STATUS = """
providerStatus:
  apiVersion: baremetal.k8s.io/v1alpha1
  kind: BareMetalMachineProviderStatus
  hardware:
    cpu: 11
    ram: 16
  storage:
    - name: /dev/vda
      size: 61
    - name: /dev/vdb
      size: 32
    - name: /dev/vdc
      size: 32
  reboot:
    required: true
    reason: |
      linux-image-5.13.0-51-generic
      linux-base
  status: Ready
  upgradeIndex: 1
"""
VALUE = "providerSpec: {value: {apiVersion: baremetal.k8s.io/v1alpha1, kind: BareMetalMachineProviderSpec}}"
WORKER = "providerSpec__value__"
RELEASE_SPEC = """
version: 17.3.0
kubernetes: {version: v1.34.0}
allowedDistributions:
- {id: ubuntu/jammy, default: true, image: {url: registry.example.com/jammy:1}}
- {id: ubuntu/focal, image: {url: registry.example.com/focal:1}}
allowedNodeLabels: [{key: stacklight, value: enabled, displayName: StackLight}, {key: rack}]
"""
CLAIMED: Object = {"execution": {"stage": "Planning", "host": {"namespace": "default", "name": "master-0", "uid": "1"}}}


def test_the_example_of_the_reference_is_read_whole() -> None:
    written: Any = yaml.load(SEED, Loader=yaml.CSafeLoader)
    written["status"] = yaml.load(STATUS, Loader=yaml.CSafeLoader)
    assert SCHEMAS[MACHINE].prune(written) == []
    assert SCHEMAS[MACHINE].validate(written) == []
    read = msgspec.convert(written, ContainerCloudMachine)
    assert read.is_manager
    assert read.pinned_host == ("default", "master-0")
    assert [disk.size for disk in read.provider_status.storage] == [61, 32, 32]


def machine(*, status: Object | None = None, **changes: Any) -> Object:
    return made(MACHINE, VALUE, status=status, **{f"{WORKER}{path}": value for path, value in changes.items()})


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"apiVersion": "cluster.k8s.io/v1alpha1"}, "apiVersion", "supported values"),
        ({"kind": "OpenstackMachineProviderSpec"}, "kind", "supported values"),
        ({"upgradeIndex": 0}, "upgradeIndex", "greater than or equal to 1"),
        ({"deletionPolicy": "careful"}, "deletionPolicy", "supported values"),
        ({"distribution": "ubuntu jammy"}, "distribution", "should match"),
        ({"l2TemplateIfMappingOverride": ["a-name-of-16-chars"]}, "l2TemplateIfMappingOverride[0]", "15"),
        (
            {"hostSelector": {"matchExpressions": [{"key": "a", "operator": "Near", "values": ["b"]}]}},
            "hostSelector.matchExpressions[0].operator",
            "should match",
        ),
        (
            {"hostSelector": {"matchExpressions": [{"key": "a", "operator": "in"}]}},
            "hostSelector.matchExpressions[0].values",
            "at least one",
        ),
        (
            {"hostSelector": {"matchExpressions": [{"key": "a", "operator": "EXISTS", "values": ["b"]}]}},
            "hostSelector.matchExpressions[0].values",
            "take none",
        ),
        (
            {"hostSelector": {"matchExpressions": [{"key": "a", "operator": "==", "values": ["b", "c"]}]}},
            "hostSelector.matchExpressions[0].values",
            "Gt and Lt one",
        ),
        (
            {"hostSelector": {"matchExpressions": [{"key": "a", "operator": "gt", "values": ["b"]}]}},
            "hostSelector.matchExpressions[0].values",
            "compare integers",
        ),
    ],
)
def test_a_machine_is_refused(changes: Object, field: str, words: str) -> None:
    assert refusals(MACHINE, machine()) == []
    assert_refused(MACHINE, machine(**changes), None, f"spec.providerSpec.value.{field}", words)


@pytest.mark.parametrize("operator", ["In", "notin", "EXISTS", "!", "=", "==", "!=", "gt", "LT", "DoesNotExist"])
def test_operators_of_a_host_selector_are_accepted_in_any_case(operator: str) -> None:
    none = operator.lower() in ("exists", "!", "doesnotexist")
    requirement = {"key": "rack", "operator": operator} | ({} if none else {"values": ["7"]})
    assert refusals(MACHINE, machine(hostSelector={"matchExpressions": [requirement]})) == []


def test_a_map_of_node_labels_has_each_key_once() -> None:
    twice = [{"key": "stacklight", "value": "enabled"}, {"key": "stacklight"}]
    assert any("Duplicate" in text for text in refusals(MACHINE, machine(nodeLabels=twice)))


POLICIES = (None, *(policy.value for policy in DeletionPolicy))


@pytest.mark.parametrize("before", POLICIES)
@pytest.mark.parametrize("after", POLICIES)
@pytest.mark.parametrize("started", [True, False])
@pytest.mark.parametrize("default", POLICIES)
def test_a_policy_is_only_loosened_once_the_deletion_has_started(
    before: str | None, after: str | None, started: bool, default: str | None
) -> None:
    """The default of container-cloud is in the status; there is none yet, where an older one has written that."""
    rank = ["graceful", "unsafe", "forced"]
    status: Object = {"providerStatus": {"delete": started}}
    if default is not None:
        status["execution"] = {"stage": "Draining", "policy": before or default}
    old = machine(status=status, **({"deletionPolicy": before} if before else {}))
    new = machine(status=status, **({"deletionPolicy": after} if after else {}))
    follows = before or default or "unsafe"
    least = "graceful" if after is None else after  # as the default may be
    loosened = before == after or rank.index(least) >= rank.index(follows)
    found = refusals(MACHINE, new, old)
    assert (found == []) == (loosened or not started), found
    if found:
        assert "deletionPolicy can only be loosened (graceful, unsafe, forced)" in found[0]


def test_the_host_selector_is_fixed_once_a_host_is_claimed() -> None:
    selector = {"matchLabels": {"rack": "7"}}
    free, claimed = machine(), machine(status=CLAIMED)
    assert refusals(MACHINE, machine(hostSelector=selector), free) == []
    assert_refused(
        MACHINE,
        machine(status=CLAIMED, hostSelector=selector),
        claimed,
        "spec.providerSpec.value.hostSelector",
        "immutable once a host is claimed",
    )


@pytest.mark.parametrize(
    "field", ["metadata", "image", "userData", "ansibleExtraPassthrough", "rhelLicense", "disable"]
)
def test_a_field_without_effect_is_kept_as_it_is(field: str) -> None:
    written = machine(**{field: {"any": ["thing", 1]}})
    assert SCHEMAS[MACHINE].prune(written) == []
    assert refusals(MACHINE, written) == []
    read = msgspec.json.decode(msgspec.json.encode(written), type=ContainerCloudMachine)
    assert msgspec.to_builtins(read)["spec"]["providerSpec"]["value"][field] == {"any": ["thing", 1]}


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"allowedDistributions__1__default": True}, "spec.allowedDistributions", "exactly one"),
        ({"allowedDistributions__0__default": False}, "spec.allowedDistributions", "exactly one"),
        ({"allowedDistributions": []}, "spec.allowedDistributions", "at least 1"),
        ({"kubernetes__version": "newest"}, "spec.kubernetes.version", "should match"),
    ],
)
def test_a_release_is_refused(changes: Object, field: str, words: str) -> None:
    assert refusals(RELEASE, made(RELEASE, RELEASE_SPEC)) == []
    found = refusals(RELEASE, made(RELEASE, RELEASE_SPEC, **changes))
    assert any(text.startswith(field) and words in text for text in found), found


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": "17.4.0"}, "a release is immutable"),
        ({"kubernetes__version": "v1.35.0"}, "a release is immutable"),
        ({"agent": {"image": "registry.example.com/node:1"}}, "a release is immutable"),
        ({"allowedDistributions__1__image__url": "registry.example.com/focal:2"}, "a distribution of a release"),
        ({"allowedDistributions__1__id": "ubuntu/noble"}, "allowedDistributions of a release"),
        ({"allowedNodeLabels__1__value": "1"}, "allowedNodeLabels of a release"),
        ({"allowedNodeLabels": []}, "allowedNodeLabels of a release"),
    ],
)
def test_a_release_is_immutable(changes: Object, words: str) -> None:
    found = refusals(RELEASE, made(RELEASE, RELEASE_SPEC, **changes), made(RELEASE, RELEASE_SPEC))
    assert len(found) == 1, found
    assert words in found[0]


def test_descriptions_of_a_release_can_change() -> None:
    changes: Object = {"allowedDistributions__1__description": "Old", "allowedNodeLabels__0__displayName": "Metrics"}
    assert refusals(RELEASE, made(RELEASE, RELEASE_SPEC, **changes), made(RELEASE, RELEASE_SPEC)) == []


def test_a_distribution_is_found_in_any_case_and_by_default() -> None:
    release = msgspec.convert(made(RELEASE, RELEASE_SPEC), ClusterRelease)
    found = [release.distribution(name) for name in ("", "Ubuntu/Focal", "ubuntu/bionic")]
    assert [each and each.id for each in found] == ["ubuntu/jammy", "ubuntu/focal", None]


def test_the_mac_address_of_a_host_is_fixed_once_set() -> None:
    none, first = made(HOST, "{}"), made(HOST, "{bootMACAddress: '52:54:00:00:00:0a'}")
    assert refusals(HOST, first, none) == []
    assert refusals(HOST, made(HOST, "{bootMACAddress: '52:54:00:00:00:0A'}"), first) == []
    for other in ("{}", "{bootMACAddress: '52:54:00:00:00:0b'}"):
        assert_refused(HOST, made(HOST, other), first, "spec.bootMACAddress", "immutable once it is set")


@pytest.mark.parametrize(
    ("state", "refused"),
    [("registering", False), ("available", False), ("provisioning", True), ("provisioned", True), ("", False)],
)
def test_the_bmc_of_a_host_is_fixed_while_the_host_is_in_use(state: str, refused: bool) -> None:
    def host(address: str) -> Object:
        return made(HOST, f"{{bmc: {{address: '{address}'}}}}", status={"provisioning": {"state": state}})

    found = refusals(HOST, host("redfish://192.0.2.2/1"), host("redfish://192.0.2.1/1"))
    assert bool(found) == refused, found


@pytest.mark.parametrize(
    ("state", "used", "refused"),
    [
        ("externally provisioned", False, False),
        ("externally provisioned", True, True),
        ("available", False, False),
        ("available", True, True),
        ("provisioned", False, True),
        ("deprovisioning", False, True),
        ("", False, False),
    ],
)
@pytest.mark.parametrize("before", [True, False])
def test_who_installs_a_host_is_fixed_while_a_machine_uses_it(
    before: bool, state: str, used: bool, refused: bool
) -> None:
    consumer: Object = {"consumerRef": {"kind": "Machine", "name": "m"}} if used else {}

    def host(kept: bool) -> Object:
        flag: Object = {"externallyProvisioned": True} if kept else {}
        return made(HOST, "{}", status={"provisioning": {"state": state}}, **consumer, **flag)

    assert refusals(HOST, host(before), host(before)) == []
    found = refusals(HOST, host(not before), host(before))
    assert bool(found) == refused, found
    assert all("cannot be changed while a Machine uses the host" in text for text in found)


@pytest.mark.parametrize("mapping", [{}, {"ifMapping": ["eno1"], "autoIfMappingPrio": ["eno"]}])
def test_a_template_has_one_of_two_mappings(mapping: Object) -> None:
    spec: Object = {"npTemplate": "version: 2"}
    assert refusals(TEMPLATE, made(TEMPLATE, "{}", **spec, ifMapping=["eno1"])) == []
    assert_refused(TEMPLATE, made(TEMPLATE, "{}", **spec, **mapping), None, "spec.ifMapping", "exactly one of")


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"cidr": "10.0.0.0"}, "spec.cidr", "must be a network"),
        ({"gateway": "10.0.1.1"}, "spec.gateway", "an address of cidr"),
        ({"gateway": "gw"}, "spec.gateway", "an address of cidr"),
        ({"nameservers": ["dns.example.com"]}, "spec.nameservers", "must be addresses"),
        ({"includeRanges": ["10.0.1.10-10.0.1.20"]}, "spec.includeRanges", "addresses of cidr"),
        ({"excludeRanges": ["10.0.0.10-10.0.0"]}, "spec.excludeRanges", "such as"),
        ({"excludeRanges": ["10.0.0.10/28"]}, "spec.excludeRanges[0]", "should match"),
    ],
)
def test_a_subnet_is_refused(changes: Object, field: str, words: str) -> None:
    good: Object = {"cidr": "10.0.0.0/24", "gateway": "10.0.0.1", "includeRanges": ["10.0.0.10-10.0.0.20", "10.0.0.30"]}
    assert refusals(SUBNET, made(SUBNET, "{}", **good)) == []
    found = refusals(SUBNET, made(SUBNET, "{}", **(good | changes)))
    assert any(text.startswith(field) and words in text for text in found), found


def test_the_kinds_are_those_of_container_cloud() -> None:
    assert sorted(name.partition(".")[0] for name in CRDS if "." in name) == [
        "BareMetalHost", "BareMetalHostCredential", "BareMetalHostProfile", "Cluster", "ClusterRelease", "IpamHost",
        "L2Template", "Machine", "MachinePool", "Subnet",
    ]  # fmt: skip
