"""Images on disk, by digest: pulled once for all concurrent requests, served while the registry is down, bounded."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, ParamSpec, Self

import msgspec

from unbounded.api.failures import Rejected, Transient
from unbounded.fetch.failures import TooLarge, Unavailable, UnusableContent
from unbounded.fetch.logins import RegistryLogins
from unbounded.fetch.manifest import Blob
from unbounded.fetch.reference import Digest, Platform, Reference
from unbounded.fetch.registry import RegistryClient, Resolved
from unbounded.fetch.unpack import StopSignal, UnpackLimits, unpack
from unbounded.fetch.web import Web
from unbounded.kube.durable_files import UNFINISHED, write_durably
from unbounded.kube.logs import Log
from unbounded.kube.tasks import gather, run_in_thread, run_stoppable

log = Log("fetch")
P = ParamSpec("P")
LAYERS_AT_ONCE: Final = 3
LOG_EVERY_S: Final = 10.0  # between two log entries about one pull
_REFERENCES: Final = "references.json"


@dataclass(frozen=True)
class StoreLimits:
    """Limits of an image store.

    Args:
        bytes: of all unpacked images together.
        image_bytes: of one image, compressed and unpacked each.
        members: files, directories and links of one image.
    """

    bytes: int = 128 << 30
    image_bytes: int = 32 << 30
    members: int = 200_000


@dataclass(frozen=True)
class Stored:
    """A complete image in the store.

    Args:
        root: its directory, the root of the image's own paths.
        stale: why the registry could not confirm that the reference still names this image; empty when it did.
    """

    reference: str
    digest: Digest
    root: Path
    stale: str = ""


@dataclass(frozen=True)
class PullProgress:
    """Progress of a pull: bytes while `stage` is "fetching", layers while it is "unpacking"."""

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
    progress: PullProgress
    task: asyncio.Task[None] | None = None
    waiting: int = 0
    logged_at: float = 0.0
    fetched: dict[Digest, int] = field(default_factory=dict)


class ImageStore:
    """Store of images; an async context manager. Pulls end with it, and only one process uses a folder at a time.

    Args:
        only: the one directory of an image to unpack, which must exist; empty for the whole image.
    """

    def __init__(self, root: Path, web: Web, *, only: str = "", limits: StoreLimits | None = None) -> None:
        self._web = web
        self._only = only
        self._limits = limits or StoreLimits()
        self._shelf = ImageDir(root)
        self._pulls: dict[Digest, _Pull] = {}
        self._used: frozenset[Digest] = frozenset()
        self._collected = False
        self._open = ExitStack()
        self._writing = asyncio.Lock()  # one thread at a time writes to the folder

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
        """Return the image of a reference's last resolution, if it is stored. Sends no request."""
        parsed = Reference.parse(reference)
        meaning = self._shelf.meanings.get((str(parsed), str(platform)))
        if meaning is None or not self._shelf.record_use(Digest.parse(meaning.digest)):
            return None
        digest = Digest.parse(meaning.digest)
        return Stored(str(parsed), digest, self._shelf.path(digest))

    def at(self, digest: Digest) -> Path | None:
        """Return the directory of an image, pulled by any reference; None where it is not stored."""
        return self._shelf.path(digest) if self._shelf.record_use(digest) else None

    def pulls(self) -> list[PullProgress]:
        """Return the active pulls."""
        return [pull.progress for pull in self._pulls.values()]

    async def ensure(self, reference: str, platform: Platform, logins: RegistryLogins | None = None) -> Stored:
        """Return the image that a reference names now, pulled where needed; while the registry does not answer, the
        last one.

        Raises:
            as RegistryClient.resolve and unpack; Unavailable only when no earlier image is stored.
            TooLarge: also when the images in use leave no room.
        """
        parsed = Reference.parse(reference)
        stored = self.find(reference, platform)
        if stored is not None and parsed.digest is not None:
            return stored  # a digest never changes its meaning
        registry = RegistryClient(self._web, parsed, logins)
        try:
            if stored is not None and await registry.top() == self._top(stored, platform):
                return stored
            resolved = await registry.resolve(platform)
            await self._wait_pull(registry, resolved)
        except Transient as failure:
            if stored is None or stored.digest not in self._shelf.sizes:
                raise
            log.warning("cannot look up image; using the local one", error=failure, image=stored.reference)
            return replace(stored, stale=str(failure))
        meaning = ReferenceRecord(str(parsed), str(platform), str(resolved.top), str(resolved.digest))
        await self._write(self._shelf.record_reference, meaning)
        if not self._shelf.record_use(resolved.digest):
            raise Unavailable(f"image {parsed}: it was removed immediately after its pull")
        return Stored(str(parsed), resolved.digest, self._shelf.path(resolved.digest))

    def _top(self, stored: Stored, platform: Platform) -> Digest:
        return Digest.parse(self._shelf.meanings[stored.reference, str(platform)].top)

    async def _wait_pull(self, registry: RegistryClient, resolved: Resolved) -> None:
        """Wait for the one pull of a digest, which is cancelled when no request waits for it any more."""
        if self._shelf.record_use(resolved.digest):
            return
        pull = self._pulls.get(resolved.digest)
        if pull is None or pull.task is None or pull.task.done():
            size = resolved.image.size
            pull = _Pull(PullProgress(str(resolved.reference), resolved.digest, "fetching", 0, size))
            pull.task = asyncio.create_task(self._run(pull, registry, resolved), name=f"pull {resolved.digest}")
            self._pulls[resolved.digest] = pull
        pull.waiting += 1
        try:
            await asyncio.shield(pull.task)
        finally:
            pull.waiting -= 1
            if not pull.waiting and not pull.task.done():
                self._end(pull)  # first, so that new requests do not wait for a pull that is being cancelled
                pull.task.cancel()
                await asyncio.gather(pull.task, return_exceptions=True)

    async def _run(self, pull: _Pull, registry: RegistryClient, resolved: Resolved) -> None:
        bound = log.bind(image=str(resolved.reference), digest=str(resolved.digest))
        bound.info("image pull started", bytes=resolved.image.size, layers=len(resolved.image.layers))
        try:
            await self._write(self._shelf.create)
            await self._make_room(resolved)
            layers = await self._fetch(pull, registry, resolved)
            size = await self._unpack(pull, resolved.digest, layers)
            await self._write(self._shelf.record_image, resolved.digest, size)
            bound.info("image pulled", bytes=size)
        finally:
            self._end(pull)

    def _end(self, pull: _Pull) -> None:
        if self._pulls.get(pull.progress.digest) is pull:
            del self._pulls[pull.progress.digest]

    async def _fetch(self, pull: _Pull, registry: RegistryClient, resolved: Resolved) -> list[Path]:
        folder = await run_in_thread(self._shelf.work, resolved.digest)
        blobs = {blob.digest: blob for blob in resolved.image.layers}
        total = sum(blob.size for blob in blobs.values())
        turn = asyncio.Semaphore(LAYERS_AT_ONCE)

        async def one(blob: Blob) -> None:
            target = folder / blob.digest.file_name
            async with turn:
                if not target.exists():  # an image with its name is complete and synced
                    limit = self._limits.image_bytes
                    await registry.fetch(blob, target, limit=limit, on_bytes=lambda done, _: record(blob, done))
            record(blob, blob.size)

        def record(blob: Blob, done: int) -> None:
            pull.fetched[blob.digest] = done
            pull.progress = replace(pull.progress, done=sum(pull.fetched.values()), total=total)
            self._log_progress(pull)

        await gather(one(blob) for blob in blobs.values())
        return [folder / layer.digest.file_name for layer in resolved.image.layers]

    def _log_progress(self, pull: _Pull) -> None:
        now = asyncio.get_running_loop().time()
        if now - pull.logged_at >= LOG_EVERY_S:
            pull.logged_at = now
            progress = pull.progress
            log.info("image pull continues", image=progress.reference, stage=progress.stage, percent=progress.percent)

    async def _unpack(self, pull: _Pull, digest: Digest, layers: list[Path]) -> int:
        def on_bytes(done: int) -> None:  # runs in the thread; one assignment of a frozen value
            pull.progress = replace(pull.progress, done=done)

        pull.progress = replace(pull.progress, stage="unpacking", done=0, total=len(layers))
        stop = StopSignal()
        bounds = UnpackLimits(min(self._limits.image_bytes, self._limits.bytes - self._taken()), self._limits.members)
        target = self._shelf.path(digest)
        sizes: list[int] = []
        work = partial(unpack, layers, target, only=self._only, bounds=bounds, stop=stop, on_bytes=on_bytes)
        try:
            await run_stoppable(lambda: sizes.append(work()), stop.event.set)
        finally:  # also after a cancellation: an image that has its name cannot be unpacked again
            self._shelf.sizes.update((digest, size) for size in sizes)
        return sizes[0]

    def _taken(self) -> int:
        return sum(self._shelf.sizes.values())

    async def _make_room(self, resolved: Resolved) -> None:
        """Remove unused images, the least recently requested first, until this one fits."""
        size = resolved.image.size
        if size > self._limits.image_bytes:
            raise TooLarge(f"image {resolved.reference}: {size} bytes exceed the limit of {self._limits.image_bytes}")
        unused = [digest for digest in self._shelf.oldest_first() if self._collected and digest not in self._used]
        while self._taken() + size > self._limits.bytes and unused:
            await self._drop(unused.pop(0))
        if self._taken() + size > self._limits.bytes:
            room = self._limits.bytes - self._taken()
            raise TooLarge(f"image {resolved.reference}: {size} bytes; images in use leave {room} of the store's limit")

    async def collect(self, used: Collection[Digest], *, keep_bytes: int = 0) -> list[Digest]:
        """Remove unused images; return the removed ones.

        Args:
            used: all images in use now. Until the next call only others are removed to make room.
            keep_bytes: of the others, the most recently requested ones may stay up to this size.
        """
        self._used, self._collected = frozenset(used), True
        unused = [digest for digest in self._shelf.oldest_first() if digest not in self._used]
        unused_bytes = sum(self._shelf.sizes[digest] for digest in unused)
        removed = []
        for digest in unused:
            if unused_bytes <= keep_bytes:
                break
            unused_bytes -= self._shelf.sizes[digest]
            await self._drop(digest)
            removed.append(digest)
        await self._write(self._shelf.create)
        await self._write(self._shelf.forget_lost, set(self._pulls))
        return removed

    async def _drop(self, digest: Digest) -> None:
        log.info("unused image removed", digest=str(digest))
        self._shelf.sizes.pop(digest, None)  # from here on no request gets it
        await self._write(self._shelf.drop, digest)

    async def _write(self, change: Callable[P, None], *args: P.args, **named: P.kwargs) -> None:
        async with self._writing:
            await run_in_thread(change, *args, **named)


class ReferenceRecord(msgspec.Struct, frozen=True):
    """Resolution of a reference for a platform: `top` is the digest of its manifest (perhaps an index), `digest` the
    image's.
    """

    reference: str
    platform: str
    top: str
    digest: str


class ImageDir:
    """The folder of an image store. Methods block, and only one thread at a time may call those that write.

    lock              held by the one process that uses the folder
    references.json   the last resolution of each reference
    images/DIGEST/    an unpacked image; its mtime is the time of its last request
    work/DIGEST/      blobs of an image that is being pulled
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._images = root / "images"
        self._work = root / "work"
        self.meanings: dict[tuple[str, str], ReferenceRecord] = {}
        self.sizes: dict[Digest, int] = {}
        self._lock: BinaryIO | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Own the folder while inside. Raises Rejected when another process does."""
        try:
            self.create()
            self._observe()
            yield
        finally:
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def create(self) -> None:
        """Create missing folders and own them: they may have been removed in between.

        Raises:
            Rejected: another process owns them.
        """
        for folder in (self.root, self._images, self._work):
            folder.mkdir(parents=True, exist_ok=True)
        path = self.root / "lock"
        if self._lock is not None and path.exists():
            return
        lock = path.open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.close()
            raise Rejected(f"{self.root}: another process uses this image store") from error
        if self._lock is not None:
            self._lock.close()
        self._lock = lock

    def _observe(self) -> None:
        for folder in self._images.iterdir():
            digest = _digest_of(folder.name)
            if digest is None:
                _remove(folder)  # only complete images have such a name
            else:
                self.sizes[digest] = _size(folder)
        self.meanings = {(entry.reference, entry.platform): entry for entry in self._read()}

    def _read(self) -> list[ReferenceRecord]:
        path = self.root / _REFERENCES
        try:
            return msgspec.json.decode(path.read_bytes(), type=list[ReferenceRecord])
        except FileNotFoundError:
            return []
        except msgspec.DecodeError as error:
            log.warning("references of the image store are lost; looking them up again", error=error)
            return []

    def path(self, digest: Digest) -> Path:
        return self._images / digest.file_name

    def work(self, digest: Digest) -> Path:
        """Return the folder for the blobs of an image; create it if missing."""
        folder = self._work / digest.file_name
        folder.mkdir(exist_ok=True)
        return folder

    def record_image(self, digest: Digest, size: int) -> None:
        """Record an image that has its name now; remove its blobs."""
        self.sizes[digest] = size
        shutil.rmtree(self._work / digest.file_name, ignore_errors=True)

    def record_use(self, digest: Digest) -> bool:
        """Record a request for an image; return whether it exists. An image whose folder was removed is forgotten."""
        if digest not in self.sizes:
            return False
        try:
            os.utime(self.path(digest))
        except (FileNotFoundError, NotADirectoryError):
            log.warning("directory of an image has disappeared", digest=str(digest), folder=str(self.path(digest)))
            del self.sizes[digest]
            return False
        return True

    def record_reference(self, meaning: ReferenceRecord) -> None:
        """Record a resolution durably; write nothing where it is recorded already."""
        key = (meaning.reference, meaning.platform)
        if self.meanings.get(key) != meaning or not (self.root / _REFERENCES).exists():
            self.meanings[key] = meaning
            self._write()

    def _write(self) -> None:
        content = msgspec.json.format(msgspec.json.encode(list(self.meanings.values())))
        write_durably(self.root / _REFERENCES, content, mode=0o644)

    def oldest_first(self) -> list[Digest]:
        """Return the images in the order of their last requests."""
        asked_at = {}
        for digest in self.sizes:
            with suppress(FileNotFoundError):
                asked_at[digest] = self.path(digest).stat().st_mtime_ns
        return sorted(asked_at, key=lambda digest: asked_at[digest])

    def drop(self, digest: Digest) -> None:
        """Remove an image: first its name, then its files. Open files stay readable."""
        self.sizes.pop(digest, None)
        doomed = self._images / (UNFINISHED + secrets.token_hex(8))
        with suppress(FileNotFoundError):
            os.rename(self.path(digest), doomed)
            _remove(doomed)

    def forget_lost(self, busy: set[Digest]) -> None:
        """Remove references without an image, and blobs that no active pull needs."""
        known = {key: entry for key, entry in self.meanings.items() if Digest.parse(entry.digest) in self.sizes}
        if known != self.meanings:
            self.meanings = known
            self._write()
        for folder in self._work.iterdir():
            if _digest_of(folder.name) not in busy:
                _remove(folder)


def _digest_of(name: str) -> Digest | None:
    try:
        return Digest.parse(name.replace("-", ":", 1))
    except UnusableContent:
        return None


def _size(folder: Path) -> int:
    total = 0
    for path, _, files in os.walk(folder):
        for name in files:
            status = os.lstat(os.path.join(path, name))
            total += status.st_blocks * 512 // status.st_nlink
    return total


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
