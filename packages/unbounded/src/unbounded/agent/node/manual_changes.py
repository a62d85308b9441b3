"""Files that a user changed inside a slot, and that the next recreation discards.

The agent records the files of SCOPE after the slot's first start, because the first boot writes some of its own. It
records a file again after each write of its own. A later difference is a user's change, unless a running node writes
that file. Files are compared by mode, size and mtime, links by their target.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

import msgspec

from unbounded.agent.model import Slot
from unbounded.agent.paths import HostPaths
from unbounded.agent.recreation.report import ConditionReport, one_line
from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.kube.durable_files import write_durably
from unbounded.kube.logs import Log

log = Log("agent")

SCOPE: Final = ("etc", "opt", "root", "usr/local")
_OWN: Final = (  # written by a running node, its Pods and its driver
    "etc/machine-id", "etc/.updated", "etc/.pwd.lock", "etc/ld.so.cache", "etc/resolv.conf", "etc/mtab",
    "etc/adjtime", "etc/cni/*", "etc/cdi/*", "etc/containerd/*", "etc/ssh/ssh_host_*", "etc/kubernetes/manifests/*",
    "opt/cni/*", "opt/containerd/*", "root/.bash_history", "root/.cache/*", "root/.kube/cache/*", "*/.unfinished-*",
)  # fmt: skip
_DRIVER: Final = "/run/host-nvidia/"
_SHOWN: Final = 8  # names in a message

FileEntry = tuple[int, int, int, str]  # mode, size and mtime of a file; mode and target of a link
Files = dict[str, FileEntry]


def record(paths: HostPaths, slot: Slot) -> None:
    """Record the slot's files unless they are recorded already; blocking."""
    if not paths.state.is_dir() or paths.slot_files(slot).exists():
        return
    _write(paths, slot, dict(_files(paths.rootfs(slot))))


def record_again(paths: HostPaths, slot: Slot, changed: Iterable[str]) -> None:
    """Record files that the agent itself has written or removed; blocking.

    Args:
        changed: paths inside the slot.
    """
    known = _read(paths, slot)
    if known is None:
        return
    for path in changed:
        name = path.lstrip("/")
        entry = _entry(paths.rootfs(slot) / name)
        known.pop(name, None)
        if entry is not None and _counts(name, entry):
            known[name] = entry
    _write(paths, slot, known)


def forget(paths: HostPaths, slot: Slot) -> None:
    """Remove the record of a slot that is removed."""
    paths.slot_files(slot).unlink(missing_ok=True)


def changed_by_hand(paths: HostPaths, slot: Slot) -> tuple[str, ...] | None:
    """Return the changed files for a message: `/etc/motd (changed)`; None where the slot has no record. Blocking."""
    before = _read(paths, slot)
    if before is None:
        return None
    now = dict(_files(paths.rootfs(slot)))
    found = dict.fromkeys(now.keys() - before.keys(), "added")
    found |= dict.fromkeys(before.keys() - now.keys(), "removed")
    found |= {name: "changed" for name in now.keys() & before.keys() if now[name] != before[name]}
    return tuple(f"/{_printable(name)} ({how})" for name, how in sorted(found.items()))


def node_modified(paths: HostPaths) -> tuple[ConditionReport, ...]:
    """Return the condition NodeModified; none where no slot has a record. Blocking."""
    lines = []
    for slot in Slot:
        changed = changed_by_hand(paths, slot) if paths.applied(slot).exists() else None
        if changed is not None:
            lines.append(_report(slot, changed))
    return tuple(lines[:1])


def _report(slot: Slot, changed: tuple[str, ...]) -> ConditionReport:
    if not changed:
        text = f"no manual changes in {slot} below {', '.join(f'/{one}' for one in SCOPE)}"
        return ConditionReport(ConditionType.NODE_MODIFIED, ConditionStatus.FALSE, ConditionReason.UNCHANGED, text)
    more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    files = "1 file was" if len(changed) == 1 else f"{len(changed)} files were"
    text = (
        f"{files} changed by hand in {slot}, and a recreation discards the changes: {', '.join(changed[:_SHOWN])}{more}"
    )
    return ConditionReport(ConditionType.NODE_MODIFIED, ConditionStatus.TRUE, ConditionReason.MODIFIED, one_line(text))


def _files(root: Path) -> Iterator[tuple[str, FileEntry]]:
    for top in SCOPE:
        for folder, folders, files in os.walk(root / top):
            for name in (*files, *(one for one in folders if os.path.islink(os.path.join(folder, one)))):
                path = os.path.relpath(os.path.join(folder, name), root)
                entry = _entry(root / path)
                if entry is not None and _counts(path, entry):
                    yield path, entry


def _entry(path: Path) -> FileEntry | None:
    try:
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            return found.st_mode, 0, 0, os.readlink(path)
    except OSError:
        return None
    return (found.st_mode, found.st_size, found.st_mtime_ns, "") if stat.S_ISREG(found.st_mode) else None


def _counts(path: str, entry: FileEntry) -> bool:
    own = any(fnmatch(path, pattern) for pattern in _OWN)
    return not own and not entry[3].startswith(_DRIVER) and path.startswith(tuple(f"{one}/" for one in SCOPE))


def _printable(name: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in name)


def _read(paths: HostPaths, slot: Slot) -> Files | None:
    try:
        return msgspec.json.decode(paths.slot_files(slot).read_bytes(), type=Files)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        log.warning("cannot read the record of a slot's files", error=error, slot=slot)
        return None


def _write(paths: HostPaths, slot: Slot, files: Files) -> None:
    try:
        write_durably(paths.slot_files(slot), msgspec.json.encode(files))
    except (OSError, UnicodeEncodeError) as error:
        log.warning("cannot record a slot's files", error=error, slot=slot)
