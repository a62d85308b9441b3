"""The page of one operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.console.actions import ConsoleAction, operation_actions
from unbounded.console.live import LiveSource
from unbounded.console.models.operation import operation_view
from unbounded.console.models.parts import ViewData
from unbounded.console.pages.live_page import LivePage, is_named
from unbounded.console.view import View
from unbounded.explain.chain import SubjectNotFound, explain
from unbounded.explain.facts import procedure_of
from unbounded.explain.links import Topic
from unbounded.explain.results import Explanation
from unbounded.kube.api import NotFound
from unbounded.kube.clock import utc_now


def show(view: View, name: str) -> None:
    """Draw an operation."""
    OperationPage(view, name).begin()


class OperationPage(LivePage):
    """The page of one browser."""

    def __init__(self, view: View, name: str) -> None:
        super().__init__(view, f"Operation {name}", (MACHINE_OPERATIONS,), (MACHINES,), subject=name)
        self._name = name
        self.forget()

    def forget(self) -> None:
        self._explanation: Explanation | None = None

    def _operation(self) -> MachineOperation | None:
        return self.view.live.of(MACHINE_OPERATIONS).cache.get(self._name)

    def data(self) -> ViewData | str:
        operation = self._operation()
        if operation is None:
            is_known = self.view.live.of(MACHINE_OPERATIONS).cache.synced.is_set()
            gone = f"Operation {self._name} does not exist: it may have been deleted after its end."
            return gone if is_known else "Being read …"
        execution, machine = operation.status.execution, operation.spec.machine_ref
        executor = "" if execution is None else execution.executor
        target = None if machine is None else self.view.live.of(MACHINES).cache.get(machine)
        procedure = procedure_of(operation, executor, target)
        return operation_view(operation, procedure, self._explanation, utc_now(), target)

    def subject_uid(self) -> str:
        operation = self._operation()
        return "" if operation is None else operation.metadata.uid

    def actions(self) -> tuple[ConsoleAction, ...]:
        operation = self._operation()
        return () if operation is None else operation_actions(operation)

    def is_shown(self) -> Mapping[LiveSource[Any], Callable[[Any, Any], bool]]:
        return {MACHINE_OPERATIONS: is_named(self._name), MACHINES: self._is_target}

    def _is_target(self, old: Machine | None, new: Machine | None) -> bool:
        operation = self._operation()
        return operation is not None and is_named(operation.spec.machine_ref or "")(old, new)

    async def load(self) -> None:
        reads = self.reads
        try:
            operation = await reads.get(MACHINE_OPERATIONS, self._name)
            if operation.terminal:
                self._explanation = None
            else:
                self._explanation = await explain(reads, Topic.OPERATION, self._name, is_late=reads.is_late)
        except (NotFound, SubjectNotFound):
            self.forget()
