"""Redaction: replace what identifies a machine, its network or its users, with the same replacement for the same value.

Values are learned from documents: by the name of a property (serial numbers, names of hosts and users), and by their
form (UUIDs, MAC and IP addresses). A learned value is then replaced wherever it occurs, in paths and messages too.
Parts that metalman does not read, and that hold such values in free form (Oem, Location), are left out.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from unbounded.kube.secret_text import SECRET_KEY

HIDDEN: Final = "***"
LEFT_OUT: Final = frozenset({"Oem", "Location", "PostalAddress", "Contacts", "CertificateString", "EventDestinations"})

_SERIAL_KEY: Final = re.compile(r"serial|asset_?tag|service_?tag|^sku$|wwpn|wwnn|wwn$|^durablename$", re.IGNORECASE)
_HOST_KEY: Final = re.compile(
    r"host_?name|fqdn|domain_?name|^httpbooturi$|^image(name)?$|^nameservers?$", re.IGNORECASE
)
_USER_KEY: Final = re.compile(r"^user_?name$|^createdby$", re.IGNORECASE)
_VERSION_KEY: Final = re.compile(r"version", re.IGNORECASE)

_UUID: Final = re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE)
_MAC: Final = re.compile(r"(?<![0-9a-f:-])[0-9a-f]{2}(?:([:-])[0-9a-f]{2})(?:\1[0-9a-f]{2}){4}(?![0-9a-f:-])", re.I)
_WWN: Final = re.compile(r"(?<![0-9a-f:-])[0-9a-f]{2}(?:([:-])[0-9a-f]{2})(?:\1[0-9a-f]{2}){6}(?![0-9a-f:-])", re.I)
_IPV4: Final = re.compile(r"(?<![0-9.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![0-9.])")
_IPV6: Final = re.compile(r"(?<![0-9a-f:])[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(?![0-9a-f:])", re.IGNORECASE)
_HEX: Final = re.compile(r"(?:0x|eui\.|naa\.)?[0-9a-f]{12,}", re.IGNORECASE)
_MASKS: Final = ("255.", "0.0.0.0", "127.0.0.1")  # noqa: S104 - compared, not bound

SHORT: Final = 4  # a shorter value is replaced only where it is the whole value of its property
WORD: Final = 7  # a shorter value is replaced only where it is a whole word


class Redactor:
    """Replacements of one recording. Learn all documents first, then replace.

    Args:
        secrets: texts that must not appear at all.
        hosts, users: values that the caller knows.
    """

    def __init__(self, *, secrets: Iterable[str] = (), hosts: Iterable[str] = (), users: Iterable[str] = ()) -> None:
        hidden = sorted(filter(None, secrets), key=len, reverse=True)
        self._secrets = re.compile("|".join(map(_part, hidden)) or r"(?!)")
        self._found: dict[str, str] = {}  # replacements by values in lower case
        self._counts: dict[str, int] = {}
        self._pattern: re.Pattern[str] | None = None
        for host in hosts:
            self._learn_text("", host)
            self._learn_as("host", host)
        for user in users:
            self._learn_as("user", user)

    def learn(self, value: Any, key: str = "") -> None:
        """Learn the values of a document."""
        match value:
            case Mapping():
                for name, each in value.items():
                    if name not in LEFT_OUT:
                        self._learn_text("", str(name))
                        self.learn(each, str(name))
            case list() | tuple():
                for each in value:
                    self.learn(each, key)
            case str():
                self._learn_text(key, value)

    def replace(self, value: Any, key: str = "") -> Any:
        """Return a document without the learned values, the secrets, and the parts that are left out."""
        match value:
            case Mapping():
                kept = {name: each for name, each in value.items() if name not in LEFT_OUT}
                return {self.text(str(name)): self.replace(each, str(name)) for name, each in kept.items()}
            case list() | tuple():
                return [self.replace(each, key) for each in value]
            case str() if value and SECRET_KEY.search(key) and not key.startswith("@"):
                return HIDDEN
            case str() if _kind_of(key) and value.lower() in self._found:
                return self._found[value.lower()]
            case str():
                return self.text(value)
            case _:
                return value

    def text(self, text: str) -> str:
        """Return a text without the learned values and the secrets."""
        text = self._secrets.sub(HIDDEN, text)
        if self._pattern is None:
            self._pattern = self._compiled()
        return self._pattern.sub(lambda found: self._found[found[0].lower()], text)

    def _compiled(self) -> re.Pattern[str]:
        parts = [_part(value) for value in sorted(self._found, key=len, reverse=True) if _is_distinct(value)]
        return re.compile("|".join(parts) or r"(?!)", re.IGNORECASE)

    def _learn_text(self, key: str, text: str) -> None:
        kind = _kind_of(key)
        for found in _UUID.finditer(text):
            self._learn_as("uuid", found[0])
        for form, pattern in (("wwn", _WWN), ("mac", _MAC)):
            for found in pattern.finditer(text):
                self._learn_as(form, found[0])
        if not _VERSION_KEY.search(key):
            self._learn_addresses(text)
        if kind and text.strip() and text.lower() not in self._found:
            self._learn_as("hex" if kind == "serial" and _HEX.fullmatch(text) else kind, text)

    def _learn_addresses(self, text: str) -> None:
        for pattern in (_IPV4, _IPV6):
            for found in pattern.finditer(text):
                try:
                    address = ipaddress.ip_address(found[0])
                except ValueError:
                    continue
                if not found[0].startswith(_MASKS) and not address.is_unspecified and not address.is_loopback:
                    self._learn_as(f"ipv{address.version}", found[0])

    def _learn_as(self, kind: str, value: str) -> None:
        if not value.strip() or value.lower() in self._found:
            return
        self._pattern = None
        number = self._counts[kind] = self._counts.get(kind, 0) + 1
        for original, replacement in _forms(kind, value, number):
            self._found.setdefault(original.lower(), replacement)


def _kind_of(key: str) -> str:
    """Return the kind of value that a property of this name has; empty for others."""
    for kind, pattern in (("serial", _SERIAL_KEY), ("host", _HOST_KEY), ("user", _USER_KEY)):
        if pattern.search(key) and "@" not in key:
            return kind
    return ""


def _forms(kind: str, value: str, number: int) -> Iterable[tuple[str, str]]:
    """Yield a value in the forms in which a BMC writes it, each with the replacement in that form."""
    match kind:
        case "uuid":
            replacement = f"00000000-0000-4000-8000-{number:012x}"
            yield value, replacement
            yield value.replace("-", ""), replacement.replace("-", "")
        case "mac" | "wwn":
            octets = len(value.replace(":", "").replace("-", "")) // 2
            first = 0x02 if kind == "mac" else 0x50
            digits = f"{first:02x}{number:0{2 * octets - 2}x}"
            plain = value.replace(":", "").replace("-", "")
            for separator in (":", "-", ""):
                yield _octets(plain, separator), _octets(digits, separator)
        case "hex":
            head = re.match(r"(?:0x|eui\.|naa\.)?", value, re.IGNORECASE)
            prefix = head[0] if head else ""
            yield value, f"{prefix}{number:0{len(value) - len(prefix)}x}"
        case "ipv4":
            yield value, f"198.18.{number >> 8 & 255}.{number & 255}"  # RFC 2544: in no network
        case "ipv6":
            yield value, f"2001:db8::{number:x}"
        case _:
            yield value, f"{kind}-{number}"


def _octets(digits: str, separator: str) -> str:
    return separator.join(digits[at : at + 2] for at in range(0, len(digits), 2))


def _is_distinct(value: str) -> bool:
    """Return whether a value can be replaced inside other texts: `Chassis` as a host's name could not."""
    return len(value) >= SHORT and any(not character.isalpha() for character in value)


def _part(value: str) -> str:
    escaped = re.escape(value)
    return escaped if len(value) >= WORD else rf"(?<![0-9A-Za-z]){escaped}(?![0-9A-Za-z])"
