"""Libraries of the NVIDIA driver, which have to match the host's kernel module and so come from the host. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from unbounded.agent.node.nspawn import BindMount

SHOWN: Final = "/run/host-nvidia"
PLACE: Final = "/usr/local/lib"  # in ldconfig's default list
SPECIFICATION: Final = "/etc/cdi/nvidia.yaml"
_PREFIXES: Final = (
    "libnvidia-", "libcuda", "libEGL_nvidia", "libGLX_nvidia", "libGLESv2_nvidia", "libnvcuvid", "libnvoptix"
)  # fmt: skip
_TAGS: Final = {"amd64": "x86-64", "arm64": "AArch64"}
_LINE: Final = re.compile(r"\s*(\S+) \(([^)]*)\) => (/\S+)")
# nvidia-ctk adds hooks that modify files which the machine may not modify; these two do not
_HOOKS: Final = ("enable-cuda-compat", "disable-device-node-modification", "chmod")


@dataclass(frozen=True)
class DriverLibraries:
    """Libraries of the driver for a machine.

    Args:
        binds: the host's directories, read only.
        links: symbolic links, by path inside, with their targets.
    """

    binds: tuple[BindMount, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)


def libraries(told: str, arch: str) -> DriverLibraries:
    """Return the driver's libraries on the host.

    Args:
        told: output of `ldconfig -p`; the first of several entries with one name counts, as for the loader.
    """
    found: dict[str, str] = {}
    for line in told.splitlines():
        match = _LINE.fullmatch(line.rstrip())
        if match and match.group(1).startswith(_PREFIXES) and _TAGS.get(arch, arch) in match.group(2).split(","):
            found.setdefault(match.group(1), match.group(3))
    folders = sorted({path.rpartition("/")[0] for path in found.values()})
    shown = {folder: f"{SHOWN}/{number}" for number, folder in enumerate(folders)}
    links = {
        f"{PLACE}/{name}": f"{shown[path.rpartition('/')[0]]}/{path.rpartition('/')[2]}"
        for name, path in sorted(found.items())
    }
    return DriverLibraries(tuple(BindMount(folder, inside) for folder, inside in shown.items()), links)


def cdi_commands() -> tuple[tuple[str, ...], ...]:
    """Return commands that write the CDI specification, the best first; older tools know fewer flags."""
    generate = ("nvidia-ctk", "cdi", "generate", f"--output={SPECIFICATION}")
    return (*generate, *(f"--disable-hook={hook}" for hook in _HOOKS)), generate
