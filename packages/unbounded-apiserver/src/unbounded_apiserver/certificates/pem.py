"""PEM as Go parses it: blocks one after another, with any text between them."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

REQUEST: Final = "CERTIFICATE REQUEST"
CERTIFICATE: Final = "CERTIFICATE"
_BEGIN: Final = re.compile(rb"^-----BEGIN ([^\n]*?)-----[ \t]*\r?\n", re.MULTILINE)
_HEADER: Final = re.compile(rb"[^:\n]*:[^\n]*\n")


@dataclass(frozen=True)
class PemBlock:
    """A block between BEGIN and END."""

    kind: str
    data: bytes
    headers: bool = False


def blocks(text: bytes) -> Iterator[PemBlock]:
    """Yield the blocks that can be parsed; others are skipped."""
    at = 0
    while (begin := _BEGIN.search(text, at)) is not None:
        at = begin.end()
        end = text.find(b"-----END " + begin[1] + b"-----", at)
        if end < 0:
            continue
        body, headers = at, False
        while (header := _HEADER.match(text, body, end)) is not None:
            body, headers = header.end(), True
        try:
            data = base64.b64decode(b"".join(text[body:end].split()), validate=True)
        except binascii.Error:
            continue
        at = end
        yield PemBlock(begin[1].decode("latin-1"), data, headers)


def encode(kind: str, data: bytes) -> bytes:
    """Encode one block."""
    text = base64.b64encode(data)
    lines = b"".join(text[at : at + 64] + b"\n" for at in range(0, len(text), 64))
    return b"-----BEGIN %b-----\n%b-----END %b-----\n" % (kind.encode(), lines, kind.encode())
