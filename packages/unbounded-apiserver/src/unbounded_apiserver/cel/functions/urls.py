"""Kubernetes' URL library, over a parser that follows Go's net/url."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv6Address
from typing import Final
from urllib.parse import unquote_plus

from unbounded_apiserver.cel.types import BOOL, STRING, URL, Overload, function, list_of, map_of, method
from unbounded_apiserver.cel.values import EvalError, register_opaque

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_BAD_IN_HOST: Final = re.compile(r"[^A-Za-z0-9\-._~!$&'()*+,;=:%\[\]<>\"\x80-\U0010ffff]")
_UNESCAPED_IN_PATH: Final = frozenset("$&+,/:;=@-_.~!'()*[]")


@dataclass(frozen=True, slots=True)
class Url:
    scheme: str
    host: str  # with its port
    path: str  # as it was written
    query: str

    @property
    def hostname(self) -> str:
        return self._split_port()[0]

    @property
    def port(self) -> str:
        return self._split_port()[1]

    def _split_port(self) -> tuple[str, str]:
        host, colon, port = self.host.rpartition(":")
        if not colon or "]" in port or not (port.isdigit() or port == ""):
            host, port = self.host, ""
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        return host, port

    @property
    def escaped_path(self) -> str:
        """The original path if its encoding is valid, else the path encoded again."""
        if _BAD_ESCAPE.search(self.path) is None and all(_may_stand(char) for char in self.path):
            return self.path
        return "".join(
            char if char == "%" or _may_stand(char) else "".join(f"%{byte:02X}" for byte in char.encode())
            for char in self.path
        )

    def query_values(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for pair in self.query.split("&"):
            if pair and ";" not in pair and _BAD_ESCAPE.search(pair) is None:
                key, _, value = pair.partition("=")
                found.setdefault(unquote_plus(key), []).append(unquote_plus(value))
        return found


register_opaque(Url, URL)


def _may_stand(char: str) -> bool:
    return char == "%" or (char.isascii() and (char.isalnum() or char in _UNESCAPED_IN_PATH))


def parse_url(text: str) -> Url | str:
    """Parse an absolute URL or absolute path as Go's url.ParseRequestURI; or return Go's error."""
    problem = f'parse "{text}": '
    if not text:
        return problem + "empty url"
    if any(ord(char) < 0x20 or char == "\x7f" for char in text):
        return problem + "net/url: invalid control character in URL"
    scheme, rest = _split_scheme(text)
    if scheme is None:
        return problem + "missing protocol scheme"
    rest, _, fragment_or_query = rest.partition("#")[0].partition("?")
    if not rest.startswith("/"):
        return problem + "invalid URI for request"
    authority, path = "", rest
    if rest.startswith("//") and not (not scheme and rest.startswith("///")):
        slash = rest.find("/", 2)
        authority, path = (rest[2:], "") if slash < 0 else (rest[2:slash], rest[slash:])
    host = authority.rpartition("@")[2]
    complaint = _host_complaint(host) or _escape_complaint(path)
    if complaint is not None:
        return problem + complaint
    return Url(scheme.lower(), host, path, fragment_or_query)


def _split_scheme(text: str) -> tuple[str | None, str]:
    """Return scheme and rest; an empty scheme if there is none, None if the colon comes first."""
    match = _SCHEME.match(text)
    if match is None:
        return (None, text) if text.startswith(":") else ("", text)
    if text[match.end() : match.end() + 1] != ":":
        return "", text
    return match.group(), text[match.end() + 1 :]


def _escape_complaint(text: str) -> str | None:
    bad = _BAD_ESCAPE.search(text)
    return None if bad is None else f'invalid URL escape "{text[bad.start() : bad.start() + 3]}"'


def _host_complaint(host: str) -> str | None:
    bad = _BAD_IN_HOST.search(host)
    if bad is not None:
        return f'invalid character "{bad.group()}" in host name'
    if not host.startswith("["):
        _, colon, port = host.rpartition(":")
        if colon and port and not (port.isascii() and port.isdigit()):
            return f'invalid port ":{port}" after host'
        return _escape_complaint(host)
    inside, bracket, after = host[1:].partition("]")
    if not bracket:
        return "missing ']' in host"
    if after and not (after.startswith(":") and (after[1:].isdigit() or after == ":")):
        return f'invalid port "{after}" after host'
    try:
        IPv6Address(inside.partition("%")[0])
    except AddressValueError:
        return f"invalid host: {host}"
    return None


def _url(text: str) -> Url:
    parsed = parse_url(text)
    if isinstance(parsed, str):
        raise EvalError(f"URL parse error during conversion from string: {parsed}")
    return parsed


def _library() -> Iterator[Overload]:
    yield function("url", "string_to_url", (STRING,), URL, _url)
    yield function("isURL", "is_url_string", (STRING,), BOOL, lambda text: not isinstance(parse_url(text), str))
    yield method("getScheme", "url_get_scheme", (URL,), STRING, lambda url: url.scheme)
    yield method("getHost", "url_get_host", (URL,), STRING, lambda url: url.host)
    yield method("getHostname", "url_get_hostname", (URL,), STRING, lambda url: url.hostname)
    yield method("getPort", "url_get_port", (URL,), STRING, lambda url: url.port)
    yield method("getEscapedPath", "url_get_escaped_path", (URL,), STRING, lambda url: url.escaped_path)
    yield method("getQuery", "url_get_query", (URL,), map_of(STRING, list_of(STRING)), lambda url: url.query_values())


URLS: Final = tuple(_library())
