"""Regular expressions with Go's syntax, in linear time (RE2); shared with the patterns of schemas."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Protocol, cast

import re2


class Match(Protocol):
    def group(self, index: int = 0) -> str: ...

    def start(self) -> int: ...

    def end(self) -> int: ...


class Regexp(Protocol):
    groups: int

    def search(self, text: str) -> Match | None: ...

    def fullmatch(self, text: str) -> Match | None: ...


class BadPattern(Exception):
    """The pattern is no regular expression; `str()` is Go's wording."""


_OPTIONS: Final = re2.Options()
_OPTIONS.log_errors = False

_GO_WORDING: Final = {
    "missing ]": "missing closing ]",
    "missing )": "missing closing )",
    "no argument for repetition operator": "missing argument to repetition operator",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid repetition size": "invalid repeat count",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
}


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> Regexp:
    """The compiled pattern.

    Raises:
        BadPattern: Go would refuse it.
    """
    try:
        return cast("Regexp", re2.compile(pattern, _OPTIONS))
    except re2.error as error:
        detail = error.args[0] if error.args else b""
        text = detail.decode(errors="replace") if isinstance(detail, bytes) else str(detail)
        what, _, where = text.partition(": ")
        raise BadPattern(f"error parsing regexp: {_GO_WORDING.get(what, what)}: `{where}`") from None
