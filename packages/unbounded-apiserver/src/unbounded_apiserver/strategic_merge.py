"""Strategic merge patch: Kubernetes' patch of built-in types, by the merge keys of their shapes.

Directives control it: $patch (replace, delete), $retainKeys, $setElementOrder/LIST, $deleteFromPrimitiveList/LIST.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from unbounded_apiserver.field_errors import go_text
from unbounded_apiserver.status import StatusError, bad_request, rejected_patch
from unbounded_apiserver.type_descriptors import ListType, MapType, StructType, TypeDesc

DIRECTIVE: Final = "$patch"
RETAIN: Final = "$retainKeys"
ORDER: Final = "$setElementOrder/"
DELETE: Final = "$deleteFromPrimitiveList/"

Object = dict[str, Any]
Identity = Callable[[Any], Any]


def merge(patch: Mapping[str, Any], target: Object, shape: TypeDesc | None) -> Object:
    """Return the patched object; `target` is not used afterwards. Raises StatusError (400, 422)."""
    if DIRECTIVE in patch:
        return _directed(patch)
    target = _retained(patch, target)
    ordered = {key.removeprefix(ORDER): order for key, order in patch.items() if key.startswith(ORDER)}
    for name, order in ordered.items():
        _set_order(name, order, patch.get(name), target, _member(shape, name))
    for key, value in patch.items():
        if key.startswith(DELETE):
            _delete_from(target, key.removeprefix(DELETE), value)
        elif key != RETAIN and key not in ordered and not key.startswith(ORDER):
            _merge_member(key, value, target, shape)
    return target


def _directed(patch: Mapping[str, Any]) -> Object:
    directive = patch[DIRECTIVE]
    if directive == "replace":
        return {k: v for k, v in patch.items() if k != DIRECTIVE}
    if directive == "delete":
        return {}
    raise _unknown_directive(directive, patch)


def _retained(patch: Mapping[str, Any], target: Object) -> Object:
    kept = patch.get(RETAIN)
    if RETAIN not in patch:
        return target
    named = (k for k, v in patch.items() if v is not None and k != RETAIN and not k.startswith((ORDER, DELETE)))
    if not isinstance(kept, list) or any(name not in kept for name in named):
        raise bad_request("invalid patch format of retainKeys")
    return {k: v for k, v in target.items() if k in kept}


def _merge_member(key: str, value: Any, target: Object, owner: TypeDesc | None) -> None:
    before, shape = target.get(key), _member(owner, key)
    if value is None:
        target.pop(key, None)
    elif isinstance(value, dict) and isinstance(before, dict) and not _is_replaced(owner, key):
        target[key] = merge(value, before, shape)
    elif isinstance(value, list) and isinstance(before, list):
        target[key] = _merged_list(value, before, shape)
    else:
        target[key] = _plain(value)


def _member(shape: TypeDesc | None, key: str) -> TypeDesc | None:
    match shape:
        case StructType():
            member = shape.members().get(key)
            return None if member is None else member.shape
        case MapType(value=value):
            return value
    return None


def _is_replaced(shape: TypeDesc | None, key: str) -> bool:
    return isinstance(shape, StructType) and key in shape.members() and shape.members()[key].replaced


_DROPPED: Final = object()


def _plain(value: Any) -> Any:
    """Return a new value without directives and without members that are null."""
    if isinstance(value, list):
        items = [_plain(item) for item in value]
        return [item for item in items if item is not _DROPPED]
    if not isinstance(value, dict):
        return value
    if value.get(DIRECTIVE) == "delete":
        return _DROPPED
    members = ((k, _plain(v)) for k, v in value.items() if v is not None and not _is_directive(k))
    return {k: v for k, v in members if v is not _DROPPED}


def _is_directive(key: str) -> bool:
    return key in {DIRECTIVE, RETAIN} or key.startswith((ORDER, DELETE))


def _delete_from(target: Object, name: str, values: Any) -> None:
    if not isinstance(values, list):
        raise bad_request("invalid patch format of primitive list")
    if isinstance(target.get(name), list):
        target[name] = [item for item in target[name] if item not in values]


def _merged_list(patch: list[Any], target: list[Any], shape: TypeDesc | None) -> list[Any]:
    """Merge a list: elements of the patch are in its order; the others keep their positions as far as possible."""
    if not isinstance(shape, ListType) or shape.merge_key is None:
        return patch
    key = shape.merge_key
    if not _keyed([*target, *patch], key):
        return _in_order(list(dict.fromkeys([*target, *patch])), patch, target, lambda item: item)
    remaining, added, replaced = _without_directives(patch, target, key)
    if replaced:
        return added
    result = list(remaining)
    places = {item.get(key): index for index, item in reversed(list(enumerate(result)))}
    for item in added:
        at = places.get(_key_of(item, key))
        if at is None:
            places[item[key]] = len(result)
            result.append(_plain(item))
        else:
            result[at] = merge(item, result[at], shape.item)
    return _in_order(result, added, remaining, lambda item: item.get(key))


def _without_directives(patch: list[Any], target: list[Any], key: str) -> tuple[list[Any], list[Any], bool]:
    """Return the remaining elements, the patch's elements, and whether these replace the whole list."""
    added = [item for item in patch if DIRECTIVE not in item]
    replaced = False
    for item in patch:
        match item.get(DIRECTIVE):
            case "delete":
                gone = _key_of(item, key)
                target = [old for old in target if old.get(key) != gone]
            case "replace":
                replaced = True
            case "merge":
                raise bad_request("merging lists cannot yet be specified in the patch")
            case directive if DIRECTIVE in item:
                raise _unknown_directive(directive, item)
    return target, added, replaced


def _set_order(name: str, order: Any, patch: Any, target: Object, shape: TypeDesc | None) -> None:
    """Merge a list and sort it in the order that the client saw."""
    before = target.get(name)
    if not isinstance(order, list) or not all(isinstance(v, list | None) for v in (before, patch)):
        raise bad_request("invalid patch format of setElementOrder list")
    key = shape.merge_key if isinstance(shape, ListType) and shape.merge_key else None

    keyed = _keyed([*order, *(before or ()), *(patch or ())], key or "")

    def identity(item: Any) -> Any:
        return _key_of(item, key or "") if keyed else item

    if patch is not None:
        _check_order(patch, order, identity)
        merged = _plain(patch) if before is None else _merged_list(patch, before, shape)
    elif before is not None:
        merged = before
    else:
        return
    target[name] = _in_order(merged, order, before or [], identity)


def _check_order(patch: list[Any], order: list[Any], identity: Identity) -> None:
    desired = iter([identity(item) for item in order])
    named = (identity(item) for item in patch if not (isinstance(item, dict) and DIRECTIVE in item))
    if not all(any(one == other for other in desired) for one in named):
        text = f"The order in patch list:\n{go_text(patch)}\n doesn't match {ORDER[:-1]} list:\n{go_text(order)}\n"
        raise bad_request(text)


def _in_order(items: list[Any], order: list[Any], before: list[Any], identity: Identity) -> list[Any]:
    """Sort elements of `order` first, in that order; each other one goes before the first that followed it before."""
    rank = {identity(item): index for index, item in reversed(list(enumerate(order)))}
    place = {identity(item): index for index, item in reversed(list(enumerate(before)))}
    named = sorted((i for i in items if identity(i) in rank), key=lambda i: rank[identity(i)])
    others = sorted((i for i in items if identity(i) not in rank), key=lambda i: place.get(identity(i), len(before)))
    result: list[Any] = []
    for item in named:
        stood = place.get(identity(item))
        while stood is not None and others and place.get(identity(others[0]), len(before)) < stood:
            result.append(others.pop(0))
        result.append(item)
    return result + others


def _key_of(item: Any, key: str) -> Any:
    if key not in item:
        raise bad_request(f"map: {go_text(item)} does not contain declared merge key: {key}")
    if isinstance(item[key], dict | list):
        raise bad_request(f"map: {go_text(item)} has no plain value at its merge key: {key}")
    return item[key]


def _keyed(items: list[Any], key: str) -> bool:
    """Return whether elements are identified by `key` instead of by themselves; all elements must be of one kind."""
    if any(isinstance(item, list) for item in items):
        raise rejected_patch()
    if len({type(item) for item in items}) > 1:
        raise bad_request(f"list element types are not identical: {go_text(items)}")
    if not items or not isinstance(items[0], dict):
        return False
    if not key:
        raise bad_request("cannot merge lists without merge key")
    return True


def _unknown_directive(directive: Any, patch: Mapping[str, Any]) -> StatusError:
    return bad_request(f"unknown patch type: {go_text(directive)} in map: {go_text(dict(patch))}")
