"""Lists, tables and metadata as bytes, from stored objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import yaml

from unbounded_apiserver import columns
from unbounded_apiserver.collection import StoredObject
from unbounded_apiserver.http.api_call import AnswerForm
from unbounded_apiserver.reads import ObjectPage
from unbounded_apiserver.resource_model import Resource, TableColumn, served_body, without_kind
from unbounded_apiserver.status import bad_request

Object = Mapping[str, Any]
PART_BYTES: Final = 256 * 1024
INCLUDE: Final = frozenset({"", "Metadata", "Object", "None"})


def check_include(include: str) -> None:
    """Check the includeObject parameter of tables. Raises StatusError (400)."""
    if include not in INCLUDE:
        raise bad_request(
            f'Unable to convert to Table as requested: includeObject: Invalid value: "{include}": '
            "must be 'Metadata', 'Object', 'None', or empty"
        )


def one(resource: Resource, body: bytes, form: AnswerForm, include: str = "") -> bytes:
    """Return one object, converted already to the requested version, in the requested form."""
    match form.convert:
        case "Table":
            obj = msgspec.json.decode(body)
            version = obj["metadata"].get("resourceVersion")
            return _out(table(resource, [obj], {"resourceVersion": version} if version else {}, form, include), form)
        case "PartialObjectMetadata":
            return _out(partial(msgspec.json.decode(body), form.version), form)
        case "PartialObjectMetadataList":
            raise bad_request("you requested PartialObjectMetadataList, but the requested object is not a list")
    return _out(msgspec.json.decode(body), form) if form.yaml else body


def page(resource: Resource, found: ObjectPage, form: AnswerForm, include: str = "") -> Iterator[bytes]:
    """Yield a list in the requested form, part by part, so that a long list is never in memory as a whole."""
    meta = _list_meta(found)
    match form.convert:
        case "Table":
            yield _out(table(resource, _decoded(resource, found.records), meta, form, include), form)
            return
        case "PartialObjectMetadataList" | "PartialObjectMetadata":
            items = [partial(obj, form.version) for obj in _decoded(resource, found.records)]
            kind, version = "PartialObjectMetadataList", f"meta.k8s.io/{form.version}"
            yield _out({"kind": kind, "apiVersion": version, "metadata": meta, "items": items}, form)
            return
    if resource.custom:
        meta.setdefault("continue", "")
    parts = _plain_list(resource, found.records, meta)
    if form.yaml:
        yield _out(msgspec.json.decode(b"".join(parts)), form)
    else:
        yield from parts


def _plain_list(resource: Resource, records: Iterable[StoredObject], meta: Object) -> Iterator[bytes]:
    """Join stored objects; those of built-in kinds do not repeat apiVersion and kind."""
    kind = resource.list_kind or f"{resource.kind}List"
    head = msgspec.json.encode({"kind": kind, "apiVersion": resource.api_version, "metadata": meta})
    part, size = [b'%b,"items":[' % head[:-1]], 0
    between = b""
    for record in records:
        body = served_body(resource, record.body)
        part += (between, body if resource.custom else without_kind(resource, body))
        between = b","
        size += len(body)
        if size >= PART_BYTES:
            yield b"".join(part)
            part, size = [], 0
    yield b"".join([*part, b"]}"])


def _decoded(resource: Resource, records: Iterable[StoredObject]) -> list[dict[str, Any]]:
    return [msgspec.json.decode(served_body(resource, record.body)) for record in records]


def _list_meta(found: ObjectPage) -> dict[str, Any]:
    meta: dict[str, Any] = {"resourceVersion": str(found.revision)}
    if found.token:
        meta["continue"] = found.token
    if found.remaining is not None:
        meta["remainingItemCount"] = found.remaining
    return meta


def partial(obj: Object, version: str) -> dict[str, Any]:
    return {"kind": "PartialObjectMetadata", "apiVersion": f"meta.k8s.io/{version}", "metadata": obj["metadata"]}


def table(
    resource: Resource, objects: Sequence[Object], meta: Object, form: AnswerForm, include: str, *, headed: bool = True
) -> dict[str, Any]:
    """Return a Table with a row for each object; `headed` is False for watch events after the first."""
    shown = resource.columns or (columns.NAME, columns.AGE)
    rows = []
    for obj in objects:
        row: dict[str, Any] = {"cells": [cell(column, obj) for column in shown]}
        if include == "Object":
            row["object"] = obj
        elif include != "None":
            row["object"] = partial(obj, form.version)
        else:
            row["object"] = None
        rows.append(row)
    heads = [
        {
            "name": column.name,
            "type": column.type,
            "format": column.format,
            "description": column.description,
            "priority": column.priority,
        }
        for column in shown
    ]
    return {
        "kind": "Table",
        "apiVersion": f"meta.k8s.io/{form.version}",
        "metadata": meta,
        "columnDefinitions": heads if headed else None,
        "rows": rows,
    }


def cell(column: TableColumn, obj: Object) -> Any:
    """Return the value of a column for an object."""
    if column.cell is not None:
        return column.cell(obj)
    found = columns.compile_path(column.path)(obj)
    if not found or found[0] is None:
        return None
    value = found[0]
    match column.type:
        case "string":
            return value if isinstance(value, str) else msgspec.json.encode(value).decode()
        case "date":
            return columns.age(value) if isinstance(value, str) else None
        case "integer":
            return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        case "number":
            return value if isinstance(value, int | float) and not isinstance(value, bool) else None
        case "boolean":
            return value if isinstance(value, bool) else None
    return None


def _out(value: Any, form: AnswerForm) -> bytes:
    if form.yaml:
        return yaml.dump(value, Dumper=yaml.CSafeDumper, sort_keys=True, allow_unicode=True).encode()
    return msgspec.json.encode(value)
