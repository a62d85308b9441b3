"""Faults around a body: paths, queries, headers, methods."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import quote

from tests.apiserver.fuzz.corpus import Ask
from tests.apiserver.fuzz.inputs import Change

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


OF_ALL: Final[Mapping[str, Change]] = {
    "as it is": lambda ask, _: ask,
    "query": _query,
    "path": _path,
    "headers": _headers,
    "method": _method,
}
