"""GPUs of the host in its node: libraries of the NVIDIA driver, the CDI generation, and the condition GPUsDescribed.

The libraries have to match the host's kernel module and so come from the host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import yaml

from unbounded.agent.node.nspawn import BindMount
from unbounded.agent.paths import HostPaths
from unbounded.agent.recreation.report import ConditionReport, one_line
from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.kube.durable_files import write_durably
from unbounded.kube.logs import Log

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


def libraries(output: str, arch: str) -> DriverLibraries:
    """Return the driver's libraries on the host.

    Args:
        output: output of `ldconfig -p`; the first of several entries with one name counts, as for the loader.
    """
    found: dict[str, str] = {}
    for line in output.splitlines():
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


log = Log("agent")

_SHOWN: Final = 8  # names in a message


class CdiResult(msgspec.Struct, frozen=True):
    """Result of the last CDI generation for a machine.

    Args:
        devices: qualified names of CDI, such as `nvidia.com/gpu=0`.
        error: why there is no specification; empty where there is one.
    """

    devices: tuple[str, ...] = ()
    error: str = ""


def cdi_result(specification: bytes | None) -> CdiResult:
    """Read a CDI specification."""
    try:
        document: Any = yaml.load(specification or b"", Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        return CdiResult(error=f"the CDI specification is not YAML: {' '.join(str(error).split())}")
    if not isinstance(document, Mapping) or not isinstance(document.get("devices"), list):
        return CdiResult(error="nvidia-ctk wrote no CDI specification with devices")
    kind = str(document.get("kind", ""))
    names = tuple(f"{kind}={one['name']}" for one in document["devices"] if isinstance(one, Mapping) and "name" in one)
    return CdiResult(names) if names else CdiResult(error="the CDI specification names no device")


def write_cdi_result(paths: HostPaths, described: CdiResult | None) -> None:
    """Write the result for the daemon; None for a host without GPUs."""
    if not paths.state.is_dir():
        return
    if described is None:
        paths.gpus.unlink(missing_ok=True)
        return
    try:
        write_durably(paths.gpus, msgspec.json.encode(described))
    except OSError as error:
        log.warning("cannot record the state of the GPUs", error=error)


def read_cdi_result(paths: HostPaths) -> CdiResult | None:
    """Return the recorded result; None where there is none."""
    try:
        return msgspec.json.decode(paths.gpus.read_bytes(), type=CdiResult)
    except (OSError, msgspec.DecodeError):
        return None


def gpus_described(
    described: CdiResult | None, *, cards: int, driver: str, is_reported: bool
) -> ConditionReport | None:
    """Return the condition; None for a host without NVIDIA GPUs whose Machine never had the condition.

    Args:
        cards: number on the PCI bus.
        driver: version of the loaded kernel driver; empty without one.
        is_reported: the Machine has the condition.
    """
    if described is not None and described.devices:
        more = len(described.devices) - _SHOWN
        names = ", ".join(described.devices[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        return _report(ConditionReason.SUCCEEDED, f"CDI describes {names}")
    if described is not None:
        return _report(
            ConditionReason.FAILED, one_line(f"CDI describes no GPU to the container runtime: {described.error}")
        )
    if cards and not driver:
        text = f"{cards} NVIDIA cards on the PCI bus and no driver: install it on the host, and restart the node"
        return _report(ConditionReason.NO_DRIVER, text)
    if cards:
        text = f"{cards} NVIDIA cards, driver {driver}, but no GPU in /dev when the node started: run nvidia-modprobe"
        return _report(ConditionReason.FAILED, f"{text} on the host, and restart the node")
    return _report(ConditionReason.NOT_FOUND, "the host has no NVIDIA GPU any more") if is_reported else None


def _report(reason: ConditionReason, text: str) -> ConditionReport:
    status = ConditionStatus.TRUE if reason is ConditionReason.SUCCEEDED else ConditionStatus.FALSE
    return ConditionReport(ConditionType.GPUS_DESCRIBED, status, reason, text)
