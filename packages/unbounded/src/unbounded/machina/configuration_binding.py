"""Binding of a Machine: to the configuration that the user names in its spec, else to a selecting one.

Binding changes nothing on a host: its agent takes the newest version, or the named one, when it recreates the node.
`bind` is pure. `BindingController` is the loop over Machines that writes the binding, or a condition if no
configuration can be resolved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType, set_condition
from unbounded.api.configuration import MachineConfiguration, MachineConfigurationVersion
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.machine_spec import ConfigurationRef
from unbounded.api.names import ANNOTATION_BOUND
from unbounded.join.labels_and_taints import newest
from unbounded.kube.api import Api, NotFound
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock, rfc3339, utc_now
from unbounded.kube.controller import Controller
from unbounded.kube.logs import Log
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.selectors import LabelTest, SelectorError, label_test, selector_text
from unbounded.kube.status_writer import StatusWriter
from unbounded.machina.configuration_plan import is_bound_by_us
from unbounded.machina.configuration_versions import INDEX_CONFIGURATION, by_configuration

Raw = dict[str, Any]

log = Log("configurations")


@dataclass(frozen=True)
class Candidate:
    """A MachineConfiguration that selects Machines."""

    name: str
    selects: LabelTest
    priority: int = 0


@dataclass(frozen=True)
class BindingOptions:
    """Configurations for bindings.

    Args:
        candidates: in order of preference.
        versions: the numbers of each configuration's versions; an empty set for a configuration without versions.
        newest: the number of each configuration's newest version that is not Bad.
    """

    candidates: tuple[Candidate, ...]
    versions: dict[str, frozenset[int]]
    newest: dict[str, int]


@dataclass(frozen=True)
class BindTo:
    """Write `spec.configurationRef` with the name but without a version, so that the agent takes the newest."""

    name: str


@dataclass(frozen=True)
class Unbind:
    """Remove `spec.configurationRef` that the binder wrote."""


@dataclass(frozen=True)
class SetPending:
    """Write the condition ConfigurationPending."""

    pending: bool
    message: str


@dataclass(frozen=True)
class KeepBinding:
    """Leave the Machine as it is."""


Decision = BindTo | Unbind | SetPending | KeepBinding


def candidate_of(configuration: MachineConfiguration) -> Candidate | None:
    """Return the candidate; None for a configuration that selects nothing or is being deleted."""
    selector = configuration.spec.machine_selector
    if selector is None or configuration.metadata.deletion_timestamp is not None:
        return None
    try:
        selects = label_test(selector_text(selector))
    except SelectorError:  # an older CRD admitted the selector; its meaning is not guessed
        return None
    return Candidate(configuration.metadata.name, selects, configuration.spec.priority)


def in_order(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Sort by descending priority, then by name."""
    return tuple(sorted(candidates, key=lambda one: (-one.priority, one.name)))


def selecting(labels: Mapping[str, str], candidates: Iterable[Candidate]) -> str | None:
    """Return the name of the first candidate that selects a Machine with these labels."""
    return next((one.name for one in candidates if one.selects(labels)), None)


def bind(machine: Machine, known: BindingOptions) -> Decision:
    """Decide the binding of one Machine."""
    ref = machine.spec.configuration_ref
    if ref is not None and not is_bound_by_us(machine):
        return _pending(ref, known)
    best = selecting(machine.metadata.labels, known.candidates)
    if best is not None:
        return _pending(ref, known) if ref is not None and ref.name == best else BindTo(best)
    return Unbind() if ref is not None else _unbound(machine)


def _pending(ref: ConfigurationRef, known: BindingOptions) -> SetPending:
    numbers = known.versions.get(ref.name)
    if numbers is None:
        return SetPending(True, f"spec.configurationRef names MachineConfiguration {ref.name}, which does not exist")
    if ref.version is not None and ref.version not in numbers:
        return SetPending(
            True, f"MachineConfiguration {ref.name} has no version {ref.version}, which spec.configurationRef names"
        )
    if not numbers:
        return SetPending(True, f"MachineConfiguration {ref.name} has no version yet")
    # With the number: the agent watches only its Machine and learns of a new version by it.
    which = f"its newest version, now {known.newest[ref.name]}" if ref.version is None else f"its version {ref.version}"
    return SetPending(False, f"MachineConfiguration {ref.name}: its node uses {which}")


def _unbound(machine: Machine) -> Decision:
    """Write no condition for a Machine that has never used a configuration."""
    made = machine.status.configuration
    if made is not None and made.name:
        words = (
            f"its node was created from MachineConfiguration {made.name}, and no MachineConfiguration selects it now"
        )
        return SetPending(True, f"{words}: name one in spec.configurationRef, or add labels that one selects")
    if any(condition.type == ConditionType.CONFIGURATION_PENDING for condition in machine.status.conditions):
        return SetPending(False, "no MachineConfiguration selects it: its node uses the Machine's own spec")
    return KeepBinding()


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
        """Enqueue Machines that may wait for a version that was added, removed, or marked as Bad."""
        version = new or old
        if version is None or (old is not None and new is not None and _is_bad(old) == _is_bad(new)):
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
        match bind(machine, self._options(machine)):
            case BindTo(name=name):
                await self._write(machine, name, {"name": name})
            case Unbind():
                await self._write(machine, None, None)
            case SetPending() as said:
                await self._write_condition(machine, said)
            case KeepBinding():
                return

    def _options(self, machine: Machine) -> BindingOptions:
        """Return the options, with the versions of the configuration that the Machine names, if that exists."""
        ref = machine.spec.configuration_ref
        if ref is None or self._configurations.get(ref.name) is None:
            return BindingOptions(self._in_order, {}, {})
        found = self._versions.by(INDEX_CONFIGURATION, ref.name)
        numbers = frozenset(version["spec"]["version"] for version in found)
        best = newest((msgspec.convert(one, MachineConfigurationVersion) for one in found), ref.name)
        return BindingOptions(
            self._in_order, {ref.name: numbers}, {} if best is None else {ref.name: best.spec.version}
        )

    async def _write(self, machine: Machine, bound: str | None, ref: Raw | None) -> None:
        meta = {"resourceVersion": machine.metadata.resource_version, "annotations": {ANNOTATION_BOUND: bound}}
        patch = {"metadata": meta, "spec": {"configurationRef": ref}}
        self._machines.observe(await self._api.patch(MACHINES, machine.name, patch))
        log.info("configuration bound", machine=machine.name, configuration=bound)

    async def _write_condition(self, machine: Machine, pending: SetPending) -> None:
        status, reason = (
            (ConditionStatus.TRUE, ConditionReason.PENDING)
            if pending.pending
            else (ConditionStatus.FALSE, ConditionReason.RESOLVED)
        )
        before = [msgspec.to_builtins(condition) for condition in machine.status.conditions]
        now = rfc3339(self._now())
        conditions = set_condition(before, ConditionType.CONFIGURATION_PENDING, status, reason, pending.message, now)
        if conditions is None:
            return
        await self._status.write(machine, {"conditions": conditions})


def _is_bad(version: Raw) -> bool:
    return msgspec.convert(version, MachineConfigurationVersion).bad


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
