"""What is mounted below a folder of the host, and how it is let go."""

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
    """A path as the kernel prints it in /proc: blanks and backslashes as octal numbers (proc_pid_mountinfo(5))."""
    return _OCTAL.sub(lambda octal: chr(int(octal[1], 8)), field)


def mounts_below(folder: Path, mountinfo: str) -> tuple[str, ...]:
    """Mount points at a folder and below, the last mounted first, from the text of /proc/self/mountinfo."""
    points = [unescaped(line.split(" ")[4]) for line in mountinfo.splitlines() if line.count(" ") > 4]
    whole = str(folder)
    return tuple(point for point in reversed(points) if point == whole or point.startswith(f"{whole}/"))


async def unmount_below(layout: Layout, commands: Commands, folder: Path) -> None:
    """Let go of all that is mounted there; it is somebody else's, and stays as it is. What is in use loses its name at
    once, and ends with its last user.

    Raises:
        Transient: something stays mounted.
    """
    for point in mounts_below(folder, _mountinfo(layout)):
        log.info("unmounted before its folder is removed", path=point)
        if not (await commands.run("umount", "--", point, timeout_s=UNMOUNT_S, check=False)).ok:
            await commands.run("umount", "--lazy", "--", point, timeout_s=UNMOUNT_S)


def _mountinfo(layout: Layout) -> str:
    try:
        return layout.at("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return ""
