"""Conditions of a Machine that depend on the present state of its host."""

from __future__ import annotations

from collections.abc import Collection

from unbounded.agent.layout import Layout
from unbounded.agent.node.by_hand import node_says
from unbounded.agent.node.gpus import gpus_say, read_described
from unbounded.agent.preflight.look import graphics
from unbounded.agent.recreation.report import Says
from unbounded.api.conditions import ConditionType


def host_conditions(layout: Layout, types: Collection[str]) -> tuple[Says, ...]:
    """Return conditions about the host. Blocking.

    Args:
        types: of the conditions that the Machine has.
    """
    found = graphics(layout)
    said = ConditionType.GPUS_DESCRIBED in types
    gpus = gpus_say(read_described(layout), cards=found.cards, driver=found.driver, said=said)
    return (*node_says(layout), *(() if gpus is None else (gpus,)))
