"""CustomResourceDefinitions, and the resources that they define."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from unbounded_apiserver import (
    columns,
    definition_rules,
    definition_types,
    definition_version_rules,
    jsonpath,
    metadata,
    name_validation,
)
from unbounded_apiserver.builtin import BuiltInType
from unbounded_apiserver.managed_fields.merge_types import of_schema
from unbounded_apiserver.managed_fields.typed import ObjectKind
from unbounded_apiserver.schema import FieldError, Schema
from unbounded_apiserver.type_desc import StructType
from unbounded_apiserver.types import ALL_VERBS, STATUS, Object, Resource, Subresource, TableColumn, keep_all_but_status

CLEANUP: Final = "customresourcecleanup.apiextensions.k8s.io"
UNCHECKED: Final = (
    "some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation"
)
_BLOCKING: Final = frozenset(
    {
        "FieldValueNotSupported",
        "FieldValueRequired",
        "FieldValueTooLong",
        "FieldValueTooMany",
        "FieldValueTypeInvalid",
    }
)


@dataclass(frozen=True)
class CustomType:
    """The type of a custom resource in one version."""

    kind: str
    schema: Schema
    status: bool
    merge_fields: ObjectKind
    generation: bool = True
    name_check: name_validation.Check = name_validation.subdomain
    unconditional_update: bool = False
    create_on_update: bool = False
    tracks_owners: bool = True
    shape: StructType | None = None

    def empty(self) -> Object:
        return {}

    def decode(self, obj: Object) -> list[str]:
        unknown: list[str] = []
        metadata.decode(obj, unknown)
        return unknown + sorted(self.schema.prune(obj))

    def default(self, obj: Object) -> None:
        self.schema.default(obj)

    def prepare(self, obj: Object, old: Object | None) -> None:
        if self.status:
            obj.pop("status", None)
            if old is not None and "status" in old:
                obj["status"] = old["status"]
        if old is not None and self._wanted(obj) != self._wanted(old):
            obj["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1

    def validate(self, obj: Object, old: Object | None, warnings: list[str] | None = None) -> list[FieldError]:
        return self.schema.validate(obj, old, warnings)

    def advise(self, obj: Object) -> list[str]:  # noqa: ARG002 - the protocol's
        return []

    def _wanted(self, obj: Object) -> Object:
        left_out = {"metadata", "status"} if self.status else {"metadata"}
        return {k: v for k, v in obj.items() if k not in left_out}


def _keep_all_but_status(obj: Object, old: Object, now: datetime) -> None:
    """Keep everything but the status, as for built-in types; metadata does not change either."""
    obj["metadata"] = dict(old["metadata"])
    keep_all_but_status(obj, old, now)


_STATUS: Final[Mapping[str, Subresource]] = {"status": Subresource(_keep_all_but_status)}


def unchecked_notice(errors: list[FieldError]) -> list[FieldError]:
    """Return the notice that rules were not checked because of errors outside of the schema."""
    if any(e.reason in _BLOCKING for e in errors):
        return [FieldError("FieldValueInvalid", "<nil>", f"Invalid value: null: {UNCHECKED}")]
    return []


DEFINITIONS: Final = Resource(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    "customresourcedefinition",
    False,
    BuiltInType(
        definition_types.CUSTOM_RESOURCE_DEFINITION,
        generation=True,
        unconditional_update=False,
        defaults=definition_rules.default,
        decide=definition_rules.decide,
        rules=definition_rules.rules,
        advice=definition_rules.advise,
        qualified_finalizers=False,
    ),
    short_names=("crd", "crds"),
    categories=("api-extensions",),
    subresources=STATUS,
    columns=columns.DEFINITION,
)


def served_resources(definition: Mapping[str, Any]) -> list[Resource]:
    """Return the resources of an accepted definition, one for each served version, the preferred version first."""
    served = [v for v in definition["spec"]["versions"] if v["served"]]
    return [_resource(definition, version) for version in sorted(served, key=lambda v: version_order(v["name"]))]


def stored_resource(definition: Mapping[str, Any]) -> Resource:
    """Return the resource in the version in which objects are stored from now on, served or not."""
    return _resource(definition, _stored(definition))


def types_by_version(definition: Mapping[str, Any]) -> dict[str, CustomType]:
    """Return the types of all versions by apiVersion: objects may be stored in any of them."""
    spec = definition["spec"]
    return {f"{spec['group']}/{v['name']}": _type(spec["names"]["kind"], v) for v in spec["versions"]}


def _stored(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    version: Mapping[str, Any] = next(v for v in definition["spec"]["versions"] if v["storage"])
    return version


def _type(kind: str, version: Mapping[str, Any]) -> CustomType:
    written = version["schema"]["openAPIV3Schema"]
    schema = definition_version_rules.draft(written, "spec.validation.openAPIV3Schema").schema
    return CustomType(kind, schema, (version.get("subresources") or {}).get("status") is not None, of_schema(written))


def _resource(definition: Mapping[str, Any], version: Mapping[str, Any]) -> Resource:
    spec, names, stored = definition["spec"], definition["spec"]["names"], _stored(definition)
    this = _type(names["kind"], version)
    api_version = f"{spec['group']}/{version['name']}"
    warning = version.get("deprecationWarning") or f"{api_version} {names['kind']} is deprecated"
    return Resource(
        spec["group"],
        version["name"],
        names["kind"],
        names["plural"],
        names.get("singular", ""),
        spec["scope"] == "Namespaced",
        this,
        list_kind=names["listKind"],
        short_names=tuple(names.get("shortNames", ())),
        categories=tuple(names.get("categories", ())),
        verbs=ALL_VERBS,
        subresources=_STATUS if this.status else {},
        storage_version=stored["name"],
        stored_type=None if stored is version else _type(names["kind"], stored),
        selectable={f["jsonPath"].lstrip("."): f["jsonPath"].lstrip(".") for f in version.get("selectableFields", ())},
        columns=(columns.NAME, *_columns(version)),
        custom=True,
        deprecation=warning if version.get("deprecated") else "",
        schema=version["schema"]["openAPIV3Schema"],
        accepting="deletionTimestamp" not in definition["metadata"],
    )


def _columns(version: Mapping[str, Any]) -> list[TableColumn]:
    """Return the printer columns, or kube-apiserver's default ones if a path among them cannot be parsed."""
    given = version.get("additionalPrinterColumns")
    if not given or not all(_is_readable(column["jsonPath"]) for column in given):
        return [columns.CUSTOM_AGE]
    return [
        TableColumn(
            c["name"],
            c["type"],
            c.get("format", ""),
            c.get("description") or f"Custom resource definition column (in JSONPath format): {c['jsonPath']}",
            c.get("priority", 0),
            path=c["jsonPath"],
        )
        for c in given
    ]


def _is_readable(path: str) -> bool:
    try:
        jsonpath.compile_path(path)
    except jsonpath.BadPath:
        return False
    return True


def version_order(name: str) -> tuple[int, int, int, int, str]:
    """Return a key that sorts versions as Kubernetes does: v2, v1, v1beta2, v1beta1, v1alpha1, then other names."""
    match = re.fullmatch(r"v([0-9]+)(?:(alpha|beta)([0-9]+))?", name)
    if match is None:
        return (1, 0, 0, 0, name)
    stage = {None: 0, "beta": 1, "alpha": 2}[match[2]]
    return (0, stage, -int(match[1]), -int(match[3] or 0), "")
