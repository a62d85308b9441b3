"""Character devices of the host that its machine has from the start. `device_mirror` adds disks and later devices."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unbounded.agent.layout import Layout

GLOBS: Final = ("nvidia*", "nvidia-caps/*", "kfd", "dri/*", "infiniband/*", "kvm", "fuse")  # nspawn provides tun itself


@dataclass(frozen=True)
class HostDevices:
    """Paths on the host, such as /dev/nvidia0; sorted.

    Args:
        character: GPUs with their control devices, InfiniBand, KVM, fuse.
    """

    character: tuple[str, ...] = ()

    @property
    def nvidia(self) -> bool:
        """True where there is a GPU itself, not only the driver's control device."""
        return any(path.removeprefix("/dev/nvidia").isdigit() for path in self.character)


def find_devices(layout: Layout) -> HostDevices:
    """Return the present devices. Directories, links and unreadable entries are omitted."""
    dev = layout.at("/dev")
    character = {path for glob in GLOBS for path in dev.glob(glob) if _is(path, stat.S_ISCHR)}
    return HostDevices(_named(character, layout))


def _named(paths: set[Path], layout: Layout) -> tuple[str, ...]:
    return tuple(sorted(f"/{path.relative_to(layout.root)}" for path in paths))


def _is(path: Path, kind: object) -> bool:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return bool(callable(kind) and kind(mode))
