"""OpenAPI documents for `kubectl explain`, client-side checks and generators."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from unbounded_apiserver import patches, type_descriptor_parser, type_descriptors
from unbounded_apiserver.builtin_resources import BuiltInType
from unbounded_apiserver.http import openapi_facts, openapi_v2
from unbounded_apiserver.resource_model import SCALE, Resource
from unbounded_apiserver.scale import SCALES
from unbounded_apiserver.served_resources import Catalog
from unbounded_apiserver.type_descriptor_parser import API_VERSION, KIND, META, OBJECT_META

Schema = dict[str, Any]
V3: Final = "#/components/schemas/"
V2: Final = "#/definitions/"
LIST_META: Final = type_descriptor_parser.read(
    """
ListMeta meta: Metadata of a list.
  continue string  Continues a list that was cut by a limit.
  remainingItemCount int64  Number of items that follow.
  resourceVersion string  The version of the whole list.
  selfLink string  Not used any more.
"""
)["ListMeta"]
_STATUS: Final = f"{META}.Status"
_PATCH: Final = f"{META}.Patch"
_DELETE_OPTIONS: Final = f"{META}.DeleteOptions"
_FIXED: Final[Mapping[str, Schema]] = {
    _STATUS: {
        "type": "object",
        "description": "The answer to a call that returns no object.",
        "x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "Status"}],
    },
    _PATCH: {"type": "object", "description": "A patch of an object."},
    _DELETE_OPTIONS: {
        "type": "object",
        "description": "Options of a deletion.",
        "x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "DeleteOptions"}],
    },
}
# Types that may be a number or a string, by the JSON type of their shape: name, format, description, type of the
# number.
_EITHER: Final = {
    "quantity": (
        "io.k8s.apimachinery.pkg.api.resource.Quantity",
        "",
        "An amount, such as 1, 500m or 2Gi; k, M, G, … are powers of 1000, Ki, Mi, Gi, … of 1024.",
        "number",
    ),
    "int-or-string": (
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
        "int-or-string",
        "A number, or a string that names or computes one.",
        "integer",
    ),
}
_ANY: Final = {"description": "Any JSON value."}  # kubectl explain --recursive fails on an empty schema
_WRITE_PARAMETERS: Final = (
    ("dryRun", "string", "All: check everything and write nothing."),
    ("fieldManager", "string", "Name of the manager that makes this change."),
    ("fieldValidation", "string", "Treatment of unknown and duplicate fields: Ignore, Warn or Strict."),
)
_LIST_PARAMETERS: Final = (
    ("allowWatchBookmarks", "boolean", "Let a watch send bookmarks."),
    ("continue", "string", "The token that continues a list."),
    ("fieldSelector", "string", "Select objects by their fields."),
    ("labelSelector", "string", "Select objects by their labels."),
    ("limit", "integer", "The most objects that are answered at once."),
    ("resourceVersion", "string", "The version to read from."),
    ("resourceVersionMatch", "string", "Interpretation of resourceVersion."),
    ("sendInitialEvents", "boolean", "Let a watch begin with the existing objects."),
    ("timeoutSeconds", "integer", "Time limit of a list or watch, in seconds."),
    ("watch", "boolean", "Watch for changes."),
)
_DELETE_PARAMETERS: Final = (
    ("dryRun", "string", "All: check everything and write nothing."),
    ("gracePeriodSeconds", "integer", "Seconds that the object is given."),
    ("propagationPolicy", "string", "Treatment of dependents: Orphan, Background or Foreground."),
)


class OpenApi:
    """Documents of one catalog, generated on request and cached until the catalog changes."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._generation = -1
        self._documents: dict[str, bytes] = {}

    def index(self) -> bytes:
        """Return the document at /openapi/v3."""
        paths = {}
        for path in ["version", *self._group_paths()]:
            digest = hashlib.sha256(self.document(path) or b"").hexdigest().upper()
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
        return msgspec.json.encode({"paths": paths})

    def document(self, path: str) -> bytes | None:
        """Return the document of `api/v1`, `apis/GROUP/VERSION` or `version`; None for others."""
        return self._cached(path, lambda: self._document(path))

    def v2(self) -> bytes:
        """Return the document at /openapi/v2."""
        return self._cached("v2", self._v2) or b""

    def v2_protobuf(self) -> bytes:
        """Return the document at /openapi/v2 in the protobuf form for kubectl."""
        return self._cached("v2 protobuf", lambda: openapi_v2.encode(self._v2())) or b""

    def _cached(self, key: str, make: Callable[[], Schema | bytes | None]) -> bytes | None:
        if self._generation != self._catalog.generation:
            self._documents.clear()
            self._generation = self._catalog.generation
        if key not in self._documents:
            made = make()
            if made is None:
                return None
            self._documents[key] = made if isinstance(made, bytes) else msgspec.json.encode(made)
        return self._documents[key]

    def _group_paths(self) -> list[str]:
        groups = self._catalog.groups().items()
        return [f"apis/{g}/{v}" if g else f"api/{v}" for g, versions in groups for v in versions]

    def _document(self, path: str) -> Schema | None:
        if path == "version":
            return _whole({"/version": {"get": _operation("getCodeVersion", "the version of the server", [])}}, {})
        parts = path.split("/")
        if path not in self._group_paths():
            return None
        group, version = ("", parts[1]) if parts[0] == "api" else (parts[1], parts[2])
        resources = (self._catalog.version(group, version) or {}).values()
        paths: Schema = {}
        components = _Components(V3)
        for resource in resources:
            components.resource(resource)
            paths |= _paths(resource)
        return _whole(paths, components.found)

    def _v2(self) -> Schema:
        components = _Components(V2)
        paths: Schema = {}
        for resource in self._catalog:
            components.resource(resource)
            paths |= openapi_v2.paths(_paths(resource))
        return {
            "swagger": "2.0",
            "info": {"title": "Kubernetes", "version": "unbounded"},
            "paths": paths,
            "definitions": components.found,
        }


def _whole(paths: Schema, schemas: Schema) -> Schema:
    return {
        "openapi": "3.0.0",
        "info": {"title": "Unbounded", "version": "unbounded"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


class _Components:
    """Schemas by name, collected from resources and the shapes that they use."""

    def __init__(self, root: str) -> None:
        self._root = root
        self.found: Schema = {name: dict(schema) for name, schema in _FIXED.items()}
        self.shape(OBJECT_META)
        self.shape(LIST_META)

    def resource(self, resource: Resource) -> None:
        name = schema_name(resource)
        if isinstance(resource.type, BuiltInType):
            self.shape(resource.type.shape)
        else:
            self.found[name] = self._custom(resource)
        self.found[name]["x-kubernetes-group-version-kind"] = [_kind(resource)]
        shown = (*resource.transient.values(), *(() if resource.scale is None else (SCALES,)))
        for other in shown:
            if isinstance(other.type, BuiltInType):
                self.found[self.shape(other.type.shape)]["x-kubernetes-group-version-kind"] = [_kind(other)]
        if "list" not in resource.verbs:
            return
        self.found[f"{name}List"] = {
            "type": "object",
            "description": f"A list of {resource.kind}.",
            "required": ["items"],
            "properties": {
                "apiVersion": {"type": "string", "description": API_VERSION.about},
                "kind": {"type": "string", "description": KIND.about},
                "metadata": self._pointer("Metadata of the list.", f"{META}.ListMeta"),
                "items": {"type": "array", "description": "The objects.", "items": self._reference(name)},
            },
            "x-kubernetes-group-version-kind": [
                {**_kind(resource), "kind": resource.list_kind or f"{resource.kind}List"}
            ],
        }

    def _custom(self, resource: Resource) -> Schema:
        schema: Schema = copy.deepcopy(dict(resource.schema or {}))
        if self._root == V2:
            schema = _for_v2(schema)
        properties = schema.setdefault("properties", {})
        properties["apiVersion"] = {"type": "string", "description": API_VERSION.about}
        properties["kind"] = {"type": "string", "description": KIND.about}
        properties["metadata"] = self._pointer("Standard metadata of the object.", f"{META}.ObjectMeta")
        return schema

    def shape(self, shape: type_descriptors.StructType) -> str:
        """Add the schema of a shape and of the shapes in it; return its name."""
        name = f"{shape.package}.{shape.name}"
        if name in self.found:
            return name
        described: Schema = {"type": "object", "description": shape.about}
        self.found[name] = described
        members = shape.members()
        if required := openapi_facts.required(name, frozenset(key for key, field in members.items() if field.always)):
            described["required"] = required
        if members:
            described["properties"] = {key: self._member(name, key, field) for key, field in members.items()}
        if shape.atomic:
            described["x-kubernetes-map-type"] = "atomic"
        return name

    def _member(self, name: str, key: str, field: type_descriptors.StructField) -> Schema:
        """Return the schema of a field of a type, with its allowed values."""
        described = self._field(field)
        if values := openapi_facts.values(name, key):
            described.get("items", described)["enum"] = list(values)
        if field.replaced:
            described["x-kubernetes-patch-strategy"] = "replace"
        return described

    def _field(self, field: type_descriptors.StructField) -> Schema:
        match field.shape:
            case type_descriptors.StructType() as inner:
                return self._pointer(field.about, self.shape(inner))
            case type_descriptors.ScalarType(json=("quantity" | "int-or-string") as kind):
                return self._pointer(field.about, self._either(kind), default=False)
            case shape:
                described = self._value(shape)
                return {**described, "description": field.about} if field.about else described

    def _value(self, shape: type_descriptors.TypeDesc) -> Schema:
        match shape:
            case type_descriptors.ScalarType(json=("quantity" | "int-or-string") as kind):
                return self._reference(self._either(kind))
            case type_descriptors.ScalarType(json=kind, format=form):
                return {"type": kind, "format": form} if form else {"type": kind}
            case type_descriptors.ListType(item=item) as many:
                return {"type": "array", "items": self._value(item), **_list_extensions(many)}
            case type_descriptors.MapType(value=value):
                return {"type": "object", "additionalProperties": self._value(value)}
            case type_descriptors.StructType():
                return self._reference(self.shape(shape))
        return {"type": "object"} if self._root == V2 else dict(_ANY)

    def _either(self, kind: str) -> str:
        """Add the schema of a number that may be written as a string; return its name."""
        name, form, about, numbers = _EITHER[kind]
        schema: Schema = {"description": about, "oneOf": [{"type": "string"}, {"type": numbers}]}
        if self._root == V2:
            schema = {"description": about, "type": "string"}
        self.found[name] = schema | ({"format": form} if form else {})
        return name

    def _reference(self, name: str) -> Schema:
        return {"$ref": self._root + name}

    def _pointer(self, about: str, name: str, *, default: bool = True) -> Schema:
        """Return a reference with a description, unless that is the type's own, which `kubectl explain` would show
        twice.

        OpenAPI v3 requires allOf around it.
        """
        same = about == self.found.get(name, {}).get("description")
        described: Schema = {} if same else {"description": about}
        if self._root == V2:
            return {**described, **self._reference(name)}
        may_be_empty = default and not self.found.get(name, {}).get("required")
        empty: Schema = {"default": {}} if may_be_empty else {}
        return {**described, **empty, "allOf": [self._reference(name)]}


def _list_extensions(shape: type_descriptors.ListType) -> Schema:
    """Return the merging of a list: its type for the server, its patch strategy for clients."""
    merge_key = shape.merge_key
    keys = shape.map_keys or ((merge_key,) if merge_key else ())
    kind = "map" if keys else "set" if shape.as_set or merge_key == "" else "atomic"
    found: Schema = {"x-kubernetes-list-type": kind}
    if keys:
        found["x-kubernetes-list-map-keys"] = list(keys)
    if merge_key:
        found["x-kubernetes-patch-merge-key"] = merge_key
    if merge_key is not None:
        found["x-kubernetes-patch-strategy"] = "merge"
    return found


_ONLY_V3: Final = ("anyOf", "oneOf", "allOf", "not", "nullable", "default", "x-kubernetes-validations")


def _for_v2(schema: Any) -> Any:
    """Return a structural schema without the keywords that OpenAPI v2 lacks."""
    if isinstance(schema, list):
        return [_for_v2(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {k: v for k, v in schema.items() if k not in _ONLY_V3}
    for key in ("items", "additionalProperties"):
        if key in kept:
            kept[key] = _for_v2(kept[key])
    if "properties" in kept:
        kept["properties"] = {k: _for_v2(v) for k, v in kept["properties"].items()}
    return kept


def schema_name(resource: Resource) -> str:
    """Return `io.k8s.api.core.v1.Secret`; for custom resources the reversed domain of the group,
    `com.example.v1.Widget`.
    """
    if isinstance(resource.type, BuiltInType):
        return f"{resource.type.shape.package}.{resource.kind}"
    return f"{'.'.join(reversed(resource.group.split('.')))}.{resource.version}.{resource.kind}"


def _kind(resource: Resource) -> Schema:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def _paths(resource: Resource) -> Schema:
    base = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    scope = "/namespaces/{namespace}" if resource.namespaced else ""
    collection = f"{base}{scope}/{resource.plural}"
    shared = [_parameter("namespace", "string", "The namespace.", "path")] if resource.namespaced else []
    if resource.verbs == ("create",):  # created and not stored
        post = _verb(resource, "create", "", _WRITE_PARAMETERS, schema_name(resource), body=True)
        return {collection: {"post": post, "parameters": shared}}
    named = [*shared, _parameter("name", "string", "The name of the object.", "path")]
    paths = {
        collection: {**_collection(resource), "parameters": shared},
        f"{collection}/{{name}}": {**_item(resource, ""), "parameters": named},
    }
    for part in resource.changed_by:
        paths[f"{collection}/{{name}}/{part}"] = {**_item(resource, part), "parameters": named}
    for name, asked in resource.transient.items():
        post = _verb(asked, "create", f"Of{resource.kind}", _WRITE_PARAMETERS, schema_name(asked), body=True)
        paths[f"{collection}/{{name}}/{name}"] = {"post": post, "parameters": named}
    if resource.namespaced:
        everywhere = _verb(resource, "list", "ForAllNamespaces", _LIST_PARAMETERS, f"{schema_name(resource)}List")
        paths[f"{base}/{resource.plural}"] = {"get": everywhere}
    return paths


def _collection(resource: Resource) -> Schema:
    operations = {
        "get": _verb(resource, "list", "", _LIST_PARAMETERS, f"{schema_name(resource)}List"),
        "post": _verb(resource, "create", "", _WRITE_PARAMETERS, schema_name(resource), body=True),
    }
    if "deletecollection" in resource.verbs:
        parameters = (*_DELETE_PARAMETERS, *_LIST_PARAMETERS[1:4])
        operations["delete"] = _verb(resource, "deletecollection", "", parameters, _STATUS)
    return operations


def _item(resource: Resource, subresource: str) -> Schema:
    shown = SCALES if subresource == SCALE else resource
    name = schema_name(shown)
    suffix = subresource.capitalize()
    operations = {
        "get": _verb(resource, "read", suffix, (), name),
        "put": _verb(resource, "replace", suffix, _WRITE_PARAMETERS, name, body=True),
        "patch": _verb(resource, "patch", suffix, (*_WRITE_PARAMETERS, ("force", "boolean", "Take over.")), name),
    }
    for operation in operations.values():
        operation["x-kubernetes-group-version-kind"] = _kind(shown)
    kinds = [patches.JSON, patches.MERGE]
    if resource.type.shape is not None:
        kinds.append(patches.STRATEGIC)
    content = {kind: {"schema": {"$ref": V3 + _PATCH}} for kind in kinds}
    operations["patch"]["requestBody"] = {"content": content, "required": True}
    if subresource:
        verbs = resource.changed_by[subresource]
        return {method: operations[method] for method, verb in _PART_METHODS.items() if verb in verbs}
    operations["delete"] = _verb(resource, "delete", "", _DELETE_PARAMETERS, _STATUS)
    return operations


_PART_METHODS: Final = {"get": "get", "put": "update", "patch": "patch"}
_ACTIONS: Final = {"read": "get", "replace": "put", "create": "post"}


def _verb(
    resource: Resource,
    verb: str,
    subresource: str,
    parameters: tuple[tuple[str, str, str], ...],
    answer: str,
    *,
    body: bool = False,
) -> Schema:
    words = "".join(part.capitalize() for part in (resource.group or "core").split("."))
    scope = "Namespaced" if resource.namespaced and subresource != "ForAllNamespaces" else ""
    named = f"{verb}{words}{resource.version.capitalize()}{scope}{resource.kind}{subresource}"
    shown = [_parameter(name, kind, about) for name, kind, about in parameters]
    operation = _operation(named, f"{verb} {resource.kind}", shown, answer)
    operation["tags"] = [f"{words[:1].lower()}{words[1:]}_{resource.version}"]
    operation["x-kubernetes-action"] = _ACTIONS.get(verb, verb)
    operation["x-kubernetes-group-version-kind"] = _kind(resource)
    if body:
        content = {"application/json": {"schema": {"$ref": V3 + answer}}}
        operation["requestBody"] = {"content": content, "required": True}
    return operation


def _operation(name: str, about: str, parameters: list[Schema], answer: str = "") -> Schema:
    response: Schema = {"description": "OK"}
    if answer:
        response["content"] = {"application/json": {"schema": {"$ref": V3 + answer}}}
    return {"operationId": name, "description": about, "parameters": parameters, "responses": {"200": response}}


def _parameter(name: str, kind: str, about: str, where: str = "query") -> Schema:
    required = {"required": True} if where == "path" else {}
    return {"name": name, "in": where, "description": about, "schema": {"type": kind, "uniqueItems": True}, **required}
