"""The generated schemas: complete, bounded, and what the seeds of the API promise."""

import re
from collections.abc import Iterator
from typing import Annotated, Any

import pytest

from tests.api.checking import CRDS, kind_key
from unbounded.api.crd import (
    CONTAINER_CLOUD_DEFINITIONS,
    DEFINITIONS,
    RULES,
    custom_resource_definition,
    struct_schema,
)
from unbounded.api.fields import ApiStruct, Field, ObjectName

Schema = dict[str, Any]


def schema_of(kind: str) -> Schema:
    schema: Schema = CRDS[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def at(kind: str, path: str) -> Schema:
    """The schema at `spec.pxe.dhcpLeases[].mac`."""
    schema = schema_of(kind)
    for step in path.split("."):
        schema = schema["properties"][step.removesuffix("[]")]
        schema = schema["items"] if step.endswith("[]") else schema
    return schema


def everything(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema below one, with its path."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from everything(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from everything(schema[key], f"{path}[]")


def below_spec_and_status() -> list[tuple[str, Schema]]:
    return [
        (f"{kind}.{part}{path}", schema)
        for kind in CRDS
        for part in ("spec", "status")
        if part in schema_of(kind)["properties"]
        for path, schema in everything(at(kind, part))
    ]


def test_every_field_is_described() -> None:
    fields = [(path, schema) for path, schema in below_spec_and_status() if not path.endswith("[]")]
    assert [path for path, schema in fields if not schema.get("description")] == []
    assert len(fields) > 200


def test_every_string_list_and_map_is_bounded() -> None:
    def bounded(schema: Schema) -> bool:
        match schema.get("type"):
            case "string" | None:
                free = "x-kubernetes-preserve-unknown-fields" in schema  # a field without effect
                return free or "maxLength" in schema or "enum" in schema
            case "array":
                return "maxItems" in schema and "x-kubernetes-list-type" in schema
            case "object":
                return "properties" in schema or "maxProperties" in schema
        return True

    assert [path for path, schema in below_spec_and_status() if not bounded(schema)] == []


def test_optional_fields_are_absent_not_null() -> None:
    assert [path for path, schema in below_spec_and_status() if "nullable" in schema] == []


@pytest.mark.parametrize(
    ("kind", "path", "default"),
    [
        ("Machine", "spec.ssh.username", "azureuser"),
        ("Machine", "spec.ssh.bastion.username", "azureuser"),
        ("Machine", "spec.ssh.privateKeyRef.key", "ssh-privatekey"),
        ("Machine", "spec.ssh.bastion.privateKeyRef.key", "ssh-privatekey"),
        ("Machine", "spec.pxe.redfish.passwordRef.key", "ssh-privatekey"),
        ("Machine", "spec.pxe.redfish.deviceID", "1"),
        ("Machine", "spec.pxe.cloudInit.userDataConfigMapRef.key", "user-data"),
        ("Machine", "spec.pxe.cloudInit.networkConfigConfigMapRef.key", "network-config"),
        ("Machine", "spec.pxe.architecture", "amd64"),
        ("Machine", "spec.pxe.bootProtocol", "PXE"),
        ("Machine", "spec.pxe.bootMode", "Network"),
        ("Machine", "spec.operations.rebootCounter", 0),
        ("Machine", "spec.operations.repaveCounter", 0),
        ("MachineOperation", "spec.cancel", False),
        ("MachineOperation", "spec.startDeadlineSeconds", 3600),
        ("MachineOperation", "spec.maxConcurrent", 10),
        ("MachineOperation", "spec.maxFailures", 1),
        ("MachineConfiguration", "spec.priority", 0),
        ("MachineConfiguration", "spec.updateStrategy.type", "OnDelete"),
        ("MachineConfiguration", "spec.revisionHistoryLimit", 10),
        ("MachineProfile", "spec.softRaidDevices[].level", "raid1"),
        ("MachineProfile", "spec.softRaidDevices[].metadata", "1.0"),
        ("MachineProfile", "spec.logicalVolumes[].type", "linear"),
        ("BareMetalHost.metal3.io", "spec.bootMode", "UEFI"),
        ("BareMetalHost.metal3.io", "spec.online", True),
        ("BareMetalHost.metal3.io", "spec.automatedCleaningMode", "metadata"),
        ("Cluster.cluster.k8s.io", "spec.providerSpec.value.dedicatedControlPlane", True),
        ("Cluster.cluster.k8s.io", "spec.providerSpec.value.maxWorkerUpgradeCount", 1),
        ("Cluster.cluster.k8s.io", "spec.providerSpec.value.maxWorkerPrepareCount", 50),
        ("MachinePool.kaas.mirantis.com", "spec.replicas", 0),
        ("MachinePool.kaas.mirantis.com", "spec.deletePolicy", "never"),
    ],
)
def test_a_default_is_filled_in_by_the_server(kind: str, path: str, default: object) -> None:
    assert at(kind, path)["default"] == default


def test_a_default_holds_the_defaults_of_its_own_fields() -> None:
    defaults = [(path, schema) for path, schema in below_spec_and_status() if isinstance(schema.get("default"), dict)]
    lacking = [
        f"{path}.{name}"
        for path, schema in defaults
        for name, inner in schema["properties"].items()
        if "default" in inner and name not in schema["default"]
    ]
    assert lacking == []  # kube-apiserver checks rules against a default before it fills in inner defaults
    assert at("MachineConfiguration", "spec.updateStrategy")["default"] == {"type": "OnDelete"}


def test_nothing_else_has_a_default() -> None:
    with_default = {path for path, schema in below_spec_and_status() if "default" in schema}
    counters = {path for path in with_default if path.endswith("Counter")}
    assert len(with_default - counters) == 36, sorted(with_default)


@pytest.mark.parametrize(
    ("kind", "path", "required"),
    [
        ("Machine", "spec.ssh", ["host", "privateKeyRef"]),
        ("Machine", "spec.pxe.dhcpLeases[]", ["ipv4", "mac", "subnetMask", "gateway"]),
        ("Machine", "spec.pxe.redfish", ["url", "username", "passwordRef"]),
        ("Machine", "spec.configurationRef", ["name"]),
        ("MachineOperation", "spec", ["operationKind"]),
        ("MachineOperationCredential", "spec", ["siteName", "provider", "auth"]),
        ("MachineOperationCredential", "spec.auth", ["mode"]),
        ("MachineConfiguration", "spec", ["template"]),
        ("MachineConfigurationVersion", "spec", ["version", "template"]),
        ("Machine.cluster.k8s.io", "spec.providerSpec.value", ["apiVersion", "kind"]),
        ("Cluster.cluster.k8s.io", "spec.providerSpec.value", ["apiVersion", "kind", "release"]),
        ("ClusterRelease.kaas.mirantis.com", "spec", ["version", "kubernetes", "allowedDistributions"]),
        ("L2Template.ipam.mirantis.com", "spec", ["npTemplate"]),
        ("Subnet.ipam.mirantis.com", "spec", ["cidr"]),
    ],
)
def test_what_is_required(kind: str, path: str, required: list[str]) -> None:
    assert at(kind, path)["required"] == required


@pytest.mark.parametrize(
    ("kind", "path", "keys"),
    [
        ("MachineOperation", "status.targets", ["machineRef"]),
        ("MachineOperation", "status.conditions", ["type"]),
        ("MachineOperation", "status.evidence", None),
        ("Machine", "status.conditions", ["type"]),
        ("Machine", "status.recentOperations", None),
    ],
)
def test_lists_are_maps_by_key_or_atomic(kind: str, path: str, keys: list[str] | None) -> None:
    schema = at(kind, path)
    assert schema["x-kubernetes-list-type"] == ("map" if keys else "atomic")
    assert schema.get("x-kubernetes-list-map-keys") == keys


@pytest.mark.parametrize(
    ("kind", "path", "limit"),
    [
        ("MachineOperation", "status.targets", 1000),
        ("MachineOperation", "status.evidence", 32),
        ("Machine", "status.recentOperations", 10),
        ("MachineOperation", "status.execution.handle", 4096),
    ],
)
def test_the_limits_of_the_status(kind: str, path: str, limit: int) -> None:
    schema = at(kind, path)
    assert schema.get("maxItems", schema.get("maxLength")) == limit


@pytest.mark.parametrize(
    ("kind", "short", "columns", "wide"),
    [
        (
            "Machine",
            "mach",
            ["Host", "Site", "Phase", "Reason", "K8s Version", "Age"],
            ["Provider", "BMC", "Operation", "Disruption", "Disrupted By", "Cluster CA", "Message"],
        ),
        (
            "MachineOperation",
            "mop",
            ["Kind", "Machine", "Phase", "Age"],
            ["Reason", "Executor", "Stage", "Message"],
        ),
        ("MachineOperationCredential", "mocred", ["Site", "Provider", "Auth Mode", "Age"], []),
        ("MachineConfiguration", "mc", ["Latest Version", "Update Strategy", "Age"], ["Rollout"]),
        ("MachineDisruptionBudget", "mdb", ["Max", "Allowed", "Granted", "Age"], []),
        ("MachineConfigurationVersion", "mcv", ["Configuration", "Version", "Deployed", "Machines", "Age"], []),
        (
            "Machine.cluster.k8s.io",
            "ma",
            ["Ready", "LCMPhase", "NodeName", "UpgradeIndex", "RebootRequired", "Age"],
            ["Host", "Distribution", "Stage", "Message"],
        ),
        (
            "BareMetalHost.metal3.io",
            "bmh",
            ["State", "Consumer", "Online", "Error", "Age"],
            ["BMC", "Machine", "Message"],
        ),
        ("BareMetalHostProfile.metal3.io", "bmhp", ["Age"], []),
        ("MachinePool.kaas.mirantis.com", "mp", ["Replicas", "Current", "Ready", "Age"], []),
    ],
)
def test_names_and_columns(kind: str, short: str, columns: list[str], wide: list[str]) -> None:
    spec = CRDS[kind]["spec"]
    assert spec["names"]["shortNames"] == [short]
    assert spec["scope"] == ("Namespaced" if "." in kind else "Cluster")
    shown = spec["versions"][0]["additionalPrinterColumns"]
    assert [c["name"] for c in shown if not c.get("priority")] == columns
    assert [c["name"] for c in shown if c.get("priority") == 1] == wide


def test_every_column_and_selectable_field_points_at_a_field() -> None:
    for definition in (*DEFINITIONS, *CONTAINER_CLOUD_DEFINITIONS):
        paths = [column.path for column in definition.columns] + list(definition.selectable)
        name = kind_key(custom_resource_definition(definition))
        for path in (p.removeprefix(".") for p in paths if not p.startswith(".metadata.")):
            listed = re.sub(r"\[[^\]]+\]", "[]", path)
            assert at(name, listed).get("type", "int-or-string") != "object"


def test_only_the_protected_group_is_annotated_as_unapproved() -> None:
    annotated = {name for name, crd in CRDS.items() if "annotations" in crd["metadata"]}
    assert annotated == {"Machine.cluster.k8s.io", "Cluster.cluster.k8s.io"}
    assert CRDS["Cluster.cluster.k8s.io"]["metadata"]["annotations"] == {
        "api-approved.kubernetes.io": "unapproved, the API of Container Cloud"
    }


def test_only_the_release_of_clusters_is_cluster_scoped_in_container_cloud() -> None:
    scoped = {name for name, crd in CRDS.items() if "." in name and crd["spec"]["scope"] == "Cluster"}
    assert scoped == {"ClusterRelease.kaas.mirantis.com"}


def test_a_pool_is_scaled_by_its_replicas() -> None:
    version = CRDS["MachinePool.kaas.mirantis.com"]["spec"]["versions"][0]
    assert version["subresources"] == {
        "status": {},
        "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
    }


def test_the_words_of_a_machines_state_are_those_of_container_cloud() -> None:
    words = at("Machine.cluster.k8s.io", "status.providerStatus.status")["enum"]
    assert words == [
        "Provision", "Uninitialized", "Pending", "Prepare", "Deploy", "Reconfigure", "Ready", "Maintenance",
    ]  # fmt: skip


def test_operations_are_selected_by_machine_and_phase() -> None:
    version = CRDS["MachineOperation"]["spec"]["versions"][0]
    assert version["selectableFields"] == [{"jsonPath": ".spec.machineRef"}, {"jsonPath": ".status.phase"}]


def test_all_but_the_credential_and_the_profile_have_a_status_subresource() -> None:
    without = [kind for kind, crd in CRDS.items() if "subresources" not in crd["spec"]["versions"][0]]
    assert without == ["MachineOperationCredential", "MachineProfile"]


def test_every_rule_stands_in_a_definition() -> None:
    written = {
        rule["rule"]
        for kind in CRDS
        for _, schema in everything(schema_of(kind))
        for rule in schema.get("x-kubernetes-validations", ())
    }
    assert written == {rule.rule for rules in RULES.values() for rule in rules}


class Inner(ApiStruct, frozen=True, kw_only=True):
    """Description of the type."""

    name: ObjectName


class Outer(ApiStruct, frozen=True, kw_only=True):
    """Outer."""

    inner: Annotated[Inner | None, Field("What the field says.")] = None
    name: Annotated[ObjectName | None, Field("A shorter name.", max_length=10)] = None
    flag: Annotated[bool, Field("Not filled in.")] = False


def test_a_field_overrides_what_its_type_says() -> None:
    properties = struct_schema(Outer)["properties"]
    assert properties["inner"]["description"] == "What the field says."
    assert properties["name"]["maxLength"] == 10
    assert properties["name"]["pattern"] == struct_schema(Inner)["properties"]["name"]["pattern"]
    assert "default" not in properties["flag"]


def test_a_type_without_a_schema_is_refused_when_generating() -> None:
    class Odd(ApiStruct, frozen=True, kw_only=True):
        number: float = 0.0

    with pytest.raises(TypeError, match="float"):
        struct_schema(Odd)


@pytest.mark.slow
def test_definitions_are_made_anew_for_each_caller() -> None:
    first = custom_resource_definition(DEFINITIONS[0])
    first["spec"]["names"]["plural"] = "changed"
    assert custom_resource_definition(DEFINITIONS[0])["spec"]["names"]["plural"] == "machines"
