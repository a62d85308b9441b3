"""`unbounded backup` and `unbounded restore`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from unbounded.api.core import CONFIG_MAPS
from unbounded.api.failures import Rejected
from unbounded.api.names import ANNOTATION_PAUSED, CONFIGMAP_OPERATIONS, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS, TERMINAL_PHASES, OperationPhase
from unbounded.cli.migrate.record import FILE as MARKER
from unbounded.cli.migrate.record import migrated_reason
from unbounded.cli.settings import LAB_IDENTITY_FILE
from unbounded_apiserver.backup import BackupFailed, back_up
from unbounded_apiserver.data_dir import DataInUse, DataUnusable
from unbounded_apiserver.restore import Objects, RestoreWrite, restore

EXTRAS: Final = (LAB_IDENTITY_FILE, MARKER)
OPERATIONS: Final = f"{MACHINE_OPERATIONS.plural}.{MACHINE_OPERATIONS.group}"
PAUSE: Final = (CONFIG_MAPS.plural, f"{NAMESPACE}/{CONFIGMAP_OPERATIONS}")


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
