"""Manifests and indexes of OCI and Docker: selection of an index's image, and the layers of an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from unbounded.fetch.failures import UnusableContent
from unbounded.fetch.reference import Digest, Platform

OCI_INDEX: Final = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
DOCKER_LIST: Final = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST: Final = "application/vnd.docker.distribution.manifest.v2+json"
ACCEPT: Final = ", ".join((OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST))
MOST_BYTES: Final = 4 << 20  # of a manifest; registries reject larger ones as well
MOST_LAYERS: Final = 512

_INDEXES: Final = frozenset({OCI_INDEX, DOCKER_LIST})
_IMAGES: Final = frozenset({OCI_MANIFEST, DOCKER_MANIFEST})


class _Platform(msgspec.Struct):
    os: str = ""
    architecture: str = ""
    variant: str = ""


class _Descriptor(msgspec.Struct, rename="camel"):
    media_type: str
    digest: str
    size: int
    platform: _Platform | None = None


class _Document(msgspec.Struct, rename="camel"):
    schema_version: int
    media_type: str = ""
    manifests: list[_Descriptor] | None = None
    layers: list[_Descriptor] | None = None


@dataclass(frozen=True)
class Blob:
    """Descriptor in a manifest."""

    digest: Digest
    size: int
    media_type: str


@dataclass(frozen=True)
class ImageIndex:
    """Images for several platforms; None where an entry names no platform."""

    entries: tuple[tuple[Platform | None, Blob], ...]

    def choose(self, desired: Platform) -> Blob:
        """Return the best match, the first of equals. Raises UnusableContent with the available platforms."""
        fits = [(desired.fits(platform), blob) for platform, blob in self.entries if platform is not None]
        score, best = max(fits, key=lambda fit: fit[0], default=(0, None))
        if best is not None and score:
            return best
        unmarked = [blob for platform, blob in self.entries if platform is None]
        if len(unmarked) == 1 and len(self.entries) == 1:
            return unmarked[0]
        offered = sorted({str(platform) for platform, _ in self.entries if platform and platform.os != "unknown"})
        raise UnusableContent(
            f"it has no image for {desired}; it has {', '.join(offered) or 'none that names a platform'}"
        )


@dataclass(frozen=True)
class ImageManifest:
    """One image: its layers, the lowest first."""

    layers: tuple[Blob, ...]

    @property
    def size(self) -> int:
        return sum(layer.size for layer in self.layers)


def parse(content: bytes, media_type: str) -> ImageIndex | ImageManifest:
    """Parse a manifest.

    Args:
        media_type: from the server; the document's own has priority.
    Raises:
        UnusableContent: neither an index nor an image of OCI or Docker (schema 2).
    """
    try:
        document = msgspec.json.decode(content, type=_Document)
    except msgspec.DecodeError as error:
        raise UnusableContent(f"cannot read its manifest: {error}") from error
    if document.schema_version != 2:
        raise UnusableContent("its manifest has Docker's schema 1: push the image again with a current tool")
    kind = document.media_type or media_type.partition(";")[0].strip()
    if document.manifests is not None and document.layers is not None:
        raise UnusableContent("its manifest is both an index and an image")  # two readers could find two images in it
    if document.manifests is not None and kind not in _IMAGES:
        return ImageIndex(tuple((_platform(entry), _blob(entry)) for entry in document.manifests))
    if document.layers is not None and kind not in _INDEXES:
        if len(document.layers) > MOST_LAYERS:
            raise UnusableContent(f"it has {len(document.layers)} layers; the limit is {MOST_LAYERS}")
        return ImageManifest(tuple(map(_blob, document.layers)))
    raise UnusableContent(f"its manifest is of type {kind or 'unknown'}, neither an index nor an image")


def _platform(entry: _Descriptor) -> Platform | None:
    given = entry.platform
    return Platform(given.os, given.architecture, given.variant) if given else None


def _blob(entry: _Descriptor) -> Blob:
    if entry.size < 0:
        raise UnusableContent(f"its manifest has the invalid size {entry.size} for {entry.digest}")
    return Blob(Digest.parse(entry.digest), entry.size, entry.media_type)
