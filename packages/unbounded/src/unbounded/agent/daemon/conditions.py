"""Conditions of a Machine that depend on the present state of its host."""

from __future__ import annotations

from collections.abc import Collection

from unbounded.agent.layout import Layout
from unbounded.agent.node.gpus import gpus_described, read_cdi_result
from unbounded.agent.node.manual_changes import node_modified
from unbounded.agent.preflight.observe_host import graphics
from unbounded.agent.recreation.report import ConditionReport
from unbounded.api.conditions import ConditionType


def host_conditions(layout: Layout, types: Collection[str]) -> tuple[ConditionReport, ...]:
    """Return conditions about the host. Blocking.

    Args:
        types: of the conditions that the Machine has.
    """
    found = graphics(layout)
    said = ConditionType.GPUS_DESCRIBED in types
    gpus = gpus_described(read_cdi_result(layout), cards=found.cards, driver=found.driver, said=said)
    return (*node_modified(layout), *(() if gpus is None else (gpus,)))
