"""The OpenAPI document, from the types of requests and answers."""

from __future__ import annotations

import inspect
from typing import Any, Final

import msgspec

from unbounded.explain.chain import KINDS, NAMESPACED, TOPICS
from unbounded.explain.links import ExplainLink, LinkCode, Topic
from unbounded.explain.results import RELEASE, Explanation
from unbounded.explain_api.releases import HEADER
from unbounded.explain_api.requests import PlanRequest
from unbounded.plan.model import Plan

TEMPLATE: Final = "#/components/schemas/{name}"
_ERRORS: Final = {
    "400": "The request is malformed, or the release of the client does not fit.",
    "401": "There are no credentials, or the API server does not accept them.",
    "403": "The caller may not read the object.",
    "404": "The object does not exist.",
    "429": "The caller, or all callers, have too many requests running.",
    "504": "There is no answer within a minute.",
}
_STATUS: Final = {
    "type": "object",
    "description": "An error, as a Kubernetes API reports it.",
    "required": ["kind", "apiVersion", "status", "message", "reason", "code"],
    "properties": {
        "kind": {"const": "Status"},
        "apiVersion": {"const": "v1"},
        "metadata": {"type": "object"},
        "status": {"const": "Failure"},
        "message": {"type": "string"},
        "reason": {"type": "string"},
        "code": {"type": "integer"},
        "details": {"type": "object"},
    },
}


def document() -> dict[str, Any]:
    """Return the document as JSON values."""
    types = (Explanation, Plan, PlanRequest)
    _, components = msgspec.json.schema_components(types, ref_template=TEMPLATE)
    schemas = {name: _described(name, schema) for name, schema in sorted(components.items())}
    link = schemas[ExplainLink.__name__]["properties"]
    link["code"]["examples"] = sorted(LinkCode)  # those that no operation, condition or phase has
    link["topic"]["examples"] = sorted(topic.value for topic in Topic)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Explanations and plans of Unbounded",
            "version": RELEASE,
            "description": "Each answer is read with the caller's rights. What the caller may not read is left out, "
            "and the answer says so. Clients ignore fields and codes that they do not know.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": {
            "/explain/{kind}/{name}": {"get": _explain_path(namespaced=False)},
            "/explain/{kind}/{namespace}/{name}": {"get": _explain_path(namespaced=True)},
            "/plan": {"post": _plan_path()},
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {**schemas, "Status": _STATUS},
        },
    }


def _explain_path(*, namespaced: bool) -> dict[str, Any]:
    kinds = sorted(name for name, topic in TOPICS.items() if (topic in NAMESPACED) is namespaced)
    known = ", ".join(sorted(kind.kind for topic, kind in KINDS.items() if (topic in NAMESPACED) is namespaced))
    parameters = [_in_path("kind", {"type": "string", "enum": kinds}, f"Name of the kind, one of {known}.")]
    parameters += [_in_path("namespace", {"type": "string"}, "Namespace of the object.")] * namespaced
    parameters += [_in_path("name", {"type": "string"}, "Name of the object."), _release()]
    return {
        "operationId": "explainNamespaced" if namespaced else "explain",
        "summary": "Explain what blocks an object, down to the first cause",
        "parameters": parameters,
        "responses": {"200": _content("The explanation.", "Explanation"), **_errors()},
    }


def _plan_path() -> dict[str, Any]:
    return {
        "operationId": "plan",
        "summary": "Forecast the effects of writes; nothing is written",
        "parameters": [_release()],
        "requestBody": {"required": True, **_content("", "PlanRequest")},
        "responses": {
            "200": _content("The plan.", "Plan"),
            "413": _content("The body has more than 1 MiB.", "Status"),
            "422": _content("A field of the body, or of an object in it, is invalid.", "Status"),
            **_errors(),
        },
    }


def _in_path(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": schema, "description": description}


def _release() -> dict[str, Any]:
    return {
        "name": HEADER,
        "in": "header",
        "schema": {"type": "string"},
        "description": "Release of the client. It may differ from that of the server by one minor release.",
    }


def _content(description: str, schema: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": TEMPLATE.format(name=schema)}}}
    return {"content": content, **({"description": description} if description else {})}


def _errors() -> dict[str, Any]:
    return {code: _content(text, "Status") for code, text in _ERRORS.items()}


def _described(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with descriptions of its fields, which the docstring of its class has."""
    text = inspect.cleandoc(schema.get("description", ""))
    summary, _, attributes = text.partition("\n\nAttributes:\n")
    found = {**schema, "description": summary.replace("\n", " ")}
    if name in _TYPES and attributes:
        fields = _field_texts(attributes)
        encoded = dict(zip(_TYPES[name].__struct_fields__, _TYPES[name].__struct_encode_fields__, strict=True))
        properties = {key: dict(value) for key, value in schema.get("properties", {}).items()}
        for field, words in fields.items():
            if (key := encoded.get(field)) is not None:
                properties[key] = _with_description(properties[key], words)
        found["properties"] = properties
    return found


def _with_description(schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {**schema, "description": schema.get("description", text)}


def _field_texts(attributes: str) -> dict[str, str]:
    """Return the description of each field of an Attributes section."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in inspect.cleandoc(attributes).splitlines():
        if not line.startswith(" ") and ": " in line:
            heads, _, words = line.partition(": ")
            names = [one.strip() for one in heads.split(",")]
            found.update(dict.fromkeys(names, words))
        else:
            found.update({one: f"{found[one]} {line.strip()}" for one in names})
    return found


def _types() -> dict[str, type[msgspec.Struct]]:
    from unbounded.explain import links, timeline  # noqa: PLC0415  # only here
    from unbounded.plan import model  # noqa: PLC0415

    modules = (links, timeline, model)
    found = [one for module in modules for one in vars(module).values() if isinstance(one, type)]
    return {one.__name__: one for one in (*found, Explanation, PlanRequest) if issubclass(one, msgspec.Struct)}


_TYPES: Final = _types()
DOCUMENT: Final = msgspec.json.encode(document())
