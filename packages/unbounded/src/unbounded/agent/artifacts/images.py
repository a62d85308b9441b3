"""Images of root file systems: their compressed layers by digest, unpacked for each slot.

The cache stores layers and not trees: unpacking reads less from the disk than copying a tree would.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unbounded.agent.artifacts.blob_store import BlobNote, BlobStore, noted_digest
from unbounded.agent.ports import OnProgress
from unbounded.api.failures import Rejected, Transient
from unbounded.fetch.logins import RegistryLogins
from unbounded.fetch.manifest import Blob
from unbounded.fetch.reference import Digest, Platform, Reference
from unbounded.fetch.registry import RegistryClient, Resolved
from unbounded.fetch.web import Web
from unbounded.kube.logs import Log
from unbounded.kube.tasks import gather, run_in_thread

log = Log("agent")

LARGEST_BYTES: Final = 32 << 30
LAYERS_AT_ONCE: Final = 3
_STEP: Final = 10  # per cent between two progress messages


class _ImageNote(BlobNote, frozen=True, kw_only=True, tag="image"):
    """Record of the image that a reference resolved to.

    Args:
        blobs: the layers, the lowest first.
        top: digest of the reference's manifest, perhaps an index.
        digest: of the image.
    """

    top: str
    digest: str


@dataclass(frozen=True)
class CachedImage:
    """An image whose layers are on this disk.

    Args:
        layers: files, the lowest first.
        stale: why the registry could not confirm that the reference still names this image; empty when it did.
    """

    digest: str
    layers: tuple[Path, ...]
    stale: str = ""


class ImageCache:
    """Cache of the images of all slots.

    Args:
        web, brief: as in ArtifactCache.
        logins: for registries; none where images are public.
    """

    def __init__(self, shelf: BlobStore, web: Web, brief: Web, logins: RegistryLogins | None = None) -> None:
        self._shelf = shelf
        self._web = web
        self._brief = brief
        self._logins = logins

    async def get(self, reference: str, platform: Platform, report: OnProgress) -> CachedImage:
        """Return the image that the reference names now; while the registry does not answer, the one that it named
        last.

        Raises:
            Rejected: no such image, none for this platform, or a digest does not match.
            Transient: the registry does not answer, and the image is not on the disk.
        """
        desired = Reference.parse(reference)
        key = _key(desired, platform)
        held = await run_in_thread(self._held, key)
        try:
            if held is not None and await self._still(desired, held):
                return self._cached(held)
            return self._cached(await self._pull(desired, platform, key, report))
        except Transient as failure:
            if held is None:
                raise
            log.warning("cannot look up image; using the local one", error=failure, image=str(desired))
            return self._cached(held, stale=str(failure))

    def _held(self, key: str) -> _ImageNote | None:
        meant = self._shelf.note(_ImageNote, key)
        layers = [noted_digest(text) for text in meant.blobs] if meant else []
        if not layers or not all(layer is not None and self._shelf.whole(layer) for layer in layers):
            return None
        self._shelf.used(key)
        return meant

    def _cached(self, meant: _ImageNote, stale: str = "") -> CachedImage:
        paths = tuple(self._shelf.path(Digest.parse(text)) for text in meant.blobs)
        return CachedImage(meant.digest, paths, stale)

    async def _still(self, desired: Reference, held: _ImageNote) -> bool:
        if desired.digest is not None:
            return True  # a digest never changes its meaning
        return str(await RegistryClient(self._brief, desired, self._logins).top()) == held.top

    async def _pull(self, desired: Reference, platform: Platform, key: str, report: OnProgress) -> _ImageNote:
        registry = RegistryClient(self._web, desired, self._logins)
        resolved = await registry.resolve(platform)
        if not resolved.image.layers:
            raise Rejected(f"image {desired}: it has no layers, so no root file system")
        await self._fetch(registry, resolved, report)
        meant = _ImageNote(
            source=str(desired),
            blobs=tuple(str(layer.digest) for layer in resolved.image.layers),
            top=str(resolved.top),
            digest=str(resolved.digest),
        )
        await run_in_thread(self._shelf.remember, key, meant)
        return meant

    async def _fetch(self, registry: RegistryClient, resolved: Resolved, report: OnProgress) -> None:
        blobs = {blob.digest: blob for blob in resolved.image.layers}
        total = sum(blob.size for blob in blobs.values())
        progress = _Progress(total, report)
        turn = asyncio.Semaphore(LAYERS_AT_ONCE)

        async def one(blob: Blob) -> None:
            async with turn:
                if not await run_in_thread(self._shelf.whole, blob.digest):
                    place = self._shelf.path(blob.digest)
                    await registry.fetch(blob, place, limit=LARGEST_BYTES, on_bytes=lambda done, _: told(blob, done))
            told(blob, blob.size)

        def told(blob: Blob, done: int) -> None:
            progress.told(blob.digest, done)

        await gather(one(blob) for blob in blobs.values())


def is_image_cached(shelf: BlobStore, desired: Reference, platform: Platform) -> bool:
    """Return whether all layers of the image are on this disk by name; nothing is verified. Blocks."""
    meant = shelf.note(_ImageNote, _key(desired, platform))
    layers = [noted_digest(text) for text in meant.blobs] if meant else []
    return bool(layers) and all(layer is not None and shelf.path(layer).is_file() for layer in layers)


def _key(desired: Reference, platform: Platform) -> str:
    return f"image {desired} {platform}"


class _Progress:
    def __init__(self, total: int, report: OnProgress) -> None:
        self._total, self._tell = total, report
        self._done: dict[Digest, int] = {}
        self._last = 0

    def told(self, digest: Digest, done: int) -> None:
        self._done[digest] = done
        percent = sum(self._done.values()) * 100 // self._total if self._total else 100
        if percent >= self._last + _STEP:
            self._last = percent - percent % _STEP
            self._tell(f"{self._last} %")
