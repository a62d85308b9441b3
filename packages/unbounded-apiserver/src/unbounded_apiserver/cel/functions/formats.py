"""The string formats that Kubernetes checks (`format` of a schema), and its CEL format library with `validate`."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_interface
from typing import Final

from unbounded_apiserver import name_validation
from unbounded_apiserver.cel.functions.times import parse_duration, parse_timestamp
from unbounded_apiserver.cel.functions.urls import parse_url
from unbounded_apiserver.cel.types import FORMAT, STRING, Overload, function, list_of, method, optional_of
from unbounded_apiserver.cel.values import NONE, Optional, register_opaque, some

_UNIT: Final = (
    "ns|us|µs|ms|s|m|h|d|w|nanos?(econds?)?|micros?(econds?)?|millis?(econds?)?|"
    "sec(ond)?s?|min(ute)?s?|hrs?|hours?|days?|wks?|weeks?"
)
_SHORT_DURATION: Final = re.compile(rf"\d+\s*({_UNIT})", re.IGNORECASE)
_HEX: Final = "[0-9a-fA-F]"
_PERCENT: Final = r"(\d|[1-9]\d|1\d\d|2[0-4]\d|25[0-5])"
_MAC: Final = rf"({_HEX}{{2}}[:-]){{5}}{_HEX}{{2}}|({_HEX}{{2}}[:-]){{7}}{_HEX}{{2}}|({_HEX}{{4}}\.){{2,3}}{_HEX}{{4}}"


def _pattern(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern, re.ASCII)
    return lambda text: compiled.fullmatch(text) is not None


def _uuid(version: str, variant: str = _HEX) -> Callable[[str], bool]:
    return _pattern(f"{_HEX}{{8}}-?{_HEX}{{4}}-?{version}{_HEX}{{3}}-?{variant}{_HEX}{{3}}-?{_HEX}{{12}}")


def _address(kind: type[IPv4Address] | type[IPv6Address]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            kind(text)
        except AddressValueError:
            return False
        return "%" not in text

    return check


def _cidr(text: str) -> bool:
    try:
        ip_interface(text)
    except ValueError:
        return False
    return "/" in text and text.rpartition("/")[2].isdigit()


def is_base64(text: str) -> bool:
    try:
        base64.b64decode(text.replace("\r", "").replace("\n", ""), validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _is_date_time(text: str) -> bool:
    return parse_timestamp(text.upper()) is not None  # RFC 3339 allows t and z, too


def _is_duration(text: str) -> bool:
    return parse_duration(text) is not None or _SHORT_DURATION.fullmatch(text) is not None


def _is_hostname(text: str) -> bool:
    labels = text.removesuffix(".").split(".")
    return 0 < len(text) <= 255 and all(re.fullmatch(r"[^\W_](?:[\w-]{0,61}[^\W_])?", label) for label in labels)


def _is_isbn10(text: str) -> bool:
    digits = re.sub(r"[\s-]", "", text)
    if re.fullmatch(r"\d{9}[\dX]", digits) is None:
        return False
    values = [10 if digit == "X" else int(digit) for digit in digits]
    return sum(weight * value for weight, value in zip(range(10, 0, -1), values, strict=True)) % 11 == 0


def _is_isbn13(text: str) -> bool:
    digits = re.sub(r"[\s-]", "", text)
    return re.fullmatch(r"\d{13}", digits) is not None and sum(map(int, digits[::2])) % 10 == (
        -3 * sum(map(int, digits[1::2])) % 10
    )


def _is_credit_card(text: str) -> bool:
    digits = re.sub(r"[^0-9]+", "", text)
    if not 13 <= len(digits) <= 19:
        return False
    doubled = [int(digit) * 2 for digit in digits[-2::-2]]
    return (sum(map(int, digits[-1::-2])) + sum(value - 9 if value > 9 else value for value in doubled)) % 10 == 0


STRING_FORMATS: Final[Mapping[str, Callable[[str], bool]]] = {
    "bsonobjectid": _pattern("[0-9a-fA-F]{24}"),
    "byte": is_base64,
    "cidr": _cidr,
    "creditcard": _is_credit_card,
    "date": _is_date,
    "date-time": _is_date_time,
    "datetime": _is_date_time,
    "duration": _is_duration,
    "email": _pattern(r"[^@\s<>(),;:\\\"\[\]]+@[^@\s<>(),;:\\\"]+"),
    "hexcolor": _pattern("#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})"),
    "hostname": _is_hostname,
    "ipv4": _address(IPv4Address),
    "ipv6": _address(IPv6Address),
    "isbn": lambda text: _is_isbn10(text) or _is_isbn13(text),
    "isbn10": _is_isbn10,
    "isbn13": _is_isbn13,
    "k8s-long-name": lambda text: not name_validation.subdomain(text),
    "k8s-short-name": lambda text: not name_validation.label_1123(text),
    "mac": _pattern(_MAC),
    "password": lambda text: True,  # noqa: ARG005 - any text may be one
    "rgbcolor": _pattern(rf"rgb\(\s*{_PERCENT}(\s*,\s*{_PERCENT}){{2}}\s*\)"),
    "ssn": _pattern(r"\d{3}[- ]?\d{2}[- ]?\d{4}"),
    "uri": lambda text: not isinstance(parse_url(text), str),
    "uuid": _uuid(_HEX),
    "uuid3": _uuid("3"),
    "uuid4": _uuid("4", "[89abAB]"),
    "uuid5": _uuid("5", "[89abAB]"),
}  # fmt: skip


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
