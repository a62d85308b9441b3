"""Objects of the API without secrets, for a bundle that leaves the cluster. Pure.

Kept are names, addresses and states. Removed are managedFields, annotations of others, scripts and user data, values
of environment variables, texts under the name of a secret, queries of URLs, and what looks like a secret in any text.
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
_FREE_TEXT: Final = re.compile(
    r"^(?:user_?data|network_?data|meta_?data|(?:pre|post)deployscript|content|cloud_?config|kubeconfig)$",
    re.IGNORECASE,
)
_QUERY: Final = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s?#\"'<>]*)[?#][^\s\"'<>]*", re.IGNORECASE)
_REFERENCE: Final = frozenset({"apiVersion", "kind", "namespace", "name", "key"})
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
        case dict() if SECRET_KEY.search(key):  # a reference to a Secret, or a value
            return {name: one if name in _REFERENCE else HIDDEN for name, one in value.items()}
        case dict():
            kept = {name: one for name, one in value.items() if name != "managedFields"}
            return {_text(name, known): _redacted(name, one, known) for name, one in kept.items()}
        case list() if key == "env":
            return [_variable(one, known) for one in value]
        case list() | tuple():
            return [_redacted(key, one, known) for one in value]
        case str() if value and SECRET_KEY.search(key):
            return HIDDEN
        case str() if value and _FREE_TEXT.search(key):
            return LEFT_OUT.format(len(value))
        case str():
            return _text(value, known)
    return value


def _annotation(name: str, text: Any, known: Collection[str]) -> Any:
    """Return the value of an annotation of this project or of Kubernetes; others may hold anything."""
    domain = name.partition("/")[0]
    ours = f".{domain}".endswith((*(f".{group}" for group in (GROUP, *GROUPS)), ".kubernetes.io", ".k8s.io"))
    return _redacted(name, text, known) if ours else LEFT_OUT.format(len(str(text)))


def _variable(value: Any, known: Collection[str]) -> Any:
    """Return an environment variable of a container; its value may be anything."""
    kept = _redacted("", value, known)
    if isinstance(kept, dict) and (text := kept.get("value")):
        kept["value"] = LEFT_OUT.format(len(str(text)))
    return kept


def _text(text: str, known: Collection[str]) -> str:
    found = _cached(text) if len(text) <= _SHORT else _by_form(text)
    return without_secrets(found, known) if known else found


def _by_form(text: str) -> str:
    return without_secrets(_QUERY.sub(rf"\1?{HIDDEN}", text))


_cached: Final = lru_cache(_CACHED)(_by_form)
