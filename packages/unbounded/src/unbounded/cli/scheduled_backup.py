"""One scheduled back-up, in its own process: `unbounded up` starts the process, and can kill it where a share hangs.

The archive is written under a temporary name and renamed. It is read back before older ones are removed. Names contain
the identity of the control plane, so that several control planes can use one folder.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from unbounded.cli.backup_commands import EXTRAS
from unbounded_apiserver.backup import BackupFailed, back_up, verify
from unbounded_apiserver.data_dir import DataUnusable

NICE: Final = 10
_STAMP: Final = "%Y%m%dT%H%M%SZ"
_SHOWN: Final = 8  # characters of an identity


class BackupResult(msgspec.Struct, frozen=True):
    """A back-up that was written.

    Args:
        removed: names of outdated ones that were removed.
        same_disk: whether the folder is on the file system of the data.
    """

    file: str
    created: datetime
    objects: int
    revision: int
    size: int
    removed: tuple[str, ...] = ()
    same_disk: bool = False


def file_name(identity: str, now: datetime) -> str:
    return f"{_prefix(identity)}{now:{_STAMP}}.backup"


def time_of(name: str, identity: str) -> datetime | None:
    """Return the creation time in a file's name; None for a file that is no back-up of this control plane."""
    found = re.fullmatch(rf"{re.escape(_prefix(identity))}(\d{{8}}T\d{{6}}Z)\.backup", name)
    if found is None:
        return None
    try:
        return datetime.strptime(found[1], _STAMP).replace(tzinfo=UTC)
    except ValueError:
        return None


def outdated(names: Iterable[str], identity: str, keep: int) -> list[str]:
    """Return the back-ups of this control plane beyond the newest `keep`, and no other file of the folder."""
    return sorted((name for name in names if time_of(name, identity) is not None), reverse=True)[keep:]


def write(data: Path, folder: Path, identity: str, *, keep: int, elsewhere: bool, now: datetime) -> BackupResult:
    """Write a back-up into a folder, read it back, and remove what is outdated.

    Args:
        elsewhere: the folder was on another file system than the data before, and must be so again.

    Raises:
        BackupFailed, DataUnusable
    """
    if not folder.is_dir():
        raise BackupFailed(f"{folder} is not a directory")
    try:
        same_disk = folder.stat().st_dev == data.stat().st_dev
        if same_disk and elsewhere:
            raise BackupFailed(
                f"{folder} is now on the disk of {data}, which it was not before: is the share still mounted?"
            )
        _clear(data, folder, identity)
        target = folder / file_name(identity, now)
        back_up(data, target, extras=EXTRAS, staging=data, work=_work(identity))
        manifest = verify(target)
        removed = outdated(os.listdir(folder), identity, keep)
        for name in removed:
            (folder / name).unlink()
        size = target.stat().st_size
    except OSError as error:
        raise BackupFailed(f"{folder}: {error.strerror or error}") from error
    return BackupResult(
        target.name, manifest.created, manifest.objects, manifest.revision, size, tuple(removed), same_disk
    )


def _prefix(identity: str) -> str:
    return f"unbounded-{identity[:_SHOWN]}-"


def _work(identity: str) -> str:
    return f".{_prefix(identity)}"


def _clear(data: Path, folder: Path, identity: str) -> None:
    """Remove the remains of interrupted back-ups: only one runs at a time."""
    for place in (data, folder):
        for left in place.glob(f"{_work(identity)}*"):
            shutil.rmtree(left)


def main(arguments: Sequence[str]) -> int:
    """Write one back-up and print its description as JSON; an error goes to standard error."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("identity")
    parser.add_argument("--keep", type=int, required=True)
    parser.add_argument("--elsewhere", action="store_true")
    args = parser.parse_args(arguments)
    os.nice(NICE)
    now = datetime.now(UTC).replace(microsecond=0)
    try:
        done = write(args.data, args.folder, args.identity, keep=args.keep, elsewhere=args.elsewhere, now=now)
    except (BackupFailed, DataUnusable) as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(done))
    return 0
