"""Bodies that are wrong somewhere: JSON, YAML, patches, protobuf, what is compressed."""

from __future__ import annotations

import gzip
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import yaml

from tests.apiserver.fuzz.corpus import Ask
from tests.apiserver.fuzz.inputs import Change
from tests.apiserver.fuzz.values import bent, objects, odd, scrambled, written


def _body_bent(ask: Ask, rng: random.Random) -> Ask:
    return replace(ask, body=bent(ask.body, rng))


def _body_scrambled(ask: Ask, rng: random.Random) -> Ask:
    body = ask.body.encode() if isinstance(ask.body, str) else written(ask.body)
    return replace(ask, body=scrambled(body, rng))


def _body_twice_bent(ask: Ask, rng: random.Random) -> Ask:
    return replace(ask, body=bent(bent(ask.body, rng), rng))


def _as_yaml(ask: Ask, rng: random.Random) -> Ask:
    """YAML that is bent, scrambled, or full of what JSON has not."""
    body = bent(ask.body, rng)
    try:
        text = yaml.dump(body, Dumper=yaml.CSafeDumper, allow_unicode=rng.random() < 0.5)
    except yaml.YAMLError:
        text = repr(body)
    data = text.encode("utf-8", "replace")
    if rng.random() < 0.4:
        at = rng.randrange(len(data) + 1)
        data = data[:at] + rng.choice(YAML) + data[at:]
    if rng.random() < 0.3:
        data = scrambled(data, rng)
    media = ask.headers.get("Content-Type", "")
    return replace(
        ask, headers={**ask.headers, "Content-Type": "application/yaml" if "apply" not in media else media}, body=data
    )


YAML: Final = (
    b"&a [*a]",
    b"&a {k: *a}",
    b"*nowhere",
    b"!!python/object/apply:os.system [id]",
    b"!!binary YQ==",
    b"!!set {a, b}",
    b"!!timestamp 2020-01-01",
    b"!!float .nan",
    b".inf",
    b"? [a, b]\n: c\n",
    b"<<: {a: b}\n",
    b"%YAML 9.9\n---\n",
    b"--- a\n--- b\n",
    b"\t- x",
    b"a: |\n" + b" x\n" * 100,
    b"[" * 500,
    b"{a: " * 500,
    b"- " * 500,
    b"0o777: 0b11",
    b"1_000: 12:30:45",
    b'"\\xZZ"',
    b"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n"
    b"d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e]\n",
)
PATCHES: Final = ("merge-patch+json", "strategic-merge-patch+json", "json-patch+json", "apply-patch+yaml")
OPERATIONS: Final = ("add", "remove", "replace", "move", "copy", "test", "bad", "", None, 1)
POINTERS: Final[tuple[Any, ...]] = (
    "",
    "/",
    "//",
    "/metadata",
    "/metadata/name",
    "/metadata/labels",
    "/metadata/labels/-",
    "/metadata/finalizers/-",
    "/metadata/finalizers/0",
    "/metadata/finalizers/99999999999999999999",
    "/metadata/finalizers/-1",
    "/metadata/finalizers/1e3",
    "/metadata/finalizers/٣",
    "/spec",
    "/spec/~0~1",
    "/spec/~2",
    "/spec/~",
    "no-slash",
    "/kind",
    "/apiVersion",
    "/metadata/uid/0",
    "/a" * 2000,
    None,
    5,
    [],
    {},
)


def _patch(ask: Ask, rng: random.Random) -> Ask:
    """Operations of a JSON patch on odd paths."""
    operations: list[Any] = []
    for _ in range(rng.choice((1, 1, 2, 5))):
        operation = {
            "op": rng.choice(OPERATIONS[:6] if rng.random() < 0.8 else OPERATIONS),
            "path": rng.choice(POINTERS),
        }
        if rng.random() < 0.8:
            operation["value"] = odd(rng)
        if rng.random() < 0.5:
            operation["from"] = rng.choice(POINTERS)
        operations.append(operation if rng.random() < 0.95 else odd(rng))
    headers = {**ask.headers, "Content-Type": "application/json-patch+json"}
    return Ask("PATCH", ask.path, headers, operations if rng.random() < 0.9 else bent(operations, rng))


DIRECTIVES: Final = ("$patch", "$retainKeys", "$setElementOrder/", "$deleteFromPrimitiveList/")


def _strategic(ask: Ask, rng: random.Random) -> Ask:
    """Directives of strategic merge patches anywhere, right and wrong."""
    body = bent(ask.body, rng)
    for holder in objects(body):
        if rng.random() < 0.4:
            directive = rng.choice(DIRECTIVES)
            if directive.endswith("/"):
                directive += rng.choice((*holder, "finalizers", ""))
            holder[directive] = rng.choice(
                ("merge", "replace", "delete", [], ["a", {"name": "a"}, 1, None, []], odd(rng))
            )
    return Ask("PATCH", ask.path, {**ask.headers, "Content-Type": "application/strategic-merge-patch+json"}, body)


def _media(ask: Ask, rng: random.Random) -> Ask:
    return replace(ask, headers={**ask.headers, "Content-Type": rng.choice(CONTENT_TYPES)})


CONTENT_TYPES: Final = (
    "",
    "application/vnd.kubernetes.protobuf",
    "application/json; charset=utf-16",
    "application/json;;;=",
    "text/html",
    "multipart/form-data; boundary=x",
    "application/apply-patch+yaml",
    "application/apply-patch+cbor",
    "application/cbor",
    "a" * 3000,
    "\xff",
    *(f"application/{patch}" for patch in PATCHES),
)


def _protobuf(ask: Ask, rng: random.Random) -> Ask:
    path = rng.choice(("/api/v1/namespaces", "/api/v1/namespaces/fuzz/configmaps", ask.path))
    headers = {**ask.headers, "Content-Type": "application/vnd.kubernetes.protobuf"}
    return Ask(rng.choice(("POST", ask.method)), path, headers, _protobuf_bytes(rng))


def _protobuf_bytes(rng: random.Random) -> bytes:
    """The envelope of Kubernetes around a message of random fields, now and then damaged."""

    def message(depth: int) -> bytes:
        parts = []
        for _ in range(rng.randrange(1, 5)):
            number, wire = rng.randrange(0, 20), rng.choice((0, 2, 2, 2, 1, 5, 3, 7))
            content = {0: bytes([rng.randrange(128)]), 1: b"8bytes!!", 5: b"four"}.get(wire, b"")
            if wire == 2:
                inner = (
                    message(depth + 1)
                    if depth < 5 and rng.random() < 0.5
                    else rng.choice((b"v1", b"Namespace", b"a", b"\xff"))
                )
                content = _varint(len(inner) if rng.random() < 0.95 else rng.choice((2**31, 2**63, 10**6))) + inner
            parts.append(_varint(number << 3 | wire) + content)
        return b"".join(parts)

    meta = b"\n\x02v1\x12" + bytes([len(b"Namespace")]) + b"Namespace"
    raw = message(0)
    whole = b"k8s\0\n" + _varint(len(meta)) + meta + b"\x12" + _varint(len(raw)) + raw
    return scrambled(whole, rng) if rng.random() < 0.4 else whole


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _gzip(ask: Ask, rng: random.Random) -> Ask:
    """Return compressed bodies, damaged and whole, and bodies whose header wrongly declares compression."""
    body = written(ask.body)
    data = gzip.compress(body, 1)
    if rng.random() < 0.3:
        data = scrambled(data, rng)
    elif rng.random() < 0.1:
        data = gzip.compress(b" " * 2**24, 9)  # 16 MiB in 16 KiB
    coding = rng.choice(("gzip", "gzip", "deflate", "br", "zstd", "gzip, gzip", "identity", "x"))
    return replace(ask, headers={**ask.headers, "Content-Encoding": coding}, body=data if rng.random() < 0.8 else body)


OF_BODIES: Final[Mapping[str, Change]] = {
    "bent": _body_bent,
    "bent twice": _body_twice_bent,
    "scrambled": _body_scrambled,
    "yaml": _as_yaml,
    "json patch": _patch,
    "strategic": _strategic,
    "media type": _media,
    "protobuf": _protobuf,
    "compressed": _gzip,
}
WEIGHTS: Final = (5, 4, 3, 4, 4, 4, 1, 2, 1)  # of those above: most for what goes deep
