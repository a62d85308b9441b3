"""Redaction of a host's output: without secrets and without control sequences of a terminal.

The root user of a host controls this input, and all other tasks wait while it is redacted. So no pattern may backtrack
over the same characters: each consumes what it has matched, or starts only at the start of a run of its characters.
RE2 would guarantee that by itself, but it needs a second for a text with ten thousand matches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from unbounded.kube.logs import SecretStr

HIDDEN: Final = "[hidden]"
_SHORTEST: Final = 6  # of a redacted secret; a shorter one occurs within many words
_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_]?)")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_PATTERNS: Final = (
    (re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?(?:-----END \1-----|\Z)", re.DOTALL), HIDDEN),
    (re.compile(r"\A[A-Za-z0-9+/=\s]*-----END [A-Z0-9 ]+-----"), HIDDEN),  # its beginning was cut off
    (re.compile(r"(?<![a-z0-9])[a-z0-9]{6}\.[a-z0-9]{16}(?![a-z0-9])"), HIDDEN),  # a bootstrap token
    # A token of a service account. The lookahead requires the dots, once for each run of its characters.
    (re.compile(r"(?<![\w-])(?=[\w-]+\.[\w-]+\.)([\w-]*?)\beyJ[\w-]+\.[\w-]+\.[\w-]*", re.ASCII), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)(\b(?:authorization: *)?(?:bearer|basic) +)[\w.~+/=-]{6,}"), rf"\1{HIDDEN}"),
    (re.compile(r"://[^\s/@?#\"']*@"), "://"),  # user of a URL
    (re.compile(r"(://[^\s?#\"']*)(?:[?#][^\s\"']*)?"), r"\1"),  # query of a URL; a URL without one is consumed, too
)


def redacted(text: str, hidden: Iterable[SecretStr] = ()) -> str:
    """Return the text without secrets, known or likely ones, and without control characters but line ends."""
    text = _CONTROL.sub("", _ANSI.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))
    for secret in sorted(set(_parts(hidden)), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def _parts(hidden: Iterable[SecretStr]) -> Iterator[str]:
    """Yield each secret, and the lines or halves of a secret that has several."""
    for secret in hidden:
        text = secret.reveal()
        parts = [text.strip(), *text.splitlines(), *(text.split(".") if len(text.split(".")) == 2 else ())]
        yield from (part.strip() for part in parts if len(part.strip()) >= _SHORTEST)


def end_of_text(text: str, most: int) -> str:
    """Return the end of a text in at most `most` bytes; an ellipsis marks a cut within a line."""
    content = text.strip().encode()
    if len(content) <= most:
        return content.decode()
    return "…" + content[-(most - len("…".encode())) :].decode(errors="ignore").lstrip()
