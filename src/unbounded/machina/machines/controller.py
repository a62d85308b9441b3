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
from unbounded.kube.clock import WallClock, utc_now
from unbounded.kube.controller import Controller
from unbounded.kube.errors import NotFound
from unbounded.kube.events import MESSAGE_CHARACTERS
from unbounded.kube.logs import Log
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.port import Api
from unbounded.machina.machines.attempts import Job, Limits, Way, carry_out
from unbounded.machina.machines.conditions import ON_HOLD
from unbounded.machina.machines.credentials import SecretReader, keyless_route
from unbounded.machina.machines.installing import install_of
from unbounded.machina.machines.memory import Asked, Memory, tried_with
from unbounded.machina.machines.metrics import MachineMetrics
from unbounded.machina.machines.model import (
    AskForReset,
    CountAsDone,
    GiveBack,
    HoldForReset,
    LetGo,
    Observed,
    Plan,
    ProbeHost,
    Provision,
    ResetOverSsh,
    SetNodeRef,
    StopAttempt,
    UpdateNode,
)
from unbounded.machina.machines.observe import Facts, MachineCaches, Means, Observer
from unbounded.machina.machines.outcome import CannotBegin, OnHold
from unbounded.machina.machines.perform import Writer
from unbounded.machina.machines.pins import Pins
from unbounded.machina.machines.plan import TIMES, plan
from unbounded.machina.machines.probing import Prober
from unbounded.machina.machines.refused import known_refusal, refused_words
from unbounded.machina.machines.resetting import reset_over_ssh
from unbounded.machina.machines.runs import Run, Runs
from unbounded.machina.machines.same_host import as_of_host, sharing_host
from unbounded.machina.machines.settings import Settings
from unbounded.machina.provisioning.model import Installer, Remote
from unbounded.machina.ssh.model import Route, Ssh, SshRejected, SshTransient
from unbounded.operations.announcing import Announce, silence

WORKERS: Final = 8

log = Log("machines")


@dataclass(frozen=True)
class Ports:
    """Dependencies of the loop."""

    api: Api
    ssh: Ssh
    installer: Installer
    facts: Facts
    announce: Announce = silence
    now: WallClock = utc_now


class Machines:
    """Controller of Machines: probes, provisions and resets them, and follows their Nodes, while this process leads."""

    def __init__(
        self,
        ports: Ports,
        caches: MachineCaches,
        settings: Settings,
        *,
        metrics: MachineMetrics | None = None,
        loop_metrics: ControllerMetrics | None = None,
    ) -> None:
        self._ports = ports
        self._caches = caches
        self._settings = settings
        self._metrics = metrics or MachineMetrics()
        self._memory: dict[str, Memory] = {}
        self._controller: Controller[str] = Controller(
            "machines", self._reconcile, workers=WORKERS, metrics=loop_metrics
        )
        self._attempts = Runs(settings.attempts_at_once, self._wake)
        self._resets = Runs(settings.attempts_at_once, self._wake)
        self._metrics.count_running(lambda: self._attempts.at_work)
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
        self._writer = Writer(ports.api, caches.machines, caches.nodes, ports.announce, now=ports.now)
        self._pins = Pins(ports.api, caches.machines, ports.announce)
        self._prober = Prober(ports.ssh, settings.probe_workers, self._metrics)

    async def run(self) -> None:
        """Run until cancelled. Connections end with it; runs on hosts continue, and the next leader resumes them."""
        caches = self._caches
        with (
            caches.machines.subscribed(self._machine_changed),
            caches.nodes.subscribed(self._node_changed),
            caches.operations.subscribed(self._operation_changed),
            caches.pause.subscribed(lambda _old, _new: self._look_at_all()),
        ):
            try:
                async with self._group:
                    await self._controller.run()
            finally:
                await self._observer.close()

    # ---- what is looked at, and when

    def _look_at_all(self) -> None:
        for machine in self._caches.machines.all():
            self._controller.enqueue(machine.name)

    def _machine_changed(self, old: Machine | None, new: Machine | None) -> None:
        either = new or old
        if either is not None:
            self._controller.enqueue(either.name)
        if as_of_host(old) != as_of_host(new):
            for machine in filter(None, (old, new)):
                for other in sharing_host(self._caches.machines, machine):
                    self._controller.enqueue(other.name)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        """Enqueue the Machines of a Node. Frequent heartbeats are ignored."""
        if old is not None and new is not None and _shown(old) == _shown(new):
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

    def _looked(self, name: str, memory: Memory, error: SshTransient | SshRejected | None) -> None:
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
        if memory is None:
            memory = self._memory.setdefault(name, Memory(machine.metadata.uid))
        try:
            return await self._look(machine, memory)
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

    async def _look(self, machine: Machine, memory: Memory) -> float | None:
        seen, means = await self._observer.look(machine, memory)
        runs = self._attempts if machine.metadata.deletion_timestamp is None else self._resets
        seen = replace(seen, room=runs.free > 0)
        planned = plan(seen, replace(TIMES, secret_s=max(TIMES.secret_s, self._observer.secrets_every_s)))
        begins = any(isinstance(action, Provision | ResetOverSsh) for action in planned.actions)
        with runs.place(machine.name) if begins else nullcontext():
            if begins or not seen.reading:  # else it is not known yet whether it would begin
                self._queue_up(runs, seen, planned, memory)
            for action in planned.actions:
                if isinstance(action, StopAttempt):
                    await self._attempts.stop(machine.name)
            written = await self._writer.status(seen, planned, means)
            acted = self._acted(seen, written, planned, means, memory)
        others = [action for action in planned.actions if isinstance(action, _WRITES)]
        acted = await self._writer.write(written, others) or acted
        return 0.0 if acted else planned.look_again_s

    def _queue_up(self, runs: Runs, seen: Observed, planned: Plan, memory: Memory) -> None:
        """Queue a Machine that lacks only a free slot; remove any other from the queues, as it would delay the next
        ones.
        """
        memory.queued(asyncio.get_running_loop().time(), waits=planned.waits_for_room and seen.reset is None)
        if planned.waits_for_room:
            runs.wait(seen.machine.name)
        else:
            self._leave_queues(seen.machine.name)

    def _leave_queues(self, name: str) -> None:
        for runs in (self._attempts, self._resets):
            runs.leave(name)

    def _acted(self, seen: Observed, machine: Machine, planned: Plan, means: Means, memory: Memory) -> bool:
        """Carry out actions outside the API or inside this process; return whether to observe again at once."""
        acted = False
        for action in planned.actions:
            match action:
                case ProbeHost():
                    self._probe(seen, machine, memory)
                case Provision():
                    self._provision(seen, machine, action, means, memory)
                case GiveBack():
                    self._given_back(machine, action)
                    acted = True
                case CountAsDone():
                    self._ports.announce(machine, "Normal", "Provisioned", f"{action.why}: the host is set up")
                    log.info("provisioned after all", machine=machine.name, attempt=action.attempt)
                case ResetOverSsh():
                    self._reset(machine)
                case StopAttempt():
                    acted = True
                case _:
                    pass
        return acted

    def _probe(self, seen: Observed, machine: Machine, memory: Memory) -> None:
        """Probe the SSH port; cancel a probe of the previous address."""
        memory.give_up_probe()
        memory.probing = Asked(machine.metadata.generation, seen.needs.bastion_version if seen.needs else "")
        route, told = partial(self._probe_route, machine), partial(self._looked, machine.name, memory)
        memory.probe_task = self._prober.start(self._group, machine.name, route, self._pins.of(machine), told)

    async def _probe_route(self, machine: Machine) -> Route:
        """Return the route of a probe. Only the login to a bastion needs keys."""
        ssh = machine.spec.ssh
        if ssh is not None and ssh.bastion is None:
            return keyless_route(machine)
        return await self._route(machine.name, machine.metadata.uid)

    async def _route(self, name: str, uid: str) -> Route:
        return (await self._way(name, uid)).route

    async def _way(self, name: str, uid: str) -> Way:
        """Return the current route to the host: the Secret and the pin may have changed since the plan."""
        machine = self._caches.machines.get(name)
        if machine is None or machine.metadata.uid != uid or machine.spec.ssh is None:
            raise Rejected(f"Machine {name} is gone, or has no spec.ssh any more")
        credentials = await self._observer.credentials(machine)
        if credentials.route is None or credentials.key is not None or credentials.bastion_key is not None:
            raise Rejected(credentials.address or credentials.key or credentials.bastion_key or "no way to the host")
        return Way(credentials.route, machine.metadata.generation or 0)

    # ---- attempts

    def _provision(self, seen: Observed, machine: Machine, action: Provision, means: Means, memory: Memory) -> None:
        memory.own = action.attempt
        if seen.needs is not None:
            memory.tried = tried_with(machine, seen.needs)
        install, lacks = install_of(machine, action.attempt, means.facts, means.token, self._settings, seen.template)
        if lacks is None and seen.needs is not None and seen.needs.token is not None:
            lacks = CannotBegin(seen.needs.token_reason, seen.needs.token)
        before = machine.status.provisioning
        job = Job(
            machine=machine.name,
            attempt=action.attempt,
            resume=action.resume,
            host=before.host if before is not None else None,
            way=partial(self._way, machine.name, machine.metadata.uid),
            first_use=self._pins.of(machine),
            install=install,
            cannot_begin=OnHold(action.held) if action.held else lacks,
        )
        log.info("provisioning", machine=machine.name, attempt=action.attempt, resumed=action.resume)
        limits = Limits(self._settings.provisioning_timeout_s, self._settings.silence_s)
        ssh, installer = self._ports.ssh, self._ports.installer

        async def work(run: Run) -> Remote:
            return await carry_out(job, run, self._attempts, ssh, installer, limits)

        self._attempts.start(self._group, machine.name, action.attempt, work)

    def _given_back(self, machine: Machine, action: GiveBack) -> None:
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
        self._ports.announce(machine, "Warning", "ProvisioningFailed", f"{action.message}{tail}")
        log.warning("provisioning failed", machine=machine.name, attempt=action.attempt, why=action.message)

    async def _route_for_reset(self, name: str, uid: str) -> Route:
        """Return the route of a reset. The Secret may have changed since the plan, so check refused keys again."""
        route = await self._route(name, uid)
        machine = self._caches.machines.get(name)
        bastion = route.bastion.identity.version if route.bastion is not None else ""
        if machine is not None and (hop := known_refusal(machine, route.host.identity.version, bastion)):
            raise Rejected(refused_words(hop))
        return route

    def _reset(self, machine: Machine) -> None:
        route = partial(self._route_for_reset, machine.name, machine.metadata.uid)
        tell = partial(self._resets.said, machine.name)
        work = partial(
            reset_over_ssh,
            machine=machine.name,
            uid=machine.lasting_uid,
            generation=machine.metadata.generation or 0,
            route=route,
            first_use=self._pins.of(machine),
            ssh=self._ports.ssh,
            installer=self._ports.installer,
            tell=tell,
            limit_s=self._settings.reset_timeout_s,
        )
        self._resets.start(self._group, machine.name, "reset", work)


_WRITES: Final = (SetNodeRef, UpdateNode, HoldForReset, AskForReset, LetGo)


def _shown(node: Node) -> object:
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
