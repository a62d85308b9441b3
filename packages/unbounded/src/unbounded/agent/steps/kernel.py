"""Kernel parameters and modules for a node: in a file for the next boot, and in the kernel now.

For kubelet and its network, only the parameters of DESIRED are applied, not all of /etc/sysctl.d, which belongs to the
host. Parameters that the kernel does not have, such as bridge-nf-call-iptables without br_netfilter, or does not allow
to write, are reported and skipped. Those of KUBELET are required: kubelet exits at each start without them
(`protectKernelDefaults`), so the step fails with their names.

`start` adds none of the parameters of the node's MachineConfiguration: they come with a slot, at each start of its
machine. Parameters of a former configuration get their original values back.

Modules for containers are loaded where the kernel has them as modules.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from unbounded.agent.interfaces import OnProgress
from unbounded.agent.paths import HostPaths
from unbounded.agent.steps.original_state import OriginalState, OwnFile
from unbounded.agent.steps.step import ReversibleStep, StepHost
from unbounded.api.failures import Failure, Rejected
from unbounded.kube.logs import Log
from unbounded.kube.tasks import run_in_thread

log = Log("agent")

NAME: Final = "sysctl"
KUBELET: Final[Mapping[str, str]] = {  # exactly these values, or kubelet with protectKernelDefaults exits
    "vm.overcommit_memory": "1",
    "vm.panic_on_oom": "0",
    "kernel.panic": "10",
    "kernel.panic_on_oops": "1",
    "kernel.keys.root_maxkeys": "1000000",
    "kernel.keys.root_maxbytes": "25000000",
}
DESIRED: Final[Mapping[str, str]] = {
    **KUBELET,
    "net.bridge.bridge-nf-call-iptables": "1",
    "net.bridge.bridge-nf-call-ip6tables": "1",
    "net.ipv4.ip_forward": "1",
    "net.ipv4.conf.all.src_valid_mark": "1",
    "net.ipv4.conf.default.src_valid_mark": "1",
    "net.ipv4.conf.all.rp_filter": "0",
    "net.ipv4.conf.default.rp_filter": "0",
}
FORWARD: Final = "net.ipv4.ip_forward"
REMEDY: Final = "set it in the kernel configuration of this host, such as on the host of this container"
_SIDE: Final = "net.ipv4.conf.all.accept_redirects"  # the kernel sets it whenever ip_forward changes
FILE: Final = OwnFile(
    "sysctl-file",
    "/etc/sysctl.d/99-kubernetes.conf",
    b"# Written by unbounded-agent for the Kubernetes node on this host.\n"
    + "".join(f"{key} = {value}\n" for key, value in DESIRED.items()).encode(),
)


class FoundValues(msgspec.Struct, frozen=True):
    """Values of parameters, including those of interfaces that change with ip_forward."""

    values: dict[str, str]


BEFORE: Final = OriginalState("sysctl", FoundValues)


@dataclass(frozen=True)
class RejectedParameter:
    """A parameter with a value that kubelet rejects.

    Args:
        value: None where the kernel has no parameter of this name.
    """

    key: str
    value: str | None
    needed: str
    settable: bool = False

    def __str__(self) -> str:
        if self.value is None:
            return f"this kernel has no {self.key}, but kubelet needs {self.needed}"
        return f"{self.key} is {self.value}, but kubelet needs {self.needed}"


def parameter(paths: HostPaths, key: str) -> Path:
    return paths.at("/proc/sys") / key.replace(".", "/")


def read(paths: HostPaths, key: str) -> str | None:
    """Return the value of a parameter; None when this kernel has none of that name."""
    try:
        return parameter(paths, key).read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return None


def to_set(paths: HostPaths) -> dict[str, str]:
    """Return the desired values that differ from the present ones and can be set."""
    return {
        key: value
        for key, value in DESIRED.items()
        if read(paths, key) not in (value, None) and os.access(parameter(paths, key), os.W_OK)
    }


def cannot_be_set(paths: HostPaths) -> list[str]:
    """Return the parameters that differ, and that the kernel does not have or does not allow to write."""
    settable = to_set(paths)
    return [key for key, value in DESIRED.items() if key not in settable and read(paths, key) != value]


def refused_by_kubelet(paths: HostPaths) -> tuple[RejectedParameter, ...]:
    """Return the parameters with whose present values kubelet would exit."""
    settable = to_set(paths)
    found = ((key, read(paths, key), needed) for key, needed in KUBELET.items())
    return tuple(
        RejectedParameter(key, value, needed, key in settable) for key, value, needed in found if value != needed
    )


async def _present(host: StepHost) -> bool:
    paths = host.paths
    return FILE.is_present(paths) and not to_set(paths) and not refused_by_kubelet(paths)


async def _add(host: StepHost, report: OnProgress) -> None:
    paths = host.paths
    keys = [*DESIRED, _SIDE, *_forwarding(paths)]
    found = {key: value for key in keys if (value := read(paths, key)) is not None}
    BEFORE.record(paths, FoundValues(found))
    for key, value in to_set(paths).items():
        try:
            await _write(paths, key, value)
        except OSError as error:  # a security module may deny a write that the mode allows
            log.warning("cannot set kernel parameter", error=error, key=key)
    if refused := refused_by_kubelet(paths):
        raise Rejected(f"{'; '.join(map(str, refused))}; {REMEDY}")
    if missing := cannot_be_set(paths):
        log.warning("kernel parameters not set", keys=missing)
        report(f"this kernel does not have {', '.join(missing)}, or does not allow changes")
    FILE.put(paths)


async def _remove(host: StepHost) -> None:
    paths = host.paths
    FILE.revert(paths)
    found = BEFORE.read(paths)
    if found is None:
        return
    for key in restored_in_order(found.values):  # parameters of a removed interface are gone with it
        now = read(paths, key)
        if now not in (found.values[key], None):
            await _write(paths, key, found.values[key])
    BEFORE.forget(paths)


def restored_in_order(values: Mapping[str, str]) -> list[str]:
    """Return the parameters with ip_forward first, because the kernel changes others together with it."""
    return sorted(values, key=lambda key: (key != FORWARD, key == _SIDE or key.endswith(".forwarding")))


async def _write(paths: HostPaths, key: str, value: str) -> None:
    await asyncio.to_thread(parameter(paths, key).write_text, f"{value}\n")


def _forwarding(paths: HostPaths) -> list[str]:
    interfaces = paths.at("/proc/sys/net/ipv4/conf")
    if not interfaces.is_dir():
        return []
    # Dots in an interface's name would be separators in a key: such an interface is skipped.
    return [f"net.ipv4.conf.{one.name}.forwarding" for one in sorted(interfaces.iterdir()) if "." not in one.name]


SYSCTL: Final = ReversibleStep(NAME, _present, _add, _remove, after=("kernel modules",))

CONFIGURED: Final = "configured-sysctl"
BEFORE_CONFIGURED: Final = OriginalState(CONFIGURED, FoundValues)
_FOLDER: Final = "/proc/sys"


def apply_configured(paths: HostPaths, desired: Mapping[str, str]) -> None:
    """Set these parameters on the host, and restore the original values of an earlier configuration's.

    Raises:
        Rejected: the kernel has no such parameter, or rejects the value; the message names the field.
    """
    before = BEFORE_CONFIGURED.read(paths)
    found = {} if before is None else dict(before.values)
    if not desired and before is None:
        return
    for name in sorted(found.keys() - desired.keys()):
        _write_configured(paths, name, found.pop(name), gone="is fine")
    for name in sorted(desired):
        found.setdefault(name, _read_configured(paths, name))
    BEFORE_CONFIGURED.replace(paths, FoundValues(found))
    for name, value in sorted(desired.items()):
        _write_configured(paths, name, value)
    if desired:
        _configured_file(desired).put(paths)
        return
    _configured_file({}).revert(paths)
    BEFORE_CONFIGURED.forget(paths)


def _configured_file(desired: Mapping[str, str]) -> OwnFile:
    lines = "".join(f"{name} = {value}\n" for name, value in sorted(desired.items()))
    text = f"# Written by unbounded-agent: sysctl of the node's MachineConfiguration.\n{lines}"
    return OwnFile(f"{CONFIGURED}-file", "/etc/sysctl.d/98-unbounded-node.conf", text.encode())


def _place(name: str) -> str:
    """Return the path below /proc/sys: the first separator in the name is its separator (sysctl.d(5))."""
    first = next((one for one in name if one in "./"), ".")
    return name if first == "/" else name.translate(str.maketrans("./", "/."))


def _read_configured(paths: HostPaths, name: str) -> str:
    try:
        return paths.at(f"{_FOLDER}/{_place(name)}").read_text().strip()
    except OSError as error:
        raise Rejected(f"sysctl {name}: this kernel has no such parameter ({error.strerror})") from error


def _write_configured(paths: HostPaths, name: str, value: str, *, gone: str = "") -> None:
    path = paths.at(f"{_FOLDER}/{_place(name)}")
    if gone and not path.exists():  # parameters of a removed interface are gone with it
        return
    if _read_configured(paths, name).split() == value.split():
        return
    try:
        path.write_text(f"{value}\n")
    except OSError as error:
        raise Rejected(f"sysctl {name}: the kernel rejects {value!r} ({error.strerror})") from error


async def _always(_host: StepHost) -> bool:
    return True


async def _nothing(_host: StepHost, _report: object) -> None:
    """Do nothing: slots set the parameters."""


async def _remove_configured(host: StepHost) -> None:
    await run_in_thread(apply_configured, host.paths, {})


CONFIGURED_SYSCTL: Final = ReversibleStep(CONFIGURED, _always, _nothing, _remove_configured)

MODULES_NAME: Final = "kernel modules"
MODULES: Final = ("overlay", "br_netfilter")
MODULES_FILE: Final = OwnFile(
    "modules-file",
    "/etc/modules-load.d/unbounded-agent.conf",
    b"# Written by unbounded-agent for the Kubernetes node on this host.\n" + "\n".join(MODULES).encode() + b"\n",
)


class FoundModules(msgspec.Struct, frozen=True):
    """The agent's modules that were loaded before."""

    loaded: tuple[str, ...]


BEFORE_MODULES: Final = OriginalState("modules", FoundModules)


def loaded_modules(paths: HostPaths) -> tuple[str, ...]:
    """Return the agent's modules that are loaded, or built in with parameters."""
    return tuple(name for name in MODULES if (paths.at("/sys/module") / name).is_dir())


async def _modules_present(host: StepHost) -> bool:
    # written last; the load of an unavailable module is not retried at each start
    return MODULES_FILE.is_present(host.paths)


async def _add_modules(host: StepHost, report: OnProgress) -> None:
    found = BEFORE_MODULES.record(host.paths, FoundModules(loaded_modules(host.paths)))
    for name in MODULES:
        if name not in found.loaded and not await _kmod(host, "modprobe", name):
            report(f"{name} is not a module of this kernel: built in, or missing")
    MODULES_FILE.put(host.paths)


async def _remove_modules(host: StepHost) -> None:
    MODULES_FILE.revert(host.paths)
    found = BEFORE_MODULES.read(host.paths)
    if found is None:
        return
    for name in loaded_modules(host.paths):
        if name not in found.loaded:
            # modprobe -r would also remove `bridge`, and with it each bridge of the host. A module in use stays until
            # the next boot, which does no harm.
            await _kmod(host, "rmmod", name)
    BEFORE_MODULES.forget(host.paths)


async def _kmod(host: StepHost, *argv: str) -> bool:
    try:
        return (await host.commands.run(*argv, check=False)).ok
    except Failure:  # a host without modules may lack the program
        return False


MODULES_STEP: Final = ReversibleStep(MODULES_NAME, _modules_present, _add_modules, _remove_modules)
