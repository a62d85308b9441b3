"""Secrets in text: found by their value, and by their form. Pure.

A known secret is found as it is, percent-encoded, as a JSON string and in base64, also where white space or a NUL
stands between its characters. Other secrets are found by their form. What is encoded in another way is not found.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import quote

from unbounded.api.profile import MachineProfileSpec

HIDDEN: Final = "[redacted]"
SHORTEST: Final = 4  # characters of a known secret; shorter ones would match everywhere
SECRET_KEY: Final = re.compile(r"password|passphrase|secret|token|community|licen[cs]e|privatekey", re.IGNORECASE)
"""Names of properties whose texts are secrets."""
_WORD_CHARS: Final = 12  # of a word in user data that counts as a secret: it has letters and digits
_ENCODED_CHARS: Final = 24  # of a text in base64 in user data
_NESTED: Final = 3  # levels of base64
_BLANK: Final = re.compile(r"[\s\x00]")

Span = tuple[int, int]

_PW_LABEL: Final = r"\b[\w.-]{0,40}(?:pass(?:word|wd|phrase|code)?s?|(?:root|user|admin|bmc|ipmi|[_.-])pwd?)"
_LABEL: Final = (
    r"\b[\w.-]{0,40}(?:secret|token|(?:api|access|private|shared|encryption|signing)[_-]?key|psk|credentials?)"
    r"(?:[_-]\w{1,20})?"
)
_IS: Final = r"(?:\\{0,3}[\"'])?(?:[ \t]*[:=]+[ \t]*|[ \t]+(?:for \S{1,40} )?is[ \t]+)"  # a quote may be escaped
_PEM: Final = r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
_FORMS: Final = (
    re.compile(r"(?<![a-z0-9])[a-z0-9]{6}\.[a-z0-9]{16}(?![a-z0-9])"),  # bootstrap token
    re.compile(r"(?<![a-z2-7])[a-z2-7]{32}(?![a-z2-7])"),  # prefix of a boot's URLs, and the ticket of an image
    re.compile(r"(?<=://)[^\s/@]+(?=@)"),  # user and password in a URL
    re.compile(r"(?<=\biscsi:)[^\s@:/]+:[^\s@/]+(?=@)"),  # likewise in `netroot` of a kernel command line
    re.compile(r"(?i)\b(?:bearer|basic)[ \t]+[\w+/=.~-]{8,}|\bx-auth-token:[ \t]*\S+"),
    re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*"),  # JSON web token
    re.compile(r"\$(?:1|2[aby]?|5|6|7|y|gy|sha1|argon2\w*)\$[\w./$,=+-]+"),  # hash of a password
    re.compile(rf"(?i){_PW_LABEL}{_IS}(?P<value>[^\n]*\S)"),
    re.compile(rf"(?i){_LABEL}{_IS}(?P<value>\\{{0,3}}\"[^\"\n]*\"?|'[^'\n]*'?|\S+)"),
    re.compile(r"(?i)following 'random' passwords\s*\n(?P<value>(?:[^\s:]+:\S+\s*)+)"),  # of cloud-init
    re.compile(rf"{_PEM}(?:(?!-----END).)*(?:-----END [A-Z0-9 ]*-----)?", re.DOTALL),
    # a key of which the beginning is lost
    re.compile(r"(?<![A-Za-z0-9+/=\s])[A-Za-z0-9+/=\s]{16,}(?=-----END [A-Z0-9 ]*PRIVATE KEY)"),
)
_ASSIGNED: Final = re.compile(rf"(?i)(?:{_PW_LABEL}|{_LABEL}|\bkey)[\"']?[ \t]*[:=][ \t]*[\"']?(?P<value>[^\s\"',}}]+)")
_OPTION: Final = re.compile(rf"(?i)(?<![\w-])--?(?:{_PW_LABEL}|{_LABEL})[ \t]+[\"']?(?P<value>[^\s\"',;|&]+)")
_PAIR: Final = re.compile(r"(?m)(?<![\w.:/-])[\w.-]{1,64}:(?P<value>(?!/)[^\s\"',]{4,})")  # user:password
_NO_SECRETS: Final = frozenset({"true", "false", "null", "none"})
_SEPARATOR: Final = re.compile(r"[\s\"'`,;:@/=(){}\[\]<>|]+")
_ENCODED: Final = re.compile(rf"[A-Za-z0-9+/]{{{_ENCODED_CHARS},}}={{0,2}}")


def without_secrets(text: str, known: Iterable[str] = ()) -> str:
    """Return a text without known secrets and without those that their form shows."""
    return hide(text, [*find_values(text, known), *find_forms(text)])


def hide(text: str, spans: Iterable[Span], begin: int = 0) -> str:
    """Return a text from a position on, with a mark in place of each span."""
    parts, at = list[str](), begin
    for start, stop in _merged(spans):
        if stop > begin:
            parts += [text[at : max(start, at)], HIDDEN]
            at = stop
    return "".join([*parts, text[at:]])


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Return spans in order, those that overlap or touch as one."""
    found: list[Span] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found


def find_values(text: str, known: Iterable[str]) -> Iterator[Span]:
    """Find known secrets in the text without blanks, as a terminal breaks lines anywhere."""
    places = [index for index, char in enumerate(text) if not char.isspace() and char != "\x00"]
    dense = "".join([text[index] for index in places])
    for secret in known:
        for form in _encodings(secret):
            at = dense.find(form)
            while at >= 0:
                yield places[at], places[at + len(form) - 1] + 1
                at = dense.find(form, at + 1)


def _encodings(secret: str) -> Iterator[str]:
    plain = secret.encode()
    forms = {secret, quote(secret, safe=""), json.dumps(secret)[1:-1]}
    if len(plain) >= 2 * SHORTEST:
        for shift in range(3):  # base64 of a text in which the secret begins at any byte
            encoded = base64.b64encode(b"\0" * shift + plain).decode().rstrip("=")
            first, last = (shift * 8 + 5) // 6, (shift + len(plain)) * 8 // 6
            forms |= {encoded[first:last], encoded[first:last].replace("+", "-").replace("/", "_")}
    for form in forms:
        dense = _BLANK.sub("", form)
        if len(dense) >= SHORTEST:
            yield dense


def find_forms(text: str) -> Iterator[Span]:
    """Find secrets by their form."""
    for form in _FORMS:
        group = "value" if "value" in form.groupindex else 0
        for found in form.finditer(text):
            start, stop = found.span(group)
            if start < stop:
                yield start, stop


def secrets_of_user_data(text: str, nested: int = _NESTED) -> set[str]:
    """Return what may be secret in cloud-init user data: assigned to such a name, paired with a user, or random."""
    found = {match["value"] for form in (_ASSIGNED, _OPTION, _PAIR) for match in form.finditer(text)}
    found |= {word for word in _SEPARATOR.split(text) if len(word) >= _WORD_CHARS and _is_mixed(word)}
    for encoded in _ENCODED.finditer(text) if nested else ():
        try:
            inner = base64.b64decode(encoded[0], validate=True).decode()
        except ValueError:
            continue
        found |= secrets_of_user_data(inner, nested - 1)
    return {secret for secret in found if len(secret) >= SHORTEST and secret.lower() not in _NO_SECRETS}


def secrets_of_profile(spec: MachineProfileSpec) -> frozenset[str]:
    """Return what may be secret in the scripts, the module files and the sysctls of a MachineProfile."""
    kernel = spec.kernel_parameters
    texts = (
        spec.pre_deploy_script or "",
        spec.post_deploy_script or "",
        *((one.content for one in kernel.modules) if kernel is not None else ()),
        *((f"{name}: {value}" for name, value in kernel.sysctl.items()) if kernel is not None else ()),
    )
    return frozenset(one for text in texts for one in secrets_of_user_data(text))


def _is_mixed(word: str) -> bool:
    return any(char.isdigit() for char in word) and any(char.isalpha() for char in word)
