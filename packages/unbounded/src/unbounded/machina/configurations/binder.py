"""Loop over Machines: binds each to a configuration, and writes a condition if no configuration can be resolved."""

from __future__ import annotations

from typing import Any

import msgspec

from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType, set_condition
from unbounded.api.configuration import MachineConfiguration
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import ANNOTATION_BOUND
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock, rfc3339, utc_now
from unbounded.kube.controller import Controller
from unbounded.kube.errors import NotFound
from unbounded.kube.logs import Log
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.port import Api
from unbounded.kube.status_writer import StatusWriter
from unbounded.machina.configurations.binding import (
    BindingOptions,
    BindTo,
    Candidate,
    KeepBinding,
    SetPending,
    Unbind,
    bind,
    candidate_of,
    in_order,
)
from unbounded.machina.configurations.versions import INDEX_CONFIGURATION, by_configuration

Raw = dict[str, Any]

log = Log("configurations")


class BindingController:
    """Controller that binds Machines to configurations.

    Args:
        versions, machines: indexed as the VersionController needs them.
    """

    def __init__(
        self,
        api: Api,
        configurations: Cache[Raw],
        versions: Cache[Raw],
        machines: Cache[Machine],
        *,
        now: WallClock = utc_now,
        loop_metrics: ControllerMetrics | None = None,
    ) -> None:
        self._api = api
        self._configurations = configurations
        self._versions = versions
        self._machines = machines
        self._status = StatusWriter(api, MACHINES, fields=("conditions",), cache=machines)
        self._now = now
        self._candidates: dict[str, Candidate] = {}
        self._in_order: tuple[Candidate, ...] = ()
        self._controller: Controller[str] = Controller(
            "configuration binding", self._reconcile, workers=4, metrics=loop_metrics
        )

    async def run(self) -> None:
        """Run until cancelled."""
        self._candidates.clear()
        with (
            self._configurations.subscribed(self._configuration_changed),
            self._versions.subscribed(self._version_changed),
            self._machines.subscribed(self._machine_changed),
        ):
            await self._controller.run()

    def _configuration_changed(self, old: Raw | None, new: Raw | None) -> None:
        either = new or old
        if either is None or (old is not None and new is not None and _selection(old) == _selection(new)):
            return
        name = either["metadata"]["name"]
        found = None if new is None else candidate_of(msgspec.convert(new, MachineConfiguration))
        if found is None:
            self._candidates.pop(name, None)
        else:
            self._candidates[name] = found
        self._in_order = in_order(self._candidates.values())
        for machine in self._machines.all():
            self._controller.enqueue(machine.name)

    def _version_changed(self, old: Raw | None, new: Raw | None) -> None:
        """Enqueue Machines that may wait for a version that was added or removed."""
        version = new or old
        if version is None or (old is not None and new is not None):
            return
        for name in by_configuration(version):
            for machine in self._machines.by(INDEX_CONFIGURATION, name):
                self._controller.enqueue(machine.name)

    def _machine_changed(self, old: Machine | None, new: Machine | None) -> None:
        if new is not None and _relevant_parts(old) != _relevant_parts(new):
            self._controller.enqueue(new.name)

    async def _reconcile(self, name: str) -> float | None:
        machine = self._machines.get(name)
        if machine is None or machine.metadata.deletion_timestamp is not None:
            return None
        try:
            await self._carry_out(machine)
        except NotFound:  # deleted meanwhile
            return None
        return None

    async def _carry_out(self, machine: Machine) -> None:
        match bind(machine, BindingOptions(self._in_order, self._numbers(machine))):
            case BindTo(name=name):
                await self._write(machine, name, {"name": name})
            case Unbind():
                await self._write(machine, None, None)
            case SetPending() as said:
                await self._write_condition(machine, said)
            case KeepBinding():
                return

    def _numbers(self, machine: Machine) -> dict[str, frozenset[int]]:
        """Return the versions of the configuration that the Machine names; empty if there is none of that name."""
        ref = machine.spec.configuration_ref
        if ref is None or self._configurations.get(ref.name) is None:
            return {}
        found = self._versions.by(INDEX_CONFIGURATION, ref.name)
        return {ref.name: frozenset(version["spec"]["version"] for version in found)}

    async def _write(self, machine: Machine, bound: str | None, ref: Raw | None) -> None:
        meta = {"resourceVersion": machine.metadata.resource_version, "annotations": {ANNOTATION_BOUND: bound}}
        patch = {"metadata": meta, "spec": {"configurationRef": ref}}
        self._machines.observe(await self._api.patch(MACHINES, machine.name, patch))
        log.info("configuration bound", machine=machine.name, configuration=bound)

    async def _write_condition(self, machine: Machine, said: SetPending) -> None:
        status, reason = (
            (ConditionStatus.TRUE, ConditionReason.PENDING)
            if said.pending
            else (ConditionStatus.FALSE, ConditionReason.RESOLVED)
        )
        before = [msgspec.to_builtins(condition) for condition in machine.status.conditions]
        now = rfc3339(self._now())
        conditions = set_condition(before, ConditionType.CONFIGURATION_PENDING, status, reason, said.message, now)
        if conditions is None:
            return
        await self._status.write(machine, {"conditions": conditions})


def _selection(configuration: Raw) -> object:
    """Return the parts of a configuration that decide which Machines are bound to it."""
    spec, meta = configuration["spec"], configuration["metadata"]
    return meta["uid"], meta.get("deletionTimestamp"), spec.get("machineSelector"), spec.get("priority")


def _relevant_parts(machine: Machine | None) -> object:
    """Return the parts of a Machine that decide its binding and its condition."""
    if machine is None:
        return None
    meta, status = machine.metadata, machine.status
    conditions = [condition for condition in status.conditions if condition.type == ConditionType.CONFIGURATION_PENDING]
    return meta.labels, meta.annotations, machine.spec.configuration_ref, status.configuration, conditions
