"""Files and kernel parameters that a layout gives the installed system."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Final
from uuid import UUID

from unbounded.api.profile import FileSystem, FileSystemType, MachineProfileSpec
from unbounded.metalman.layout.model import ProfileFault
from unbounded.metalman.layout.profile_check import ProfileGraph

_KERNEL_WORDS: Final = frozenset({"GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT"})
# GRUB reads others as its own
_PLAIN: Final = re.compile(r"[A-Za-z0-9 .,:=@_/%+-]*")
NOFAIL: Final = "nofail"  # the host starts without a disk of a mirror
WAIT: Final = "x-systemd.device-timeout=10s"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def files(graph: ProfileGraph, identities: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of files.

    Args:
        identities: UUIDs of file systems and arrays, by their devices in the text.
    """
    spec = graph.spec
    yield _file("/etc/fstab", "".join(_fstab(graph, identities)))
    if spec.soft_raid_devices:
        yield _file("/etc/mdadm/mdadm.conf", "".join(_mdadm(graph, identities)))
    kernel = spec.kernel_parameters
    if kernel is not None and kernel.sysctl:
        settings = (f"{name} = {value}\n" for name, value in sorted(kernel.sysctl.items()))
        yield _file("/etc/sysctl.d/90-unbounded-profile.conf", "".join(settings))
    for module in sorted(kernel.modules, key=lambda one: one.filename) if kernel is not None else ():
        if module.content:
            yield _file(f"/etc/modprobe.d/{module.filename}", module.content.rstrip("\n") + "\n")
    if options := _grub_options(spec):
        lines = (f"{name}={shlex.quote(value)}\n" for name, value in options)
        yield _file("/etc/default/grub.d/90-unbounded-profile.cfg", "".join(lines))


def cmdline(spec: MachineProfileSpec) -> str:
    """Return the kernel parameters of a profile.

    Raises:
        ProfileFault: GRUB would read a character as its own.
    """
    words = []
    for at, (name, value) in enumerate(_grub_options(spec)):
        if name not in _KERNEL_WORDS:
            continue
        if not _PLAIN.fullmatch(value):
            raise ProfileFault(
                f"grubConfig.defaultGrubOptions[{at}]", f"GRUB reads a character of {value!r} as its own"
            )
        words += value.split()
    return " ".join(words)


def mount_options(graph: ProfileGraph, system: FileSystem, device: str) -> str:
    """Return the options of a file system in /etc/fstab."""
    options = system.mount_opts or ""
    if device in graph.esps:
        return options if NOFAIL in options.split(",") else f"{options or 'umask=0077'},{NOFAIL},{WAIT}"
    if system.file_system == FileSystemType.SWAP:
        return options or f"sw,{NOFAIL}"
    return options or ("errors=remount-ro" if system.file_system == FileSystemType.EXT4 else "defaults")


def mounts(graph: ProfileGraph) -> list[tuple[str, FileSystem]]:
    """Return the file systems that are mounted, with their devices, in the order of mounting."""
    systems = [
        (graph.of(one, f"fileSystems[{at}]"), one)
        for at, one in enumerate(graph.spec.file_systems)
        if one.mount_point is not None
    ]
    return sorted(systems, key=lambda entry: [part for part in (entry[1].mount_point or "").split("/") if part])


def _file(path: str, content: str) -> str:
    return f"file {path} 0644 {encoded(content)}"


def _fstab(graph: ProfileGraph, identities: Mapping[str, str]) -> Iterator[str]:
    for device, system in mounts(graph):
        passes = 1 if system.mount_point == "/" else 0 if system.file_system == FileSystemType.XFS else 2
        options = mount_options(graph, system, device)
        yield f"UUID={identities[device]} {system.mount_point} {system.file_system} {options} 0 {passes}\n"
    for at, system in enumerate(graph.spec.file_systems):
        if system.file_system == FileSystemType.SWAP:
            device = graph.of(system, f"fileSystems[{at}]")
            yield f"UUID={identities[device]} none swap {mount_options(graph, system, device)} 0 0\n"


def _mdadm(graph: ProfileGraph, identities: Mapping[str, str]) -> Iterator[str]:
    yield "HOMEHOST <ignore>\nMAILADDR root\n"  # without an address, mdmonitor fails
    for array in graph.spec.soft_raid_devices:
        name = graph.arrays[array.name]
        digits = UUID(identities[f"array:{name}"]).hex
        parts = ":".join(digits[at : at + 8] for at in range(0, 32, 8))
        yield f"ARRAY /dev/md/{name} metadata={array.metadata} UUID={parts}\n"


def _grub_options(spec: MachineProfileSpec) -> list[tuple[str, str]]:
    options = spec.grub_config.default_grub_options if spec.grub_config is not None else ()
    pairs = (option.partition("=") for option in options)
    return [(name, value.removeprefix('"').removesuffix('"')) for name, _, value in pairs]
