"""Patches of objects: JSON merge patch, JSON patch, strategic merge patch.

JSON patch (RFC 6902) has the deviations of the library that kube-apiserver uses. Laxer than the RFC:
- `replace` of a missing member adds it,
- `test` for null succeeds where there is nothing,
- a negative index counts from the end.
Stricter: `add` and `remove` do not accept the whole document.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from unbounded_apiserver import gojson, strategic_merge
from unbounded_apiserver.status import StatusError, bad_request, rejected_patch
from unbounded_apiserver.type_descriptors import StructType

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
    unknown = [f'json patch unknown field "{path}"' for path in unknown_members(patch or ())]
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
        operations = check_operations(patch)
    except NotAPatch as error:
        raise bad_request(f"error decoding patch: {error}") from error
    if len(operations) > MAX_OPERATIONS:
        why = f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}"
        raise StatusError(413, "RequestEntityTooLarge", why)
    try:
        result = apply_operations(operations, obj)
    except CannotApply as error:
        raise rejected_patch() from error
    if not isinstance(result, dict):
        raise rejected_patch()
    return result


MAX_COPIED: Final = 3 * 2**20  # bytes that the copies of one patch may add: each can double the object
MEMBERS: Final = ("op", "path", "from", "value")
_INDEX: Final = re.compile(r"[-+]?[0-9]{1,18}")


class CannotApply(Exception):
    """The document does not fit the patch, or the patch is invalid."""


class NotAPatch(Exception):
    """The patch is not a list of operations; the message is that of Go's decoder."""


def check_operations(patch: Any) -> list[dict[str, Any]]:
    """Return the operations of a decoded patch. Raises NotAPatch."""
    if patch is None:
        return []
    if not isinstance(patch, list):
        raise NotAPatch(f"json: cannot unmarshal {_json_name(patch)} into Go value of type []handlers.jsonPatchOp")
    return [_checked(operation) for operation in patch]


def _checked(operation: Any) -> dict[str, Any]:
    if operation is None:
        return {}
    if not isinstance(operation, dict):
        what = _json_name(operation)
        raise NotAPatch(f"json: cannot unmarshal {what} into Go value of type handlers.jsonPatchOp")
    for name in ("op", "path", "from"):
        if not isinstance(operation.get(name), str | None):
            what = _json_name(operation[name])
            raise NotAPatch(f"json: cannot unmarshal {what} into Go struct field jsonPatchOp.{name} of type string")
    return operation


def unknown_members(patch: Sequence[dict[str, Any] | None]) -> list[str]:
    """Return the paths of members that no operation has."""
    named = ((index, name) for index, operation in enumerate(patch) for name in operation or ())
    return [f"[{index}].{name}" for index, name in named if name not in MEMBERS]


def apply_operations(patch: Sequence[dict[str, Any]], document: dict[str, Any]) -> Any:
    """Return the patched document; `document` is not used afterwards. Raises CannotApply."""
    root: Any = document
    room = MAX_COPIED
    for operation in patch:
        path, value = operation.get("path"), operation.get("value")
        if path is None:
            raise CannotApply("an operation has no path")
        match operation.get("op"):
            case "add":
                _add(root, path, value)
            case "remove":
                _remove(root, path)
            case "replace":
                root = _replace(root, path, value)
            case "move":
                moved = _get(root, _source(operation))
                _remove(root, _source(operation))
                _add(root, path, moved)
            case "copy":
                room -= _copy(root, _source(operation), path, room)
            case "test":
                _test(root, path, value)
            case _:
                raise CannotApply("an operation is of no known kind")
    return root


def _copy(root: Any, source: str, path: str, room: int) -> int:
    """Copy a value; return the number of bytes that were copied, at most `room`."""
    found = _get(root, source)
    size = len(msgspec.json.encode(found))
    if size > room:
        raise CannotApply("copies more than is allowed")
    _add(root, path, copy.deepcopy(found))
    return size


def _source(operation: dict[str, Any]) -> str:
    source = operation.get("from")
    if not isinstance(source, str):
        raise CannotApply("an operation has no from")
    return source


def _holder(root: Any, path: str) -> tuple[Any, str]:
    """Return the object or list that the last part of a path is in, and that part."""
    parts = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")]
    if len(parts) < 2:
        raise CannotApply("the path leads to the whole document")
    holder = root
    for part in parts[1:-1]:
        holder = _child(holder, part)
    if not isinstance(holder, dict | list):
        raise CannotApply("the path leads through a plain value")
    return holder, parts[-1]


def _child(holder: Any, part: str) -> Any:
    """Return a member or an element; None for a missing member."""
    if isinstance(holder, dict):
        return holder.get(part)
    if isinstance(holder, list):
        return holder[_index(part, len(holder))]
    raise CannotApply("the path leads through a plain value")


def _index(part: str, length: int) -> int:
    """Return an index of a list, counted from its beginning."""
    if not _INDEX.fullmatch(part):
        raise CannotApply("not an index")
    index = int(part)
    if not -length <= index < length:
        raise CannotApply("the index is beyond the list")
    return index + length if index < 0 else index


def _get(root: Any, path: str) -> Any:
    return _child(*_holder(root, path))


def _add(root: Any, path: str, value: Any) -> None:
    holder, part = _holder(root, path)
    if isinstance(holder, dict):
        holder[part] = value
    elif part == "-":
        holder.append(value)
    else:
        holder.insert(_index(part, len(holder) + 1), value)


def _remove(root: Any, path: str) -> None:
    holder, part = _holder(root, path)
    if isinstance(holder, list):
        del holder[_index(part, len(holder))]
    elif part in holder:
        del holder[part]
    else:
        raise CannotApply("there is nothing to remove")


def _replace(root: Any, path: str, value: Any) -> Any:
    if not path:
        return value
    holder, part = _holder(root, path)
    if isinstance(holder, dict):
        holder[part] = value
    else:
        holder[_index(part, len(holder))] = value
    return root


def _test(root: Any, path: str, value: Any) -> None:
    if not _equal(_get(root, path) if path else root, value):
        raise CannotApply("a test failed")


def _equal(left: Any, right: Any) -> bool:
    """Compare as JSON: true is not 1."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _json_name(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "bool", int: "number", float: "number"}
    return names.get(type(value), "null")
