"""Root file system in a new directory: from the layers of an image, or by debootstrap.

The compressed layers of an image are cached by digest and unpacked for each slot. The cache stores layers and not
trees: unpacking reads less from the disk than copying a tree would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from unbounded.agent.artifact_cache import BlobNote, BlobStore, noted_digest
from unbounded.agent.interfaces import Commands, OnProgress
from unbounded.api.failures import Rejected, Transient
from unbounded.fetch.logins import RegistryLogins
from unbounded.fetch.manifest import Blob
from unbounded.fetch.reference import Digest, Platform, Reference
from unbounded.fetch.registry import RegistryClient, Resolved
from unbounded.fetch.system_tree import SystemTree
from unbounded.fetch.unpack import StopSignal, UnpackLimits, unpack
from unbounded.fetch.web import Web
from unbounded.kube.logs import Log
from unbounded.kube.tasks import gather, run_in_thread, run_stoppable

LIMITS: Final = UnpackLimits(bytes=32 << 30, members=1_000_000)
DEBOOTSTRAP_S: Final = 1800.0
PACKAGES: Final = (
    "ca-certificates", "conntrack", "dbus", "ethtool", "iproute2", "iptables", "kmod", "mount", "systemd",
    "systemd-sysv",
)  # fmt: skip
_HOSTS: Final = "/etc/hosts"
_UBUNTU: Final = {"amd64": "http://archive.ubuntu.com/ubuntu", "arm64": "http://ports.ubuntu.com/ubuntu-ports"}


@dataclass(frozen=True)
class Distribution:
    """Distribution that debootstrap installs.

    Args:
        mirror: empty for debootstrap's default.
    """

    suite: str
    mirror: str = ""


def os_release_fields(text: str) -> dict[str, str]:
    """Return the fields of an os-release(5), in lower case and without quotes."""
    lines = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {name.strip(): value.strip().strip("\"'").lower() for name, _, value in lines}


def distribution(os_release: str, arch: str) -> Distribution:
    """Return the distribution: on Debian the host's own release, elsewhere Ubuntu 24.04. Pure.

    Args:
        os_release: content of the host's /etc/os-release.
    """
    fields = os_release_fields(os_release)
    codename = fields.get("VERSION_CODENAME", "")
    if fields.get("ID") == "debian" and codename:
        return Distribution(codename)
    return Distribution("noble", _UBUNTU.get(arch, _UBUNTU["arm64"]))


async def unpack_image(layers: Sequence[Path], target: Path, report: OnProgress) -> None:
    """Unpack the layers on top of each other. A cancelled call removes what it has unpacked.

    Raises:
        Rejected: they are no usable root file system.
        Transient: the disk refuses.
    """
    stop = StopSignal()
    loop = asyncio.get_running_loop()

    def on_layer(number: int) -> None:
        loop.call_soon_threadsafe(report, f"unpacking layer {number} of {len(layers)}")

    work = partial(unpack, layers, target, bounds=LIMITS, stop=stop, on_bytes=on_layer, tree=SystemTree)
    await run_stoppable(work, stop.event.set)


def add_hosts(root: Path) -> None:
    """Write /etc/hosts. No package of Debian contains the file, and containerd copies it into every Pod sandbox."""
    with closing(SystemTree(root)) as tree:
        if not tree.has(_HOSTS):
            tree.put(_HOSTS, b"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")


async def debootstrap(
    commands: Commands, target: Path, made: Distribution, arch: str, cache: Path, report: OnProgress
) -> None:
    """Install the distribution. Raises Transient with debootstrap's last lines, Rejected where the host has no
    debootstrap.
    """
    report(f"debootstrap of {made.suite} starts; it takes some minutes")
    await asyncio.to_thread(cache.mkdir, mode=0o700, parents=True, exist_ok=True)
    argv = ["debootstrap", "--variant=minbase", f"--arch={arch}", f"--cache-dir={cache}"]
    await commands.run(
        *argv,
        f"--include={','.join(PACKAGES)}",
        made.suite,
        str(target),
        *((made.mirror,) if made.mirror else ()),
        timeout_s=DEBOOTSTRAP_S,
        env={"DEBIAN_FRONTEND": "noninteractive"},
    )


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
        cached = await run_in_thread(self._held, key)
        try:
            if cached is not None and await self._still(desired, cached):
                return self._cached(cached)
            return self._cached(await self._pull(desired, platform, key, report))
        except Transient as failure:
            if cached is None:
                raise
            log.warning("cannot look up image; using the local one", error=failure, image=str(desired))
            return self._cached(cached, stale=str(failure))

    def _held(self, key: str) -> _ImageNote | None:
        note = self._shelf.note(_ImageNote, key)
        layers = [noted_digest(text) for text in note.blobs] if note else []
        if not layers or not all(layer is not None and self._shelf.whole(layer) for layer in layers):
            return None
        self._shelf.used(key)
        return note

    def _cached(self, note: _ImageNote, stale: str = "") -> CachedImage:
        paths = tuple(self._shelf.path(Digest.parse(text)) for text in note.blobs)
        return CachedImage(note.digest, paths, stale)

    async def _still(self, desired: Reference, note: _ImageNote) -> bool:
        if desired.digest is not None:
            return True  # a digest never changes its meaning
        return str(await RegistryClient(self._brief, desired, self._logins).top()) == note.top

    async def _pull(self, desired: Reference, platform: Platform, key: str, report: OnProgress) -> _ImageNote:
        registry = RegistryClient(self._web, desired, self._logins)
        resolved = await registry.resolve(platform)
        if not resolved.image.layers:
            raise Rejected(f"image {desired}: it has no layers, so no root file system")
        await self._fetch(registry, resolved, report)
        note = _ImageNote(
            source=str(desired),
            blobs=tuple(str(layer.digest) for layer in resolved.image.layers),
            top=str(resolved.top),
            digest=str(resolved.digest),
        )
        await run_in_thread(self._shelf.remember, key, note)
        return note

    async def _fetch(self, registry: RegistryClient, resolved: Resolved, report: OnProgress) -> None:
        blobs = {blob.digest: blob for blob in resolved.image.layers}
        total = sum(blob.size for blob in blobs.values())
        progress = _Progress(total, report)
        turn = asyncio.Semaphore(LAYERS_AT_ONCE)

        async def one(blob: Blob) -> None:
            async with turn:
                if not await run_in_thread(self._shelf.whole, blob.digest):
                    place = self._shelf.path(blob.digest)
                    await registry.fetch(blob, place, limit=LARGEST_BYTES, on_bytes=lambda done, _: record(blob, done))
            record(blob, blob.size)

        def record(blob: Blob, done: int) -> None:
            progress.record(blob.digest, done)

        await gather(one(blob) for blob in blobs.values())


def is_image_cached(shelf: BlobStore, desired: Reference, platform: Platform) -> bool:
    """Return whether all layers of the image are on this disk by name; nothing is verified. Blocks."""
    note = shelf.note(_ImageNote, _key(desired, platform))
    layers = [noted_digest(text) for text in note.blobs] if note else []
    return bool(layers) and all(layer is not None and shelf.path(layer).is_file() for layer in layers)


def _key(desired: Reference, platform: Platform) -> str:
    return f"image {desired} {platform}"


class _Progress:
    def __init__(self, total: int, report: OnProgress) -> None:
        self._total, self._report = total, report
        self._done: dict[Digest, int] = {}
        self._last = 0

    def record(self, digest: Digest, done: int) -> None:
        self._done[digest] = done
        percent = sum(self._done.values()) * 100 // self._total if self._total else 100
        if percent >= self._last + _STEP:
            self._last = percent - percent % _STEP
            self._report(f"{self._last} %")
