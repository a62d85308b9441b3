"""Loop over Machines: observes, plans, writes the status, and starts probes, attempts and resets."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from unbounded.api.core import Node
from unbounded.api.failures import Rejected
from unbounded.api.machine import Machine
from unbounded.api.names import LABEL_MACHINE
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.join.token_finder import TokenFinder
from unbounded.kube.api import Api, NotFound
from unbounded.kube.clock import WallClock, utc_now
from unbounded.kube.controller import Controller
from unbounded.kube.events import MESSAGE_CHARACTERS, EventSink, no_events
from unbounded.kube.logs import Log
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.tracing import NO_TRACER, Tracer
from unbounded.machina.machines import attempts, model
from unbounded.machina.machines.conditions import ON_HOLD, CannotBegin, OnHold
from unbounded.machina.machines.credentials import (
    PinWriter,
    SecretReader,
    keyless_route,
    known_refusal,
    refused_message,
)
from unbounded.machina.machines.eligibility import parts_for_host, sharing_host
from unbounded.machina.machines.host_runs import HostRun, HostRuns, MachineMetrics, Prober
from unbounded.machina.machines.machine_state import MachineState, ProbeInput, credentials_used
from unbounded.machina.machines.observe import AttemptInputs, FactsSource, MachineCaches, Observer
from unbounded.machina.machines.perform import MachineWriter
from unbounded.machina.machines.plan import TIMES, is_idle, plan
from unbounded.machina.provisioning.model import Installer, ObservedRun
from unbounded.machina.settings import ProvisioningSettings
from unbounded.machina.ssh.model import Ssh, SshRejected, SshRoute, SshTransient

WORKERS: Final = 8

log = Log("machines")


@dataclass(frozen=True)
class Ports:
    """Dependencies of the loop."""

    api: Api
    ssh: Ssh
    installer: Installer
    facts: FactsSource
    announce: EventSink = no_events
    now: WallClock = utc_now


class MachineController:
    """Controller of Machines: probes, provisions and resets them, and follows their Nodes, while this process leads."""

    def __init__(
        self,
        ports: Ports,
        caches: MachineCaches,
        settings: ProvisioningSettings,
        *,
        metrics: MachineMetrics | None = None,
        loop_metrics: ControllerMetrics | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self._ports = ports
        self._caches = caches
        self._settings = settings
        self._metrics = metrics or MachineMetrics()
        self._memory: dict[str, MachineState] = {}
        self._controller: Controller[str] = Controller(
            "machines", self._reconcile, workers=WORKERS, metrics=loop_metrics
        )
        self._attempts = HostRuns(settings.attempts_at_once, self._wake, tracer=tracer)
        self._resets = HostRuns(settings.attempts_at_once, self._wake, kind="Reset", tracer=tracer)
        self._metrics.count_running(lambda: self._attempts.active)
        self._metrics.count_connections(lambda: ports.ssh.connections)
        self._group = asyncio.TaskGroup()
        reader = SecretReader(ports.api)
        tokens = TokenFinder(ports.api, reader, now=ports.now)
        self._observer = Observer(
            caches,
            reader,
            tokens,
            ports.facts,
            self._attempts,
            self._resets,
            settings,
            self._controller.enqueue,
            now=ports.now,
        )
        self._writer = MachineWriter(ports.api, caches.machines, caches.nodes, ports.announce, now=ports.now)
        self._pins = PinWriter(ports.api, caches.machines, ports.announce)
        self._prober = Prober(ports.ssh, settings.probe_workers, self._metrics)

    async def run(self) -> None:
        """Run until cancelled. Connections end with it; runs on hosts continue, and the next leader resumes them."""
        caches = self._caches
        with (
            caches.machines.subscribed(self._machine_changed),
            caches.nodes.subscribed(self._node_changed),
            caches.operations.subscribed(self._operation_changed),
            caches.pause.subscribed(lambda _old, _new: self._enqueue_all()),
        ):
            try:
                async with self._group:
                    await self._controller.run()
            finally:
                await self._observer.close()

    # ---- what is looked at, and when

    def _enqueue_all(self) -> None:
        for machine in self._caches.machines.all():
            self._controller.enqueue(machine.name)

    def _machine_changed(self, old: Machine | None, new: Machine | None) -> None:
        either = new or old
        if either is not None:
            self._controller.enqueue(either.name)
        if parts_for_host(old) != parts_for_host(new):
            for machine in filter(None, (old, new)):
                for other in sharing_host(self._caches.machines, machine):
                    self._controller.enqueue(other.name)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        """Enqueue the Machines of a Node. Frequent heartbeats are ignored."""
        if old is not None and new is not None and _relevant_parts(old) == _relevant_parts(new):
            return
        for node in (old, new):
            if node is not None:
                for name in _machines_of(node):
                    self._controller.enqueue(name)

    def _operation_changed(self, old: MachineOperation | None, new: MachineOperation | None) -> None:
        """Enqueue the Machine of a reset before its deletion; all other operations show in the Machine's status."""
        either = new or old
        if either is not None and either.spec.operation_kind == OperationKind.AGENT_RESET and either.spec.machine_ref:
            self._controller.enqueue(either.spec.machine_ref)

    def _wake(self, machine: str, after_s: float) -> None:
        self._controller.queue.add_after(machine, after_s)

    def _probe_ended(self, name: str, memory: MachineState, error: SshTransient | SshRejected | None) -> None:
        memory.probe_over(error, asyncio.get_running_loop().time())
        self._controller.enqueue(name)

    # ---- one look

    async def _reconcile(self, name: str) -> float | None:
        machine = self._caches.machines.get(name)
        memory = self._memory.get(name)
        if memory is not None and (machine is None or machine.metadata.uid != memory.uid):
            await self._forget(name)
            memory = None
        if machine is None:
            return None
        if is_idle(machine, self._observer.node(machine)) and self._attempts.of(name) is None:
            self._observer.forget(name)
            self._leave_queues(name)
            return None
        if memory is None:
            memory = self._memory.setdefault(name, MachineState(machine.metadata.uid))
        try:
            return await self._reconcile_machine(machine, memory)
        except Exception as error:
            self._leave_queues(name)  # a Machine that cannot be observed must not delay others
            if isinstance(error, NotFound):  # deleted meanwhile
                return None
            raise

    async def _forget(self, name: str) -> None:
        if (memory := self._memory.pop(name, None)) is not None:
            memory.give_up_probe()
        self._observer.forget(name)
        await self._attempts.stop(name)
        await self._resets.stop(name)

    async def _reconcile_machine(self, machine: Machine, memory: MachineState) -> float | None:
        observed, means = await self._observer.observe(machine, memory)
        runs = self._attempts if machine.metadata.deletion_timestamp is None else self._resets
        observed = replace(observed, has_capacity=runs.free > 0)
        planned = plan(observed, replace(TIMES, secret_s=max(TIMES.secret_s, self._observer.secrets_every_s)))
        begins = any(isinstance(action, model.Provision | model.ResetOverSsh) for action in planned.actions)
        with runs.reserve(machine.name) if begins else nullcontext():
            if begins or not observed.reading:  # else it is not known yet whether it would begin
                self._update_queues(runs, observed, planned, memory)
            for action in planned.actions:
                if isinstance(action, model.StopAttempt):
                    await self._attempts.stop(machine.name)
            written = await self._writer.status(observed, planned, means)
            acted = self._act(observed, written, planned, means, memory)
        others = [action for action in planned.actions if isinstance(action, _WRITES)]
        acted = await self._writer.write(written, others) or acted
        return 0.0 if acted else planned.requeue_after_s

    def _update_queues(
        self, runs: HostRuns, observed: model.MachineObservation, planned: model.MachinePlan, memory: MachineState
    ) -> None:
        """Queue a Machine that lacks only a free slot; remove any other from the queues, as it would delay the next
        ones.
        """
        memory.queued(asyncio.get_running_loop().time(), waits=planned.waits_for_capacity and observed.reset is None)
        if planned.waits_for_capacity:
            runs.enqueue(observed.machine.name)
        else:
            self._leave_queues(observed.machine.name)

    def _leave_queues(self, name: str) -> None:
        for runs in (self._attempts, self._resets):
            runs.dequeue(name)

    def _act(
        self,
        observed: model.MachineObservation,
        machine: Machine,
        planned: model.MachinePlan,
        means: AttemptInputs,
        memory: MachineState,
    ) -> bool:
        """Carry out actions outside the API or inside this process; return whether to observe again at once."""
        acted = False
        for action in planned.actions:
            match action:
                case model.ProbeHost():
                    self._probe(observed, machine, memory)
                case model.Provision():
                    self._provision(observed, machine, action, means, memory)
                case model.RecordEnd():
                    self._report_end(machine, action)
                    acted = True
                case model.RecordLateSuccess():
                    self._ports.announce(machine, "Normal", "Provisioned", f"{action.why}: the host is set up")
                    log.info("provisioned after failure", machine=machine.name, attempt=action.attempt)
                case model.ResetOverSsh():
                    self._reset(machine)
                case model.StopAttempt():
                    acted = True
                case _:
                    pass
        return acted

    def _probe(self, observed: model.MachineObservation, machine: Machine, memory: MachineState) -> None:
        """Probe the SSH port; cancel a probe of the previous address."""
        memory.give_up_probe()
        memory.probing = ProbeInput(
            machine.metadata.generation, observed.needs.bastion_version if observed.needs else ""
        )
        route, message = partial(self._probe_route, machine), partial(self._probe_ended, machine.name, memory)
        memory.probe_task = self._prober.start(self._group, machine.name, route, self._pins.of(machine), message)

    async def _probe_route(self, machine: Machine) -> SshRoute:
        """Return the route of a probe. Only the login to a bastion needs keys."""
        ssh = machine.spec.ssh
        if ssh is not None and ssh.bastion is None:
            return keyless_route(machine)
        return await self._route(machine.name, machine.metadata.uid)

    async def _route(self, name: str, uid: str) -> SshRoute:
        return (await self._host_route(name, uid)).route

    async def _host_route(self, name: str, uid: str) -> attempts.HostRoute:
        """Return the current route to the host: the Secret and the pin may have changed since the plan."""
        machine = self._caches.machines.get(name)
        if machine is None or machine.metadata.uid != uid or machine.spec.ssh is None:
            raise Rejected(f"Machine {name} does not exist any more, or has no spec.ssh")
        credentials = await self._observer.credentials(machine)
        if credentials.route is None or credentials.key is not None or credentials.bastion_key is not None:
            raise Rejected(credentials.address or credentials.key or credentials.bastion_key or "no route to the host")
        return attempts.HostRoute(credentials.route, machine.metadata.generation or 0)

    # ---- attempts

    def _provision(
        self,
        observed: model.MachineObservation,
        machine: Machine,
        action: model.Provision,
        means: AttemptInputs,
        memory: MachineState,
    ) -> None:
        memory.own = action.attempt
        if observed.needs is not None:
            memory.tried = credentials_used(machine, observed.needs)
        install, lacks = attempts.install_of(
            machine, action.attempt, means.facts, means.token, self._settings, observed.template
        )
        if lacks is None and observed.needs is not None and observed.needs.token is not None:
            lacks = CannotBegin(observed.needs.token_reason, observed.needs.token)
        before = machine.status.provisioning
        job = attempts.AttemptJob(
            machine=machine.name,
            attempt=action.attempt,
            resume=action.resume,
            host=before.host if before is not None else None,
            route=partial(self._host_route, machine.name, machine.metadata.uid),
            first_use=self._pins.of(machine),
            install=install,
            cannot_begin=OnHold(action.held) if action.held else lacks,
        )
        log.info("provisioning", machine=machine.name, attempt=action.attempt, resumed=action.resume)
        limits = attempts.AttemptLimits(self._settings.provisioning_timeout_s, self._settings.silence_s)
        ssh, installer = self._ports.ssh, self._ports.installer

        async def work(run: HostRun) -> ObservedRun:
            return await attempts.carry_out(job, run, self._attempts, ssh, installer, limits)

        self._attempts.start(self._group, machine.name, action.attempt, work)

    def _report_end(self, machine: Machine, action: model.RecordEnd) -> None:
        """Report the recorded end of an attempt, and forget the run."""
        known = self._attempts.of(machine.name)
        self._metrics.attempt_ended(action.failure, known.seconds if known is not None else 0.0)
        self._attempts.forget(machine.name)
        if action.failure is None:
            self._ports.announce(machine, "Normal", "Provisioned", "The host was set up over SSH")
            log.info("provisioned", machine=machine.name, attempt=action.attempt)
            return
        if action.failure == ON_HOLD:
            log.info("provisioning on hold", machine=machine.name, attempt=action.attempt, why=action.message)
            return
        room = max(MESSAGE_CHARACTERS - len(action.message) - 1, 0)
        tail = f"\n{action.tail[-room:]}" if action.tail and room else ""
        self._ports.announce(machine, "Warning", model.PROVISIONING_FAILED, f"{action.message}{tail}")
        log.warning("provisioning failed", machine=machine.name, attempt=action.attempt, why=action.message)

    async def _route_for_reset(self, name: str, uid: str) -> SshRoute:
        """Return the route of a reset. The Secret may have changed since the plan, so check refused keys again."""
        route = await self._route(name, uid)
        machine = self._caches.machines.get(name)
        bastion = route.bastion.identity.version if route.bastion is not None else ""
        if machine is not None and (hop := known_refusal(machine, route.host.identity.version, bastion)):
            raise Rejected(refused_message(hop))
        return route

    def _reset(self, machine: Machine) -> None:
        route = partial(self._route_for_reset, machine.name, machine.metadata.uid)
        report = partial(self._resets.report_progress, machine.name)
        work = partial(
            attempts.reset_over_ssh,
            machine=machine.name,
            uid=machine.lasting_uid,
            generation=machine.metadata.generation or 0,
            route=route,
            first_use=self._pins.of(machine),
            ssh=self._ports.ssh,
            installer=self._ports.installer,
            report=report,
            limit_s=self._settings.reset_timeout_s,
        )
        self._resets.start(self._group, machine.name, "reset", work)


_WRITES: Final = (model.SetNodeRef, model.UpdateNode, model.SetFinalizer, model.CreateAgentReset, model.RemoveFinalizer)


def _relevant_parts(node: Node) -> object:
    """Return the parts of a Node that concern its Machine."""
    return (
        node.metadata.uid,
        node.metadata.labels,
        node.metadata.annotations,
        node.ready,
        node.metadata.deletion_timestamp,
    )


def _machines_of(node: Node) -> set[str]:
    """Return the Machines that may own the Node."""
    return {node.metadata.labels.get(LABEL_MACHINE) or node.metadata.name, node.metadata.name}
