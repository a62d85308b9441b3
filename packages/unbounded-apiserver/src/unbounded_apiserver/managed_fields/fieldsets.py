"""Sets of field paths, in the form of metadata.managedFields (FieldsV1).

A set is a tree of dicts, which is the JSON itself, so that nothing has to be parsed. The keys of a node are path
elements:
- `f:name`: a field,
- `k:{"name":"web"}`: an element of a list by its keys,
- `v:"a"`: an element of a set.

A node without keys is a path of the set. A node with "." beside other keys is a path with further paths below it. The
root is no path: an empty root is the empty set. Sets are never changed; functions may share their subtrees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

FieldSet = dict[str, Any]
Path = tuple[str, ...]

SELF: Final = "."
MAX_DEPTH: Final = 100  # of sets that clients send
LEAF: Final[FieldSet] = {}
_encoder: Final = msgspec.json.Encoder(order="sorted")


def field(name: str) -> str:
    """Return the path element of a named field."""
    return f"f:{name}"


def element(value: Any) -> str:
    """Return the path element of a value in a set."""
    return f"v:{_encoder.encode(value).decode()}"


def keyed(keys: Mapping[str, Any]) -> str:
    """Return the path element of a list's item with these keys."""
    return f"k:{_encoder.encode(keys).decode()}"


def of(paths: Iterable[Path]) -> FieldSet:
    """Return the set of these paths."""
    root: FieldSet = {}
    for path in paths:
        root = union(root, single(path))
    return root


def single(path: Path) -> FieldSet:
    """Return the set of one path."""
    node: FieldSet = LEAF
    for name in reversed(path):
        node = {name: node}
    return node


def paths(root: FieldSet, prefix: Path = ()) -> Iterator[Path]:
    """Yield the paths in order: a node's own path before those below it."""
    names = sorted(name for name in root if name != SELF)
    yield from ((*prefix, name) for name in names if is_member(root[name]))
    for name in names:
        yield from paths(root[name], (*prefix, name))


def is_member(node: FieldSet) -> bool:
    """Return whether the path of a node (not the root) is in the set."""
    return not node or SELF in node


def member(below: FieldSet) -> FieldSet:
    """Return a node that is in the set itself, with these paths below it."""
    return below if not below or SELF in below else {SELF: LEAF, **below}


def union(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return the paths that are in either set."""
    if not left or not right:
        return left or right
    result = dict(left)
    for name, node in right.items():
        result[name] = node if name not in result else _either(result[name], node)
    return result


def _either(left: FieldSet, right: FieldSet) -> FieldSet:
    if left is right:
        return left
    joined = union(left, right)
    return member(joined) if is_member(left) or is_member(right) else joined


def difference(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return the paths that only the left set has; the same object if these are all."""
    result = left
    for name in right:
        if name == SELF or name not in left:
            continue
        rest = _without(left[name], right[name])
        if rest is left[name]:
            continue
        if result is left:
            result = dict(left)
        if rest is None:
            del result[name]
        else:
            result[name] = rest
    return result


def _without(left: FieldSet, right: FieldSet) -> FieldSet | None:
    """Return the rest of a node; None if nothing is left."""
    below = difference(left, right)
    if not (is_member(left) and is_member(right)):
        if below is left:
            return left
        return below if below or is_member(left) else None
    return {name: node for name, node in below.items() if name != SELF} or None


def includes(left: FieldSet, right: FieldSet) -> bool:
    """Return whether the left set includes the right one."""
    for name, node in right.items():
        if name == SELF:
            continue
        mine = left.get(name)
        if mine is None or (is_member(node) and not is_member(mine)) or not includes(mine, node):
            return False
    return True


def intersection(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return the paths that are in both sets."""
    result: FieldSet = {}
    for name, node in left.items():
        if name == SELF or name not in right:
            continue
        other = right[name]
        below = intersection(node, other)
        if is_member(node) and is_member(other):
            result[name] = member(below)
        elif below:
            result[name] = below
    return result


def ordered(root: FieldSet) -> FieldSet:
    """Return the same set with its keys in order, for answers."""
    return {name: ordered(root[name]) for name in sorted(root)}


def well_formed(root: Any) -> bool:
    """Return whether JSON from a client is a set."""
    return isinstance(root, dict) and SELF not in root and _well_formed(root, MAX_DEPTH)


def _well_formed(node: Any, depth: int) -> bool:
    if not isinstance(node, dict) or not depth:
        return False
    return all(_is_element(name) and _well_formed(child, depth - 1) for name, child in node.items())


def _is_element(name: str) -> bool:
    kind, colon, rest = name.partition(":")
    if name == SELF or (kind == "f" and colon):
        return True
    try:
        value = msgspec.json.decode(rest)
    except msgspec.DecodeError:
        return False
    return kind == "v" or (kind == "k" and isinstance(value, dict)) or (kind == "i" and isinstance(value, int))


def shown(path: Path) -> str:
    """Format a path as messages show it: .spec.ports[name="web",protocol="TCP"].number"""
    return "".join(_shown(name) for name in path)


def _shown(name: str) -> str:
    kind, _, rest = name.partition(":")
    if kind == "f":
        return f".{rest}"
    if kind == "k":
        keys = msgspec.json.decode(rest)
        return f"[{','.join(f'{key}={_encoder.encode(value).decode()}' for key, value in sorted(keys.items()))}]"
    return f"[={rest}]" if kind == "v" else f"[{rest}]"
