"""Challenges of a 401: the WWW-Authenticate header (RFC 9110 section 11), as registries use it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105  # the grammar's word, no secret
_PARAMETER: Final = re.compile(rf'\s*,?\s*({_TOKEN})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN}))')
_SCHEME: Final = re.compile(rf"\s*,?\s*({_TOKEN})(?=\s|,|$)(?!\s*=)")


@dataclass(frozen=True)
class AuthChallenge:
    scheme: str  # in lower case
    parameters: Mapping[str, str]


def challenges(headers: Iterable[str]) -> list[AuthChallenge]:
    """Return the challenges of all WWW-Authenticate headers; a syntax error ends its header."""
    found: list[AuthChallenge] = []
    for header in headers:
        at = 0
        while scheme := _SCHEME.match(header, at):
            at = scheme.end()
            parameters: dict[str, str] = {}
            while parameter := _PARAMETER.match(header, at):
                at = parameter.end()
                quoted, bare = parameter.group(2), parameter.group(3)
                value = bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
                parameters[parameter.group(1).lower()] = value
            found.append(AuthChallenge(scheme.group(1).lower(), parameters))
    return found
