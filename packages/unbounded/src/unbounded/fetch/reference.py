"""Names of content: references to images, digests, and the platform of an image. Pure.

A reference is `registry/repository:tag@digest` with Docker's defaults. A digest is `sha256:` and 64 hexadecimal digits;
sha512 is read as well. A platform is the operating system, architecture and variant in Go's words.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from unbounded.fetch.failures import UnusableContent

DOCKER_HUB: Final = "docker.io"
_HUB_HOST: Final = "registry-1.docker.io"
_HUB_ALIASES: Final = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})
_LONGEST_REPOSITORY: Final = 255
_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY: Final = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG: Final = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_REGISTRY: Final = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{{1,5}})?")
_HEX_DIGITS: Final = {"sha256": 64, "sha512": 128}
_HEX: Final = re.compile(r"[0-9a-f]+")
_ARCHITECTURES: Final = {"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64", "armhf": "arm", "i386": "386"}
_DEFAULT_VARIANT: Final = {"arm64": "v8", "arm": "v7"}  # containerd's defaults for a platform without a variant


@dataclass(frozen=True)
class Reference:
    """One image as its user named it. With a digest, the tag has no effect."""

    registry: str
    repository: str
    tag: str = ""
    digest: Digest | None = None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Parse a reference. Raises UnusableContent, whose message names the fault."""
        name, at, digest = text.partition("@")
        first, slash, rest = name.partition("/")
        if slash and (first == "localhost" or any(mark in first for mark in ".:[")):
            registry, path = first, rest
        else:
            registry, path = DOCKER_HUB, name
        repository, colon, tag = path.partition(":")
        if registry in _HUB_ALIASES:
            registry = DOCKER_HUB
            repository = repository if "/" in repository else f"library/{repository}"
        if not _REGISTRY.fullmatch(registry):
            raise UnusableContent(f"image {text!r}: {registry!r} is not a registry")
        if not _REPOSITORY.fullmatch(repository) or len(repository) > _LONGEST_REPOSITORY:
            raise UnusableContent(
                f"image {text!r}: {repository!r} is not a repository: lower case and digits, with . _ - / between"
            )
        if colon and not _TAG.fullmatch(tag):
            raise UnusableContent(f"image {text!r}: {tag!r} is not a tag")
        pinned = Digest.parse(digest) if at else None
        return cls(registry, repository, tag or ("" if pinned else "latest"), pinned)

    @property
    def host(self) -> str:
        """Host and port that serve the registry."""
        return _HUB_HOST if self.registry == DOCKER_HUB else self.registry

    @property
    def tag_or_digest(self) -> str:
        """Reference for the registry's API: the digest where there is one, else the tag."""
        return str(self.digest) if self.digest else self.tag

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.registry}/{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")


def image_name(text: str) -> str:
    """Return a valid image name unchanged. Raises ValueError for an invalid one."""
    try:
        Reference.parse(text)
    except UnusableContent as error:
        raise ValueError(str(error)) from None
    return text


def is_local(host: str) -> bool:
    """Return whether a host (and port) is this machine or a private IPv4 literal, where plain HTTP is customary."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or any(address in net for net in _PRIVATE if net.version == address.version)


_PRIVATE: Final = tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))


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
