"""The OpenAPI v2 document: paths from those of v3, in the protobuf form of gnostic, the only form that kubectl reads.

kubectl validates documents of kind List with it, and everything else with OpenAPI v3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

Schema = dict[str, Any]
BODY: Final = {"in": "body", "name": "body", "required": True}
_V3_ROOT: Final = "#/components/schemas/"
_V2_ROOT: Final = "#/definitions/"
MEDIA_TYPE: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
ACCEPTED: Final = (MEDIA_TYPE, MEDIA_TYPE.replace(".v2.", ".v2@"))
_TEXTS: Final = {"$ref": 1, "format": 2, "title": 3, "description": 4, "pattern": 13}
_NUMBERS: Final = {
    "maxLength": 11,
    "minLength": 12,
    "maxItems": 14,
    "minItems": 15,
    "maxProperties": 17,
    "minProperties": 18,
}
_REQUIRED, _ENUM, _ADDITIONAL, _TYPE, _ITEMS, _PROPERTIES, _EXTENSION = 19, 20, 21, 22, 23, 25, 31


def paths(found: Mapping[str, Schema]) -> Schema:
    """Return each path with its operations."""
    return {path: _item(item) for path, item in found.items()}


def _item(item: Schema) -> Schema:
    shared = [_parameter(parameter) for parameter in item.get("parameters", ())]
    operations = {method: _operation(value) for method, value in item.items() if method != "parameters"}
    return operations | ({"parameters": shared} if shared else {})


def _operation(operation: Schema) -> Schema:
    parameters = [_parameter(parameter) for parameter in operation["parameters"]]
    kept = {key: value for key, value in operation.items() if key != "requestBody"}
    body = operation.get("requestBody")
    if body is not None:
        media, content = list(body["content"]), next(iter(body["content"].values()))
        kept["consumes"] = media
        parameters.append({**BODY, "schema": _reference(content["schema"])})
    responses = {code: _response(response) for code, response in operation["responses"].items()}
    return {**kept, "parameters": parameters, "produces": ["application/json"], "responses": responses}


def _parameter(parameter: Schema) -> Schema:
    kept = {key: value for key, value in parameter.items() if key != "schema"}
    return {**kept, "type": parameter["schema"]["type"]}


def _response(response: Schema) -> Schema:
    content = response.get("content")
    answered = {"schema": _reference(content["application/json"]["schema"])} if content else {}
    return {"description": response["description"], **answered}


def _reference(schema: Schema) -> Schema:
    return {"$ref": schema["$ref"].replace(_V3_ROOT, _V2_ROOT)}


def encode(document: Mapping[str, Any]) -> bytes:
    """Encode a Document message: swagger, info, definitions."""
    info = _text(1, document["info"]["title"]) + _text(2, document["info"]["version"])
    definitions = _named(document["definitions"])
    return _text(1, document["swagger"]) + _part(2, info) + _part(8, b"") + _part(9, definitions)


def _schema(schema: Mapping[str, Any]) -> bytes:
    parts = [_text(number, schema[key]) for key, number in _TEXTS.items() if isinstance(schema.get(key), str)]
    parts += [_number(number, schema[key]) for key, number in _NUMBERS.items() if isinstance(schema.get(key), int)]
    parts += [_text(_REQUIRED, name) for name in schema.get("required", ())]
    parts += [_part(_ENUM, _part(2, msgspec.json.encode(value))) for value in schema.get("enum", ())]
    additional = schema.get("additionalProperties")
    if isinstance(additional, dict):
        parts.append(_part(_ADDITIONAL, _part(1, _schema(additional))))
    elif additional is True:
        parts.append(_part(_ADDITIONAL, _number(2, 1)))
    if "type" in schema:
        parts.append(_part(_TYPE, _text(1, schema["type"])))
    if isinstance(schema.get("items"), dict):
        parts.append(_part(_ITEMS, _part(1, _schema(schema["items"]))))
    if schema.get("properties"):
        parts.append(_part(_PROPERTIES, _named(schema["properties"])))
    parts += [_part(_EXTENSION, _extension(key, value)) for key, value in schema.items() if key.startswith("x-")]
    return b"".join(parts)


def _named(schemas: Mapping[str, Any]) -> bytes:
    return b"".join(_part(1, _text(1, name) + _part(2, _schema(schema))) for name, schema in schemas.items())


def _extension(name: str, value: Any) -> bytes:
    """Encode a NamedAny whose value is YAML, of which JSON is a subset."""
    return _text(1, name) + _part(2, _part(2, msgspec.json.encode(value)))


def _text(number: int, text: str) -> bytes:
    return _part(number, text.encode())


def _part(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value & ((1 << 64) - 1))


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
