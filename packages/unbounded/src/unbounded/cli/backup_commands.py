"""`unbounded backup`, `unbounded restore`, and one scheduled back-up, which is a process of its own.

`unbounded up` starts the process, and can kill it where a share hangs. The archive is written under a temporary name
and renamed. It is read back before older ones are removed. Names contain the identity of the control plane, so that
several control planes can use one folder.
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
from typing import Any, Final

import msgspec

from unbounded.api.core import CONFIG_MAPS
from unbounded.api.failures import Rejected
from unbounded.api.names import ANNOTATION_PAUSED, CONFIGMAP_OPERATIONS, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS, TERMINAL_PHASES, OperationPhase
from unbounded.cli.migrate.migration_record import FILE as MARKER
from unbounded.cli.migrate.migration_record import migrated_reason
from unbounded.cli.settings import LAB_IDENTITY_FILE
from unbounded_apiserver.backup import BackupFailed, back_up, verify
from unbounded_apiserver.data_dir import DataInUse, DataUnusable
from unbounded_apiserver.restore import Objects, RestoreWrite, restore

EXTRAS: Final = (LAB_IDENTITY_FILE, MARKER)
OPERATIONS: Final = f"{MACHINE_OPERATIONS.plural}.{MACHINE_OPERATIONS.group}"
PAUSE: Final = (CONFIG_MAPS.plural, f"{NAMESPACE}/{CONFIGMAP_OPERATIONS}")
NICE: Final = 10
_STAMP: Final = "%Y%m%dT%H%M%SZ"
_SHOWN: Final = 8  # characters of an identity


def run_backup(data: Path, file: Path, *, force: bool) -> int:
    """Write a backup and print its size and contents; returns the exit status."""
    try:
        manifest = back_up(data, file, force=force, extras=EXTRAS)
    except (BackupFailed, DataUnusable) as error:
        return _failed(error)
    size_kib = file.stat().st_size / 2**10
    print(f"{file}: {manifest.objects} objects at revision {manifest.revision}, {size_kib:.0f} KiB")
    print("Protect this file: it contains all Secrets and the credentials of the administrator.")
    return 0


def run_restore(data: Path, file: Path) -> int:
    """Restore a backup and print the consequences; returns the exit status."""
    open_ones: list[dict[str, Any]] = []

    def edit(objects: Objects) -> Sequence[RestoreWrite]:
        open_ones.extend(open_operations(objects))
        return [paused(objects)] if open_ones else []

    try:
        _check_not_migrated(data)
        restored = restore(file, data, extras=EXTRAS, edit=edit)
    except (BackupFailed, DataInUse, DataUnusable, Rejected) as error:
        return _failed(error)
    manifest = restored.manifest
    print(
        f"{data} has the state of {_time(manifest.created)}: {manifest.objects} objects, revision {manifest.revision}"
    )
    if restored.aside is not None:
        print(f"  former data     {restored.aside}")
    print(f"  revisions       continue after {restored.revision}, so that every client lists again")
    if open_ones:
        print(_about(open_ones))
    return 0


def _check_not_migrated(data: Path) -> None:
    """Refuse to restore over migrated data: an older state would act on machines that another control plane owns."""
    if words := migrated_reason(data):
        raise BackupFailed(f"--data {data}: {words}")


def open_operations(objects: Objects) -> list[dict[str, Any]]:
    """Return the operations that have not ended."""
    operations = [msgspec.json.decode(body) for (resource, _), body in objects.items() if resource == OPERATIONS]
    return [obj for obj in operations if (obj.get("status") or {}).get("phase") not in TERMINAL_PHASES]


def paused(objects: Objects) -> RestoreWrite:
    """Return the ConfigMap that pauses all operations: one that waited at the backup may have been executed since."""
    body = objects.get(PAUSE)
    obj: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": CONFIG_MAPS.kind,
        "metadata": {"name": CONFIGMAP_OPERATIONS, "namespace": NAMESPACE},
    }
    if body is not None:
        obj = msgspec.json.decode(body)
    obj["metadata"].setdefault("annotations", {})[ANNOTATION_PAUSED] = "restored"
    return RestoreWrite(*PAUSE, obj)


def _about(open_ones: Sequence[dict[str, Any]]) -> str:
    """List the operations that the user has to check, and the command that resumes operations."""
    width = max(len(obj["metadata"]["name"]) for obj in open_ones)
    lines = [f"\nThese operations had not ended at the backup, and may have been executed since ({len(open_ones)}):"]
    for obj in sorted(open_ones, key=lambda obj: obj["metadata"]["name"]):
        running = (obj.get("status") or {}).get("phase") == OperationPhase.IN_PROGRESS
        state = "in progress, and continues from its stage" if running else "was waiting"
        lines.append(f"  {obj['metadata']['name']:{width}}  {obj['spec'].get('operationKind', '')} {state}")
    lines += (
        "To execute nothing twice, all operations are paused. Delete the obsolete ones, then remove the pause:",
        f"  kubectl annotate configmap {CONFIGMAP_OPERATIONS} --namespace {NAMESPACE} {ANNOTATION_PAUSED}-",
    )
    return "\n".join(lines)


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _failed(error: Exception) -> int:
    print(f"error: {error}", file=sys.stderr)
    return 1


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
