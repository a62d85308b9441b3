"""What of the host's devices is passed on to the machine: found below /dev and /sys."""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unbounded.agent.layout import Layout

_GLOBS: Final = ("nvidia*", "nvidia-caps/*", "kfd", "dri/*", "infiniband/*", "kvm", "fuse")  # nspawn gives tun itself
_NO_DISK: Final = re.compile("(loop|ram|zram|nbd|sr|fd)[0-9]")  # or made and unmade while the machine runs


@dataclass(frozen=True)
class Devices:
    """Paths as the host has them, such as /dev/nvidia0; sorted.

    Args:
        character: GPUs with their companions, InfiniBand, KVM, fuse.
        block: whole disks and their partitions.
    """

    character: tuple[str, ...] = ()
    block: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        return self.character + self.block

    @property
    def nvidia(self) -> bool:
        """A GPU itself, not only the driver's control device."""
        return any(path.removeprefix("/dev/nvidia").isdigit() for path in self.character)


def look_for_devices(layout: Layout) -> Devices:
    """What is there now. Directories, links and what cannot be read are left out."""
    dev = layout.at("/dev")
    character = {path for glob in _GLOBS for path in dev.glob(glob) if _is(path, stat.S_ISCHR)}
    block = {dev / name for name in _block_names(layout.at("/sys/class/block")) if _is(dev / name, stat.S_ISBLK)}
    return Devices(_named(character, layout), _named(block, layout))


def _named(paths: set[Path], layout: Layout) -> tuple[str, ...]:
    return tuple(sorted(f"/{path.relative_to(layout.root)}" for path in paths))


def _is(path: Path, kind: object) -> bool:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return bool(callable(kind) and kind(mode))


def _block_names(folder: Path) -> list[str]:
    """The kernel's names of disks and partitions; `!` in them is a slash below /dev."""
    if not folder.is_dir():
        return []
    names = [path.name.replace("!", "/") for path in folder.iterdir()]
    return [name for name in names if not _NO_DISK.match(name)]
