"""Validation of names, labels, annotations and keys; each check returns errors worded as by Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

_LABEL_1123: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN_1123: Final = rf"{_LABEL_1123}(\.{_LABEL_1123})*"
_LABEL_1035: Final = "[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE: Final = f"({_QUALIFIED})?"
_CONFIG_KEY: Final = "[-._a-zA-Z0-9]+"

Check = Callable[[str], tuple[str, ...]]


def _message(rule: str, pattern: str, *examples: str) -> str:
    shown = ",  or ".join(f"'{e}'" for e in examples)
    return f"{rule} (e.g. {shown}, regex used for validation is '{pattern}')"


_SUBDOMAIN_MESSAGE: Final = _message(
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character",
    _SUBDOMAIN_1123,
    "example.com",
)
_LABEL_1123_MESSAGE: Final = _message(
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
    "and must start and end with an alphanumeric character",
    _LABEL_1123,
    "my-name",
    "123-abc",
)
_LABEL_1035_MESSAGE: Final = _message(
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', "
    "start with an alphabetic character, and end with an alphanumeric character",
    _LABEL_1035,
    "my-name",
    "abc-123",
)
_QUALIFIED_RULE: Final = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
)
_QUALIFIED_MESSAGE: Final = _message(_QUALIFIED_RULE, _QUALIFIED, "MyName", "my.name", "123-abc")
_QUALIFIED_SLASHES: Final = (
    f"a valid label key {_QUALIFIED_MESSAGE} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
)
_LABEL_VALUE_MESSAGE: Final = _message(
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
    "and must start and end with an alphanumeric character",
    _LABEL_VALUE,
    "MyValue",
    "my_value",
    "12345",
)
_CONFIG_KEY_MESSAGE: Final = _message(
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
    _CONFIG_KEY,
    "key.name",
    "KEY_NAME",
    "key-name",
)


def _checker(pattern: str, message: str, limit: int, unit: str = "characters") -> Check:
    matches = re.compile(pattern).fullmatch

    @lru_cache(maxsize=4096)
    def check(value: str) -> tuple[str, ...]:
        wrong = []
        if len(value.encode()) > limit:
            wrong.append(f"must be no more than {limit} {unit}")
        if not matches(value):
            wrong.append(message)
        return tuple(wrong)

    return check


subdomain: Final = _checker(_SUBDOMAIN_1123, _SUBDOMAIN_MESSAGE, 253)
label_1123: Final = _checker(_LABEL_1123, _LABEL_1123_MESSAGE, 63)
label_1035: Final = _checker(_LABEL_1035, _LABEL_1035_MESSAGE, 63)
label_value: Final = _checker(_LABEL_VALUE, _LABEL_VALUE_MESSAGE, 63, "bytes")
_qualified_part: Final = re.compile(_QUALIFIED).fullmatch
_config_key: Final = re.compile(_CONFIG_KEY).fullmatch


@lru_cache(maxsize=4096)
def qualified_name(value: str) -> tuple[str, ...]:
    """Check a label or annotation key, a finalizer or a taint: `name` or `dns.prefix/name`."""
    wrong: list[str] = []
    prefix, slash, name = value.rpartition("/")
    if value.count("/") > 1:
        return (_QUALIFIED_SLASHES,)
    if slash and not prefix:
        wrong.append("prefix part must be non-empty")
    elif slash:
        wrong += [f"prefix part {why}" for why in subdomain(prefix)]
    if not name:
        wrong.append("name part must be non-empty")
    elif len(name.encode()) > 63:
        wrong.append("name part must be no more than 63 bytes")
    if not _qualified_part(name):
        wrong.append(f"name part {_QUALIFIED_MESSAGE}")
    return tuple(wrong)


def config_key(value: str) -> tuple[str, ...]:
    """Check a key in the data of a Secret or ConfigMap."""
    wrong: list[str] = []
    if len(value.encode()) > 253:
        wrong.append("must be no more than 253 bytes")
    if not _config_key(value):
        wrong.append(_CONFIG_KEY_MESSAGE)
    elif value == ".":
        wrong.append("must not be '.'")
    elif value.startswith(".."):
        wrong.append("must not start with '..'")
    return tuple(wrong)


def path_segment(value: str) -> tuple[str, ...]:
    """Check a name that becomes a segment of a URL path."""
    if value in {".", ".."}:
        return (f"may not be '{value}'",)
    return tuple(f"may not contain '{c}'" for c in "/%" if c in value)
