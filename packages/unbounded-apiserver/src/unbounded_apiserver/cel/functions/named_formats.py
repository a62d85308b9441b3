"""Kubernetes' format library: its named formats as values with `validate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from unbounded_apiserver import name_validation
from unbounded_apiserver.cel.formats import STRING_FORMATS
from unbounded_apiserver.cel.functions.registry import Overload, function, method
from unbounded_apiserver.cel.functions.urls import parse_url
from unbounded_apiserver.cel.types import FORMAT, STRING, list_of, optional_of
from unbounded_apiserver.cel.values import NONE, Optional, register_opaque, some


@dataclass(frozen=True, slots=True)
class Format:
    """A format by name; formats with equal names are equal."""

    name: str


register_opaque(Format, FORMAT)


def _prefix(check: name_validation.Check) -> name_validation.Check:
    """Return the check of a generated name's prefix, which may end with a dash."""
    return lambda text: check(text[:-1] + "a" if text.endswith("-") and len(text) > 1 else text)


def _strfmt(name: str, complaint: str) -> Callable[[str], tuple[str, ...]]:
    return lambda text: () if STRING_FORMATS[name](text) else (complaint,)


def _uri(text: str) -> tuple[str, ...]:
    parsed = parse_url(text)
    return (parsed,) if isinstance(parsed, str) else ()


_FORMATS: Final[Mapping[str, Callable[[str], tuple[str, ...]]]] = {
    "dns1123Label": name_validation.label_1123,
    "dns1123Subdomain": name_validation.subdomain,
    "dns1035Label": name_validation.label_1035,
    "qualifiedName": name_validation.qualified_name,
    "dns1123LabelPrefix": _prefix(name_validation.label_1123),
    "dns1123SubdomainPrefix": _prefix(name_validation.subdomain),
    "dns1035LabelPrefix": _prefix(name_validation.label_1035),
    "labelValue": name_validation.label_value,
    "uri": _uri,
    "uuid": _strfmt("uuid", "does not match the UUID format"),
    "byte": _strfmt("byte", "invalid base64"),
    "date": _strfmt("date", "invalid date"),
    "datetime": _strfmt("datetime", "invalid datetime"),
}


def _validate(named: Format, text: str) -> Optional:
    complaints = _FORMATS[named.name](text)
    return some(list(complaints)) if complaints else NONE


def _library() -> Iterator[Overload]:
    for name in _FORMATS:
        yield function(f"format.{name}", f"format.{name}", (), FORMAT, lambda name=name: Format(name))
    yield function(
        "format.named",
        "format-named",
        (STRING,),
        optional_of(FORMAT),
        lambda name: some(Format(name)) if name in _FORMATS else NONE,
    )
    yield method("validate", "format-validate", (FORMAT, STRING), optional_of(list_of(STRING)), _validate)


NAMED_FORMATS: Final = tuple(_library())
