"""The NVIDIA driver's libraries, which are the host's and must be those of its kernel module. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from unbounded.agent.node.nspawn import Bind

SHOWN: Final = "/run/host-nvidia"
PLACE: Final = "/usr/local/lib"  # on ldconfig's own list
SPECIFICATION: Final = "/etc/cdi/nvidia.yaml"
_PREFIXES: Final = (
    "libnvidia-", "libcuda", "libEGL_nvidia", "libGLX_nvidia", "libGLESv2_nvidia", "libnvcuvid", "libnvoptix"
)  # fmt: skip
_TAGS: Final = {"amd64": "x86-64", "arm64": "AArch64"}
_LINE: Final = re.compile(r"\s*(\S+) \(([^)]*)\) => (/\S+)")
# nvidia-ctk adds hooks that change what the machine may not change; these two do not
_HOOKS: Final = ("enable-cuda-compat", "disable-device-node-modification", "chmod")


@dataclass(frozen=True)
class Libraries:
    """Args:
    binds: the host's directories, read only.
    links: by path inside, where they lead.
    """

    binds: tuple[Bind, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)


def libraries(told: str, arch: str) -> Libraries:
    """What of the driver the host has.

    Args:
        told: what `ldconfig -p` printed; the first of several with one name counts, as it does for the loader.
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
    return Libraries(tuple(Bind(folder, inside) for folder, inside in shown.items()), links)


def cdi_commands() -> tuple[tuple[str, ...], ...]:
    """Ways to write the list of devices for containers, the best first; older tools know fewer flags."""
    generate = ("nvidia-ctk", "cdi", "generate", f"--output={SPECIFICATION}")
    return (*generate, *(f"--disable-hook={hook}" for hook in _HOOKS)), generate
