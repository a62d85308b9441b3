"""Decoding of request bodies into objects in the form of their type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from unbounded_apiserver import field_errors, gojson, metadata, protobuf, status, type_descriptors
from unbounded_apiserver.options import WriteOptions
from unbounded_apiserver.resource_model import Object, Resource
from unbounded_apiserver.status import StatusError

SUMMARY: Final = 30
_HEAD: Final = r'struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }'


class RequestDocument(msgspec.Struct, frozen=True):
    """A decoded body, and the bytes that it was decoded from."""

    value: Any
    data: bytes
    form: Literal["json", "yaml", "protobuf"] = "json"
    duplicate_keys: tuple[str, ...] = ()  # messages about duplicate keys in YAML

    @property
    def name(self) -> str:
        """The name in the object's metadata; '' where there is none."""
        meta = self.value.get("metadata") if isinstance(self.value, dict) else None
        name = meta.get("name") if isinstance(meta, dict) else None
        return name if isinstance(name, str) else ""

    @classmethod
    def read(cls, data: bytes, kind: str, *, yaml: bool = False) -> RequestDocument:
        """Decode a body. Raises StatusError (400) if it is not JSON (or YAML)."""
        try:
            if yaml:
                value, repeated = gojson.decode_yaml(data)
                return cls(value, data, "yaml", tuple(repeated))
            return cls(gojson.decode(data), data)
        except gojson.MalformedJson as error:
            raise _unrecognized(kind, f"couldn't get version/kind; json parse error: {error}", data) from error

    @classmethod
    def read_configuration(cls, data: bytes) -> RequestDocument:
        """Decode the body of a server-side apply, YAML or JSON. Raises StatusError (400)."""
        try:
            value, repeated = gojson.decode_yaml(data)
        except gojson.MalformedJson as error:
            raise status.bad_request(f"error decoding YAML: {error}") from error
        return cls(value, data, "yaml", tuple(repeated))

    @classmethod
    def read_protobuf(cls, data: bytes, shape: type_descriptors.StructType) -> RequestDocument:
        """Decode a body in protobuf. Raises StatusError (400)."""
        try:
            return cls(protobuf.decode(data, shape), data, "protobuf")
        except protobuf.NotProtobuf as error:
            if error.kind:
                what = f'{error.kind} in version "{error.version}"'
                raise status.bad_request(f"{what} cannot be handled as a {shape.name}: {error}") from error
            raise _unrecognized(shape.name, str(error), data) from error


def _unrecognized(kind: str, why: str, data: bytes) -> StatusError:
    return status.bad_request(f"the object provided is unrecognized (must be of type {kind}): {why} ({_summary(data)})")


def _summary(data: bytes) -> str:
    if not data:
        return "<empty>"
    more = " ..." if len(data) > SUMMARY else ""
    head = data[:SUMMARY]
    return (head.decode(errors="replace") if data.startswith(b"{") else head.hex()) + more


def decode_object(resource: Resource, document: RequestDocument, options: WriteOptions) -> Object:
    """Return the client's object, decoded, pruned and defaulted. Raises StatusError (400)."""
    obj = _object(resource, document)
    _check_kind(resource, obj, document)
    twice = _duplicate_keys(document, obj) if options.validation != "Ignore" else []
    try:
        unknown = normalize(resource, obj)
    except type_descriptors.WrongType as error:
        raise _cannot_handle(resource, obj["kind"], str(error)) from error
    if options.validation == "Strict" and (twice or unknown):
        if document.form == "yaml" and twice:
            twice = ["\n  ".join(("yaml: unmarshal errors:", *twice))]
        raise _cannot_handle(resource, obj["kind"], f"strict decoding error: {', '.join([*twice, *unknown])}")
    if options.validation == "Warn":
        options.warnings.extend([*twice, *unknown])
    options.warnings.extend(metadata.drop_repeated_owners(obj["metadata"], patched=False))
    return obj


def _duplicate_keys(document: RequestDocument, obj: Object) -> list[str]:
    """Return the messages about duplicate keys of a document."""
    if document.form == "json":
        return [f'duplicate field "{path}"' for path in gojson.duplicate_keys(document.data, obj)]
    return list(document.duplicate_keys)


def decode_patched(
    resource: Resource, obj: Object, options: WriteOptions, shown: str = "", message: Sequence[str] = ()
) -> Object:
    """Return a patched object, decoded, pruned and defaulted.

    Args:
        shown: the text that an error repeats; the patched object when it is empty.
        message: messages of strict validation about the patch itself.
    Raises:
        StatusError: 422, as kube-apiserver does for patches.
    """
    before = shown
    if not shown and options.validation == "Strict":
        before = field_errors.quoted(obj)  # decoding changes the object
    for key, name in (("apiVersion", "apiVersion"), ("kind", "Kind")):
        if obj.get(key) is None and resource.custom:
            text = field_errors.quoted(obj)
            raise _bad_patch(before or text, f"Object '{name}' is missing in '{text}'")
    obj["kind"] = obj.get("kind") or resource.kind
    obj["apiVersion"] = obj.get("apiVersion") or resource.api_version
    if not isinstance(obj["kind"], str) or not (resource.custom or obj["kind"] == resource.kind):
        raise _bad_patch(before or field_errors.quoted(obj), f"kind must be {resource.kind}")
    _check_version(resource, obj)
    try:
        complaints = [*message, *normalize(resource, obj)]
    except type_descriptors.WrongType as error:
        raise _bad_patch(before or field_errors.quoted(obj), str(error)) from error
    if complaints and options.validation == "Strict":
        raise _bad_patch(before, f"strict decoding error: {', '.join(complaints)}")
    if options.validation == "Warn":
        options.warnings.extend(complaints)
    options.warnings.extend(metadata.drop_repeated_owners(obj["metadata"], patched=True))
    return obj


def normalize(resource: Resource, obj: Object) -> list[str]:
    """Decode and default an object in place; return messages about the fields that were left out. Raises WrongType."""
    unknown = resource.type.decode(obj)
    obj.setdefault("apiVersion", resource.api_version)
    obj.setdefault("kind", resource.kind)
    resource.type.default(obj)
    return [f'unknown field "{path}"' for path in unknown] if unknown else unknown


def _bad_patch(shown: str, why: str) -> StatusError:
    return status.invalid("", "", "", [field_errors.invalid("patch", shown, why)])


def _cannot_handle(resource: Resource, kind: str, why: str) -> StatusError:
    return status.bad_request(f'{kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {why}')


def _object(resource: Resource, document: RequestDocument) -> Object:
    if isinstance(document.value, dict):
        return document.value
    what = {list: "array", str: "string", bool: "bool", int: "number", float: "number"}.get(
        type(document.value), "null"
    )
    why = f"couldn't get version/kind; json parse error: json: cannot unmarshal {what} into Go value of type {_HEAD}"
    raise _unrecognized(resource.kind, why, document.data)


def _check_kind(resource: Resource, obj: Object, document: RequestDocument) -> None:
    """Check apiVersion and kind: custom resources require them, built-in ones may leave them to the URL."""
    if obj.get("kind") == resource.kind and obj.get("apiVersion") == resource.api_version:
        return
    for key, expected in (("kind", resource.kind), ("apiVersion", resource.api_version)):
        if not isinstance(obj.get(key, ""), str):
            raise _cannot_handle(resource, resource.kind, f"{key} must be a string")
        if not obj.get(key):
            if resource.custom:
                shown = document.data.decode(errors="replace")
                name = "Kind" if key == "kind" else key
                raise _unrecognized(resource.kind, f"Object '{name}' is missing in '{shown}'", document.data)
            obj[key] = expected
    _check_version(resource, obj)
    if obj["kind"] != resource.kind and not resource.custom:
        version, group = resource.version, resource.group or "core"
        why = f"converting ({version}.{obj['kind']}) to ({group}.{resource.kind}): unknown conversion"
        raise _cannot_handle(resource, obj["kind"], why)


def _check_version(resource: Resource, obj: Object) -> None:
    given = obj.get("apiVersion")
    if given != resource.api_version:
        why = f"does not match the expected API version ({resource.api_version})"
        raise status.bad_request(f"the API version in the data ({given}) {why}")
