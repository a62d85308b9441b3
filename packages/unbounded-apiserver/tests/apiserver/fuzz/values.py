"""Values that do not belong: in place of any part of an object, of a parameter, of a path."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

from unbounded_apiserver.type_descriptors import ListType, MapType, ScalarType, StructType, TypeDesc

MARK: Final = "\ue000raw%d\ue000"  # placeholder of raw text in an object until it is written

RAW: Final = (  # what JSON text may hold and Python's values do not
    "NaN",
    "-Infinity",
    "1e999",
    "-0",
    "-0.0",
    "1E400",
    "0.1e-400",
    "1" * 400,
    "-" + "9" * 20,
    "9223372036854775808",
    "18446744073709551616",
    "01",
    "1.",
    ".5",
    "+1",
    "0x10",
    "tru",
    "nul",
    '"\\ud800"',
    '"\\udc00\\ud800"',
    '"\\u0000"',
    '"\\x41"',
    '"open',
    '{"a":1,"a":2}',
    '{"metadata":{},"metadata":null}',
    "{,}",
    "[1,]",
    "[" * 300 + "]" * 300,
    '{"a":' * 300 + "1" + "}" * 300,
    "/* c */ 1",
    "'x'",
    '"\n"',
    '"\u2028"',
    "",
)
PLAIN: Final[tuple[Any, ...]] = (
    None,
    True,
    False,
    0,
    -1,
    1.5,
    1e300,
    2**31,
    2**63 - 1,
    -(2**63),
    "",
    " ",
    "\0",
    "a/b",
    "..",
    "../../etc/passwd",
    "UPPER",
    "-a",
    "a" * 64,
    "a" * 254,
    "x" * 70_000,
    "ß\u200b\U0001f600",
    "2020-13-40T25:61:61Z",
    "2020-01-01T00:00:00Z",
    "0001-01-01T00:00:00Z",
    "9" * 30,
    "1e3",
    "{}",
    "%s%n%00",
    "a\r\nX-Injected: 1",
    "=",
    "a=b,c!=d",
    "self.x > 1",
    "(a+)+$",
    "[",
    [],
    {},
    [None],
    [[]],
    [{}],
    {"": None},
    {"a": {"b": {"c": []}}},
    {"$patch": "delete"},
    {"$patch": "replace"},
    {"$ref": "#/"},
    [1, "a", None, {}, []],
    ["a", "a"],
)
NAMES: Final = (
    "metadata",
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generateName",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
    "managedFields",
    "creationTimestamp",
    "deletionTimestamp",
    "generation",
    "apiVersion",
    "kind",
    "spec",
    "status",
    "items",
    "data",
    "x-kubernetes-validations",
    "",
    "a.b",
    "$patch",
    "$retainKeys",
    "$setElementOrder/list",
    "$deleteFromPrimitiveList/finalizers",
    "__class__",
    "ä",
)


def odd(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(PLAIN))


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    items: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(value, dict):
        items = iter(value.items())
    elif isinstance(value, list):
        items = iter(enumerate(value))
    for key, item in items:
        found.append((value, key))
        _places(item, found)
    return found


def bent(obj: Any, rng: random.Random) -> Any:
    """A copy of an object that is wrong in one to three places."""
    result = copy.deepcopy(obj)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = _places(result, [])
        if not places:
            return odd(rng)
        holder, key = rng.choice(places)
        rng.choice(BENDS)(holder, key, rng, places)
    return result


def _replace(holder: Any, key: Any, rng: random.Random, places: list[tuple[Any, Any]]) -> None:
    holder[key] = odd(rng)


def _raw(holder: Any, key: Any, rng: random.Random, places: list[tuple[Any, Any]]) -> None:
    holder[key] = MARK % rng.randrange(len(RAW))


def _drop(holder: Any, key: Any, rng: random.Random, places: list[tuple[Any, Any]]) -> None:
    del holder[key]


def _borrow(holder: Any, key: Any, rng: random.Random, places: list[tuple[Any, Any]]) -> None:
    other, there = rng.choice(places)
    holder[key] = copy.deepcopy(other[there])


def _add(holder: Any, key: Any, rng: random.Random, places: list[tuple[Any, Any]]) -> None:
    if isinstance(holder, dict):
        holder[rng.choice(NAMES)] = odd(rng)
    else:
        holder.insert(key, odd(rng))


def _again(holder: Any, key: Any, rng: random.Random, places: list[tuple[Any, Any]]) -> None:
    if isinstance(holder, list):
        holder.extend(copy.deepcopy(holder[key]) for _ in range(rng.choice((1, 2, 50))))
    else:
        holder[rng.choice(NAMES)] = holder.pop(key)


BENDS: Final[tuple[Callable[[Any, Any, random.Random, list[tuple[Any, Any]]], None], ...]] = (
    _replace,
    _replace,
    _replace,
    _raw,
    _drop,
    _borrow,
    _add,
    _again,
)


def objects(value: Any) -> list[dict[str, Any]]:
    """All objects in a value, the outer ones first."""
    if isinstance(value, dict):
        return [value, *(found for item in list(value.values()) for found in objects(item))]
    return [found for item in value for found in objects(item)] if isinstance(value, list) else []


def written(value: Any) -> bytes:
    """As JSON, with the raw texts in their places."""
    text = json.dumps(value, ensure_ascii=False)
    if "\ue000raw" in text:
        for number, raw in enumerate(RAW):
            text = text.replace(f'"{MARK % number}"', raw)
    return text.encode("utf-8", "surrogatepass")


def scrambled(data: bytes, rng: random.Random) -> bytes:
    """The same bytes with some lost, doubled, or exchanged."""
    at, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    end = min(end, at + 40)
    return rng.choice(
        (
            data[:at],
            data[:at] + data[end:],
            data[:end] + data[at:],
            data[:at] + rng.randbytes(rng.randrange(1, 9)) + data[end:],
            data[:at] + rng.choice((b"\xff\xfe", b"\xc0\xaf", b"\xed\xa0\x80", b"\0", b"\xf4\x90\x80\x80")) + data[at:],
            b"\xef\xbb\xbf" + data,
            data.decode(errors="replace").encode("utf-16"),
            data + data,
            data + rng.choice((b"}", b"]", b",", b" x", b"\n---\n{}", b"\0")),
            b" " * 10_000 + data,
        )
    )


def example(shape: TypeDesc | None, rng: random.Random, depth: int = 0) -> Any:
    """A value of a shape, most of whose fields are there."""
    match shape:
        case ScalarType():
            return _scalar(shape, rng)
        case ListType(item=item):
            return [example(item, rng, depth + 1) for _ in range(rng.choice((0, 1, 2)))] if depth < 8 else []
        case MapType(value=value):
            return {name: example(value, rng, depth + 1) for name in rng.sample(("a", "b/c", "D_e"), 2)}
        case StructType():
            if depth > 8:
                return {}
            members = shape.members().items()
            return {name: example(member.shape, rng, depth + 1) for name, member in members if rng.random() < 0.7}
    return odd(rng)


def _scalar(shape: ScalarType, rng: random.Random) -> Any:
    if shape.json == "boolean":
        return rng.random() < 0.5
    if shape.json in {"integer", "number"}:
        return rng.choice((0, 1, 5, 1000))
    if shape.format in {"date-time", "dateTime"}:
        return "2026-01-01T00:00:00Z"
    if shape.format == "byte":
        return "YQ=="
    return rng.choice(("a", "b-c", "Always", "10Mi", "ClusterIP", "default", "1.2.3.4"))
