"""What was on a host before `start` that looks like a node's: reset leaves it alone.

Somebody's own WireGuard tunnel may be named wg0, and folders may have been there; whoever wants a host back as it was
has to know. Taken once, before anything is changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from unbounded.agent.layout import Layout
from unbounded.agent.model import Slot
from unbounded.agent.ports import Tell
from unbounded.agent.reset.network import KEYS, Left, look
from unbounded.agent.steps.before import Before
from unbounded.agent.steps.host import Host
from unbounded.agent.steps.step import Step

NAME: Final = "survey"


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Args:

    network: what there was of the kinds that a node leaves. folders: of those that the agent makes, what was not there.
    idle: of MACHINE_UNITS, those that were not active.
    """

    network: Left = Left()
    folders: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()


BEFORE: Final = Before("survey", Found)
MACHINE_UNITS: Final = ("machine.slice", "systemd-machined.service")  # started by the first machine of a host


def folders(layout: Layout) -> tuple[Path, ...]:
    """Folders on the host that the agent makes and others may use as well, outermost first."""
    ours = {layout.changes, layout.state, layout.releases, layout.bin, layout.nspawn(Slot.KUBE1).parent}
    ours |= {layout.machines, layout.at(KEYS[0]).parent, *(layout.override(slot).parent for slot in Slot)}
    above = {folder for one in ours for folder in (one, *one.parents) if folder.is_relative_to(layout.root)}
    return tuple(sorted(above - {layout.root}, key=lambda folder: len(folder.parts)))


def spared(layout: Layout) -> Left:
    """What was there before, of the kinds that a node leaves."""
    found = BEFORE.read(layout)
    return found.network if found else Left()


async def _present(host: Host) -> bool:
    return BEFORE.read(host.layout) is not None


async def _add(host: Host, _tell: Tell) -> None:
    layout = host.layout
    missing = tuple(str(folder) for folder in folders(layout) if not folder.is_dir())
    network = await look(layout, host.commands, with_routes=host.has("ip"))
    idle = tuple([unit for unit in MACHINE_UNITS if (await host.units.look(unit)).active != "active"])
    BEFORE.keep(layout, Found(network=network, folders=missing, idle=idle))


async def _remove(host: Host) -> None:
    """Reset reads it to its end, and takes it away with the folder that it lies in."""


SURVEY: Final = Step(NAME, _present, _add, _remove)
