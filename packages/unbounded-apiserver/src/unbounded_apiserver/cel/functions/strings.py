"""The string functions of CEL, its strings extension (version 2) and Kubernetes' regex library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from unbounded_apiserver.cel.functions.formatting import format_string
from unbounded_apiserver.cel.regexp import BadPattern, Regexp, compile_pattern
from unbounded_apiserver.cel.types import BOOL, DYN, INT, STRING, Overload, function, list_of, method
from unbounded_apiserver.cel.values import EvalError

_SPACES: Final = "\t\n\v\f\r\x85\xa0 \u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
_UNICODE_SPACES: Final = _SPACES + "\u2028\u2029\u202f\u205f\u3000"
_QUOTED: Final = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}


def _regexp(pattern: str) -> Regexp:
    try:
        return compile_pattern(pattern)
    except BadPattern as error:
        raise EvalError(str(error)) from None


def _matches(text: str, pattern: str) -> bool:
    return _regexp(pattern).matches(text)


def _find(text: str, pattern: str) -> str:
    found = _regexp(pattern).find(text)
    return "" if found is None else text[found[0] : found[1]]


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    regexp = _regexp(pattern)
    found: list[str] = []
    at = 0
    while (limit < 0 or len(found) < limit) and at <= len(text):
        span = regexp.find(text, at)
        if span is None:
            break
        start, end = span
        found.append(text[start:end])
        at = end if end > start else end + 1
    return found


def _char_at(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise EvalError(f"index out of range: {index}")
    return text[index : index + 1]


def _index_of(text: str, desired: str, offset: int = 0) -> int:
    if not 0 <= offset <= len(text):
        if desired == "" and offset == 0:
            return 0
        raise EvalError(f"index out of range: {offset}")
    return text.find(desired, offset)


def _last_index_of(text: str, desired: str, offset: int | None = None) -> int:
    if offset is None:
        return text.rfind(desired)
    if not 0 <= offset <= len(text):
        raise EvalError(f"index out of range: {offset}")
    return text.rfind(desired, 0, offset + len(desired))


def _substring(text: str, start: int, end: int | None = None) -> str:
    stop = len(text) if end is None else end
    if end is not None and start > stop:
        raise EvalError(f"invalid substring range. start: {start}, end: {stop}")
    for index in (start, stop):
        if not 0 <= index <= len(text):
            raise EvalError(f"index out of range: {index}")
    return text[start:stop]


def _replace(text: str, old: str, new: str, limit: int = -1) -> str:
    return text.replace(old, new, limit)


def _split(text: str, separator: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    if separator == "":
        chars = list(text)
        return chars if limit < 0 or len(chars) <= limit else [*chars[: limit - 1], "".join(chars[limit - 1 :])]
    return text.split(separator, limit - 1 if limit > 0 else -1)


def _join(values: list[Any], separator: str = "") -> str:
    return separator.join(values)


def _ascii_case(text: str, *, upper: bool) -> str:
    """Change the case of a to z only: `str.upper` would change ß and others too."""
    return "".join((char.upper() if upper else char.lower()) if char.isascii() else char for char in text)


def quote(text: str) -> str:
    """Quote a text and escape control characters, as `strings.quote` does."""
    return '"' + "".join(_QUOTED.get(char, char) for char in text) + '"'


def _standard() -> Iterator[Overload]:
    yield method("contains", "contains_string", (STRING, STRING), BOOL, lambda text, part: part in text)
    yield method("startsWith", "starts_with_string", (STRING, STRING), BOOL, lambda text, part: text.startswith(part))
    yield method("endsWith", "ends_with_string", (STRING, STRING), BOOL, lambda text, part: text.endswith(part))
    yield method("matches", "matches_string", (STRING, STRING), BOOL, _matches)
    yield function("matches", "matches", (STRING, STRING), BOOL, _matches)
    yield method("find", "string_find_string", (STRING, STRING), STRING, _find)
    yield method("findAll", "string_find_all_string", (STRING, STRING), list_of(STRING), _find_all)
    yield method("findAll", "string_find_all_string_int", (STRING, STRING, INT), list_of(STRING), _find_all)


def _extension() -> Iterator[Overload]:
    yield method("charAt", "string_char_at_int", (STRING, INT), STRING, _char_at)
    yield method("indexOf", "string_index_of_string", (STRING, STRING), INT, _index_of)
    yield method("indexOf", "string_index_of_string_int", (STRING, STRING, INT), INT, _index_of)
    yield method("lastIndexOf", "string_last_index_of_string", (STRING, STRING), INT, _last_index_of)
    yield method("lastIndexOf", "string_last_index_of_string_int", (STRING, STRING, INT), INT, _last_index_of)
    yield method("lowerAscii", "string_lower_ascii", (STRING,), STRING, lambda text: _ascii_case(text, upper=False))
    yield method("upperAscii", "string_upper_ascii", (STRING,), STRING, lambda text: _ascii_case(text, upper=True))
    yield method("replace", "string_replace_string_string", (STRING, STRING, STRING), STRING, _replace)
    yield method("replace", "string_replace_string_string_int", (STRING, STRING, STRING, INT), STRING, _replace)
    yield method("split", "string_split_string", (STRING, STRING), list_of(STRING), _split)
    yield method("split", "string_split_string_int", (STRING, STRING, INT), list_of(STRING), _split)
    yield method("substring", "string_substring_int", (STRING, INT), STRING, _substring)
    yield method("substring", "string_substring_int_int", (STRING, INT, INT), STRING, _substring)
    yield method("trim", "string_trim", (STRING,), STRING, lambda text: text.strip(_UNICODE_SPACES))
    yield method("join", "list_join", (list_of(STRING),), STRING, _join)
    yield method("join", "list_join_string", (list_of(STRING), STRING), STRING, _join)
    yield method("format", "string_format", (STRING, list_of(DYN)), STRING, format_string)
    yield function("strings.quote", "strings_quote", (STRING,), STRING, quote)


STRINGS: Final = (*_standard(), *_extension())
