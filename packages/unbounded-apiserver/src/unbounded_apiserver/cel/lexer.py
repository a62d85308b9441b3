"""Conversion of source text to tokens (the lexical part of the CEL grammar)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from unbounded_apiserver.cel.values import INT_MAX, UINT_MAX, Issue, UInt


class TokenKind(StrEnum):
    IDENT = "IDENTIFIER"
    QUOTED_IDENT = "ESC_IDENTIFIER"
    INT = "NUM_INT"
    UINT = "NUM_UINT"
    FLOAT = "NUM_FLOAT"
    STRING = "STRING"
    BYTES = "BYTES"
    SYMBOL = "symbol"
    KEYWORD = "keyword"
    END = "<EOF>"


@dataclass(frozen=True, slots=True)
class CelToken:
    kind: TokenKind
    text: str
    offset: int
    value: Any = None


KEYWORDS: Final = frozenset({"true", "false", "null", "in"})
RESERVED: Final = frozenset(
    {
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    }
)

_PATTERN: Final = re.compile(
    r"""
    (?P<space>[ \t\r\n\f]+|//[^\n]*)
  | (?P<string>(?P<prefix>[bB][rR]|[rR][bB]|[rR]|[bB])?(?P<quote>\"\"\"|'''|"|'))
  | (?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
  | (?P<uint>(?:0x[0-9a-fA-F]+|[0-9]+)[uU])
  | (?P<int>0x[0-9a-fA-F]+|[0-9]+)
  | (?P<ident>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<quoted>`[A-Za-z0-9_.\-/ ]+`)
  | (?P<symbol>==|!=|<=|>=|&&|\|\||[\[\]{}().,\-!?:+*/%<>])
    """,
    re.VERBOSE,
)

_ESCAPE: Final = re.compile(
    r"\\(?:(?P<simple>[abfnrtv\\?\"'`])|x(?P<hex>[0-9a-fA-F]{2})|X(?P<hex2>[0-9a-fA-F]{2})"
    r"|u(?P<u4>[0-9a-fA-F]{4})|U(?P<u8>[0-9a-fA-F]{8})|(?P<octal>[0-3][0-7]{2})|(?P<bad>.|$))",
    re.DOTALL,
)
_SIMPLE: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class _BadEscapeError(Exception):
    pass


def tokenize(source: str) -> tuple[list[CelToken], list[Issue]]:
    """Return all tokens, closed by END, and the errors; unreadable parts are left out of the tokens."""
    tokens: list[CelToken] = []
    issues: list[Issue] = []
    at = 0
    while at < len(source):
        match = _PATTERN.match(source, at)
        if match is None:
            issues.append(Issue(at, f"Syntax error: token recognition error at: '{source[at]}'"))
            at += 1
        elif match["string"]:
            at = _read_string(source, match, tokens, issues)
        else:
            if match["space"] is None:
                tokens.append(_simple_token(match, issues))
            at = match.end()
    tokens.append(CelToken(TokenKind.END, "<EOF>", len(source)))
    return tokens, issues


def _simple_token(match: re.Match[str], issues: list[Issue]) -> CelToken:
    text, at = match.group(), match.start()
    match match.lastgroup:
        case "float":
            return CelToken(TokenKind.FLOAT, text, at, float(text))
        case "uint":
            value = _integer(text[:-1])
            if value > UINT_MAX:
                issues.append(Issue(at, "invalid uint literal"))
            return CelToken(TokenKind.UINT, text, at, UInt(min(value, UINT_MAX)))
        case "int":
            value = _integer(text)
            if value > INT_MAX + 1:  # one more is allowed here, as the number may follow a minus
                issues.append(Issue(at, "invalid int literal"))
            return CelToken(TokenKind.INT, text, at, value)
        case "ident":
            return CelToken(TokenKind.KEYWORD if text in KEYWORDS else TokenKind.IDENT, text, at)
        case "quoted":
            return CelToken(TokenKind.QUOTED_IDENT, text[1:-1], at)
        case _:
            return CelToken(TokenKind.SYMBOL, text, at)


def _integer(text: str) -> int:
    return int(text, 16) if text.startswith("0x") else int(text[:40])


def _read_string(source: str, match: re.Match[str], tokens: list[CelToken], issues: list[Issue]) -> int:
    """Append the string that opens at the match; return the offset behind it."""
    quote, prefix = match["quote"], (match["prefix"] or "").lower()
    start, end = match.start(), _string_end(source, match.end(), quote, raw="r" in prefix)
    if end < 0:
        stop = len(source) if len(quote) == 3 else (source.find("\n", start) % (len(source) + 1))
        issues.append(Issue(start, f"Syntax error: token recognition error at: '{source[start:stop]}'"))
        return stop
    body = source[match.end() : end - len(quote)]
    try:
        value = _unescape(body, raw="r" in prefix, as_bytes="b" in prefix)
    except _BadEscapeError as error:
        issues.append(Issue(start, str(error)))
        value = b"" if "b" in prefix else ""
    tokens.append(CelToken(TokenKind.BYTES if "b" in prefix else TokenKind.STRING, source[start:end], start, value))
    return end


def _string_end(source: str, at: int, quote: str, *, raw: bool) -> int:
    """Return the offset behind the closing quote, or -1; strings in single quotes end with their line."""
    while at < len(source):
        if source.startswith(quote, at):
            return at + len(quote)
        if source[at] in "\r\n" and len(quote) == 1:
            return -1
        at += 2 if source[at] == "\\" and not raw else 1
    return -1


def _unescape(body: str, *, raw: bool, as_bytes: bool) -> str | bytes:
    if raw or "\\" not in body:
        return body.encode() if as_bytes else body
    if as_bytes:
        pieces: list[bytes] = []
        last = 0
        for match in _ESCAPE.finditer(body):
            pieces += [body[last : match.start()].encode(), _escaped_byte(match)]
            last = match.end()
        return b"".join([*pieces, body[last:].encode()])
    return _ESCAPE.sub(_escaped_char, body)


def _code(match: re.Match[str]) -> int:
    if match["octal"]:
        return int(match["octal"], 8)
    digits = match["hex"] or match["hex2"] or match["u4"] or match["u8"]
    if digits is None:
        raise _BadEscapeError(f"unable to unescape sequence: {match.group()}")
    return int(digits, 16)


def _escaped_char(match: re.Match[str]) -> str:
    if match["simple"]:
        return _SIMPLE.get(match["simple"], match["simple"])
    code = _code(match)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise _BadEscapeError("invalid unicode code point")
    return chr(code)


def _escaped_byte(match: re.Match[str]) -> bytes:
    if match["u4"] or match["u8"]:
        raise _BadEscapeError("unable to unescape string: \\u and \\U are not allowed in bytes")
    return _escaped_char(match).encode() if match["simple"] else bytes([_code(match)])
