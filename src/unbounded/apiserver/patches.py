"""How a patch changes an object: JSON merge patch, JSON patch, and strategic merge patch by the shapes' merge keys."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

import jsonpatch
import jsonpointer
import msgspec

from unbounded.apiserver import gojson
from unbounded.apiserver.shapes import ListOf, MapOf, Shape, Struct
from unbounded.apiserver.status import StatusError, bad_request, rejected_patch

JSON: Final = "application/json-patch+json"
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"
MAX_OPERATIONS: Final = 10_000
MAX_COPIED: Final = 3 * 2**20  # bytes that the copies of one JSON patch may add: each can double the object

Object = dict[str, Any]


def apply(kind: str, data: bytes, obj: Object, shape: Struct | None) -> Object:
    """The patched object; `obj` is not used afterwards.

    Args:
        kind: the media type of the patch, one of those above.
        shape: tells the merge keys of a strategic merge patch.
    Raises:
        StatusError: the patch cannot be read or applied.
    """
    try:
        patch = gojson.decode(data)
    except gojson.Malformed as error:
        raise bad_request(f"error decoding patch: {error}") from error
    if kind == JSON:
        return _json_patch(patch, obj)
    if not isinstance(patch, dict):
        what = {list: "array", str: "string", bool: "bool", type(None): "null"}.get(type(patch), "number")
        raise bad_request(
            f"error decoding patch: json: cannot unmarshal {what} into Go value of type map[string]interface {{}}"
        )
    if kind == STRATEGIC and shape is not None:
        return _strategic(patch, obj, shape)
    return merge_object(patch, obj)


def merge_object(patch: Mapping[str, Any], target: Object) -> Object:
    """RFC 7396 for objects; changes and returns `target`."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = merge(value, target.get(key))
    return target


def merge(patch: Any, target: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    return merge_object(patch, target if isinstance(target, dict) else {})


def _json_patch(patch: Any, obj: Object) -> Object:
    if not isinstance(patch, list):
        what = {dict: "object", str: "string", bool: "bool"}.get(type(patch), "number")
        raise bad_request(
            f"error decoding patch: json: cannot unmarshal {what} into Go value of type []handlers.jsonPatchOp"
        )
    if len(patch) > MAX_OPERATIONS:
        why = f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(patch)}"
        raise StatusError(413, "RequestEntityTooLarge", why)
    result: Any = obj
    copied = 0
    try:
        for operation in patch:
            copied += _copied(operation, result)
            if copied > MAX_COPIED:
                raise rejected_patch()
            result = jsonpatch.JsonPatch([_lenient(operation, result)]).apply(result, in_place=True)
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, KeyError, TypeError, ValueError) as error:
        raise rejected_patch() from error
    if not isinstance(result, dict):
        raise rejected_patch()
    return result


def _copied(operation: Any, obj: Any) -> int:
    """The bytes that an operation copies."""
    if not isinstance(operation, dict) or operation.get("op") != "copy":
        return 0
    return len(msgspec.json.encode(jsonpointer.resolve_pointer(obj, operation["from"])))


def _lenient(operation: Any, obj: Any) -> Any:
    """As the library that kube-apiserver uses: a replace of a missing member of an object adds it."""
    if not isinstance(operation, dict) or operation.get("op") != "replace":
        return operation
    path = operation.get("path", "")
    parent, _, last = path.rpartition("/")
    holder = jsonpointer.resolve_pointer(obj, parent, None) if path else None
    name = last.replace("~1", "/").replace("~0", "~")
    return {**operation, "op": "add"} if isinstance(holder, dict) and name not in holder else operation


def _strategic(patch: Mapping[str, Any], target: Object, shape: Shape | None) -> Object:
    """Merge an object; directives: $patch, $retainKeys, $setElementOrder, $deleteFromPrimitiveList."""
    directive = patch.get("$patch")
    if directive == "replace":
        return {k: v for k, v in patch.items() if k != "$patch"}
    if directive == "delete":
        return {}
    if (retained := patch.get("$retainKeys")) is not None:
        target = {k: v for k, v in target.items() if k in retained}
    for key, value in patch.items():
        if not key.startswith("$"):
            _strategic_member(key, value, target, _member(shape, key))
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            target[name] = [v for v in target.get(name) or () if v not in value]
        elif key.startswith("$setElementOrder/"):
            name = key.partition("/")[2]
            if name in target:
                target[name] = _ordered(target[name], value, _member(shape, name))
    return target


def _strategic_member(key: str, value: Any, target: Object, shape: Shape | None) -> None:
    if value is None:
        target.pop(key, None)
    elif isinstance(value, dict):
        before = target.get(key)
        target[key] = _strategic(value, before if isinstance(before, dict) else {}, shape)
    elif isinstance(value, list) and isinstance(shape, ListOf) and shape.merge_key is not None:
        target[key] = _merged_list(value, target.get(key) or [], shape)
    else:
        target[key] = copy.deepcopy(value)


def _member(shape: Shape | None, key: str) -> Shape | None:
    match shape:
        case Struct():
            member = shape.members().get(key)
            return None if member is None else member.shape
        case MapOf(value=value):
            return value
    return None


def _merged_list(patch: list[Any], target: list[Any], shape: ListOf) -> list[Any]:
    merge_key = shape.merge_key
    if not merge_key:
        return list(dict.fromkeys([*target, *patch]))
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if not (isinstance(item, dict) and "$patch" in item)]
    result = list(target)
    for item in patch:
        if not isinstance(item, dict) or merge_key not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {merge_key}")
        at = next((i for i, old in enumerate(result) if old.get(merge_key) == item[merge_key]), None)
        if item.get("$patch") == "delete":
            result = [old for old in result if old.get(merge_key) != item[merge_key]]
        elif at is None:
            result.append(_strategic(item, {}, shape.item))
        else:
            result[at] = _strategic(item, result[at], shape.item)
    return result


def _ordered(items: list[Any], order: list[Any], shape: Shape | None) -> list[Any]:
    """Elements in the order that the client saw; those it did not name keep their place behind their predecessor."""
    merge_key = shape.merge_key if isinstance(shape, ListOf) else None

    def identity(item: Any) -> Any:
        return item.get(merge_key) if merge_key and isinstance(item, dict) else item

    rank = {identity(item): index for index, item in enumerate(order)}
    ranks: list[tuple[int, int]] = []
    last = -1
    for index, item in enumerate(items):
        last = rank.get(identity(item), last)
        ranks.append((last, index))
    return [items[index] for _, index in sorted(ranks)]
