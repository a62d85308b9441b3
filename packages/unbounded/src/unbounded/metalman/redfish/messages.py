"""Texts of a BMC's errors from the extended error, cleaned for display."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

MESSAGE_CHARS: Final = 1024
_HIDDEN: Final = "***"


def clean(text: str, *, hide: Iterable[str] = ()) -> str:
    """Return one line of printable text, at most 1024 characters, without the secrets in `hide`."""
    for secret in sorted(filter(None, hide), key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    text = text[: 8 * MESSAGE_CHARS]
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= MESSAGE_CHARS else line[: MESSAGE_CHARS - 1] + "…"


def error_text(document: Mapping[str, Any]) -> str:
    """Return ids and texts of a Redfish error (DSP0266, 8.6): the extended messages, else its code and message."""
    error = document.get("error")
    error = error if isinstance(error, Mapping) else document
    return "; ".join(dict.fromkeys(extended(error))) or _id_and_text(error.get("code"), error.get("message"))


def extended(holder: Mapping[str, Any]) -> Iterator[str]:
    """Yield each message of `@Message.ExtendedInfo`, or of a Task's `Messages`, as "Id: text"."""
    for key in ("@Message.ExtendedInfo", "Messages"):
        found = holder.get(key)
        for message in found if isinstance(found, list) else [found]:
            if isinstance(message, Mapping):
                text = _id_and_text(message.get("MessageId"), message.get("Message"))
                if text:
                    yield text
            elif isinstance(message, str):
                yield message


def _id_and_text(identity: object, text: object) -> str:
    return ": ".join(part for part in (identity, text) if isinstance(part, str) and part)
