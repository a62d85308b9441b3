"""Content digests in OCI's format: `sha256:` and 64 hexadecimal digits (sha512 is read as well)."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from unbounded.fetch.failures import UnusableContent

_HEX_DIGITS: Final = {"sha256": 64, "sha512": 128}
_HEX: Final = re.compile(r"[0-9a-f]+")


@dataclass(frozen=True, order=True)
class Digest:
    algorithm: str
    hex: str

    @classmethod
    def parse(cls, text: str) -> Digest:
        """Parse a digest. Raises UnusableContent for anything but a full `sha256:…` or `sha512:…` in lower case."""
        algorithm, _, digits = text.partition(":")
        if len(digits) != _HEX_DIGITS.get(algorithm, 0) or not _HEX.fullmatch(digits):
            raise UnusableContent(f"{text[:160]!r} is not a digest: expected sha256: and 64 hexadecimal digits")
        return cls(algorithm, digits)

    @classmethod
    def of(cls, content: bytes) -> Digest:
        return cls("sha256", hashlib.sha256(content).hexdigest())

    def matches(self, content: bytes) -> bool:
        return hashlib.new(self.algorithm, content).hexdigest() == self.hex

    @property
    def file_name(self) -> str:
        """Name that is one path component."""
        return f"{self.algorithm}-{self.hex}"

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.hex}"
