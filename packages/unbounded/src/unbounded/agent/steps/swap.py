"""Swap off, now and at the next boot: kubelet cannot enforce memory limits with it.

In fstab only lines whose type is swap are disabled, each with a marker that names the agent; a path with "swap" in it
is no swap. The reset removes exactly these markers, whatever else was edited since.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

import msgspec

from unbounded.agent.host import unescaped
from unbounded.agent.interfaces import OnProgress
from unbounded.agent.paths import HostPaths
from unbounded.agent.steps.original_state import OriginalState
from unbounded.agent.steps.step import ReversibleStep, StepHost
from unbounded.kube.durable_files import sweep, write_durably
from unbounded.kube.logs import Log

log = Log("agent")

NAME: Final = "swap"
MARKER: Final = b"# unbounded-agent, until reset: "
OFF_S: Final = 900.0  # all swapped pages have to return to memory


class SwapArea(msgspec.Struct, frozen=True):
    """One swap area of /proc/swaps; the kernel assigns priorities below 0 to areas without one."""

    path: str
    priority: int


class FoundSwap(msgspec.Struct, frozen=True):
    areas: tuple[SwapArea, ...]


BEFORE: Final = OriginalState("swap", FoundSwap)


def areas(proc_swaps: str) -> tuple[SwapArea, ...]:
    """Return the areas in use, from the text of /proc/swaps."""
    rows = [line.split() for line in proc_swaps.splitlines()[1:]]
    return tuple(SwapArea(unescaped(row[0]), int(row[4])) for row in rows if len(row) >= 5)


def disabled_swap(fstab: bytes) -> bytes:
    """Return the file with its lines of swap disabled by the marker."""
    return b"".join(MARKER + line if _is_swap(line) else line for line in fstab.splitlines(keepends=True))


def enabled_swap(fstab: bytes) -> bytes:
    """Return the file without the markers."""
    return b"".join(line.removeprefix(MARKER) for line in fstab.splitlines(keepends=True))


def _is_swap(line: bytes) -> bool:
    fields = line.split()
    return len(fields) >= 3 and not fields[0].startswith(b"#") and fields[2] == b"swap"


def in_use(paths: HostPaths) -> tuple[SwapArea, ...]:
    try:
        return areas(paths.at("/proc/swaps").read_text())
    except FileNotFoundError:  # a kernel without swap
        return ()


def _fstab(paths: HostPaths) -> bytes:
    try:
        return paths.at("/etc/fstab").read_bytes()
    except FileNotFoundError:
        return b""


def _write_fstab(paths: HostPaths, content: bytes) -> None:
    if content != _fstab(paths):
        path = Path(os.path.realpath(paths.at("/etc/fstab")))
        sweep(path)
        write_durably(path, content, mode=stat.S_IMODE(path.stat().st_mode))


async def _present(host: StepHost) -> bool:
    fstab = _fstab(host.paths)
    return not in_use(host.paths) and disabled_swap(fstab) == fstab


async def _add(host: StepHost, report: OnProgress) -> None:
    active = in_use(host.paths)
    BEFORE.record(host.paths, FoundSwap(active))
    _write_fstab(host.paths, disabled_swap(_fstab(host.paths)))
    await host.units.reload()  # systemd still has the units of these lines otherwise, and starts them again
    for area in active:
        report(f"switching off swap area {area.path}")
        await host.commands.run("swapoff", "--", area.path, timeout_s=OFF_S)


async def _remove(host: StepHost) -> None:
    fstab = _fstab(host.paths)
    if enabled_swap(fstab) != fstab:
        _write_fstab(host.paths, enabled_swap(fstab))
        await host.units.reload()
    found = BEFORE.read(host.paths)
    if found is None:
        return
    active = {area.path for area in in_use(host.paths)}
    for area in found.areas:
        if area.path not in active and _is_there(host.paths, area.path):
            priority = ("--priority", str(area.priority)) if area.priority >= 0 else ()
            await host.commands.run("swapon", *priority, "--", area.path)
    BEFORE.forget(host.paths)


def _is_there(paths: HostPaths, path: str) -> bool:
    if paths.at(path).exists():
        return True
    log.warning("swap area disappeared since start", path=path)
    return False


SWAP: Final = ReversibleStep(NAME, _present, _add, _remove)
