"""Requests made from those of the corpus that are wrong somewhere: in the body, path, query or headers."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

import yaml

from tests.apiserver.fuzz.corpus import DEFINITIONS, Ask
from tests.apiserver.fuzz.values import bent, odd, scrambled, written


@dataclass(frozen=True)
class Input:
    """What is sent. `head`: no body comes back; `framed`: it is HTTP, so an answer must come."""

    family: str
    data: bytes
    path: str = ""
    head: bool = False
    framed: bool = True


def encoded(ask: Ask) -> bytes:
    """The request as bytes, rightly framed."""
    if ask.body is None:
        body = b""
    elif isinstance(ask.body, bytes):
        body = ask.body
    else:
        body = ask.body.encode() if isinstance(ask.body, str) else written(ask.body)
    headers = {"Host": "localhost", **ask.headers}
    if ask.body is not None:
        headers.setdefault("Content-Type", "application/json")
        headers.setdefault("Content-Length", str(len(body)))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{ask.method} {ask.path} HTTP/1.1\r\n{lines}\r\n".encode("utf-8", "surrogateescape") + body


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
    for holder in _objects(body):
        if rng.random() < 0.4:
            directive = rng.choice(DIRECTIVES)
            if directive.endswith("/"):
                directive += rng.choice((*holder, "finalizers", ""))
            holder[directive] = rng.choice(
                ("merge", "replace", "delete", [], ["a", {"name": "a"}, 1, None, []], odd(rng))
            )
    return Ask("PATCH", ask.path, {**ask.headers, "Content-Type": "application/strategic-merge-patch+json"}, body)


def _objects(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value, *(found for item in list(value.values()) for found in _objects(item))]
    return [found for item in value for found in _objects(item)] if isinstance(value, list) else []


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
    """Compressed bodies, damaged and whole, and what says it is compressed and is not."""
    body = written(ask.body)
    data = gzip.compress(body, 1)
    if rng.random() < 0.3:
        data = scrambled(data, rng)
    elif rng.random() < 0.1:
        data = gzip.compress(b" " * 2**24, 9)  # 16 MiB in 16 KiB
    coding = rng.choice(("gzip", "gzip", "deflate", "br", "zstd", "gzip, gzip", "identity", "x"))
    return replace(ask, headers={**ask.headers, "Content-Encoding": coding}, body=data if rng.random() < 0.8 else body)


PARAMETERS: Final = (
    "labelSelector",
    "fieldSelector",
    "limit",
    "continue",
    "resourceVersion",
    "resourceVersionMatch",
    "timeoutSeconds",
    "timeout",
    "watch",
    "sendInitialEvents",
    "allowWatchBookmarks",
    "dryRun",
    "fieldManager",
    "fieldValidation",
    "force",
    "gracePeriodSeconds",
    "propagationPolicy",
    "orphanDependents",
    "pretty",
    "includeObject",
    "a" * 200,
    "",
)
QUERY_VALUES: Final = (
    "true",
    "false",
    "0",
    "-1",
    "1",
    "5",
    "99999999999999999999",
    "9" * 5000,
    "1e3",
    "١",
    "a=b",
    "a in (b,c",
    "a in (),!b",
    "a in (" + "x," * 500 + "y)",
    ",,,",
    "a=b=c",
    "!" * 300,
    "a>99999999999999999999",
    "=" * 50,
    "metadata.name=a\\",
    "metadata.name=a,metadata.name!=a",
    "spec.x=1",
    "status.phase=\\,",
    "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiJhIn0",
    "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoiXHUwMDAwIn0",
    "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6OTk5OTk5OTk5OTk5OTk5OTk5OTksInN0YXJ0IjoiYSJ9",
    "////",
    "NotOlderThan",
    "Exact",
    "All",
    "Strict",
    "Metadata",
    "1h",
    "999999999999h",
    "\0",
    "\xff",
    "\r\nX: 1",
    "😀" * 20,
)


def _query(ask: Ask, rng: random.Random) -> Ask:
    """Parameters with values that are not theirs, some of them written wrongly."""
    parameters = []
    for _ in range(rng.choice((1, 1, 2, 4))):
        value = rng.choice(QUERY_VALUES)
        name = rng.choice(PARAMETERS)
        if name == "resourceVersion" and len(value) > 3 and value.isdigit():
            value = "1"  # a revision of the future is waited for: its own test
        text = (
            quote(value, safe="=,()!")
            if rng.random() < 0.8
            else rng.choice(("%", "%zz", "%ff%fe", "+", "a;b", "&&", "=="))
        )
        parameters.append(f"{name}={text}" if rng.random() < 0.95 else name)
    return replace(ask, path=f"{ask.path.partition('?')[0]}?{'&'.join(parameters)}")


SEGMENTS: Final = (
    "",
    ".",
    "..",
    "%2e%2e",
    "%2f",
    "a%2fb",
    "%00",
    "%c0%af",
    "%ff",
    "%",
    "%zz",
    "watch",
    "namespaces",
    "status",
    "scale",
    "finalize",
    "token",
    "*",
    "api",
    "apis",
    "v1",
    "a;b=c",
    "a:b",
    "~",
    "ä",
    "%E2%80%AE",
    "x" * 300,
    "x" * 5000,
    "proxy",
    "\\",
    "%0d%0aX:1",
)


def _path(ask: Ask, rng: random.Random) -> Ask:
    """Paths with segments lost, doubled, exchanged."""
    path, _, query = ask.path.partition("?")
    parts = path.split("/")[1:]
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(parts) + 1)
        change = rng.randrange(4)
        if change == 0 or at == len(parts):
            parts.insert(at, rng.choice(SEGMENTS))
        elif change == 1:
            parts[at] = rng.choice(SEGMENTS)
        elif change == 2:
            del parts[at]
        else:
            parts[at] = parts[at] + rng.choice(SEGMENTS)
    return replace(ask, path="/" + "/".join(parts) + (f"?{query}" if query else ""))


HEADERS: Final[Mapping[str, tuple[str, ...]]] = {
    "Accept": (
        "",
        "*/*",
        "*",
        ";",
        ",",
        "application/json;as=Table;g=meta.k8s.io;v=v1",
        "application/json;as=Table;g=meta.k8s.io;v=v9",
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1beta1",
        "application/json;as=Nothing;g=;v=",
        "application/json;q=nan",
        "application/json;q=-1e999, application/yaml;q=inf",
        "application/json;q",
        "application/json;as",
        "application/vnd.kubernetes.protobuf",
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        "application/yaml",
        "text/html," * 500,
    ),
    "Accept-Encoding": ("gzip", "br;q=1.0, *;q=0", "gzip;q=x", ",,,"),
    "Authorization": (
        "",
        "Bearer",
        "Bearer ",
        "Bearer x",
        "Bearer a.b.c",
        "Bearer ..",
        "Bearer eyJhbGciOiJub25lIn0.e30.",
        "Bearer eyJhbGciOiJFUzI1NiJ9.eyJleHAiOjFlOTk5fQ.AAAA",
        "Bearer eyJhbGciOiJFUzI1NiIsImtpZCI6MX0.W10.AAAA",
        "Bearer abcdef.0123456789abcdef",
        "Bearer " + "a" * 5000,
        "Basic YTpi",
        "Basic \xff",
        "bearer\tx",
        "Negotiate",
    ),
    "Impersonate-User": (
        "",
        "a",
        "system:masters",
        "system:anonymous",
        "system:serviceaccount:a:b",
        "system:serviceaccount:",
        "system:serviceaccount::",
        "\xff",
        "x" * 4000,
    ),
    "Impersonate-Group": ("", "system:masters", "a,b"),
    "Impersonate-Uid": ("", "x"),
    "Impersonate-Extra-": ("x",),
    "Impersonate-Extra-%zz": ("x",),
    "Impersonate-Extra-a%2Fb": ("x",),
    "User-Agent": ("", "x" * 6000, "\x7f", "ä"),
    "If-Match": ('"1"', "*"),
    "Expect": ("100-continue", "nothing"),
    "Connection": ("keep-alive", "upgrade", "close, keep-alive", "\xff"),
    "Upgrade": ("websocket", "SPDY/3.1", "h2c"),
    "Host": ("", "x:99999", "[::1", "a b", "\xff"),
    "Range": ("bytes=0-1",),
    "Cookie": ("a=b; " * 300,),
    "Content-Length": ("0",),
    "X-" + "y" * 3000: ("z",),
}


def _headers(ask: Ask, rng: random.Random) -> Ask:
    headers = dict(ask.headers)
    for name in rng.choices(tuple(HEADERS), k=rng.choice((1, 1, 2, 4))):
        if name == "Content-Length" and ask.body is not None:
            continue
        headers[name] = rng.choice(HEADERS[name])
    return replace(ask, headers=headers)


METHODS: Final = (
    "OPTIONS",
    "HEAD",
    "TRACE",
    "CONNECT",
    "PROPFIND",
    "X",
    "get",
    "LINK",
    "PUT",
    "POST",
    "PATCH",
    "DELETE",
    "M-SEARCH",
)


def _method(ask: Ask, rng: random.Random) -> Ask:
    return replace(ask, method=rng.choice(METHODS))


OPERATORS: Final = ("+", "-", "*", "/", "%", "==", "<", ">=", "&&", "||", " in ", "? 1 :", ".")
WORDS: Final = (
    "self",
    "oldSelf",
    "self.x",
    "self.spec",
    "1",
    "-9223372036854775808",
    "1u",
    "1e308",
    "'a'",
    "b'\\xff'",
    "''.repeat(9)",
    "[1,2]",
    "{'a':1}",
    "size(self)",
    "self.all(x, self.all(y, self.all(z, x == y)))",
    "self.map(x, self.map(y, y))",
    "self.exists_one(a, true)",
    "has(self.x)",
    "'a'.matches('(a+)+$')",
    "'a'.matches('(')",
    "quantity('1e99999')",
    "duration('9999999999h')",
    "timestamp('0000-01-01T00:00:00Z')",
    "ip('::ffff:1.2.3.4')",
    "cidr('1.2.3.4/99')",
    "url('http://[')",
    "optional.of(1).orValue(2)",
    "type(self)",
    "dyn(self)",
    "string(1)+string(2)",
    "'%d'.format([1,2,'x'])",
    "sets.contains([1],[1])",
    "x",
    "__proto__",
    "null",
    "true",
    "(",
    ")",
    "'",
    '"""',
    "//",
    "\\",
    "@",
)


def rule(rng: random.Random) -> str:
    """A CEL expression: right now and then, deep and expensive now and then."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(("(", "[", "!", "-", "{'a':", "self.all(x,")) * rng.choice((50, 300, 3000)) + "true"
    if kind == 1:
        return rng.choice(OPERATORS).join([rng.choice(WORDS)] * rng.choice((10, 100, 2000)))
    words = [rng.choice(WORDS) for _ in range(rng.randrange(1, 7))]
    return "".join(word + rng.choice(OPERATORS) for word in words) + rng.choice(WORDS)


def definition(ask: Ask, rng: random.Random) -> Ask:
    """Definitions with damaged schemas and rules, under a few names, so that they do not pile up."""
    body: Any = json.loads(json.dumps(ask.body))
    name = rng.choice(("fa", "fb", "fc"))
    body["metadata"] = {"name": f"{name}s.fuzz.example"}
    body["spec"]["group"] = "fuzz.example"
    body["spec"]["names"] = {"plural": f"{name}s", "singular": name, "kind": name.capitalize()}
    for version in body["spec"]["versions"]:
        holders = [o for o in _objects(version.get("schema")) if "type" in o]
        for holder in rng.sample(holders, min(len(holders), rng.choice((1, 2, 5)))):
            rng.choice(SCHEMA_BENDS)(holder, rng)
    if rng.random() < 0.3:
        body = bent(body, rng)
    method, path = ("POST", DEFINITIONS) if rng.random() < 0.7 else ("PUT", f"{DEFINITIONS}/{name}s.fuzz.example")
    return Ask(method, path, {}, body)


def _with_rule(holder: dict[str, Any], rng: random.Random) -> None:
    holder["x-kubernetes-validations"] = [{"rule": rule(rng), **rng.choice(({}, {"messageExpression": rule(rng)}))}]


def _with_word(holder: dict[str, Any], rng: random.Random) -> None:
    word = rng.choice(SCHEMA_WORDS)
    holder[word] = rng.choice(
        ("(a+)+$", "[", "a{1000}{1000}", "array", "string", "date-time", True, 5, -1, [], {}, odd(rng))
    )


def _deep(holder: dict[str, Any], rng: random.Random) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(rng.choice((20, 100, 200))):
        schema = (
            {"type": "object", "properties": {"a": schema}}
            if rng.random() < 0.9
            else {"type": "array", "items": schema}
        )
    holder.update({"type": "object", "properties": {"deep": schema}})


def _wide(holder: dict[str, Any], rng: random.Random) -> None:
    holder.setdefault("properties", {}).update({f"p{n}": {"type": "string"} for n in range(rng.choice((10, 300)))})


SCHEMA_BENDS: Final[tuple[Callable[[dict[str, Any], random.Random], None], ...]] = (
    _with_rule,
    _with_rule,
    _with_rule,
    _with_word,
    _with_word,
    _deep,
    _wide,
)
SCHEMA_WORDS: Final = (
    "pattern",
    "type",
    "format",
    "enum",
    "default",
    "items",
    "properties",
    "additionalProperties",
    "required",
    "minimum",
    "maxLength",
    "multipleOf",
    "uniqueItems",
    "nullable",
    "allOf",
    "anyOf",
    "not",
    "oneOf",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-map-type",
    "externalDocs",
    "$ref",
    "definitions",
)

Change = Callable[[Ask, random.Random], Ask]
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
OF_ALL: Final[Mapping[str, Change]] = {
    "as it is": lambda ask, _: ask,
    "query": _query,
    "path": _path,
    "headers": _headers,
    "method": _method,
}
