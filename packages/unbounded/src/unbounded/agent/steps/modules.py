"""Kernel modules for containers, loaded where the kernel has them as modules, now and at each boot."""

from __future__ import annotations

from typing import Final

import msgspec

from unbounded.agent.layout import Layout
from unbounded.agent.ports import OnProgress
from unbounded.agent.steps.files import OwnFile
from unbounded.agent.steps.original_state import OriginalState
from unbounded.agent.steps.step import ReversibleStep, StepHost
from unbounded.api.failures import Failure

NAME: Final = "kernel modules"
MODULES: Final = ("overlay", "br_netfilter")
FILE: Final = OwnFile(
    "modules-file",
    "/etc/modules-load.d/unbounded-agent.conf",
    b"# Written by unbounded-agent for the Kubernetes node on this host.\n" + "\n".join(MODULES).encode() + b"\n",
)


class FoundModules(msgspec.Struct, frozen=True):
    """The agent's modules that were loaded before."""

    loaded: tuple[str, ...]


BEFORE: Final = OriginalState("modules", FoundModules)


def loaded(layout: Layout) -> tuple[str, ...]:
    """Return the agent's modules that are loaded, or built in with parameters."""
    return tuple(name for name in MODULES if (layout.at("/sys/module") / name).is_dir())


async def _present(host: StepHost) -> bool:
    return FILE.is_present(host.layout)  # written last; the load of an unavailable module is not retried at each start


async def _add(host: StepHost, report: OnProgress) -> None:
    found = BEFORE.record(host.layout, FoundModules(loaded(host.layout)))
    for name in MODULES:
        if name not in found.loaded and not await _modprobe(host, "modprobe", name):
            report(f"{name} is not a module of this kernel: built in, or missing")
    FILE.put(host.layout)


async def _remove(host: StepHost) -> None:
    FILE.revert(host.layout)
    found = BEFORE.read(host.layout)
    if found is None:
        return
    for name in loaded(host.layout):
        if name not in found.loaded:
            await _modprobe(
                host, "modprobe", "-r", name
            )  # a module in use stays until the next boot, which does no harm
    BEFORE.forget(host.layout)


async def _modprobe(host: StepHost, *argv: str) -> bool:
    try:
        return (await host.commands.run(*argv, check=False)).ok
    except Failure:  # a host without modules may have no modprobe
        return False


MODULES_STEP: Final = ReversibleStep(NAME, _present, _add, _remove)
