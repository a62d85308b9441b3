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
from unbounded.api.credential import MACHINE_OPERATION_CREDENTIALS
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS
from unbounded.api.fields import MAX_LIST, MAX_MAP, MAX_STRING, ApiStruct, Field, combined
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind, Object
from unbounded.api.names import LABEL_CONFIGURATION, LABEL_SITE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.api.operation_rules import OPERATION_RULES
from unbounded.api.profile import MACHINE_PROFILES
from unbounded.api.profile_rules import PROFILE_RULES
from unbounded.api.rules import MACHINE_RULES, RuleTable, ValidationRule

RULES: Final[RuleTable] = {**MACHINE_RULES, **OPERATION_RULES, **PROFILE_RULES}


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

    @property
    def name(self) -> str:
        return f"{self.kind.plural}.{self.kind.group}"


def label_path(label: str) -> str:
    """Return the JSONPath of a label, whose dots are part of its name."""
    return ".metadata.labels." + label.replace(".", r"\.")


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


def custom_resource_definition(definition: KindDefinition) -> dict[str, Any]:
    """Return the CustomResourceDefinition as it is applied."""
    kind = definition.kind
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": definition.name},
        "spec": {
            "group": kind.group,
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.kind.lower(),
                "shortNames": [definition.short],
            },
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "versions": [_version(definition)],
        },
    }


def custom_resource_definitions() -> tuple[dict[str, Any], ...]:
    """Return all CustomResourceDefinitions, ready to be applied to any cluster."""
    return tuple(custom_resource_definition(definition) for definition in DEFINITIONS)


def _version(definition: KindDefinition) -> dict[str, Any]:
    version: dict[str, Any] = {
        "name": definition.kind.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": kind_schema(definition.kind.type)},
        "additionalPrinterColumns": [column.entry() for column in definition.columns],
    }
    if definition.has_status:
        version["subresources"] = {"status": {}}
    if definition.selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in definition.selectable]
    return version


Schema = dict[str, Any]
INT_OR_STRING: Final = "int-or-string"  # the plain type of int | str

TYPE_META: Final[Schema] = {
    "apiVersion": {
        "description": "Versioned schema of this representation of the object, unbounded-cloud.io/v1alpha3.",
        "type": "string",
    },
    "kind": {"description": "The kind of resource that this object represents.", "type": "string"},
    "metadata": {"type": "object"},
}


def kind_schema(kind: type[Object]) -> Schema:
    """Return the schema of a whole object, for a CustomResourceDefinition."""
    schema = struct_schema(kind, skip=frozenset(TYPE_META))
    schema["properties"] = TYPE_META | schema["properties"]
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
        f"{plain} has no schema: use str, bool, int, int | str, tuple[..., ...], dict[str, ...] or an ApiStruct"
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
