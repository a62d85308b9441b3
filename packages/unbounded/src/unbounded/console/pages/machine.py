"""The page of one Machine."""

from __future__ import annotations

from msgspec.structs import replace

from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.console.actions import ConsoleAction, machine_actions
from unbounded.console.models.machine import machine_view
from unbounded.console.models.parts import ViewData
from unbounded.console.pages.live_page import LivePage
from unbounded.console.view import View
from unbounded.explain.chain import SubjectNotFound, explain
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

    def data(self) -> ViewData | str:
        machine = self._machine()
        if machine is None:
            is_known = self.view.live.of(MACHINES).cache.synced.is_set()
            return f"Machine {self._name} does not exist." if is_known else "Being read …"
        return machine_view(self._with_hardware(machine), self._tree, self._explanation)

    def subject_uid(self) -> str:
        machine = self._machine()
        return "" if machine is None else machine.metadata.uid

    def actions(self) -> tuple[ConsoleAction, ...]:
        machine = self._machine()
        return () if machine is None else machine_actions(machine)

    def _with_hardware(self, machine: Machine) -> Machine:
        """Return the Machine with its hardware, of which the live data of the fleet have not all."""
        whole = self._whole
        if whole is None or whole.metadata.uid != machine.metadata.uid:
            return machine
        return replace(machine, status=replace(machine.status, hardware=whole.status.hardware))

    def _machine(self) -> Machine | None:
        return self.view.live.of(MACHINES).cache.get(self._name)

    def key(self) -> object:
        machine = self._machine()
        if machine is None:
            return None
        operations = self.view.live.of(MACHINE_OPERATIONS).cache.all()
        own = sorted(
            (one.name, one.metadata.resource_version) for one in operations if one.spec.machine_ref == self._name
        )
        return machine.metadata.resource_version, tuple(own)

    def is_settled(self) -> bool:
        return self._explanation is not None and self._explanation.settled

    async def load(self) -> None:
        rights, reads = self.rights, self.view.reads(MACHINES, MACHINE_OPERATIONS)
        if self._machine() is None:
            return
        try:
            self._whole = await self.view.api.get(MACHINES, self._name)
            tree = tree_of(self._whole, await FactsReader(reads, utc_now, ApiError).related(self._whole))
            if rights != self.rights:
                return
            self._keep(tree, self._explanation)
            self.refresh()
            self._keep(tree, await explain(reads, Topic.MACHINE, self._name))
        except (NotFound, SubjectNotFound):
            return

    def _keep(self, tree: ObjectTree, explanation: Explanation | None) -> None:
        """Keep what was read, unless the Machine may not be read any more."""
        if self._machine() is None:
            self.forget()
        else:
            self._tree, self._explanation = tree, explanation
