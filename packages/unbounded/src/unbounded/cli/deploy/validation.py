"""Validation of values from the command line, before the command reads or writes anything.

The functions raise ValueError with a message for the user; `flagged` adds the name of the flag.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from unbounded.api import fields
from unbounded.fetch.reference import image_name
from unbounded.kube.settings import endpoint_url

S = TypeVar("S")
T = TypeVar("T")

image: Final = image_name

PRIVATE_KEY: Final = "PRIVATE KEY"  # in the first line of each such key in PEM
LONGEST_LABEL: Final = 63
LONGEST_SITE: Final = 43  # so that metalman-controller-SITE fits into a label of a Pod and into the name of a Service


class BadFlag(ValueError):
    """A value from the command line is invalid; the message names the flag and the expected form."""


def flagged(flag: str, check: Callable[[S], T], text: S) -> T:
    """Return the value of a flag as `check` converts it.

    Raises:
        BadFlag
    """
    try:
        return check(text)
    except ValueError as error:
        raise BadFlag(f"{flag}: {error}") from None


def site(text: str) -> str:
    """Check the name of a site: part of the names of objects, and the value of a label."""
    if not re.fullmatch(fields.DNS_LABEL, text) or len(text) > LONGEST_SITE:
        raise ValueError(
            f"{text!r} is not the name of a site: at most {LONGEST_SITE} of a-z, 0-9 and '-', with a letter "
            "or a digit at both ends"
        )
    return text


def registry(text: str) -> str:
    """Check an image registry: a host, and the path above the images."""
    wrong = bool(re.match("[A-Za-z]+://", text)) or ":" in text.partition("/")[2]
    with contextlib.suppress(ValueError):
        if not wrong:
            image_name(f"{text.rstrip('/')}/image")
            return text
    raise ValueError(
        f"{text!r} is not a registry, such as registry.example.com/unbounded: a host without a scheme, and a path of "
        "lower case, digits and . _ - /"
    )


def provider(text: str) -> str:
    """Check the value of spec.provider."""
    if not fields.is_provider_name(text):
        raise ValueError(
            f"{text!r} is not the name of a provider, such as AzureVM: at most {fields.MAX_LABEL_VALUE} letters, "
            "digits, '-', '_' and '.', with a letter or a digit at both ends"
        )
    return text


def label(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE, or KEY= for an empty value."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not a label: write KEY=VALUE")
    prefix, slash, name = key.rpartition("/")
    if not re.fullmatch(fields.LABEL_KEY, key) or len(name) > LONGEST_LABEL or (slash and len(prefix) > 253):
        raise ValueError(f"{key!r} is not a label key, such as pool or example.com/pool")
    if not re.fullmatch(fields.LABEL_VALUE, value) or len(value) > LONGEST_LABEL:
        raise ValueError(
            f"{value!r} is not a label value: at most {LONGEST_LABEL} letters, digits, '-', '_' and '.', with "
            "a letter or a digit at both ends"
        )
    return key, value


def labels(texts: Iterable[str]) -> dict[str, str]:
    """Parse labels that were given one by one, or separated by commas."""
    found: dict[str, str] = {}
    for text in _listed(texts):
        key, value = label(text)
        if found.get(key, value) != value:
            raise ValueError(f"{key!r} is given twice, as {found[key]!r} and as {value!r}")
        found[key] = value
    return found


def taint(text: str) -> str:
    """Check KEY=VALUE:EFFECT, or KEY:EFFECT."""
    if not re.fullmatch(fields.TAINT, text):
        raise ValueError(
            f"{text!r} is not a taint: write KEY=VALUE:EFFECT with one of NoSchedule, PreferNoSchedule, NoExecute"
        )
    key, _, effect = text.rpartition(":")
    label(key if "=" in key else f"{key}=")
    return f"{key}:{effect}"


def taints(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(taint(text) for text in _listed(texts)))


def taint_fields(text: str) -> dict[str, str]:
    """Return a taint in the form of a MachineConfiguration."""
    named, _, effect = text.rpartition(":")
    key, _, value = named.partition("=")
    return {"key": key, **({"value": value} if value else {}), "effect": effect}


def sha256(text: str) -> str:
    if not re.fullmatch(fields.SHA256, text):
        raise ValueError(f"{text!r} is not a SHA-256 digest: write its 64 hexadecimal digits")
    return text.lower()


def release(text: str) -> str:
    if not re.fullmatch(fields.RELEASE_VERSION, text):
        raise ValueError(f"{text!r} is not a version, such as v1.34.0")
    return text


def without_private_key(pem: str) -> str:
    """Check certificates that go into a ConfigMap, which more users may read than Secrets."""
    if PRIVATE_KEY in pem:
        raise ValueError("has a private key: give a file with certificates alone")
    return pem


def host_key(text: str) -> str:
    """Parse a line of `ssh-keyscan`, with or without the name of the host before the key."""
    if re.fullmatch(fields.HOST_KEY, text):
        return text
    _host, _, key = text.partition(" ")
    if re.fullmatch(fields.HOST_KEY, key):
        return key
    raise ValueError(f"{text[:40]!r} is not a host key, such as 'ssh-ed25519 AAAA…'; `ssh-keyscan HOST` prints them")


def endpoint(text: str) -> str:
    """Check the API server's address for hosts: HOST:PORT, with or without https:// before it, which is removed."""
    return endpoint_url(text).removeprefix("https://")


def _listed(texts: Iterable[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]
