"""Platform of an image in an index: operating system, architecture, variant, in Go's words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from unbounded.fetch.failures import UnusableContent

_ARCHITECTURES: Final = {"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64", "armhf": "arm", "i386": "386"}
_DEFAULT_VARIANT: Final = {"arm64": "v8", "arm": "v7"}  # containerd's defaults for a platform without a variant


@dataclass(frozen=True)
class Platform:
    os: str
    architecture: str
    variant: str = ""

    @classmethod
    def parse(cls, text: str) -> Platform:
        """Parse `linux/arm64/v8` or `linux/amd64`; the architecture also in the kernel's words (x86_64, aarch64)."""
        parts = text.lower().split("/")
        if not 2 <= len(parts) <= 3 or not all(parts):
            raise UnusableContent(f"{text!r} is not a platform: expected os/architecture or os/architecture/variant")
        return cls(parts[0], _ARCHITECTURES.get(parts[1], parts[1]), *parts[2:])

    def fits(self, other: Platform) -> int:
        """Return how well an image for `other` runs here: 0 not at all, more is better."""
        if (self.os, self.architecture) != (other.os, other.architecture):
            return 0
        if self.variant == other.variant:
            return 3
        default = _DEFAULT_VARIANT.get(self.architecture, "")
        if (self.variant or default) == (other.variant or default):
            return 2
        return 0 if self.variant else 1

    def __str__(self) -> str:
        return "/".join(filter(None, (self.os, self.architecture, self.variant)))
