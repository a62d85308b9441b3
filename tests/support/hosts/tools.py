"""The parts that `scripts/agent-tools` has made."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.qemu.tools import built

LEAST_INSTANCES: Final = 1024
_INOTIFY: Final = Path("/proc/sys/fs/inotify/max_user_instances")


@dataclass(frozen=True)
class AgentTools:
    """Args:
    folder: `.venv/tools/agent`.
    """

    folder: Path

    @property
    def rootfs(self) -> Path:
        """A host's; never written to."""
        return self.folder / "rootfs"

    @property
    def node_layer(self) -> Path:
        """A tar of a node's root file system, packed with zstd."""
        return self.folder / "node.tar.zst"

    @property
    def node_diff_id(self) -> str:
        """The sha256 of that tar unpacked."""
        return (self.folder / "node.tar.sha256").read_text().strip()

    @property
    def artifacts(self) -> Path:
        """Debian's containerd.tar.gz, runc and cni.tgz, in the form of their projects' releases."""
        return self.folder / "artifacts"

    def later_containerd(self, major: str) -> tuple[str, Path]:
        """Return version and archive of a later Debian's containerd; skip the test where the archive had none.

        Args:
            major: the beginning of its version, such as `2.`.
        """
        for path in sorted(self.artifacts.glob(f"containerd-{major}*.tar.gz")):
            return path.name.removeprefix("containerd-").removesuffix(".tar.gz"), path
        pytest.skip(f"scripts/agent-tools found no containerd {major}x")


def missing() -> str | None:
    """Return what tests on hosts lack here; None when they can run."""
    if os.geteuid() != 0:
        return "root"
    if built("agent/built") is None:
        return "what scripts/agent-tools makes"
    return next((name for name in ("systemd-nspawn", "nsenter", "ip") if shutil.which(name) is None), None)


def agent_tools() -> AgentTools:
    """Return the tools; skip the test without them."""
    lacking = missing()
    folder = built("agent/built")
    if lacking is not None or folder is None:
        pytest.skip(f"hosts need {lacking}")
    _enough_watchers()
    return AgentTools(folder.parent)


def _enough_watchers() -> None:
    """Every systemd takes several inotify instances; the usual 128 are used up by 25 of them."""
    if int(_INOTIFY.read_text()) < LEAST_INSTANCES:
        _INOTIFY.write_text("8192")
