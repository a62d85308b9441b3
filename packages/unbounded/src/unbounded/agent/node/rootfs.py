"""Root file system in a new directory: from the layers of an image, or by debootstrap."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from unbounded.agent.ports import Commands, OnProgress
from unbounded.fetch.system_tree import SystemTree
from unbounded.fetch.unpack import StopSignal, UnpackLimits, unpack
from unbounded.kube.tasks import run_stoppable

LIMITS: Final = UnpackLimits(bytes=32 << 30, members=1_000_000)
DEBOOTSTRAP_S: Final = 1800.0
PACKAGES: Final = (
    "ca-certificates", "conntrack", "dbus", "ethtool", "iproute2", "iptables", "kmod", "mount", "systemd",
    "systemd-sysv",
)  # fmt: skip
_HOSTS: Final = "/etc/hosts"
_UBUNTU: Final = {"amd64": "http://archive.ubuntu.com/ubuntu", "arm64": "http://ports.ubuntu.com/ubuntu-ports"}


@dataclass(frozen=True)
class Distribution:
    """Distribution that debootstrap installs.

    Args:
        mirror: empty for debootstrap's default.
    """

    suite: str
    mirror: str = ""


def distribution(os_release: str, arch: str) -> Distribution:
    """Return the distribution: on Debian the host's own release, elsewhere Ubuntu 24.04. Pure.

    Args:
        os_release: content of the host's /etc/os-release.
    """
    fields = dict(line.partition("=")[::2] for line in os_release.splitlines())
    own, codename = (fields.get(key, "").strip("\"'") for key in ("ID", "VERSION_CODENAME"))
    if own == "debian" and codename:
        return Distribution(codename)
    return Distribution("noble", _UBUNTU.get(arch, _UBUNTU["arm64"]))


async def unpack_image(layers: Sequence[Path], target: Path, report: OnProgress) -> None:
    """Unpack the layers on top of each other. A cancelled call removes what it has unpacked.

    Raises:
        Rejected: they are no usable root file system.
        Transient: the disk refuses.
    """
    stop = StopSignal()
    loop = asyncio.get_running_loop()

    def told(number: int) -> None:
        loop.call_soon_threadsafe(report, f"unpacking layer {number} of {len(layers)}")

    work = partial(unpack, layers, target, bounds=LIMITS, stop=stop, on_bytes=told, tree=SystemTree)
    await run_stoppable(work, stop.event.set)


def add_hosts(root: Path) -> None:
    """Write /etc/hosts. No package of Debian contains the file, and containerd copies it into every Pod sandbox."""
    with closing(SystemTree(root)) as tree:
        if not tree.has(_HOSTS):
            tree.put(_HOSTS, b"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")


async def debootstrap(
    commands: Commands, target: Path, made: Distribution, arch: str, cache: Path, report: OnProgress
) -> None:
    """Install the distribution. Raises Transient with debootstrap's last lines, Rejected where the host has no
    debootstrap.
    """
    report(f"debootstrap of {made.suite} starts; it takes some minutes")
    await asyncio.to_thread(cache.mkdir, mode=0o700, parents=True, exist_ok=True)
    argv = ["debootstrap", "--variant=minbase", f"--arch={arch}", f"--cache-dir={cache}"]
    await commands.run(
        *argv,
        f"--include={','.join(PACKAGES)}",
        made.suite,
        str(target),
        *((made.mirror,) if made.mirror else ()),
        timeout_s=DEBOOTSTRAP_S,
        env={"DEBIAN_FRONTEND": "noninteractive"},
    )
