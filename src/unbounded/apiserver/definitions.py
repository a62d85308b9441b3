"""CustomResourceDefinitions: which are valid, and the resources that they define."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import msgspec

from unbounded.apiserver import columns, fields, jsonpath, kinds, metadata, naming
from unbounded.apiserver.builtin import BuiltIn
from unbounded.apiserver.schema import FieldError, Schema, SchemaError, compile_schema
from unbounded.apiserver.shapes import Struct
from unbounded.apiserver.types import ALL_VERBS, Column, Object, Resource

CLEANUP: Final = "customresourcecleanup.apiextensions.k8s.io"
APPROVED: Final = "api-approved.kubernetes.io"
COLUMN_TYPES: Final = ("boolean", "date", "integer", "number", "string")
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
_FORMATS: Final = frozenset(
    re.findall(
        r"\S+",
        "bsonobjectid uri email hostname ipv4 ipv6 cidr mac uuid uuid3 uuid4 uuid5 isbn isbn10 isbn13 creditcard ssn "
        "hexcolor rgbcolor byte password date duration datetime date-time int32 int64 float double "
        "k8s-short-name k8s-long-name",
    )
)
_PROTECTED: Final = re.compile(r"(^|\.)(k8s|kubernetes)\.io$")


@dataclass(frozen=True)
class CustomType:
    """The type of a custom resource in one version."""

    kind: str
    schema: Schema
    has_rules: bool
    status: bool
    generation: bool = True
    name_check: naming.Check = naming.subdomain
    unconditional_update: bool = False
    create_on_update: bool = False
    shape: Struct | None = None

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

    def prepare_status(self, obj: Object, old: Object) -> None:
        status = obj.get("status")
        obj.clear()
        obj.update({**old, "metadata": dict(old["metadata"])})
        obj.pop("status", None)
        if status is not None:
            obj["status"] = status

    def validate(self, obj: Object, old: Object | None) -> list[FieldError]:
        return self.schema.validate(obj, old)

    def advise(self, obj: Object) -> list[str]:  # noqa: ARG002 - the protocol's
        return []

    def _wanted(self, obj: Object) -> Object:
        left_out = {"metadata", "status"} if self.status else {"metadata"}
        return {k: v for k, v in obj.items() if k not in left_out}


def compiled(schema: Mapping[str, Any], path: str) -> Schema:
    """The compiled schema, remembered: a definition is checked when it is written and used when it is served.

    Raises:
        SchemaError: with the paths under `path`.
    """
    return _compiled(msgspec.json.encode(schema), path)


@lru_cache(maxsize=64)
def _compiled(schema: bytes, path: str) -> Schema:
    return compile_schema(msgspec.json.decode(schema), path=path)


def unchecked(errors: list[FieldError]) -> list[FieldError]:
    """What is added when errors that are not of the schema keep rules from being checked."""
    if any(e.reason in _BLOCKING for e in errors):
        return [FieldError("FieldValueInvalid", "<nil>", f"Invalid value: null: {UNCHECKED}")]
    return []


def _default_definition(obj: Object) -> None:
    spec = obj["spec"]
    names = spec["names"]
    kind = names.get("kind", "")
    names["singular"] = names.get("singular") or kind.lower()
    names["listKind"] = names.get("listKind") or (f"{kind}List" if kind else "")
    spec.setdefault("conversion", {"strategy": "None"})
    if spec["conversion"].get("strategy", "") == "":
        spec["conversion"]["strategy"] = "None"


def _decide_definition(obj: Object, old: Object | None) -> None:
    if old is None:
        obj["status"] = {
            "conditions": None,
            "acceptedNames": {"plural": "", "kind": ""},
            "storedVersions": [v["name"] for v in obj["spec"]["versions"] or () if v["storage"]][:1] or None,
        }
        return
    stored = list(old["status"].get("storedVersions") or ())
    new = [v["name"] for v in obj["spec"]["versions"] or () if v["storage"] and v["name"] not in stored]
    obj["status"] = {**old["status"], "storedVersions": stored + new}
    if obj["spec"] != old["spec"]:
        obj["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1


def _rules_definition(obj: Object, old: Object | None) -> list[FieldError]:
    """The rules in the order in which kube-apiserver reports them."""
    spec = obj["spec"]
    versions = spec["versions"] or []
    errors: list[FieldError] = []
    expected = f"{spec['names']['plural']}.{spec['group']}"
    if old is None and obj["metadata"].get("name") != expected:
        errors.append(
            fields.invalid("metadata.name", obj["metadata"].get("name"), 'must be spec.names.plural+"."+spec.group')
        )
    if _PROTECTED.search(spec["group"]) and not obj["metadata"].get("annotations", {}).get(APPROVED):
        why = (
            f'protected groups must have approval annotation "{APPROVED}", '
            "see https://github.com/kubernetes/enhancements/pull/1111"
        )
        errors.append(fields.required(f"metadata.annotations[{APPROVED}]", why))
    errors += _rules_group(spec)
    errors += _rules_storage(versions)
    for index, version in enumerate(versions):
        errors += _rules_version(version, index, single=len(versions) == 1)
    if len(versions) >= 1:
        first = versions[0]["name"]
        errors += [fields.invalid("spec.version", first, why) for why in naming.label_1035(first)]
    errors += _rules_names(spec["names"])
    errors += _rules_conversion(spec["conversion"])
    if spec.get("preserveUnknownFields"):
        why = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
        errors.append(fields.invalid("spec.preserveUnknownFields", True, why))
    errors += _rules_stored(obj["status"].get("storedVersions") or [], versions)
    if old is not None:
        errors += [
            fields.immutable(f"spec.{key}", spec[key]) for key in ("group", "scope") if spec[key] != old["spec"][key]
        ]
        if spec["names"]["plural"] != old["spec"]["names"]["plural"]:
            errors.append(fields.immutable("spec.names.plural", spec["names"]["plural"]))
    return errors


def _rules_group(spec: Mapping[str, Any]) -> list[FieldError]:
    group = spec["group"]
    errors = [] if group else [fields.required("spec.group")]
    malformed = naming.subdomain(group)
    errors += [fields.invalid("spec.group", group, why) for why in malformed]
    if group and not malformed and "." not in group:
        errors.append(fields.invalid("spec.group", group, "should be a domain with at least one dot"))
    if spec["scope"] not in {"Cluster", "Namespaced"}:
        errors.append(fields.unsupported("spec.scope", spec["scope"], ["Cluster", "Namespaced"]))
    return errors


def _rules_storage(versions: list[Mapping[str, Any]]) -> list[FieldError]:
    shown = [
        {
            "Name": v["name"],
            "Served": v["served"],
            "Storage": v["storage"],
            "Deprecated": v.get("deprecated", False),
            "DeprecationWarning": v.get("deprecationWarning"),
            "Schema": None,
            "Subresources": None,
            "AdditionalPrinterColumns": None,
            "SelectableFields": None,
        }
        for v in versions
    ]
    errors = []
    names = [v["name"] for v in versions]
    if len(set(names)) != len(names):
        errors.append(fields.invalid("spec.versions", shown, "must contain unique version names"))
    if sum(v["storage"] for v in versions) != 1:
        errors.append(fields.invalid("spec.versions", shown, "must have exactly one version marked as storage version"))
    return errors


def _rules_stored(stored: list[str], versions: list[Mapping[str, Any]]) -> list[FieldError]:
    if not stored:
        return [fields.invalid("status.storedVersions", None, "must have at least one stored version")]
    names = {v["name"] for v in versions}
    errors = [
        fields.invalid(
            f"status.storedVersions[{index}]",
            name,
            f"missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions "
            f"until a storage migration ensures no data remains persisted in {name} and removes {name} from "
            "status.storedVersions",
        )
        for index, name in enumerate(stored)
        if name not in names
    ]
    storage = [v["name"] for v in versions if v["storage"]]
    if storage and storage[-1] not in stored:
        errors.append(fields.invalid("status.storedVersions", stored, f"must have the storage version {storage[-1]}"))
    return errors


def _rules_version(version: Mapping[str, Any], index: int, *, single: bool) -> list[FieldError]:
    where = f"spec.versions[{index}]"
    # A definition whose versions agree is reported as if it had one schema for all, at the top of spec.
    top = "spec" if single else where
    name = version["name"]
    errors = [fields.invalid(f"{where}.name", name, why) for why in naming.label_1035(name)]
    if version.get("deprecationWarning") is not None and not version.get("deprecated"):
        why = "can only be set for deprecated versions"
        errors.append(fields.invalid(f"{where}.deprecationWarning", version["deprecationWarning"], why))
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    if schema is None:
        errors.append(fields.required(f"{where}.schema.openAPIV3Schema"))
    else:
        at = "spec.validation.openAPIV3Schema" if single else f"{where}.schema.openAPIV3Schema"
        try:
            compiled(schema, at)
        except SchemaError as error:
            errors += error.causes
        errors += _rules_selectable(version.get("selectableFields", ()), schema, f"{top}.selectableFields")
    errors += _rules_scale((version.get("subresources") or {}).get("scale"), f"{top}.subresources.scale")
    errors += _rules_columns(version.get("additionalPrinterColumns", ()), f"{top}.additionalPrinterColumns")
    return errors


def _rules_scale(scale: Mapping[str, Any] | None, where: str) -> list[FieldError]:
    if scale is None:
        return []
    errors = []
    for key, root, needed in (
        ("specReplicasPath", ".spec", True),
        ("statusReplicasPath", ".status", True),
        ("labelSelectorPath", "", False),
    ):
        path = scale.get(key) or ""
        if not path:
            errors += [fields.required(f"{where}.{key}")] if needed else []
        elif root and not path.startswith(f"{root}."):
            errors.append(fields.invalid(f"{where}.{key}", path, f"should be a json path under {root}"))
    return errors


def _rules_columns(given: list[Mapping[str, Any]], where: str) -> list[FieldError]:
    errors = []
    for index, column in enumerate(given):
        at = f"{where}[{index}]"
        if not column["name"]:
            errors.append(fields.required(f"{at}.name"))
        if not column["type"]:
            errors.append(fields.required(f"{at}.type", f"must be one of {','.join(COLUMN_TYPES)}"))
        elif column["type"] not in COLUMN_TYPES:
            errors.append(fields.invalid(f"{at}.type", column["type"], f"must be one of {','.join(COLUMN_TYPES)}"))
        path = column["jsonPath"]
        if not path:
            errors.append(fields.required(f"{at}.JSONPath"))
        elif not path.startswith("."):
            errors.append(fields.invalid(f"{at}.JSONPath", path, "must be a simple json path starting with ."))
        else:
            try:
                jsonpath.compile_path(path)
            except jsonpath.BadPath as error:
                errors.append(fields.invalid(f"{at}.JSONPath", path, str(error)))
    return errors


def _rules_selectable(given: list[Mapping[str, Any]], schema: Mapping[str, Any], where: str) -> list[FieldError]:
    errors = []
    for index, selectable in enumerate(given):
        path = selectable["jsonPath"]
        at = f"{where}[{index}].jsonPath"
        if not path:
            errors.append(fields.required(at))
            continue
        found = _field_schema(path, schema)
        if found is None:
            errors.append(fields.invalid(at, path, "is an invalid path: does not refer to a valid field"))
        elif found.get("type") not in {"string", "boolean", "integer"}:
            why = (
                "must point to a field of type string, boolean or integer. "
                "Enum string fields and strings with formats are allowed."
            )
            errors.append(fields.invalid(at, path, why))
    return errors


def _field_schema(path: str, schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    names = path.lstrip(".").split(".")
    if not path.startswith(".") or names[0] == "metadata":
        return None
    found: Mapping[str, Any] | None = schema
    for name in names:
        found = ((found or {}).get("properties") or {}).get(name)
    return found


def _rules_names(names: Mapping[str, Any]) -> list[FieldError]:
    errors = []
    for key in ("plural", "singular", "kind", "listKind"):
        value = names.get(key, "")
        if not value and key in {"plural", "kind"}:
            errors.append(fields.required(f"spec.names.{key}"))
        lowered = value.lower() if key.lower().endswith("kind") else value
        note = "may have mixed case, but should otherwise match: " if key.lower().endswith("kind") else ""
        if value:
            errors += [fields.invalid(f"spec.names.{key}", value, note + why) for why in naming.label_1035(lowered)]
    for index, short in enumerate(names.get("shortNames", ())):
        errors += [fields.invalid(f"spec.names.shortNames[{index}]", short, why) for why in naming.label_1035(short)]
    for index, category in enumerate(names.get("categories", ())):
        errors += [
            fields.invalid(f"spec.names.categories[{index}]", category, why) for why in naming.label_1035(category)
        ]
    if names.get("kind") and names.get("kind") == names.get("listKind"):
        errors.append(fields.invalid("spec.names.listKind", names["listKind"], "kind and listKind may not be the same"))
    return errors


def _rules_conversion(conversion: Mapping[str, Any]) -> list[FieldError]:
    match conversion["strategy"]:
        case "None":
            return []
        case "Webhook":
            return [
                fields.required("spec.conversion.webhookClientConfig", "required when strategy is set to Webhook"),
                fields.required("spec.conversion.conversionReviewVersions"),
            ]
    return [fields.unsupported("spec.conversion.strategy", conversion["strategy"], ["None", "Webhook"])]


def _advise_definition(obj: Object) -> list[str]:
    """Formats that are accepted and mean nothing."""
    schemas = ((v.get("schema") or {}).get("openAPIV3Schema") for v in obj["spec"]["versions"] or ())
    unknown = dict.fromkeys(f for schema in schemas for f in _formats(schema) if f not in _FORMATS)
    return [f'unrecognized format "{name}"' for name in unknown]


def _formats(schema: Any) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    if schema.get("format"):
        yield schema["format"]
    for key in ("items", "additionalProperties", "not"):
        yield from _formats(schema.get(key))
    for value in (schema.get("properties") or {}).values():
        yield from _formats(value)
    for key in ("allOf", "anyOf", "oneOf"):
        for value in schema.get(key) or ():
            yield from _formats(value)


DEFINITIONS: Final = Resource(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    "customresourcedefinition",
    False,
    BuiltIn(
        kinds.CUSTOM_RESOURCE_DEFINITION,
        generation=True,
        unconditional_update=False,
        defaults=_default_definition,
        decide=_decide_definition,
        rules=_rules_definition,
        advice=_advise_definition,
    ),
    short_names=("crd", "crds"),
    categories=("api-extensions",),
    status=True,
    columns=columns.DEFINITION,
)


def defined(definition: Mapping[str, Any]) -> list[Resource]:
    """The resources of an accepted definition, one for each served version, the preferred version first."""
    spec = definition["spec"]
    storage = next(v["name"] for v in spec["versions"] if v["storage"])
    served = [v for v in spec["versions"] if v["served"]]
    return [
        _resource(spec, version, storage, accepting="deletionTimestamp" not in definition["metadata"])
        for version in sorted(served, key=lambda v: version_order(v["name"]))
    ]


def _resource(spec: Mapping[str, Any], version: Mapping[str, Any], storage: str, *, accepting: bool) -> Resource:
    names = spec["names"]
    schema = version["schema"]["openAPIV3Schema"]
    status = (version.get("subresources") or {}).get("status") is not None
    api_version = f"{spec['group']}/{version['name']}"
    warning = version.get("deprecationWarning") or f"{api_version} {names['kind']} is deprecated"
    return Resource(
        spec["group"],
        version["name"],
        names["kind"],
        names["plural"],
        names["singular"],
        spec["scope"] == "Namespaced",
        CustomType(
            names["kind"],
            compiled(schema, "spec.validation.openAPIV3Schema"),
            b'"x-kubernetes-validations"' in msgspec.json.encode(schema),
            status,
        ),
        list_kind=names["listKind"],
        short_names=tuple(names.get("shortNames", ())),
        categories=tuple(names.get("categories", ())),
        verbs=ALL_VERBS,
        status=status,
        storage_version=storage,
        selectable={f["jsonPath"].lstrip("."): f["jsonPath"].lstrip(".") for f in version.get("selectableFields", ())},
        columns=(columns.NAME, *_columns(version)),
        custom=True,
        deprecation=warning if version.get("deprecated") else "",
        schema=schema,
        accepting=accepting,
    )


def _columns(version: Mapping[str, Any]) -> list[Column]:
    given = version.get("additionalPrinterColumns")
    if not given:
        return [columns.CUSTOM_AGE]
    return [
        Column(
            c["name"],
            c["type"],
            c.get("format", ""),
            c.get("description") or f"Custom resource definition column (in JSONPath format): {c['jsonPath']}",
            c.get("priority", 0),
            path=c["jsonPath"],
        )
        for c in given
    ]


def version_order(name: str) -> tuple[int, int, int, int, str]:
    """Sorts versions as Kubernetes prefers them: v2, v1, v1beta2, v1beta1, v1alpha1, then other names."""
    match = re.fullmatch(r"v([0-9]+)(?:(alpha|beta)([0-9]+))?", name)
    if match is None:
        return (1, 0, 0, 0, name)
    stage = {None: 0, "beta": 1, "alpha": 2}[match[2]]
    return (0, stage, -int(match[1]), -int(match[3] or 0), "")
