"""Decode bodies in the protobuf form of Kubernetes, the default of kubelet and kubectl, into plain JSON values.

There is no encoder: answers are JSON, which every client accepts. The shape of a type describes the fields, and
`field_numbers` their numbers. Fields without a number there are skipped, as Kubernetes skips those of a newer version.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from unbounded_apiserver import type_descriptors
from unbounded_apiserver.field_numbers import INLINE, NUMBERS

MAGIC: Final = b"k8s\x00"
MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"
MAX_DEPTH: Final = 64
EMPTY: Final = memoryview(b"")

_VARINT, _FIXED64, _BYTES, _END, _FIXED32 = 0, 1, 2, 4, 5


class NotProtobuf(Exception):
    """Not protobuf. `kind` and `version` come from the envelope, '' where it cannot be decoded."""

    def __init__(self, why: str, kind: str = "", version: str = "") -> None:
        super().__init__(why)
        self.kind = kind
        self.version = version


@dataclass(frozen=True)
class _Entry:
    """A field with a number: its shape, or the plan of a message whose fields are inlined."""

    name: str
    shape: type_descriptors.TypeDesc
    inline: _Plan | None = None


@dataclass(frozen=True)
class _Plan:
    """The fields of a type by number."""

    name: str
    fields: Mapping[int, _Entry]


# by identity; the reference to the shape keeps its id from being used again
_PLANS: Final[dict[int, tuple[type_descriptors.StructType, _Plan]]] = {}


def readable(shape: type_descriptors.StructType | None) -> bool:
    """Return whether the field numbers of a kind are known."""
    return shape is not None and (shape.package, shape.name) in NUMBERS


def decode(data: bytes, expected: type_descriptors.StructType) -> dict[str, Any]:
    """Return the object in an envelope, with apiVersion and kind. For another kind, return only these two.

    Raises:
        NotProtobuf
    """
    if not data:
        raise NotProtobuf("empty data")
    if not data.startswith(MAGIC):
        prefix = " ".join(map(str, MAGIC))
        raise NotProtobuf(f"provided data does not appear to be a protobuf message, expected prefix [{prefix}]")
    if len(data) == len(MAGIC):
        raise NotProtobuf("empty body")
    api_version, kind, raw = _envelope(memoryview(data)[len(MAGIC) :])
    head = {name: value for name, value in (("apiVersion", api_version), ("kind", kind)) if value}
    if (kind or expected.name) != expected.name:
        return {**head, "metadata": {}}
    try:
        return {**head, **_message(_plan(expected), raw, 0)}
    except NotProtobuf as error:
        raise NotProtobuf(str(error), kind, api_version.rpartition("/")[2]) from error


def _envelope(data: memoryview) -> tuple[str, str, memoryview]:
    """Return apiVersion, kind and the object of a runtime.Unknown."""
    meta, raw = {1: "", 2: ""}, EMPTY
    for number, wire, value in _parts("Unknown", data):
        if number == 1:
            for inner, inner_wire, text in _parts("TypeMeta", _bytes("TypeMeta", value, wire)):
                if inner in meta:
                    meta[inner] = _text("Kind" if inner == 2 else "APIVersion", text, inner_wire)
        elif number == 2:
            raw = _bytes("Raw", value, wire)
    return meta[1], meta[2], raw


def _plan(shape: type_descriptors.StructType) -> _Plan:
    known = _PLANS.get(id(shape))
    if known is None:
        plan = _Plan(shape.name, _entries(shape.package, shape.name, shape.members()))
        known = _PLANS[id(shape)] = shape, plan
    return known[1]


def _entries(package: str, name: str, members: Mapping[str, type_descriptors.StructField]) -> dict[int, _Entry]:
    found: dict[int, _Entry] = {}
    for number, field in NUMBERS.get((package, name), {}).items():
        if field.startswith(INLINE):
            inner = field.removeprefix(INLINE)
            found[number] = _Entry(inner, type_descriptors.STRING, _Plan(inner, _entries(package, inner, members)))
        elif field in members and not isinstance(members[field].shape, type_descriptors.AnyType):
            found[number] = _Entry(field, members[field].shape)
    return found


def _message(plan: _Plan, data: memoryview, depth: int) -> dict[str, Any]:
    if depth > MAX_DEPTH:
        raise NotProtobuf("exceeded max depth")
    result: dict[str, Any] = {}
    for number, wire, value in _parts(plan.name, data):
        entry = plan.fields.get(number)
        if entry is None:
            continue
        name, shape = entry.name, entry.shape
        if entry.inline is not None:
            result.update(_message(entry.inline, _bytes(name, value, wire), depth + 1))
        elif isinstance(shape, type_descriptors.ListType):
            result.setdefault(name, []).extend(_elements(name, shape.item, value, wire, depth))
        elif isinstance(shape, type_descriptors.MapType):
            key, item = _map_entry(name, shape.value, _bytes(name, value, wire), depth)
            result.setdefault(name, {})[key] = item
        else:
            result[name] = _value(name, shape, value, wire, depth)
    return result


def _elements(name: str, item: type_descriptors.TypeDesc, value: Any, wire: int, depth: int) -> Iterator[Any]:
    """Yield the elements of a repeated field; numbers may be packed, many at once."""
    if isinstance(item, type_descriptors.ScalarType) and item.json in {"integer", "boolean"} and wire == _BYTES:
        at = 0
        while at < len(value):
            number, at = _varint(value, at)
            yield _value(name, item, number, _VARINT, depth)
    else:
        yield _value(name, item, value, wire, depth)


def _map_entry(name: str, shape: type_descriptors.TypeDesc, data: memoryview, depth: int) -> tuple[str, Any]:
    """Return key (1) and value (2) of an entry; a list is a message of its own, with its elements as field 1."""
    key, item, item_wire = "", EMPTY if not _is_varint(shape) else 0, _VARINT if _is_varint(shape) else _BYTES
    for number, wire, value in _parts(name, data):
        if number == 1:
            key = _text(name, value, wire)
        elif number == 2:
            item, item_wire = value, wire
    if isinstance(shape, type_descriptors.ListType):
        parts = _parts(name, _bytes(name, item, item_wire))
        return key, [_value(name, shape.item, value, wire, depth + 1) for number, wire, value in parts if number == 1]
    return key, _value(name, shape, item, item_wire, depth)


def _is_varint(shape: type_descriptors.TypeDesc) -> bool:
    return isinstance(shape, type_descriptors.ScalarType) and shape.json in {"integer", "boolean"}


def _value(name: str, shape: type_descriptors.TypeDesc, value: Any, wire: int, depth: int) -> Any:
    if isinstance(shape, type_descriptors.StructType):
        return _message(_plan(shape), _bytes(name, value, wire), depth + 1)
    if not isinstance(shape, type_descriptors.ScalarType):
        return None
    if _is_varint(shape):
        if wire != _VARINT:
            raise _wrong_wire(name, wire)
        return bool(value) if shape.json == "boolean" else _signed(value, 32 if shape is type_descriptors.INT32 else 64)
    if shape.format == "byte":
        return base64.b64encode(_bytes(name, value, wire)).decode()
    if shape.format == "date-time":
        return _time(_numbers(name, _bytes(name, value, wire)), micro=shape.go.endswith("MicroTime"))
    if shape is type_descriptors.INT_OR_STRING:
        return _int_or_string(name, _bytes(name, value, wire))
    if shape.json == "quantity":
        parts = _parts("Quantity", _bytes(name, value, wire))
        return next((_text("String", text, inner) for number, inner, text in parts if number == 1), "0")
    return _text(name, value, wire)


def _int_or_string(name: str, data: memoryview) -> int | str:
    kind, number_value, text = 0, 0, ""
    for number, wire, value in _parts("IntOrString", data):
        if number == 3:
            text = _text("StrVal", value, wire)
        elif number in {1, 2}:
            if wire != _VARINT:
                raise _wrong_wire(name, wire)
            kind, number_value = (value, number_value) if number == 1 else (kind, _signed(value, 32))
    return text if kind else number_value


def _numbers(name: str, data: memoryview) -> Mapping[int, int]:
    """Return the numbers of a message by field number."""
    found: dict[int, int] = {}
    for number, wire, value in _parts(name, data):
        if wire == _VARINT:
            found[number] = _signed(value, 64)
    return found


def _signed(value: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return ((value & (2 * half - 1)) ^ half) - half


def _text(name: str, value: Any, wire: int) -> str:
    try:
        return str(_bytes(name, value, wire), "utf-8")
    except UnicodeDecodeError as error:
        raise NotProtobuf(f"{name} is not UTF-8") from error


def _bytes(name: str, value: Any, wire: int) -> memoryview:
    if wire != _BYTES:
        raise _wrong_wire(name, wire)
    return memoryview(value)


def _wrong_wire(name: str, wire: int) -> NotProtobuf:
    go = "ObjectMeta" if name == "metadata" else name[:1].upper() + name[1:]
    return NotProtobuf(f"proto: wrong wireType = {wire} for field {go}")


def _time(parts: Mapping[int, int], *, micro: bool) -> str | None:
    """Return a time as RFC 3339; the zero time of Go is null."""
    if not parts:
        return None
    try:
        moment = datetime.fromtimestamp(parts.get(1, 0), UTC)
    except (ValueError, OverflowError, OSError):
        return None
    text = moment.strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{max(0, parts.get(2, 0)) // 1000 % 1_000_000:06d}Z" if micro else f"{text}Z"


def _parts(name: str, data: memoryview) -> Iterator[tuple[int, int, Any]]:
    """Yield field number, wire type and value (a number or bytes) of each field of a message, in order."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == _END:
            raise NotProtobuf(f"proto: {name}: wiretype end group for non-group")
        if number == 0:
            raise NotProtobuf(f"proto: {name}: illegal tag {number} (wire type {wire})")
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        if wire == _BYTES:
            size, at = _varint(data, at)
        elif wire in {_FIXED64, _FIXED32}:
            size = 8 if wire == _FIXED64 else 4
        else:
            raise NotProtobuf(f"proto: illegal wireType {wire}")
        if at + size > len(data):
            raise NotProtobuf("unexpected EOF")
        yield number, wire, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(data):
            raise NotProtobuf("unexpected EOF")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), at
    raise NotProtobuf("proto: integer overflow")
