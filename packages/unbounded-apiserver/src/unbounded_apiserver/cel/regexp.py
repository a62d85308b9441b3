"""Regular expressions with Go's syntax, in linear time (RE2); shared with the patterns of schemas."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import re2

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


class BadPattern(Exception):
    """The pattern is no regular expression; `str()` is Go's wording."""


class Regexp:
    """A compiled pattern."""

    __slots__ = ("_automaton", "_regexp")

    def __init__(self, pattern: str) -> None:
        self._regexp: Any = re2.compile(_encodable(pattern), _OPTIONS)
        self._automaton: Any = re2.Set.SearchSet(_OPTIONS)
        self._automaton.Add(_encodable(pattern))
        self._automaton.Compile()

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches anywhere in the text.

        A set of one pattern answers four times as fast as a search with positions. For want of memory the set may
        report no match, so that a second search confirms a negative answer.
        """
        text = _encodable(text)
        return bool(self._automaton.Match(text)) or self._regexp.search(text) is not None

    def find(self, text: str, at: int = 0) -> tuple[int, int] | None:
        """Return the first match from an offset on; `^` is the beginning of the text, not of the search."""
        match = self._regexp.search(_encodable(text), at)
        return None if match is None else (match.start(), match.end())


def _encodable(text: str) -> str:
    """Replace unpaired surrogates, which JSON can contain and UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> Regexp:
    """Compile a pattern.

    Raises:
        BadPattern: Go would reject it.
    """
    try:
        return Regexp(pattern)
    except re2.error as error:
        detail = error.args[0] if error.args else b""
        text = detail.decode(errors="replace") if isinstance(detail, bytes) else str(detail)
        what, _, where = text.partition(": ")
        raise BadPattern(f"error parsing regexp: {_GO_WORDING.get(what, what)}: `{where}`") from None
