"""Artifacts by digest, shared by the slots: read from the disk when present, else fetched, verified and stored.

The blobs are files of one folder. Its methods block.

sha256-DIGITS     a blob; it was complete and flushed to the disk before it got this name
notes/KIND-HASH   the record of one source; its mtime is the time of its last use
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from unbounded.agent.artifact_sources import Artifact, redacted_url
from unbounded.agent.interfaces import OnProgress
from unbounded.api.failures import Rejected, Transient
from unbounded.fetch.download import Download, OnBytes, checked_url, download
from unbounded.fetch.failures import Denied, NotPublished, TooLarge, UnusableContent
from unbounded.fetch.reference import Digest
from unbounded.fetch.web import Patience, Web
from unbounded.kube.durable_files import write_durably
from unbounded.kube.logs import Log
from unbounded.kube.tasks import run_in_thread

MOST_BYTES: Final = 64 * 1024
_LINE: Final = re.compile(r"([0-9A-Fa-f]{64})(?:[ \t]+\*?(\S.*?))?\s*")


def sha256_in(text: str, file_name: str, where: str) -> str:
    """Return the digest of a file, 64 digits in lower case.

    Args:
        where: source of the text, for the message.
    Raises:
        Rejected: the text has none for this file.
    """
    found = [match.groups() for line in text.splitlines() if (match := _LINE.fullmatch(line))]
    named = [digest for digest, name in found if name and name.rpartition("/")[2] == file_name]
    if len(found) == 1 and not named:  # a mirror may have renamed the file
        named = [found[0][0]]
    if len(set(map(str.lower, named))) != 1:
        raise Rejected(f"{where}: it does not contain exactly one sha256 of {file_name}")
    return str(named[0]).lower()


log = Log("agent")

LARGEST_BYTES: Final = 1 << 30
PATIENT: Final = Patience()
BRIEF: Final = replace(PATIENT, connect_s=3.0, silence_s=5.0, attempts=1)  # for artifacts that are already on the disk
_STEP: Final = 10  # per cent between two progress messages

FORMAT: Final = 1


class BlobNote(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="kind"):
    """Record of the blobs of one source.

    Args:
        source: URL, or reference and platform.
        blobs: digests of all blobs of the source.
    """

    source: str
    blobs: tuple[str, ...]
    format: int = FORMAT


class _ArtifactNote(BlobNote, frozen=True, kw_only=True, tag="artifact"):
    """Record of the blob that an artifact's URL delivered.

    Args:
        checked: the source published this digest.
    """

    checked: bool


@dataclass(frozen=True)
class Fetched:
    """An artifact on this disk.

    Args:
        checked: verified against the sha256 that its source published.
    """

    artifact: Artifact
    path: Path
    digest: Digest
    checked: bool


class ArtifactCache:
    """Cache of the artifacts of all slots.

    Args:
        web: an open Web, as patient as a download needs.
        brief: one with short limits, for checksums of artifacts that are on the disk.
    """

    def __init__(self, shelf: BlobStore, web: Web, brief: Web) -> None:
        self._shelf = shelf
        self._web = web
        self._brief = brief
        self._turns: dict[Digest, asyncio.Lock] = {}  # two artifacts may be one file

    async def get(self, artifact: Artifact, report: OnProgress) -> Fetched:
        """Return the artifact, complete and verified.

        An artifact on the disk is not fetched again if its URL names the version, or if the configuration names its
        digest.

        Raises:
            Rejected: the source does not have it, or not with its published digest; the message names artifact and
                source.
            Transient: the source does not answer, and the artifact is not on the disk.
        """
        cached = await run_in_thread(self._cached, artifact)
        if cached is not None and (artifact.fixed or artifact.sha256):
            return cached
        try:
            desired = await self._published(artifact, cached is not None)
            if cached is not None and desired == cached.digest:
                return cached
            return await self._fetch(artifact, desired, report)
        except Transient as failure:
            if cached is None:
                raise
            log.warning("cannot look up artifact; using the local one", error=failure, artifact=artifact.name)
            return cached

    def _cached(self, artifact: Artifact) -> Fetched | None:
        given = self._shelf.note(_ArtifactNote, _key(artifact))
        digest = noted_digest(given.blobs[0]) if given and given.blobs else None
        if given is None or digest is None or _is_another(artifact, digest) or not self._shelf.whole(digest):
            return None
        self._shelf.used(_key(artifact))
        return Fetched(artifact, self._shelf.path(digest), digest, given.checked or bool(artifact.sha256))

    async def _published(self, artifact: Artifact, is_cached: bool) -> Digest | None:
        """Return the required digest; None where neither configuration nor source has one."""
        if artifact.sha256:
            return Digest("sha256", artifact.sha256)
        url, named = artifact.checksum_url, redacted_url(artifact.checksum_url)
        web = self._brief if is_cached else self._web
        try:
            text = await web.retry(named, lambda: _text(web, url))
        except (NotPublished, Denied):  # object stores answer 403 for missing objects
            return None
        return Digest("sha256", sha256_in(text, artifact.file_name, named))

    async def _fetch(self, artifact: Artifact, desired: Digest | None, report: OnProgress) -> Fetched:
        if desired is None:
            report(f"{artifact.version}: no sha256 is published beside it, so it is not verified")
            log.warning("artifact not verified", artifact=artifact.name, version=artifact.version, checked=False)
            place = self._shelf.fresh(_key(artifact))
            digest = await self._download(artifact, None, place, report)
            await run_in_thread(place.replace, self._shelf.path(digest))
            return await self._record(artifact, digest, checked=False)
        async with self._turns.setdefault(desired, asyncio.Lock()):
            if not await run_in_thread(self._shelf.whole, desired):  # another URL may have delivered it
                await self._download(artifact, desired, self._shelf.path(desired), report)
        return await self._record(artifact, desired, checked=True)

    async def _download(self, artifact: Artifact, desired: Digest | None, place: Path, report: OnProgress) -> Digest:
        request = Download((artifact.url,), desired.hex if desired else "", LARGEST_BYTES, plain=True)
        try:
            digest = await download(self._web, request, place, on_bytes=_progress(artifact.version, report))
        except Rejected as failure:
            raise Rejected(f"{artifact.name} {artifact.version}: {failure}") from failure
        report(f"{artifact.version}: fetched")
        return digest

    async def _record(self, artifact: Artifact, digest: Digest, *, checked: bool) -> Fetched:
        given = _ArtifactNote(source=artifact.url, blobs=(str(digest),), checked=checked)
        await run_in_thread(self._shelf.remember, _key(artifact), given)
        return Fetched(artifact, self._shelf.path(digest), digest, checked)


@dataclass(frozen=True)
class CachedArtifact:
    """An artifact found on this disk by its name.

    Args:
        checked: as in Fetched.
    """

    checked: bool


def find_cached(shelf: BlobStore, artifact: Artifact) -> CachedArtifact | None:
    """Return the artifact if this disk has it by name; nothing is verified or written. Blocks."""
    given = shelf.note(_ArtifactNote, _key(artifact))
    digest = noted_digest(given.blobs[0]) if given and given.blobs else None
    if given is None or digest is None or _is_another(artifact, digest) or not shelf.path(digest).is_file():
        return None
    return CachedArtifact(given.checked or bool(artifact.sha256))


def _is_another(artifact: Artifact, digest: Digest) -> bool:
    """Return whether the configuration requires another digest than this."""
    return bool(artifact.sha256) and digest.hex != artifact.sha256


def _key(artifact: Artifact) -> str:
    return f"{artifact.name} {artifact.url}"


def _progress(what: str, report: OnProgress) -> OnBytes:
    last = 0

    def report_bytes(done: int, total: int | None) -> None:
        nonlocal last
        percent = done * 100 // total if total else 0
        if percent >= last + _STEP and percent < 100:
            last = percent - percent % _STEP
            report(f"{what}: {last} %")

    return report_bytes


async def _text(web: Web, text: str) -> str:
    url = checked_url(web, text, plain=True)
    async with web.request("GET", url) as response:
        if response.status != 200:
            raise web.failure_of(response, redacted_url(text))
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > MOST_BYTES:
                raise TooLarge(f"{redacted_url(text)}: a checksum file with more than {MOST_BYTES} bytes")
    return body.decode(errors="replace")


_CHUNK: Final = 1 << 20
N = TypeVar("N", bound="BlobNote")


class BlobStore:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._notes = root / "notes"

    def open(self) -> None:
        """Create the folders. Raises Transient where the disk refuses."""
        try:
            self._notes.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Transient(f"{self._notes}: {error.strerror}") from error

    def path(self, digest: Digest) -> Path:
        return self.root / digest.file_name

    def fresh(self, key: str) -> Path:
        """Return the path of a download whose digest is still unknown."""
        return self.root / f"fresh-{_hashed(key)}"

    def whole(self, digest: Digest) -> bool:
        """Return whether the blob is present and matches its digest; a damaged blob is removed, so that it is fetched
        again.
        """
        path = self.path(digest)
        try:
            with path.open("rb") as file:
                found = hashlib.new(digest.algorithm)
                while chunk := file.read(_CHUNK):
                    found.update(chunk)
        except OSError:
            return False
        if found.hexdigest() != digest.hex:
            path.unlink(missing_ok=True)
            return False
        return True

    def note(self, kind: type[N], key: str) -> N | None:
        """Return the note of a source; None when there is none that this version can read."""
        path = self._note(key)
        try:
            found = msgspec.json.decode(path.read_bytes(), type=kind)
        except (OSError, msgspec.DecodeError):
            return None
        return found if found.format <= FORMAT else None

    def used(self, key: str) -> None:
        """Record that a source was used now."""
        with suppress(OSError):  # a disk that refuses this only makes the note appear older
            os.utime(self._note(key))

    def remember(self, key: str, note: BlobNote) -> None:
        write_durably(self._note(key), msgspec.json.encode(note))

    def _note(self, key: str) -> Path:
        kind, _, rest = key.partition(" ")
        return self._notes / f"{kind}-{_hashed(rest)}"

    def collect(self, keep: int) -> None:
        """Remove all notes but the most recently used ones of each kind, and the blobs without a note.

        Args:
            keep: number of notes of each kind that stay.
        """
        kinds: dict[str, list[Path]] = {}
        for path in sorted(self._notes.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True):
            kinds.setdefault(path.name.rpartition("-")[0], []).append(path)
        for old in (path for paths in kinds.values() for path in paths[keep:]):
            old.unlink(missing_ok=True)
        digests = (noted_digest(text) for path in self._notes.iterdir() for text in _blobs(path))
        needed = {digest.file_name for digest in digests if digest is not None}
        for path in self.root.iterdir():
            if path.is_file() and path.name.removesuffix(".partial") not in needed:
                path.unlink(missing_ok=True)


def _hashed(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:40]


def _blobs(path: Path) -> tuple[str, ...]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_AnyNote).blobs
    except (OSError, msgspec.DecodeError):
        return ()


class _AnyNote(msgspec.Struct):
    blobs: tuple[str, ...] = ()


def noted_digest(text: str) -> Digest | None:
    """Return a digest from a note; None for an invalid one."""
    try:
        return Digest.parse(text)
    except UnusableContent:
        return None
