"""The controller of rolling updates: it observes configurations and their Machines, and executes the plan's decisions.

Every write rests on the version of the object that the plan saw. An update starts after the configuration's status
names its Machine, and a Node is deleted after a live read has confirmed that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

import msgspec

from unbounded.api.conditions import ConditionType, set_condition
from unbounded.api.configuration import (
    CONDITION_BAD,
    MachineConfiguration,
    MachineConfigurationVersion,
    UpdatePhase,
    UpdateStatus,
)
from unbounded.api.core import NODES, Node
from unbounded.api.failures import Stale
from unbounded.api.machine import MACHINES, Machine, NodeUpdate, NodeUpdatePhase
from unbounded.api.names import LABEL_MACHINE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.api import AlreadyExists, Api, Conflict, NotFound
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock, loop_time, rfc3339, utc_now
from unbounded.kube.controller import Controller
from unbounded.kube.events import AnyEventSink, no_events
from unbounded.kube.logs import Log
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.process_epoch import ProcessEpoch
from unbounded.kube.status_writer import StatusWriter
from unbounded.machina.configuration_versions import CONFIGURATIONS, INDEX_CONFIGURATION, VERSIONS, by_configuration
from unbounded.machina.node_update_plan import replace_manifest
from unbounded.machina.rolling_update_plan import UpdatePlan, UpdateView, is_rolling, plan_update
from unbounded.operations.caches import node_of
from unbounded.operations.disruption.model import started_change
from unbounded.operations.execution_record import with_nulls

Raw = dict[str, Any]

INDEX_UPDATE: Final = "update"  # of Machines, by the configuration of their last update
SETTLE_S: Final = 0.5  # before a pass, as changes come together
LEAST_S: Final = 0.01  # a rounding error must not make a pass early, and again
_IMAGE_READY: Final = ConditionType.NETBOOT_IMAGE_READY
REPORT_S: Final = 1.0  # between writes of the status that change nothing but counts and texts

log = Log("configurations")


def updated_by(machine: Machine) -> tuple[str, ...]:
    """Return the configuration of a Machine's last update, as the key of an index."""
    update = machine.status.node_update
    return () if update is None else (_configuration_of(update),)


def _configuration_of(update: NodeUpdate) -> str:
    return update.version.rpartition("-v")[0]


class RollingUpdateController:
    """Controller of the rolling updates of all configurations; one without RollingUpdate costs no call.

    Args:
        versions, machines: indexed as the VersionController needs them; Machines also by INDEX_UPDATE.
        epoch: of this process, which deletes Nodes only as long as it surely leads.
    """

    def __init__(
        self,
        api: Api,
        configurations: Cache[Raw],
        versions: Cache[Raw],
        machines: Cache[Machine],
        nodes: Cache[Node],
        operations: Cache[MachineOperation],
        *,
        epoch: ProcessEpoch,
        emit_event: AnyEventSink = no_events,
        now: WallClock = utc_now,
        loop_metrics: ControllerMetrics | None = None,
    ) -> None:
        self._api = api
        self._configurations = configurations
        self._versions = versions
        self._machines = machines
        self._nodes = nodes
        self._operations = operations
        self._epoch = epoch
        self._emit_event = emit_event
        self._now = now
        self._status = StatusWriter(api, CONFIGURATIONS, fields=("rollout",), cache=configurations)
        self._version_status = StatusWriter(api, VERSIONS, fields=("conditions", "deployed"), cache=versions)
        self._machine_status = StatusWriter(api, MACHINES, fields=("disruption", "nodeUpdate"), cache=machines)
        self._reported_at: dict[str, float] = {}
        self._controller: Controller[str] = Controller("rolling updates", self._reconcile, metrics=loop_metrics)
        follow = partial(self._controller.follow, delay_s=SETTLE_S)
        follow(configurations, lambda configuration: (configuration["metadata"]["name"],))
        follow(versions, by_configuration)
        follow(machines, _configurations_of, parts=_parts_of_machine)
        follow(nodes, self._of_node, parts=_parts_of_node)
        follow(operations, self._of_operation)

    async def run(self) -> None:
        """Run until cancelled."""
        await self._controller.run()

    def _of_node(self, node: Node) -> Iterable[str]:
        machine = self._machines.get(node.metadata.labels.get(LABEL_MACHINE, node.metadata.name))
        return () if machine is None else _configurations_of(machine)

    def _of_operation(self, operation: MachineOperation) -> Iterator[str]:
        """Follow the operations of updates: each is that of a Machine whose record names it."""
        machine = None if operation.spec.machine_ref is None else self._machines.get(operation.spec.machine_ref)
        update = None if machine is None else machine.status.node_update
        if update is not None and update.operation == operation.name:
            yield _configuration_of(update)

    async def _reconcile(self, name: str) -> float | None:
        configuration, strays = self._configuration(name), self._machines.by(INDEX_UPDATE, name)
        if configuration is None or not is_rolling(configuration):
            for machine in strays:
                await self._record(machine, None)
            if configuration is not None and configuration.status.rollout is not None:
                await self._status.write(configuration, {"rollout": None})
            return None
        bound = [one for one in self._machines.by(INDEX_CONFIGURATION, name) if _is_bound(one, name)]
        for machine in strays:
            if not _is_bound(machine, name):
                await self._record(machine, None)
        nodes = ((one.name, node_of(self._nodes, one.name)) for one in bound)
        view = UpdateView(
            configuration=configuration,
            versions=[
                msgspec.convert(one, MachineConfigurationVersion)
                for one in self._versions.by(INDEX_CONFIGURATION, name)
            ],
            machines=bound,
            now=self._now(),
            nodes={machine: node for machine, node in nodes if node is not None},
            operations={one.name: one for one in map(self._operation_of, bound) if one is not None},
        )
        return await self._perform(view, plan_update(view))

    def _operation_of(self, machine: Machine) -> MachineOperation | None:
        update = machine.status.node_update
        return None if update is None or update.operation is None else self._operations.get(update.operation)

    def _configuration(self, name: str) -> MachineConfiguration | None:
        raw = self._configurations.get(name)
        return None if raw is None else msgspec.convert(raw, MachineConfiguration)

    async def _perform(self, view: UpdateView, plan: UpdatePlan) -> float | None:
        for name, text in plan.bad.items():
            await self._mark_bad(view.configuration, name, text)
        if plan.bad:
            return 0.0
        if plan.pause:
            await self._pause(view.configuration)
            return 0.0
        left_s = await self._write(view, plan)
        machines = {one.name: one for one in view.machines}
        for name, update in plan.updates.items():
            before = machines[name].status.node_update
            if update is not None and update.phase in _DISRUPTS and update.phase != (before and before.phase):
                await self._confirm(view.configuration, name)
            await self._record(machines[name], update)
        for name in plan.delete:
            await self._delete(machines[name])
        for name in plan.create:
            await self._create(machines[name])
        for name in plan.cancel:
            await self._cancel(machines[name])
        return min((one for one in (left_s, plan.requeue_s) if one is not None), default=None)

    async def _write(self, view: UpdateView, plan: UpdatePlan) -> float | None:
        """Write the status if it differs; return the seconds until a write that was put off."""
        before, after, name = view.recorded, plan.status, view.configuration.metadata.name
        if after is None or after == before:
            return None
        left_s = REPORT_S - (loop_time() - self._reported_at.get(name, -math.inf))
        if plan.requeue_s != 0.0 and left_s > 0:
            return max(left_s, LEAST_S)
        self._reported_at[name] = loop_time()
        await self._status.write(view.configuration, {"rollout": with_nulls(after)})
        self._announce(view.configuration, before, after)
        return None

    def _announce(self, configuration: MachineConfiguration, before: UpdateStatus | None, after: UpdateStatus) -> None:
        if before is not None and (before.version, before.phase) == (after.version, after.phase):
            return
        is_bad = after.phase in (UpdatePhase.HALTED, UpdatePhase.ROLLING_BACK)
        text = f"version {after.version}: {after.message}"
        self._emit_event(configuration, "Warning" if is_bad else "Normal", f"Update{after.phase}", text)
        log.info(
            "phase of a rolling update",
            configuration=configuration.metadata.name,
            version=after.version,
            phase=after.phase,
        )

    async def _pause(self, configuration: MachineConfiguration) -> None:
        """Set rollingUpdate.paused. The next write records the pause of the stage: after a crash it pauses again."""
        name, version = configuration.metadata.name, {"resourceVersion": configuration.metadata.resource_version}
        spec = {"updateStrategy": {"rollingUpdate": {"paused": True}}}
        self._configurations.observe(await self._api.patch(CONFIGURATIONS, name, {"metadata": version, "spec": spec}))
        log.info("rolling update paused after a stage", configuration=name)

    async def _mark_bad(self, configuration: MachineConfiguration, name: str, text: str) -> None:
        """Mark a version as Bad: no node is created from it any more, unless a Machine names its number."""
        raw = self._versions.get(name)
        if raw is None:
            raise Stale(f"version {name} does not exist any more")
        present = (raw.get("status") or {}).get("conditions") or []
        conditions = set_condition(present, CONDITION_BAD, "True", "UpdateFailed", text, rfc3339(self._now()))
        if conditions is not None:
            await self._version_status.write(raw, {"conditions": conditions, "deployed": True})  # it is final
            self._emit_event(configuration, "Warning", "VersionBad", f"{name}: {text}")
            log.warning("version is bad", version=name, why=text)

    async def _record(self, machine: Machine, update: NodeUpdate | None) -> None:
        self._epoch.check_leads()
        status: Raw = {"nodeUpdate": None if update is None else with_nulls(update)}
        if update is not None and update.phase == NodeUpdatePhase.RECREATING:
            status |= started_change(machine, update.uid, rfc3339(self._now()))
        try:
            await self._machine_status.write(machine, status)
        except NotFound:
            return
        before = machine.status.node_update
        if update is not None and update.phase == NodeUpdatePhase.FAILED != (before and before.phase):
            self._emit_event(machine, "Warning", "NodeUpdateFailed", f"{update.version}: {update.message}")
        phase = "Withdrawn" if update is None else update.phase
        log.info("update of a node", machine=machine.name, phase=phase, version=(update or before or _NONE).version)

    async def _confirm(self, configuration: MachineConfiguration, machine: str) -> None:
        """Confirm by a live read that a Node may still be disrupted: this process may have an older state."""
        raw = await self._api.get(CONFIGURATIONS, configuration.metadata.name)
        live = msgspec.convert(raw, MachineConfiguration)
        rollout, settings = live.status.rollout, live.spec.update_strategy.rolling_update
        is_started = rollout is not None and machine in rollout.updating and rollout.phase != UpdatePhase.HALTED
        if not is_rolling(live) or not is_started or (settings is not None and settings.paused):
            self._configurations.observe(raw)
            raise Stale(f"the update of Machine {machine} was stopped")

    async def _delete(self, machine: Machine) -> None:
        """Delete the Node whose UID the Machine's record has."""
        self._epoch.check_leads()
        node, update = node_of(self._nodes, machine.name), machine.status.node_update
        if node is None or update is None or node.metadata.uid != update.node_uid:
            return
        try:
            await self._api.delete(NODES, node.metadata.name, uid=node.metadata.uid)
        except (NotFound, Conflict):  # it is gone, or another one has its name: the watch delivers it
            return
        log.info("node deleted, to be created again", machine=machine.name, version=update.version)

    async def _create(self, machine: Machine) -> None:
        """Create the HostReplace that the Machine's record names; one that exists is the same one."""
        self._epoch.check_leads()
        update = machine.status.node_update
        if update is None or update.operation is None:
            return
        try:
            made = await self._api.create(MACHINE_OPERATIONS, replace_manifest(machine, update))
            log.info("host is replaced", machine=machine.name, operation=update.operation, image=update.image or "")
        except AlreadyExists:
            made = await self._api.get(MACHINE_OPERATIONS, update.operation)
        self._operations.observe(made)

    async def _cancel(self, machine: Machine) -> None:
        """Cancel the HostReplace of a stopped update; one that has begun meanwhile ends where that is possible."""
        self._epoch.check_leads()
        update = machine.status.node_update
        if update is None or update.operation is None:
            return
        try:
            self._operations.observe(
                await self._api.patch(MACHINE_OPERATIONS, update.operation, {"spec": {"cancel": True}})
            )
        except NotFound:  # the watch delivers it
            return
        log.info("replacement of the host cancelled", machine=machine.name, operation=update.operation)


_DISRUPTS: Final = frozenset({NodeUpdatePhase.RECREATING, NodeUpdatePhase.REPLACING})
_NONE: Final = NodeUpdate(version="", uid="", generation=0, phase=NodeUpdatePhase.PENDING, since="")


def _is_bound(machine: Machine, configuration: str) -> bool:
    ref = machine.spec.configuration_ref
    return ref is not None and ref.name == configuration


def _configurations_of(machine: Machine) -> set[str]:
    """Return the configurations to which a change of a Machine may matter."""
    ref = machine.spec.configuration_ref
    return {*updated_by(machine), *(() if ref is None else (ref.name,))}


def _parts_of_machine(machine: Machine) -> object:
    """Return the parts of a Machine that a plan depends on."""
    meta, spec, status = machine.metadata, machine.spec, machine.status
    agent = None if status.agent is None else (status.agent.prepared,)
    return (
        (meta.uid, meta.labels, meta.annotations, meta.deletion_timestamp),
        (spec.configuration_ref, spec.kubernetes, spec.maintenance, spec.pxe),
        (status.node_update, status.configuration, status.disruption, status.active_operation, agent),
        (status.recent_operations, status.image, [one for one in status.conditions if one.type == _IMAGE_READY]),
    )


def _parts_of_node(node: Node) -> object:
    meta, marks = node.metadata, [(one.type, one.status, one.reason) for one in node.status.conditions]
    return meta.uid, meta.annotations, node.spec.unschedulable, marks
