"""The page of one Machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from unbounded.api.core import NODES, Node
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.console.actions import ConsoleAction, machine_actions
from unbounded.console.compaction import with_hardware_of
from unbounded.console.live import LiveSource
from unbounded.console.models.machine import machine_view
from unbounded.console.models.parts import NotRead, ViewData
from unbounded.console.pages.live_page import LivePage, is_named
from unbounded.console.view import View
from unbounded.explain.chain import SubjectNotFound, explain
from unbounded.explain.facts import ExplainFacts, resource_of
from unbounded.explain.facts_reader import FactsReader
from unbounded.explain.links import Topic
from unbounded.explain.results import Explanation
from unbounded.explain.tree import ObjectTree, tree_of
from unbounded.kube.api import ApiError, NotFound
from unbounded.kube.clock import utc_now


def show(view: View, name: str) -> None:
    """Draw a Machine."""
    MachinePage(view, name).begin()


class MachinePage(LivePage):
    """The page of one browser."""

    def __init__(self, view: View, name: str) -> None:
        super().__init__(view, f"Machine {name}", (MACHINES,), (MACHINE_OPERATIONS,), subject=name)
        self._name = name
        self.forget()

    def forget(self) -> None:
        self._tree: ObjectTree | None = None
        self._explanation: Explanation | None = None
        self._whole: Machine | None = None
        self._node: Node | NotRead | None = None

    def data(self) -> ViewData | str:
        machine = self._machine()
        if machine is None:
            is_known = self.view.live.of(MACHINES).cache.synced.is_set()
            return f"Machine {self._name} does not exist." if is_known else "Being read …"
        return machine_view(self._with_hardware(machine), self._tree, self._explanation, self._node)

    def subject_uid(self) -> str:
        machine = self._machine()
        return "" if machine is None else machine.metadata.uid

    def actions(self) -> tuple[ConsoleAction, ...]:
        machine = self._machine()
        return () if machine is None else machine_actions(machine)

    def _with_hardware(self, machine: Machine) -> Machine:
        """Return the Machine with all of its hardware; with none until it is read, as live data leave parts out."""
        whole = self._whole
        if whole is not None and whole.metadata.uid == machine.metadata.uid:
            return with_hardware_of(whole, machine)
        return replace(machine, status=replace(machine.status, hardware=None))

    def _machine(self) -> Machine | None:
        return self.view.live.of(MACHINES).cache.get(self._name)

    def is_shown(self) -> Mapping[LiveSource[Any], Callable[[Any, Any], bool]]:
        return {MACHINES: is_named(self._name), MACHINE_OPERATIONS: lambda _old, _new: False}  # `load` follows them

    async def load(self) -> None:
        reads = self.reads
        try:
            explanation = await explain(reads, Topic.MACHINE, self._name, is_late=reads.is_late)
            machine = await reads.whole(MACHINES, self._name)
            around = await FactsReader(reads, utc_now, ApiError).related(machine)
        except (NotFound, SubjectNotFound):
            self.forget()
        else:
            self._whole, self._explanation = machine, explanation
            self._tree, self._node = tree_of(machine, around), _node_of(machine, around)


def _node_of(machine: Machine, around: ExplainFacts) -> Node | NotRead | None:
    """Return the Node of a Machine, or why it is not known; None where it does not exist."""
    unread = next((one.message for one in around.unread if one.resource == resource_of(NODES)), "")
    return NotRead(f"The Node is left out: {unread}.") if unread else around.nodes.get(machine.name)
