"""CustomResourceDefinitions of all kinds: names, printer columns, selectable fields, subresources and schema.

A schema is structural OpenAPI v3, made from the Structs, the descriptions of their fields and the CEL rules.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS, MACHINE_CONFIGURATIONS
from unbounded.api.container_cloud.cluster import CLUSTER_RELEASES, CLUSTERS, MACHINE_POOLS
from unbounded.api.container_cloud.host import BARE_METAL_HOST_CREDENTIALS, BARE_METAL_HOST_PROFILES, BARE_METAL_HOSTS
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES
from unbounded.api.container_cloud.names import ANNOTATION_HOST
from unbounded.api.container_cloud.network import IPAM_HOSTS, L2_TEMPLATES, SUBNETS
from unbounded.api.container_cloud.rules import CONTAINER_CLOUD_RULES
from unbounded.api.credential import MACHINE_OPERATION_CREDENTIALS
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS
from unbounded.api.fields import MAX_LIST, MAX_MAP, MAX_STRING, ApiStruct, Field, combined
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind, Object
from unbounded.api.names import API_VERSION, GROUP, LABEL_CONFIGURATION, LABEL_SITE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.api.operation_rules import OPERATION_RULES
from unbounded.api.profile import MACHINE_PROFILES
from unbounded.api.profile_rules import PROFILE_RULES
from unbounded.api.rules import MACHINE_RULES, RuleTable, ValidationRule

RULES: Final[RuleTable] = {**MACHINE_RULES, **OPERATION_RULES, **PROFILE_RULES, **CONTAINER_CLOUD_RULES}
PROTECTED: Final = (
    ".k8s.io"  # a server takes definitions of such a group with an approval, or with the word that there is none
)
MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "unbounded"}  # on definitions whose groups belong to others, too
UNAPPROVED: Final = {"api-approved.kubernetes.io": "unapproved, the API of Container Cloud"}


@dataclass(frozen=True)
class PrinterColumn:
    """One column of `kubectl get`; a wide one is shown with `-o wide` only."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False

    def entry(self) -> dict[str, Any]:
        column: dict[str, Any] = {"name": self.name, "type": self.type, "jsonPath": self.path}
        return column | ({"priority": 1} if self.wide else {})


@dataclass(frozen=True)
class KindDefinition:
    """The parts of a kind's CustomResourceDefinition besides its schema."""

    kind: Kind[Any]
    short: str
    columns: tuple[PrinterColumn, ...]
    selectable: tuple[str, ...] = ()
    has_status: bool = True
    replicas: bool = False  # a subresource scale, of spec.replicas

    @property
    def name(self) -> str:
        return f"{self.kind.plural}.{self.kind.group}"


def label_path(label: str, of: str = "labels") -> str:
    """Return the JSONPath of a label or annotation, whose dots are part of its name."""
    return f".metadata.{of}." + label.replace(".", r"\.")


AGE: Final = PrinterColumn("Age", ".metadata.creationTimestamp", "date")

DEFINITIONS: Final = (
    KindDefinition(
        MACHINES,
        "mach",
        (
            PrinterColumn("Host", ".spec.ssh.host"),
            PrinterColumn("Site", label_path(LABEL_SITE)),
            PrinterColumn("Phase", ".status.phase"),
            PrinterColumn("Reason", ".status.reason"),
            PrinterColumn("K8s Version", ".spec.kubernetes.version"),
            AGE,
            PrinterColumn("Provider", ".spec.provider", wide=True),
            PrinterColumn("BMC", ".spec.pxe.redfish.url", wide=True),
            PrinterColumn("Operation", ".status.activeOperation.name", wide=True),
            PrinterColumn("Disruption", ".status.disruption.stage", wide=True),
            PrinterColumn("Disrupted By", ".status.disruption.holder.kind", wide=True),
            PrinterColumn("Cluster CA", ".status.agent.clusterCA", wide=True),
            PrinterColumn("Message", ".status.message", wide=True),
        ),
    ),
    KindDefinition(
        MACHINE_OPERATIONS,
        "mop",
        (
            PrinterColumn("Kind", ".spec.operationKind"),
            PrinterColumn("Machine", ".spec.machineRef"),
            PrinterColumn("Phase", ".status.phase"),
            AGE,
            PrinterColumn("Reason", ".status.reason", wide=True),
            PrinterColumn("Executor", ".status.execution.executor", wide=True),
            PrinterColumn("Stage", ".status.targets[0].stage", wide=True),
            PrinterColumn("Message", ".status.message", wide=True),
        ),
        selectable=(".spec.machineRef", ".status.phase"),
    ),
    KindDefinition(
        MACHINE_OPERATION_CREDENTIALS,
        "mocred",
        (
            PrinterColumn("Site", ".spec.siteName"),
            PrinterColumn("Provider", ".spec.provider"),
            PrinterColumn("Auth Mode", ".spec.auth.mode"),
            AGE,
        ),
        has_status=False,
    ),
    KindDefinition(
        MACHINE_CONFIGURATIONS,
        "mc",
        (
            PrinterColumn("Latest Version", ".status.latestVersion", "integer"),
            PrinterColumn("Update Strategy", ".spec.updateStrategy.type"),
            AGE,
            PrinterColumn("Rollout", ".status.rollout.phase", wide=True),
        ),
    ),
    KindDefinition(
        MACHINE_CONFIGURATION_VERSIONS,
        "mcv",
        (
            PrinterColumn("Configuration", label_path(LABEL_CONFIGURATION)),
            PrinterColumn("Version", ".spec.version", "integer"),
            PrinterColumn("Deployed", ".status.deployed", "boolean"),
            PrinterColumn("Machines", ".status.deployedMachines", "integer"),
            AGE,
        ),
    ),
    KindDefinition(MACHINE_PROFILES, "mprof", (AGE,), has_status=False),
    KindDefinition(
        MACHINE_DISRUPTION_BUDGETS,
        "mdb",
        (
            PrinterColumn("Max", ".spec.maxUnavailable"),
            PrinterColumn("Allowed", ".status.allowed", "integer"),
            PrinterColumn("Granted", ".status.granted", "integer"),
            AGE,
        ),
    ),
)

CONTAINER_CLOUD_DEFINITIONS: Final = (
    KindDefinition(
        CONTAINER_CLOUD_MACHINES,
        "ma",
        (
            PrinterColumn("Ready", ".status.providerStatus.ready", "boolean"),
            PrinterColumn("LCMPhase", ".status.providerStatus.status"),
            PrinterColumn("NodeName", ".status.nodeRef.name"),
            PrinterColumn("UpgradeIndex", ".status.providerStatus.upgradeIndex", "integer"),
            PrinterColumn("RebootRequired", ".status.providerStatus.reboot.required", "boolean"),
            AGE,
            PrinterColumn("Host", label_path(ANNOTATION_HOST, "annotations"), wide=True),
            PrinterColumn("Distribution", ".status.providerStatus.currentDistribution", wide=True),
            PrinterColumn("Stage", ".status.execution.stage", wide=True),
            PrinterColumn("Message", ".status.execution.message", wide=True),
        ),
        selectable=(".status.providerStatus.status",),
    ),
    KindDefinition(
        CLUSTERS,
        "",
        (
            PrinterColumn("Ready", ".status.providerStatus.ready", "boolean"),
            PrinterColumn("Release", ".spec.providerSpec.value.release"),
            PrinterColumn("Requested", ".status.providerStatus.nodes.requested", "integer"),
            PrinterColumn("ReadyNodes", ".status.providerStatus.nodes.ready", "integer"),
            PrinterColumn("Maintenance", ".status.providerStatus.maintenance", "boolean"),
            AGE,
        ),
    ),
    KindDefinition(
        BARE_METAL_HOSTS,
        "bmh",
        (
            PrinterColumn("State", ".status.provisioning.state"),
            PrinterColumn("Consumer", ".spec.consumerRef.name"),
            PrinterColumn("Online", ".spec.online", "boolean"),
            PrinterColumn("Error", ".status.errorType"),
            AGE,
            PrinterColumn("BMC", ".spec.bmc.address", wide=True),
            PrinterColumn("Machine", ".status.provisioning.ID", wide=True),
            PrinterColumn("Message", ".status.errorMessage", wide=True),
        ),
    ),
    KindDefinition(BARE_METAL_HOST_PROFILES, "bmhp", (AGE,)),
    KindDefinition(
        BARE_METAL_HOST_CREDENTIALS,
        "bmhc",
        (PrinterColumn("Username", ".spec.username"), PrinterColumn("Secret", ".spec.password.name"), AGE),
    ),
    KindDefinition(
        CLUSTER_RELEASES,
        "",
        (
            PrinterColumn("Version", ".spec.version"),
            PrinterColumn("Kubernetes", ".spec.kubernetes.version"),
            PrinterColumn("Usable", ".status.conditions[?(@.type=='Usable')].status"),
            AGE,
        ),
    ),
    KindDefinition(
        MACHINE_POOLS,
        "mp",
        (
            PrinterColumn("Replicas", ".spec.replicas", "integer"),
            PrinterColumn("Current", ".status.replicas", "integer"),
            PrinterColumn("Ready", ".status.readyReplicas", "integer"),
            AGE,
        ),
        replicas=True,
    ),
    KindDefinition(
        L2_TEMPLATES,
        "l2t",
        (PrinterColumn("State", ".status.state"), AGE, PrinterColumn("Reason", ".status.reason", wide=True)),
    ),
    KindDefinition(
        SUBNETS,
        "",
        (
            PrinterColumn("CIDR", ".spec.cidr"),
            PrinterColumn("Gateway", ".spec.gateway"),
            PrinterColumn("Capacity", ".status.capacity", "integer"),
            PrinterColumn("Allocatable", ".status.allocatable", "integer"),
            PrinterColumn("State", ".status.state"),
            AGE,
        ),
    ),
    KindDefinition(
        IPAM_HOSTS,
        "",
        (PrinterColumn("State", ".status.state"), PrinterColumn("Template", ".status.l2TemplateRef"), AGE),
    ),
)  # installed on request: their groups may belong to other controllers


def custom_resource_definition(definition: KindDefinition) -> dict[str, Any]:
    """Return the CustomResourceDefinition as it is applied."""
    kind = definition.kind
    names: dict[str, Any] = {
        "kind": kind.kind,
        "listKind": f"{kind.kind}List",
        "plural": kind.plural,
        "singular": kind.kind.lower(),
    }
    metadata: dict[str, Any] = {"name": definition.name}
    if kind.group != GROUP:
        metadata["labels"] = dict(MANAGED_BY)
    if kind.group.endswith(PROTECTED):
        metadata["annotations"] = dict(UNAPPROVED)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {
            "group": kind.group,
            "names": names | ({"shortNames": [definition.short]} if definition.short else {}),
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "versions": [_version(definition)],
        },
    }


def custom_resource_definitions() -> tuple[dict[str, Any], ...]:
    """Return the CustomResourceDefinitions of every installation, ready to be applied to any cluster."""
    return tuple(custom_resource_definition(definition) for definition in DEFINITIONS)


def container_cloud_definitions() -> tuple[dict[str, Any], ...]:
    """Return the CustomResourceDefinitions of Container Cloud's kinds."""
    return tuple(custom_resource_definition(definition) for definition in CONTAINER_CLOUD_DEFINITIONS)


def _version(definition: KindDefinition) -> dict[str, Any]:
    version: dict[str, Any] = {
        "name": definition.kind.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": kind_schema(definition.kind.type, definition.kind.api_version)},
        "additionalPrinterColumns": [column.entry() for column in definition.columns],
    }
    if definition.has_status:
        version["subresources"] = {"status": {}}
    if definition.replicas:
        version["subresources"]["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
        }
    if definition.selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in definition.selectable]
    return version


Schema = dict[str, Any]
INT_OR_STRING: Final = "int-or-string"  # the plain type of int | str


def type_meta(api_version: str) -> Schema:
    """Return the properties that every object has."""
    return {
        "apiVersion": {
            "description": f"Versioned schema of this representation of the object, {api_version}.",
            "type": "string",
        },
        "kind": {"description": "The kind of resource that this object represents.", "type": "string"},
        "metadata": {"type": "object"},
    }


def kind_schema(kind: type[Object], api_version: str = API_VERSION) -> Schema:
    """Return the schema of a whole object, for a CustomResourceDefinition."""
    common = type_meta(api_version)
    schema = struct_schema(kind, skip=frozenset(common))
    schema["properties"] = common | schema["properties"]
    return schema


def struct_schema(struct: type[ApiStruct], *, skip: frozenset[str] = frozenset()) -> Schema:
    """Return the schema of one Struct, with all nested ones inlined; `skip` leaves out fields by their JSON name."""
    hints = get_type_hints(struct, include_extras=True)
    infos = [info for info in msgspec.structs.fields(struct) if info.encode_name not in skip]
    schema: Schema = {"description": inspect.getdoc(struct) or "", "type": "object"}
    schema["properties"] = {info.encode_name: field_schema(hints[info.name], info) for info in infos}
    if required := [info.encode_name for info in infos if info.required]:
        schema["required"] = required
    if rules := RULES.get(struct):
        schema["x-kubernetes-validations"] = [rule_schema(rule) for rule in rules]
    return schema


def field_schema(hint: Any, info: msgspec.structs.FieldInfo) -> Schema:
    """Return the schema of one field: its type, its own description, and its default where the server sets it."""
    schema, field = type_schema(hint)
    if field.defaulted:
        schema["default"] = complete_default(info.default)
    return schema


def complete_default(value: Any) -> Any:
    """Return a default that includes the defaults of its own fields.

    kube-apiserver validates a default before it fills in inner defaults.
    """
    if not isinstance(value, ApiStruct):
        return msgspec.to_builtins(value)
    hints = get_type_hints(type(value), include_extras=True)
    inner = {
        info.encode_name: complete_default(getattr(value, info.name))
        for info in msgspec.structs.fields(value)
        if unwrapped(hints[info.name])[1].defaulted
    }
    return msgspec.to_builtins(value) | inner


def type_schema(hint: Any) -> tuple[Schema, Field]:
    """Return the schema of a type hint, and the Field that its annotations combine to."""
    plain, field = unwrapped(hint)
    schema = _bare_schema(plain, field)
    if field.description:
        described = {"description": field.description}
        schema = described | schema | described  # the field's description replaces that of its type, and comes first
    return schema, field


def unwrapped(hint: Any) -> tuple[Any, Field]:
    """Return a type without `Annotated` and `| None`, and the combined Field; the outermost value wins."""
    origin = get_origin(hint)
    if origin is Annotated:
        plain, inner = unwrapped(hint.__origin__)
        return plain, combined(hint.__metadata__).over(inner)
    if origin in (Union, UnionType):
        parts = [part for part in get_args(hint) if part is not NoneType]
        return (INT_OR_STRING, Field()) if parts == [int, str] else unwrapped(*parts)
    return hint, Field()


def rule_schema(rule: ValidationRule) -> Schema:
    """Return one entry of x-kubernetes-validations."""
    entry = {"rule": rule.rule, "message": rule.message}
    return entry | ({"fieldPath": rule.path} if rule.path else {})


def _bare_schema(plain: Any, field: Field) -> Schema:
    match get_origin(plain) or plain:
        case t if t is Any:
            return {"x-kubernetes-preserve-unknown-fields": True}
        case t if t is str:
            return _string_schema(field)
        case t if t is bool:
            return {"type": "boolean"}
        case t if t is int:
            return _annotations(
                type="integer", format=field.format or "int64", minimum=field.minimum, maximum=field.maximum
            )
        case t if t == INT_OR_STRING:
            return _int_or_string_schema(field)
        case t if t is tuple:
            return _list_schema(get_args(plain)[0], field)
        case t if t is dict:
            values, _ = type_schema(get_args(plain)[1])
            return {"type": "object", "additionalProperties": values, "maxProperties": field.max_properties or MAX_MAP}
        case t if issubclass(t, ApiStruct):
            return struct_schema(t)
    raise TypeError(
        f"{plain} has no schema: use str, bool, int, int | str, Any, tuple[..., ...], dict[str, ...] or an ApiStruct"
    )


def _string_schema(field: Field) -> Schema:
    if field.enum:
        return {"type": "string", "enum": [str(value) for value in field.enum]}
    return _annotations(
        type="string",
        format=field.format,
        pattern=field.pattern,
        minLength=field.min_length,
        maxLength=field.max_length or MAX_STRING,
    )


def _int_or_string_schema(field: Field) -> Schema:
    """Return the schema of a number or a text; pattern and length limit the text, the minimum the number."""
    return _annotations(
        anyOf=[{"type": "integer"}, {"type": "string"}],
        pattern=field.pattern,
        maxLength=field.max_length or MAX_STRING,
        minimum=field.minimum,
    ) | {"x-kubernetes-int-or-string": True}


def _list_schema(element: Any, field: Field) -> Schema:
    items, _ = type_schema(element)
    kind: Schema = {"x-kubernetes-list-type": "atomic"}
    if field.map_keys:
        kind = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(field.map_keys)}
    return (
        _annotations(type="array", items=items, minItems=field.min_items, maxItems=field.max_items or MAX_LIST) | kind
    )


def _annotations(**entries: Any) -> Schema:
    return {key: value for key, value in entries.items() if value is not None}
