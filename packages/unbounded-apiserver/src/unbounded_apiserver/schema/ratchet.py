"""Ratcheting: an update does not fail for an invalid value that it does not change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unbounded_apiserver.schema.evaluate import MISSING, key_of
from unbounded_apiserver.schema.messages import Path, SchemaProblem, json_equal, steps
from unbounded_apiserver.schema.structure import Raw


def changed_only(problems: list[SchemaProblem], raw: Raw, value: Any, old: Any) -> list[SchemaProblem]:
    """Return the problems of values that differ from their old ones."""
    return [problem for problem in problems if not _unchanged(problem.at, raw, value, old)]


def _unchanged(path: Path, raw: Raw, value: Any, old: Any) -> bool:
    """Return whether the value at the path, or the nearest one above with an old counterpart, is unchanged."""
    schema: Any = raw
    for step in steps(path):
        if not isinstance(schema, Mapping):
            break
        inner, inner_old, inner_schema = _descend(schema, step, value, old)
        if inner_old is MISSING:
            known = isinstance(value, dict) and isinstance(old, dict) and _granular(schema)
            return False if known else json_equal(value, old)
        value, old, schema = inner, inner_old, inner_schema
    return json_equal(value, old)


def _granular(schema: Raw) -> bool:
    return schema.get("x-kubernetes-map-type") != "atomic"


def _descend(schema: Raw, step: str | int, value: Any, old: Any) -> tuple[Any, Any, Any]:
    if isinstance(step, int):
        keys = tuple(schema.get("x-kubernetes-list-map-keys") or ()) or None
        desired = key_of(value[step], keys)
        if desired is None or not isinstance(old, list):
            return value[step], MISSING, None
        match = next((item for item in old if key_of(item, keys) == desired), MISSING)
        return value[step], match, schema.get("items")
    if not isinstance(old, dict) or not _granular(schema) or step not in value:
        return None, MISSING, None
    inner = (schema.get("properties") or {}).get(step, schema.get("additionalProperties"))
    return value[step], old.get(step, MISSING), inner
