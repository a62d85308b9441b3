"""Inputs for a server: requests as bytes, and the known facts of each."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.apiserver.fuzz.corpus import Ask
from tests.apiserver.fuzz.values import written


@dataclass(frozen=True)
class Input:
    """An input. `head`: the answer has no body; `framed`: it is HTTP, so an answer must come."""

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


Change = Callable[[Ask, random.Random], Ask]
