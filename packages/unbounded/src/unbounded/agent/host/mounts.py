"""Mounts below a folder of the host, and their removal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from unbounded.agent.layout import Layout
from unbounded.agent.ports import Commands
from unbounded.kube.logs import Log

log = Log("agent")

UNMOUNT_S: Final = 30.0
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


def unescaped(field: str) -> str:
    """Return a path that the kernel printed in /proc with octal escapes for blanks and backslashes
    (proc_pid_mountinfo(5)).
    """
    return _OCTAL.sub(lambda octal: chr(int(octal[1], 8)), field)


def mounts_below(folder: Path, mountinfo: str) -> tuple[str, ...]:
    """Return the mount points at a folder and below, the last mounted first, from the text of /proc/self/mountinfo."""
    points = [unescaped(line.split(" ")[4]) for line in mountinfo.splitlines() if line.count(" ") > 4]
    whole = str(folder)
    return tuple(point for point in reversed(points) if point == whole or point.startswith(f"{whole}/"))


async def unmount_below(layout: Layout, commands: Commands, folder: Path) -> None:
    """Unmount all mounts at a folder and below. The mounted content belongs to others and is not changed.

    A mount in use is detached at once (umount --lazy) and ends with its last user.

    Raises:
        Transient: a mount remains.
    """
    for point in mounts_below(folder, _mountinfo(layout)):
        log.info("unmounted before removal of its directory", path=point)
        if not (await commands.run("umount", "--", point, timeout_s=UNMOUNT_S, check=False)).ok:
            await commands.run("umount", "--lazy", "--", point, timeout_s=UNMOUNT_S)


def _mountinfo(layout: Layout) -> str:
    try:
        return layout.at("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return ""
