"""A host's own cgroup. Two hosts that share one would delete each other's units."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MOUNTS: Final = Path("/proc/self/mounts")
_NAMED: Final = Path("/sys/fs/cgroup/systemd")  # where the system itself has version 1
_GONE_S: Final = 10.0


def _unified() -> Path:
    lines = (line.split() for line in _MOUNTS.read_text().splitlines())
    return next(Path(fields[1]) for fields in lines if fields[2] == "cgroup2")


@dataclass(frozen=True)
class Cgroup:
    """Args:
    name: unique on this system.
    """

    name: str

    @property
    def folder(self) -> Path:
        return _unified() / self.name

    @property
    def folders(self) -> tuple[Path, ...]:
        return (self.folder, *([_NAMED / self.name] if _NAMED.is_dir() else []))

    def make(self) -> None:
        for folder in self.folders:
            folder.mkdir(exist_ok=True)

    def leader(self) -> int | None:
        """The process that is PID 1 of the host; None while there is none."""
        try:
            found = (self.folder / "payload" / "init.scope" / "cgroup.procs").read_text().split()
        except OSError:
            return None
        return next((int(pid) for pid in found if _is_first(int(pid))), None)

    def kill(self) -> None:
        """SIGKILL to everything in it at once, which returns when nothing is left."""
        if not self.folder.exists():
            return
        (self.folder / "cgroup.kill").write_text("1")
        limit = time.monotonic() + _GONE_S
        while "populated 1" in (self.folder / "cgroup.events").read_text():
            assert time.monotonic() < limit, f"{self.name}: killed processes do not end"
            time.sleep(0.005)

    def remove(self) -> None:
        self.kill()
        for folder in self.folders:
            inner = [path for path in folder.rglob("*") if path.is_dir()] if folder.exists() else []
            for each in (*sorted(inner, key=lambda path: len(path.parts), reverse=True), folder):
                if each.exists():
                    each.rmdir()


def _is_first(pid: int) -> bool:
    """Return whether it is PID 1 of a namespace directly below ours."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    ids = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
    return len(ids) == 2 and ids[1] == "1"
