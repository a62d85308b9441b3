"""Node-like state of a host before `start`, which a reset does not remove.

A user's own WireGuard tunnel may be named wg0, and folders may have existed; a reset has to know them to restore the
host. The survey is taken once, before any change.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from unbounded.agent.layout import Layout
from unbounded.agent.model import Slot
from unbounded.agent.ports import OnProgress
from unbounded.agent.reset.network import KEYS, NodeNetworkState, observe_network
from unbounded.agent.steps.original_state import OriginalState
from unbounded.agent.steps.step import ReversibleStep, StepHost

NAME: Final = "survey"


class HostSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """Node-like state of a host before `start`.

    Args:
        network: items of the kinds that a node leaves.
        folders: those of the agent's that did not exist.
        idle: of MACHINE_UNITS, those that were not active.
    """

    network: NodeNetworkState = NodeNetworkState()
    folders: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()


BEFORE: Final = OriginalState("survey", HostSurvey)
MACHINE_UNITS: Final = ("machine.slice", "systemd-machined.service")  # started by the first machine of a host


def folders(layout: Layout) -> tuple[Path, ...]:
    """Return folders on the host that the agent creates and others may use as well, outermost first."""
    ours = {layout.changes, layout.state, layout.releases, layout.bin, layout.nspawn(Slot.KUBE1).parent}
    ours |= {layout.machines, layout.at(KEYS[0]).parent, *(layout.override(slot).parent for slot in Slot)}
    above = {folder for one in ours for folder in (one, *one.parents) if folder.is_relative_to(layout.root)}
    return tuple(sorted(above - {layout.root}, key=lambda folder: len(folder.parts)))


def spared(layout: Layout) -> NodeNetworkState:
    """Return the network state before `start`, of the kinds that a node leaves."""
    found = BEFORE.read(layout)
    return found.network if found else NodeNetworkState()


async def _present(host: StepHost) -> bool:
    return BEFORE.read(host.layout) is not None


async def _add(host: StepHost, _tell: OnProgress) -> None:
    layout = host.layout
    missing = tuple(str(folder) for folder in folders(layout) if not folder.is_dir())
    network = await observe_network(layout, host.commands, with_routes=host.has("ip"))
    idle = tuple([unit for unit in MACHINE_UNITS if (await host.units.observe(unit)).active != "active"])
    BEFORE.record(layout, HostSurvey(network=network, folders=missing, idle=idle))


async def _remove(host: StepHost) -> None:
    """Do nothing: reset reads the record until its end, and removes it with its folder."""


SURVEY: Final = ReversibleStep(NAME, _present, _add, _remove)
