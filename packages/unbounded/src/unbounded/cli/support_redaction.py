"""Objects of the API without secrets, for a bundle that leaves the cluster. Pure.

Kept are names, addresses and states. Removed are managedFields, annotations of others, scripts and user data, values
of environment variables, texts and numbers under the name of a secret, queries of URLs, and what looks like a secret
in any text.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Any, Final

from unbounded.api.container_cloud.names import GROUPS
from unbounded.api.names import GROUP
from unbounded.kube.secret_text import HIDDEN, SECRET_KEY, without_secrets

LEFT_OUT: Final = "[left out: {} characters]"
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_SECRET_NAME: Final = re.compile(
    rf"{SECRET_KEY.pattern}|passwd|passcode|pwd$|(?:^|[_-])pass$|cookie|authorization|^credentials?$|"
    r"(?:api|access|private|signing|encryption)[_-]?key",
    re.IGNORECASE,
)
_FREE_TEXT: Final = re.compile(
    r"^(?:user_?data|network_?data|(?:pre|post)deployscript|content|cloud_?config|kubeconfig)$", re.IGNORECASE
)
_META_DATA: Final = re.compile(r"^meta_?data$", re.IGNORECASE)  # of cloud-init a text; otherwise that of an object
_QUERY: Final = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s?#\"'<>]*)[?#][^\s\"'<>]*", re.IGNORECASE)
_REFERENCE: Final = frozenset({"apiVersion", "kind", "namespace", "name", "key"})
_COMMANDS: Final = frozenset({"args", "command"})  # of a container
_CACHED: Final = 65536  # texts: most are those of many objects
_SHORT: Final = 512  # characters of a text that is kept for that


def redacted_object(item: Any, known: Collection[str] = ()) -> Any:
    """Return an object, or another JSON value, without secrets.

    Args:
        known: secrets that are removed wherever they are.
    """
    return _redacted("", item, known)


def _redacted(key: str, value: Any, known: Collection[str]) -> Any:
    match value:
        case dict() if key == "annotations":
            return {name: _annotation(name, text, known) for name, text in value.items() if name != _LAST_APPLIED}
        case dict() if _SECRET_NAME.search(key) or _FREE_TEXT.search(key):  # a reference to an object, or a value
            return {name: _of_reference(name, one, known) for name, one in value.items()}
        case dict() if key == "env":
            return {name: _left_out(one) for name, one in value.items()}
        case dict():
            return _properties(value, known)
        case list() if key == "env":
            return [_variable(one, known) for one in value]
        case list() if key in _COMMANDS:
            return [_word(before, one, known) for before, one in zip(["", *value], value, strict=False)]
        case list() | tuple():
            return [_redacted(key, one, known) for one in value]
        case bool() | None | "":
            return value
        case str() | int() | float() if _SECRET_NAME.search(key):
            return HIDDEN
        case str() if _FREE_TEXT.search(key) or _META_DATA.search(key):
            return _left_out(value)
        case str():
            return _text(value, known)
    return value


def _properties(value: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return the properties of an object; of a pair such as a header, the value without its secret."""
    is_pair = "value" in value and any(_SECRET_NAME.search(str(value.get(name, ""))) for name in ("name", "key"))
    return {
        _text(name, known): HIDDEN if is_pair and name == "value" else _redacted(name, one, known)
        for name, one in value.items()
        if name != "managedFields"
    }


def _of_reference(name: str, value: Any, known: Collection[str]) -> Any:
    """Return a property of a reference; anything else may be the secret."""
    return _text(value, known) if name in _REFERENCE and isinstance(value, str) else HIDDEN


def _word(before: Any, word: Any, known: Collection[str]) -> Any:
    """Return a word of a command; the one after an option such as --password is a secret."""
    is_option = isinstance(before, str) and before.startswith("-") and "=" not in before
    return HIDDEN if is_option and _SECRET_NAME.search(before) else _redacted("", word, known)


def _left_out(value: Any) -> str:
    return LEFT_OUT.format(len(str(value)))


def _annotation(name: str, text: Any, known: Collection[str]) -> Any:
    """Return the value of an annotation of this project or of Kubernetes; others may hold anything."""
    domain = name.partition("/")[0]
    ours = f".{domain}".endswith((*(f".{group}" for group in (GROUP, *GROUPS)), ".kubernetes.io", ".k8s.io"))
    return _redacted(name, text, known) if ours else _left_out(text)


def _variable(value: Any, known: Collection[str]) -> Any:
    """Return an environment variable of a container; its value may be anything."""
    if isinstance(value, str):  # NAME=VALUE
        name, equals, text = value.partition("=")
        return _text(name, known) + (equals and f"={_left_out(text)}")
    kept = _redacted("", value, known)
    if isinstance(kept, dict) and (text := value.get("value")):
        kept["value"] = _left_out(text)
    return kept


def _text(text: str, known: Collection[str]) -> str:
    found = _cached(text) if len(text) <= _SHORT else _by_form(text)
    return without_secrets(found, known) if known else found


def _by_form(text: str) -> str:
    return without_secrets(_QUERY.sub(rf"\1?{HIDDEN}", text))


_cached: Final = lru_cache(_CACHED)(_by_form)
