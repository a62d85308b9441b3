"""Patches of objects: JSON merge patch, JSON patch, strategic merge patch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from unbounded_apiserver import gojson, json_patch, strategic_merge
from unbounded_apiserver.status import StatusError, bad_request, rejected_patch
from unbounded_apiserver.type_desc import StructType

JSON: Final = "application/json-patch+json"
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"
MAX_OPERATIONS: Final = 10_000

Object = dict[str, Any]


def apply(kind: str, data: bytes, obj: Object, shape: StructType | None) -> Object:
    """Return the patched object; `obj` is not used afterwards.

    Args:
        kind: the media type of the patch, one of those above.
        shape: has the merge keys of a strategic merge patch.
    Raises:
        StatusError: the patch cannot be parsed or applied.
    """
    patch = _decoded(data)
    try:
        if kind == JSON:
            return _json_patch(patch, obj)
        if not isinstance(patch, dict):
            what = {list: "array", str: "string", bool: "bool", type(None): "null"}.get(type(patch), "number")
            raise bad_request(
                f"error decoding patch: json: cannot unmarshal {what} into Go value of type map[string]interface {{}}"
            )
        if kind == STRATEGIC and shape is not None:
            return strategic_merge.merge(patch, obj, shape)
        return merge_object(patch, obj)
    except RecursionError as error:
        raise bad_request("error decoding patch: exceeded max depth") from error


def strict_errors(kind: str, data: bytes) -> list[str]:
    """Return the messages of strict validation about a patch: duplicate fields, members that no operation has."""
    patch = _decoded(data)
    if kind != JSON:
        return [f'duplicate field "{path}"' for path in gojson.duplicate_keys(data, patch)]
    unknown = [f'json patch unknown field "{path}"' for path in json_patch.unknown(patch or ())]
    return unknown + [f'json patch duplicate field "{path}"' for path in gojson.duplicate_keys(data, patch)]


def _decoded(data: bytes) -> Any:
    try:
        return gojson.decode(data)
    except gojson.MalformedJson as error:
        raise bad_request(f"error decoding patch: {error}") from error


def merge_object(patch: Mapping[str, Any], target: Object) -> Object:
    """Merge a patch into an object (RFC 7396); changes and returns `target`."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = merge(value, target.get(key))
    return target


def merge(patch: Any, target: Any) -> Any:
    """Merge a patch into any value (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    return merge_object(patch, target if isinstance(target, dict) else {})


def _json_patch(patch: Any, obj: Object) -> Object:
    try:
        operations = json_patch.check(patch)
    except json_patch.NotAPatch as error:
        raise bad_request(f"error decoding patch: {error}") from error
    if len(operations) > MAX_OPERATIONS:
        why = f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}"
        raise StatusError(413, "RequestEntityTooLarge", why)
    try:
        result = json_patch.apply(operations, obj)
    except json_patch.CannotApply as error:
        raise rejected_patch() from error
    if not isinstance(result, dict):
        raise rejected_patch()
    return result
