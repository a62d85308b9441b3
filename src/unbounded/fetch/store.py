"""Images on disk, by digest: pulled once however many ask, served while the registry is down, bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, ParamSpec, Self

from unbounded.api.failures import Transient
from unbounded.fetch.digests import Digest
from unbounded.fetch.failures import TooLarge, Unavailable
from unbounded.fetch.logins import Logins
from unbounded.fetch.manifest import Blob
from unbounded.fetch.platforms import Platform
from unbounded.fetch.reference import Reference
from unbounded.fetch.registry import Registry, Resolved
from unbounded.fetch.shelf import Meaning, Shelf
from unbounded.fetch.unpack import Bounds, Stop, unpack
from unbounded.fetch.web import Web
from unbounded.kube.logs import Log
from unbounded.kube.threads import to_its_end, until_stopped
from unbounded.kube.together import together

log = Log("fetch")
P = ParamSpec("P")
LAYERS_AT_ONCE: Final = 3
TELL_S: Final = 10.0  # between two lines of log about one pull


@dataclass(frozen=True)
class StoreLimits:
    """Args:
    bytes: of all unpacked images together.
    image_bytes: of one image, compressed and unpacked each.
    members: files, directories and links of one image.
    """

    bytes: int = 128 << 30
    image_bytes: int = 32 << 30
    members: int = 200_000


@dataclass(frozen=True)
class Stored:
    """An image that is there, whole.

    Args:
        root: its directory; the image's own paths begin below.
        stale: empty, or why it could not be looked up whether the reference still means this image.
    """

    reference: str
    digest: Digest
    root: Path
    stale: str = ""


@dataclass(frozen=True)
class Progress:
    """How far a pull is: bytes while `stage` is "fetching", layers while it is "unpacking"."""

    reference: str
    digest: Digest
    stage: str
    done: int
    total: int

    @property
    def percent(self) -> int:
        return 100 if not self.total else min(100, self.done * 100 // self.total)


@dataclass
class _Pull:
    progress: Progress
    task: asyncio.Task[None] | None = None
    waiting: int = 0
    told_at: float = 0.0
    fetched: dict[Digest, int] = field(default_factory=dict)


class ImageStore:
    """An async context manager: pulls end with it, and only one process uses a folder at a time.

    Args:
        only: the directory of an image that is unpacked, and must be there; everything, when empty.
    """

    def __init__(self, root: Path, web: Web, *, only: str = "", limits: StoreLimits | None = None) -> None:
        self._web = web
        self._only = only
        self._limits = limits or StoreLimits()
        self._shelf = Shelf(root)
        self._pulls: dict[Digest, _Pull] = {}
        self._used: frozenset[Digest] = frozenset()
        self._collected = False
        self._open = ExitStack()
        self._writing = asyncio.Lock()  # one thread at a time writes to the shelf

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._open.enter_context, self._shelf.opened())
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [pull.task for pull in self._pulls.values() if pull.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._open.close()

    def find(self, reference: str, platform: Platform) -> Stored | None:
        """The image that a reference meant when it was last looked up, if it is there. Asks nobody."""
        parsed = Reference.parse(reference)
        meaning = self._shelf.meanings.get((str(parsed), str(platform)))
        if meaning is None or not self._shelf.touch(Digest.parse(meaning.digest)):
            return None
        digest = Digest.parse(meaning.digest)
        return Stored(str(parsed), digest, self._shelf.path(digest))

    def at(self, digest: Digest) -> Path | None:
        """Where an image is, whatever reference it was pulled by; None when it is not there."""
        return self._shelf.path(digest) if self._shelf.touch(digest) else None

    def pulls(self) -> list[Progress]:
        """The pulls that are under way."""
        return [pull.progress for pull in self._pulls.values()]

    async def ensure(self, reference: str, platform: Platform, logins: Logins | None = None) -> Stored:
        """The image that a reference means now, pulled when it is not there; the one it meant, while nobody answers.

        Raises:
            as Registry.resolve and unpack; Unavailable only when no earlier image is there.
            TooLarge: also when the images in use leave no room.
        """
        parsed = Reference.parse(reference)
        held = self.find(reference, platform)
        if held is not None and parsed.digest is not None:
            return held  # a digest means the same for ever
        registry = Registry(self._web, parsed, logins)
        try:
            if held is not None and await registry.top() == self._top(held, platform):
                return held
            resolved = await registry.resolve(platform)
            await self._have(registry, resolved)
        except Transient as failure:
            if held is None or held.digest not in self._shelf.sizes:
                raise
            log.warning("image not looked up, the one that is there is used", error=failure, image=held.reference)
            return replace(held, stale=str(failure))
        meaning = Meaning(str(parsed), str(platform), str(resolved.top), str(resolved.digest))
        await self._write(self._shelf.remember, meaning)
        if not self._shelf.touch(resolved.digest):
            raise Unavailable(f"image {parsed}: it was removed as soon as it was there")
        return Stored(str(parsed), resolved.digest, self._shelf.path(resolved.digest))

    def _top(self, held: Stored, platform: Platform) -> Digest:
        return Digest.parse(self._shelf.meanings[held.reference, str(platform)].top)

    async def _have(self, registry: Registry, resolved: Resolved) -> None:
        """Wait for the one pull of a digest; it ends when nobody waits for it any more."""
        if self._shelf.touch(resolved.digest):
            return
        pull = self._pulls.get(resolved.digest)
        if pull is None or pull.task is None or pull.task.done():
            size = resolved.image.size
            pull = _Pull(Progress(str(resolved.reference), resolved.digest, "fetching", 0, size))
            pull.task = asyncio.create_task(self._run(pull, registry, resolved), name=f"pull {resolved.digest}")
            self._pulls[resolved.digest] = pull
        pull.waiting += 1
        try:
            await asyncio.shield(pull.task)
        finally:
            pull.waiting -= 1
            if not pull.waiting and not pull.task.done():
                self._end(pull)  # first, so that whoever comes now does not wait for what is being cancelled
                pull.task.cancel()
                await asyncio.gather(pull.task, return_exceptions=True)

    async def _run(self, pull: _Pull, registry: Registry, resolved: Resolved) -> None:
        bound = log.bind(image=str(resolved.reference), digest=str(resolved.digest))
        bound.info("image pull begins", bytes=resolved.image.size, layers=len(resolved.image.layers))
        try:
            await self._write(self._shelf.stand)
            await self._make_room(resolved)
            layers = await self._fetch(pull, registry, resolved)
            size = await self._unpack(pull, resolved.digest, layers)
            await self._write(self._shelf.added, resolved.digest, size)
            bound.info("image pulled", bytes=size)
        finally:
            self._end(pull)

    def _end(self, pull: _Pull) -> None:
        if self._pulls.get(pull.progress.digest) is pull:
            del self._pulls[pull.progress.digest]

    async def _fetch(self, pull: _Pull, registry: Registry, resolved: Resolved) -> list[Path]:
        folder = await to_its_end(self._shelf.work, resolved.digest)
        blobs = {blob.digest: blob for blob in resolved.image.layers}
        total = sum(blob.size for blob in blobs.values())
        turn = asyncio.Semaphore(LAYERS_AT_ONCE)

        async def one(blob: Blob) -> None:
            target = folder / blob.digest.file_name
            async with turn:
                if not target.exists():  # what has its name was whole and on the disk
                    limit = self._limits.image_bytes
                    await registry.fetch(blob, target, limit=limit, told=lambda done, _: told(blob, done))
            told(blob, blob.size)

        def told(blob: Blob, done: int) -> None:
            pull.fetched[blob.digest] = done
            pull.progress = replace(pull.progress, done=sum(pull.fetched.values()), total=total)
            self._tell(pull)

        await together(one(blob) for blob in blobs.values())
        return [folder / layer.digest.file_name for layer in resolved.image.layers]

    def _tell(self, pull: _Pull) -> None:
        now = asyncio.get_running_loop().time()
        if now - pull.told_at >= TELL_S:
            pull.told_at = now
            progress = pull.progress
            log.info("image pull goes on", image=progress.reference, stage=progress.stage, percent=progress.percent)

    async def _unpack(self, pull: _Pull, digest: Digest, layers: list[Path]) -> int:
        def told(done: int) -> None:  # in the thread; one assignment of a frozen value
            pull.progress = replace(pull.progress, done=done)

        pull.progress = replace(pull.progress, stage="unpacking", done=0, total=len(layers))
        stop = Stop()
        bounds = Bounds(min(self._limits.image_bytes, self._limits.bytes - self._taken()), self._limits.members)
        target = self._shelf.path(digest)
        sizes: list[int] = []
        work = partial(unpack, layers, target, only=self._only, bounds=bounds, stop=stop, told=told)
        try:
            await until_stopped(lambda: sizes.append(work()), stop.asked.set)
        finally:  # what has its name is there, also when nobody waits for it any more: it could not be unpacked again
            self._shelf.sizes.update((digest, size) for size in sizes)
        return sizes[0]

    def _taken(self) -> int:
        return sum(self._shelf.sizes.values())

    async def _make_room(self, resolved: Resolved) -> None:
        """Remove images that nobody uses, the longest unused first, until this one may fit."""
        size = resolved.image.size
        if size > self._limits.image_bytes:
            raise TooLarge(f"image {resolved.reference}: {size} bytes, {self._limits.image_bytes} are allowed")
        unused = [digest for digest in self._shelf.oldest_first() if self._collected and digest not in self._used]
        while self._taken() + size > self._limits.bytes and unused:
            await self._drop(unused.pop(0))
        if self._taken() + size > self._limits.bytes:
            room = self._limits.bytes - self._taken()
            raise TooLarge(f"image {resolved.reference}: {size} bytes; images in use leave {room} of the store's limit")

    async def collect(self, used: Collection[Digest], *, keep_bytes: int = 0) -> list[Digest]:
        """Remove what is not in use; what was removed.

        Args:
            used: all images that are in use now. Until the next call only others are removed to make room.
            keep_bytes: how much of the others may stay, those that were asked for last.
        """
        self._used, self._collected = frozenset(used), True
        unused = [digest for digest in self._shelf.oldest_first() if digest not in self._used]
        kept = sum(self._shelf.sizes[digest] for digest in unused)
        gone = []
        for digest in unused:
            if kept <= keep_bytes:
                break
            kept -= self._shelf.sizes[digest]
            await self._drop(digest)
            gone.append(digest)
        await self._write(self._shelf.stand)
        await self._write(self._shelf.forget_lost, set(self._pulls))
        return gone

    async def _drop(self, digest: Digest) -> None:
        log.info("unused image removed", digest=str(digest))
        self._shelf.sizes.pop(digest, None)  # from here on nobody gets it
        await self._write(self._shelf.drop, digest)

    async def _write(self, change: Callable[P, None], *args: P.args, **named: P.kwargs) -> None:
        async with self._writing:
            await to_its_end(change, *args, **named)
