"""Backups of a data directory: one file, readable by its owner alone, from which the directory can be restored.

A backup is a gzipped tar of three things:
- the objects: one consistent state of the database,
- the keys, without which issued kubeconfigs and tokens would be invalid after a restore,
- the administrator's kubeconfig.
Its first member is a manifest with the digest of each other member.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import IO, Final

import msgspec

from unbounded.kube.durable_files import sync_directory
from unbounded_apiserver import data_dir, database
from unbounded_apiserver.data_dir import Damaged, DataUnusable
from unbounded_apiserver.database import FILE

MANIFEST: Final = "manifest.json"
MANIFEST_BYTES: Final = 2**20
LAYOUT: Final = 1  # of the archive; the database in it has a format of its own
KEYS: Final = "pki"
REGENERATED: Final = frozenset({"server.crt", "server.key"})  # the next start creates these for its own names
KUBECONFIG: Final = "kubeconfig"
RESTORED_PREFIX: Final = ".restored-"  # prefix of the directory whose content a restore puts in place
CHUNK_BYTES: Final = 2**20
WORK_PREFIX: Final = ".unbounded-backup-"  # prefix of temporary folders
NAMES: Final = re.compile(rf"{KEYS}/[A-Za-z0-9][-.A-Za-z0-9]*|[A-Za-z0-9][-.A-Za-z0-9]*")


class BackupFailed(Exception):
    """A backup was not made or cannot be used; the message names the cause and the remedy."""


class BackupFile(msgspec.Struct, frozen=True):
    """A file of a backup."""

    sha256: str
    size: int


class Manifest(msgspec.Struct, frozen=True):
    """The manifest of a backup."""

    layout: int
    created: datetime
    revision: int
    objects: int
    files: dict[str, BackupFile]


@dataclass(frozen=True)
class DatabaseContent:
    """The content of a database: its newest revision and the number of objects."""

    revision: int
    objects: int


def back_up(
    data: Path,
    target: Path,
    *,
    force: bool = False,
    extras: Sequence[str] = (),
    staging: Path | None = None,
    work: str = WORK_PREFIX,
) -> Manifest:
    """Write a backup of a data directory, also while a server works on it. The file is complete or absent.

    Args:
        force: replace an existing file.
        extras: more files at the top of the data directory, if they exist.
        staging: the folder where the state is gathered, such as a local one for a target on a share. None is the
            folder of the target.
        work: prefix of the names of temporary folders.
    Raises:
        BackupFailed, DataUnusable
    """
    if any(data.glob(f"{RESTORED_PREFIX}*")):
        raise BackupFailed(f"{data} is incomplete: a restore was interrupted; run `unbounded up` to complete it")
    if not (data / FILE).is_file():
        raise BackupFailed(f"{data} has no data: {data / FILE} does not exist")
    if target.exists() and not force:
        raise BackupFailed(_exists_already(target))
    try:
        with (
            tempfile.TemporaryDirectory(prefix=work, dir=staging or target.parent) as gathered,
            tempfile.TemporaryDirectory(prefix=work, dir=target.parent) as written,
        ):
            staged, archive = Path(gathered), Path(written) / "archive"
            manifest = _collect(data, staged, extras)
            _pack(archive, staged, manifest)
            _publish(archive, target, force=force)
    except OSError as error:
        raise BackupFailed(f"{target} cannot be written: {error.strerror or error}") from error
    except sqlite3.Error as error:
        raise BackupFailed(f"{data / FILE} cannot be backed up: {database.describe_error(error)}") from error
    return manifest


def unpack(archive: Path, into: Path, extras: Sequence[str] = ()) -> Manifest:
    """Unpack a backup into an empty directory, check each file by its digest, and read all objects.

    Raises:
        BackupFailed: the file is not a backup, is damaged, or of a newer version.
        OSError: of the directory.
    """
    with _open_archive(archive) as tar:
        manifest = _manifest_of(archive, tar)
        desired = dict(manifest.files)
        if FILE not in desired:
            raise BackupFailed(f"{archive} has no objects")
        while (member := tar.next()) is not None:
            part = desired.pop(member.name, None)
            source = tar.extractfile(member) if member.isreg() else None
            if part is None or source is None or not _expected(member.name, extras):
                raise BackupFailed(f"{archive} contains {member.name!r}, which does not belong in a backup")
            data_dir.make_directory((into / member.name).parent)
            if _copy(source, into / member.name, part.size) != part:
                raise BackupFailed(f"{archive} is damaged: {member.name} has a wrong digest")
        if desired:
            raise BackupFailed(f"{archive} is damaged: it lacks {', '.join(sorted(desired))}")
    try:
        read_content(into / FILE)
    except Damaged as error:
        raise BackupFailed(f"{archive} is damaged: {error.why}") from error
    except DataUnusable as error:
        raise BackupFailed(f"{archive} cannot be used: {error}") from error
    return manifest


def verify(archive: Path) -> Manifest:
    """Read a backup from end to end and check each file by its digest. The objects are not decoded.

    Raises:
        BackupFailed: the file is not a backup, is damaged, or of a newer version.
    """
    with _open_archive(archive) as tar:
        manifest = _manifest_of(archive, tar)
        desired = dict(manifest.files)
        while (member := tar.next()) is not None:
            source = tar.extractfile(member)
            if source is None or desired.pop(member.name, None) != _part_in(source):
                raise BackupFailed(f"{archive} is damaged: {member.name} has a wrong digest")
        if desired:
            raise BackupFailed(f"{archive} is damaged: it lacks {', '.join(sorted(desired))}")
    return manifest


def read_content(path: Path) -> DatabaseContent:
    """Read a database from end to end, after migrating an older format. Raises DataUnusable."""
    opened = database.open_database(path)
    try:
        database.check(opened, path)
        revision = database.compacted(opened, path)
        there: set[tuple[str, str]] = set()
        for entry in database.entries(opened, path):
            revision = max(revision, entry.revision)
            (there.discard if entry.deleted else there.add)((entry.resource, entry.key))
        return DatabaseContent(revision, len(there))
    finally:
        opened.close()


def _collect(data: Path, staged: Path, extras: Sequence[str]) -> Manifest:
    """Gather the files of a backup in `staged`."""
    snapshot(data / FILE, staged / FILE)
    try:
        content = read_content(staged / FILE)
    except Damaged as error:
        raise Damaged(data / FILE, error.why) from error
    keys = sorted(path for path in (data / KEYS).iterdir() if path.is_file()) if (data / KEYS).is_dir() else []
    names = [f"{KEYS}/{path.name}" for path in keys if path.name not in REGENERATED and not path.name.startswith(".")]
    names += [name for name in (KUBECONFIG, *extras) if (data / name).is_file()]
    files = {FILE: _part_of(staged / FILE)}
    for name in names:
        data_dir.make_directory((staged / name).parent)
        with (data / name).open("rb") as source:
            files[name] = _copy(source, staged / name)
    return Manifest(LAYOUT, datetime.now(UTC).replace(microsecond=0), content.revision, content.objects, files)


def snapshot(path: Path, target: Path) -> None:
    """Copy one consistent state of a database, which a server may be writing to.

    Raises sqlite3.Error, OSError, DataUnusable.
    """
    # SQLite needs to write beside the file; on a read-only file system no other process writes either
    if os.statvfs(path.parent).f_flag & os.ST_RDONLY:
        for suffix in ("-wal", ""):
            if (found := path.with_name(path.name + suffix)).exists():
                shutil.copyfile(found, target.with_name(target.name + suffix))
        return
    opened = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=database.BUSY_S)
    try:
        database.format_of(opened, path)
        database.copy_to(opened, target)
    finally:
        opened.close()


def _pack(archive: Path, staged: Path, manifest: Manifest) -> None:
    """Write the archive, and sync it."""
    descriptor = os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as tar:
            encoded = msgspec.json.encode(manifest)
            tar.addfile(_member(MANIFEST, len(encoded), manifest.created), BytesIO(encoded))
            for name, part in manifest.files.items():
                with (staged / name).open("rb") as source:
                    tar.addfile(_member(name, part.size, manifest.created), source)
        file.flush()
        os.fsync(file.fileno())


def _member(name: str, size: int, created: datetime) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o600, int(created.timestamp())
    return member


def _publish(archive: Path, target: Path, *, force: bool) -> None:
    """Give the archive its name. Without `force`, never replace an existing file, even one made at the same time."""
    if not force:
        try:
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            raise BackupFailed(_exists_already(target)) from None
    archive.replace(target)
    sync_directory(target.parent)


def _exists_already(target: Path) -> str:
    return f"{target} exists already; choose another name, or replace it with --force"


@contextmanager
def _open_archive(archive: Path) -> Iterator[tarfile.TarFile]:
    """Turn errors of reading an archive into BackupFailed."""
    try:
        with gzip.open(archive) as plain, tarfile.open(fileobj=plain, mode="r|") as tar:
            yield tar
            while plain.read(CHUNK_BYTES):  # gzip's own checksum follows the data
                pass
    except FileNotFoundError as error:
        if error.filename != str(archive):
            raise
        raise BackupFailed(f"{archive} does not exist") from error
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError) as error:
        raise BackupFailed(f"{archive} is not a backup, or is damaged: {error}") from error
    except OSError as error:
        if error.errno is not None and error.filename is None:
            raise
        raise BackupFailed(f"{archive} cannot be read: {error.strerror or error}") from error


def _manifest_of(archive: Path, tar: tarfile.TarFile) -> Manifest:
    member = tar.next()
    source = tar.extractfile(member) if member is not None and member.isreg() else None
    if member is None or source is None or member.name != MANIFEST or member.size > MANIFEST_BYTES:
        raise BackupFailed(f"{archive} is not a backup of unbounded")
    data = source.read()
    if (layout := msgspec.json.decode(data, type=_LayoutOnly).layout) > LAYOUT:
        raise BackupFailed(f"{archive} has layout {layout}; this version of unbounded reads up to {LAYOUT}")
    return msgspec.json.decode(data, type=Manifest)


class _LayoutOnly(msgspec.Struct):
    layout: int


def _expected(name: str, extras: Sequence[str]) -> bool:
    return name in {FILE, KUBECONFIG, *extras} or ("/" in name and NAMES.fullmatch(name) is not None)


def _copy(source: IO[bytes], target: Path, limit: int | None = None) -> BackupFile:
    """Copy to a new file (0600) and sync it. Stop soon after `limit` bytes. Returns the copied file."""
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        while (limit is None or size <= limit) and (chunk := source.read(CHUNK_BYTES)):
            digest.update(chunk)
            size += len(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(target.parent)
    return BackupFile(digest.hexdigest(), size)


def _part_in(source: IO[bytes]) -> BackupFile:
    digest, size = hashlib.sha256(), 0
    while chunk := source.read(CHUNK_BYTES):
        digest.update(chunk)
        size += len(chunk)
    return BackupFile(digest.hexdigest(), size)


def _part_of(path: Path) -> BackupFile:
    with path.open("rb") as file:
        return BackupFile(hashlib.file_digest(file, "sha256").hexdigest(), path.stat().st_size)
