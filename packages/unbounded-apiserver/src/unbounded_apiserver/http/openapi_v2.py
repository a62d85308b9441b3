"""Conversion of the paths of OpenAPI v3 into those of OpenAPI v2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Schema = dict[str, Any]
BODY: Final = {"in": "body", "name": "body", "required": True}
_V3_ROOT: Final = "#/components/schemas/"
_V2_ROOT: Final = "#/definitions/"


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
