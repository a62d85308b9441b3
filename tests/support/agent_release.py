"""The released agent, built once for each state of its sources, and releases derived from it that fail.

release = agent_release()                                 # release.archive, release.file, release.folder
newer = release_like(release, into, version="9.9.9")      # the same program under another version
bad = release_like(release, into, version="9.9.9", daemon="exit 1")
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.agent_release import ARCHITECTURES, NAME, STAMP_FILE, pack, sources_digest
from scripts.packages import version

from tests.support.paths import environment

BUILDS: Final = Path(sys.prefix) / "tools" / "agent-release"
KEPT_S: Final = 3 * 3600.0  # builds of other sources are kept for a while: several checkouts may share the folder
WHOLE: Final = f"{NAME}.whole"
WRAPPER: Final = """\
#!/bin/sh
case "$1" in
  version) {version} ;;
  daemon) {daemon} ;;
esac
exec "$(dirname "$(readlink -f "$0")")/{whole}" "$@"
"""

CRASHES: Final = "echo 'this release crashes' >&2; exit 1"
HANGS: Final = "exec sleep 100000"


@dataclass(frozen=True)
class AgentRelease:
    """Args:
    folder: `unbounded-agent/`, with the executable in it.
    archive: the tar.gz of it.
    file: the one that unpacks itself.
    """

    version: str
    folder: Path
    archive: Path
    file: Path

    @property
    def sha256(self) -> str:
        """Of the archive."""
        return hashlib.sha256(self.archive.read_bytes()).hexdigest()


def agent_release() -> AgentRelease:
    """The release of this checkout's sources; built if it is not there, by one process for all."""
    place = BUILDS / sources_digest()[:16]
    with _alone(place):
        if not (place / "built").exists():
            _forget_old()
            shutil.rmtree(place, ignore_errors=True)
            subprocess.run(  # with relative paths, as a person types them
                [sys.executable, "-m", "scripts.agent_release", "--runtimes", "runtimes", place.name],
                cwd=BUILDS,
                env=environment(),
                check=True,
                stdout=subprocess.DEVNULL,
            )
            (place / "whole").mkdir()
            subprocess.run(["tar", "-xf", str(_archive(place)), "-C", str(place / "whole")], check=True)
            (place / "built").touch()
        os.utime(place)
    return AgentRelease(version(), place / "whole" / NAME, _archive(place), place / NAME)


def release_like(
    release: AgentRelease, into: Path, *, version: str, on_version: str = "", on_daemon: str = ""
) -> AgentRelease:
    """A release in a folder of its own that calls itself `version`.

    Args:
        on_version, on_daemon: a shell command that is run in place of (or, if it returns, before) that command, such as
            CRASHES or `sleep 5; exit 1`.
    """
    into.mkdir(parents=True)
    folder = into / "whole" / NAME
    shutil.copytree(release.folder, folder, symlinks=True)
    stamp = folder / STAMP_FILE
    stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "version": version}))
    if on_version or on_daemon:
        (folder / NAME).rename(folder / WHOLE)
        (folder / NAME).write_text(WRAPPER.format(version=on_version or ":", daemon=on_daemon or ":", whole=WHOLE))
        (folder / NAME).chmod(0o755)
    list(pack(folder, into, level=1))
    return AgentRelease(version, folder, _archive(into), into / NAME)


def system_libraries(release: AgentRelease) -> dict[str, bytes]:
    """Return the system libraries of the release, by paths without the first slash.

    They are the parts of the C library, and zlib, with which the executable reads its own content. They come from the
    system of the build.
    """
    inside = release.folder / "_internal"
    brought = {path for path in _loaded(inside.rglob("*.so*")) if not (inside / path.name).exists()}
    found = _loaded([release.folder / NAME]) | brought
    return {str(path).lstrip("/"): path.read_bytes() for path in sorted(found)}


def _loaded(binaries: Iterable[Path]) -> set[Path]:
    told = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False).stdout
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", told)}


def _archive(place: Path) -> Path:
    return place / f"{NAME}-linux-{ARCHITECTURES[os.uname().machine]}.tar.gz"


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Hold the build lock of these sources; others can be built at the same time, and share runtimes."""
    BUILDS.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _forget_old() -> None:
    for one in [*BUILDS.iterdir(), *(BUILDS / "runtimes").glob("*")]:
        if one.is_dir() and one.name != "runtimes" and time.time() - one.stat().st_mtime > KEPT_S:
            shutil.rmtree(one, ignore_errors=True)
