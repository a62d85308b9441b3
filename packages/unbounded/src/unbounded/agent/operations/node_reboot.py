"""NodeReboot: stops kubelet, containerd and the nspawn machine, and starts them again on the same root file system.

Its progress is observed: the boot id of the nspawn machine is stored with the first intent. It shows whether the
running machine is still the old one, after any number of restarts of agent or host in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from enum import StrEnum
from typing import Final

from unbounded.agent.durations import BOUNDS, Durations
from unbounded.agent.durations import TimedWork as Kind
from unbounded.agent.interfaces import Nodes
from unbounded.agent.model import Slot, SlotFacts
from unbounded.agent.node.pull_secrets import BringLogins, bring_none
from unbounded.agent.node_spec import desired_node
from unbounded.agent.recreation.controller import choose_home
from unbounded.agent.recreation.version_resolution import Unresolved, VersionResolver
from unbounded.api.core import LEASES, NODE_LEASES, Node
from unbounded.api.failures import Failure, Rejected, Transient
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MachineOperation
from unbounded.kube.api import Api, NotFound
from unbounded.kube.logs import Log
from unbounded.operations.executor_protocol import NotDone, Refusal, Target
from unbounded.workflow.procedure import CANCELLED, COMPLETE, Cancel, Observation, Procedure, Repeat, Stage, Step

log = Log("agent")

LOOKING: Final = "Looking"
STOPPING_SERVICES: Final = "StoppingServices"
STOPPING_MACHINE: Final = "StoppingMachine"
STARTING: Final = "Starting"
VERIFYING: Final = "Verifying"
UNDOING: Final = "Undoing"

STOP_SERVICES: Final = "StopServices"
STOP_MACHINE: Final = "StopMachine"
START: Final = "Start"

NO_NODE: Final = "NoNode"
NOT_STOPPED: Final = "NotStopped"
NODE_DOWN: Final = "NodeDown"
MEANING: Final[Mapping[str, str]] = {
    NO_NODE: "This host has no complete node: `unbounded-agent start` creates one.",
    NODE_DOWN: "The node could not be started again. The message has the output of systemd.",
    NOT_STOPPED: "The nspawn machine could not be stopped; kubelet and containerd run in it again.",
}

EVIDENCE_BOOTED: Final = "kubelet and containerd run, in a machine with another boot id"
EVIDENCE_RENEWED: Final = "the Node's lease was renewed after that"

ATTEMPTS: Final = 6  # an interrupted one counts
NO_BOOT: Final = "none"  # stored for a machine that did not run when the operation began

Lock = Callable[[str], AbstractAsyncContextManager[None]]


class NodeState(StrEnum):
    """Observed states of the node; the boot id distinguishes those before the reboot from those after it."""

    SERVES = "Serves"  # old boot; kubelet and containerd run
    HALF = "Half"  # old boot; one of them runs
    IDLE = "Idle"  # old boot; neither of them runs
    DOWN = "Down"
    BOOTED = "ComesUp"  # new boot; kubelet or containerd do not run yet
    UP = "Up"  # new boot; both run
    RENEWED = "Renewed"  # new boot; kubelet has renewed the Node's lease


_BEFORE: Final = (NodeState.IDLE, NodeState.HALF, NodeState.SERVES)  # index: how many of the two run

_STOP_SERVICES: Final = Step(STOPPING_SERVICES, action=STOP_SERVICES)
_STOP_MACHINE: Final = Step(STOPPING_MACHINE, action=STOP_MACHINE)
_START: Final = Step(STARTING, action=START)
_VERIFY: Final = Step(VERIFYING, evidence=EVIDENCE_BOOTED)
_AFTER: Final = {NodeState.BOOTED: _START, NodeState.UP: _VERIFY, NodeState.RENEWED: _VERIFY}

_UNDO: Final = Step(UNDOING, action=START)
_ROWS: Final[Mapping[str, Mapping[NodeState, Step]]] = {
    LOOKING: {
        NodeState.SERVES: _STOP_SERVICES,
        NodeState.HALF: _STOP_SERVICES,
        NodeState.IDLE: _STOP_MACHINE,
        NodeState.DOWN: _STOP_MACHINE,  # it may hang and only appear to be down
        **_AFTER,
    },
    STOPPING_SERVICES: {
        NodeState.SERVES: _STOP_SERVICES,
        NodeState.HALF: _STOP_SERVICES,
        NodeState.IDLE: _STOP_MACHINE,
        NodeState.DOWN: _START,
        **_AFTER,
    },
    STOPPING_MACHINE: {
        **dict.fromkeys((NodeState.SERVES, NodeState.HALF, NodeState.IDLE), _STOP_MACHINE),
        NodeState.DOWN: _START,
        **_AFTER,
    },
    STARTING: {
        NodeState.SERVES: Step(
            STARTING, fail=NOT_STOPPED, message="the machine could not be stopped, and serves again"
        ),
        **dict.fromkeys((NodeState.HALF, NodeState.IDLE, NodeState.DOWN), _START),
        **_AFTER,
    },
    VERIFYING: {
        **dict.fromkeys((NodeState.SERVES, NodeState.HALF, NodeState.IDLE), Step(VERIFYING)),
        NodeState.DOWN: _START,
        NodeState.BOOTED: Step(VERIFYING),  # kubelet starts again by itself
        NodeState.UP: Step(VERIFYING),
        NodeState.RENEWED: Step(COMPLETE, evidence=EVIDENCE_RENEWED),
    },
    UNDOING: {
        **dict.fromkeys((NodeState.HALF, NodeState.IDLE, NodeState.DOWN, NodeState.BOOTED), _UNDO),
        **dict.fromkeys((NodeState.SERVES, NodeState.UP, NodeState.RENEWED), Step(CANCELLED)),
    },
}

NODE_REBOOT: Final = Procedure(
    start=LOOKING,
    facts=NodeState,
    stages={
        LOOKING: Stage("an observation of the node", limit_s=120.0, cancel=Cancel.AT_ONCE),
        STOPPING_SERVICES: Stage(
            "kubelet and containerd to stop",
            limit_s=180.0,
            retry_after_s=5.0,
            attempts=ATTEMPTS,
            on_timeout=_STOP_MACHINE,  # hung processes end with the machine
            cancel=Cancel.UNDO,
            undo=_UNDO,
        ),
        STOPPING_MACHINE: Stage(
            "the nspawn machine to stop",
            limit_s=240.0,
            retry_after_s=5.0,
            attempts=ATTEMPTS,
            on_timeout=_START,  # the node serves again, and the operation fails
            cancel=Cancel.UNDO,
            undo=_UNDO,
        ),
        STARTING: Stage(
            "the nspawn machine, containerd and kubelet to start",
            limit_s=BOUNDS[Kind.START].floor,
            retry_after_s=5.0,
            attempts=ATTEMPTS,
        ),
        VERIFYING: Stage("kubelet to renew the Node's lease", limit_s=BOUNDS[Kind.RENEWAL].floor),
        UNDOING: Stage(
            "kubelet and containerd to run again",
            limit_s=BOUNDS[Kind.START].floor,
            retry_after_s=5.0,
            attempts=ATTEMPTS,
        ),
    },
    table={(stage, fact): step for stage, row in _ROWS.items() for fact, step in row.items()},
    actions=dict.fromkeys((STOP_SERVICES, STOP_MACHINE, START), Repeat.SETS_STATE),
    proof=frozenset({EVIDENCE_BOOTED, EVIDENCE_RENEWED}),
    polls_s=(0.0, *[0.05] * 4, 0.1, 0.2, 0.4, 0.8, 1.0, 2.0),  # each action here has taken effect when its call returns
)


class NodeReboot:
    """The executor's work for NodeReboot, on the slots of this host.

    Args:
        lock: the host's lock; its argument names the holder.
        node: returns this Machine's cached Node, which decides between two complete slots where neither runs.
        durations: of earlier work on this host, from which the stages' limits follow.
        logins: brings the logins of the settings' Secrets to this host.
    """

    def __init__(
        self,
        api: Api,
        machine: str,
        nodes: Nodes,
        lock: Lock,
        *,
        node: Callable[[], Node | None] = lambda: None,
        durations: Durations | None = None,
        logins: BringLogins = bring_none,
    ) -> None:
        self._api = api
        self._machine = machine
        self._nodes = nodes
        self._lock = lock
        self._node = node
        self._logins = logins
        self._leases: dict[str, LeaseRenewals] = {}
        self._durations = durations or Durations()
        self._started_at: float | None = None  # of the machine whose lease is awaited

    def procedure(self, operation: MachineOperation) -> Procedure:  # noqa: ARG002  # as the Protocol has it
        return procedure(self._durations)

    async def observe(self, target: Target) -> Observation:
        facts = await self._observe_slot()
        before = target.run.boot_id or facts.boot_id or NO_BOOT
        fact, words = self._state(facts, before), _words(facts)
        leases = self._renewals(target)
        lease = ""
        if fact not in (NodeState.SERVES, NodeState.HALF):
            lease = await self._read_lease(leases, facts.boot_id if fact is NodeState.UP else "")
        if fact is NodeState.UP and leases.renewed(facts.boot_id):
            fact = NodeState.RENEWED
        self._time_renewal(fact)
        if fact in (NodeState.BOOTED, NodeState.UP) and (trouble := await self._nodes.kubelet_problem(facts.slot)):
            words = f"{words}; {trouble}"
        where = f"{facts.slot}, boot id {facts.boot_id}" if facts.boot_id else str(facts.slot)
        return Observation(fact, detail=f"{words}{lease}", where=where, boot_id=before)

    def _time_renewal(self, fact: NodeState) -> None:
        """Record the time from the machine's start until kubelet renewed the lease, or that it exceeded its limit."""
        if self._started_at is None or fact not in (NodeState.UP, NodeState.RENEWED):
            return
        spent_s = asyncio.get_running_loop().time() - self._started_at
        if fact is NodeState.RENEWED:
            self._durations.completed(Kind.RENEWAL, spent_s)
            self._started_at = None
        elif spent_s >= self._durations.limit(Kind.RENEWAL):
            self._durations.overran(Kind.RENEWAL, spent_s)

    @staticmethod
    def _state(facts: SlotFacts, before: str) -> NodeState:
        if not facts.running:
            return NodeState.DOWN
        if facts.boot_id == before:
            return _BEFORE[facts.kubelet + facts.containerd]
        return NodeState.UP if facts.kubelet and facts.containerd else NodeState.BOOTED

    def _whole(self) -> list[Slot]:
        try:
            built = [slot for slot in Slot if self._nodes.applied(slot) is not None]
        except Rejected as error:
            raise Refusal(NO_NODE, str(error)) from error
        if not built:
            raise Refusal(NO_NODE, "this host has no complete node: run `unbounded-agent start`")
        return built

    async def _observe_slot(self) -> SlotFacts:
        """Observe the node's slot."""
        facts = [await self._nodes.observe(slot) for slot in self._whole()]
        if len(facts) == 1:
            return facts[0]
        home = choose_home(facts, self._node())
        return next(one for one in facts if one.slot == home)

    async def _node_slot(self) -> Slot:
        """Return the node's slot, most often without an observation."""
        built = self._whole()
        return built[0] if len(built) == 1 else (await self._observe_slot()).slot

    def _renewals(self, target: Target) -> LeaseRenewals:
        uid = target.operation.metadata.uid
        if uid not in self._leases:
            self._leases.clear()  # one operation at a time
            self._leases[uid] = LeaseRenewals()
        return self._leases[uid]

    async def _read_lease(self, leases: LeaseRenewals, boot_id: str) -> str:
        """Record the lease's renewal time; return why it is unknown, empty where it is known."""
        try:
            lease = await self._api.get(LEASES, self._machine, namespace=NODE_LEASES)
        except NotFound:
            leases.note("", boot_id)
            return "; the Node has no lease"
        except Failure as error:
            return f"; cannot read the Node's lease: {error}"
        leases.note(lease.spec.renew_time or "", boot_id)
        return f"; the Node's lease was renewed at {lease.spec.renew_time}"

    async def perform(self, target: Target, action: str, *, before: float) -> str | None:
        async with self._lock(f"NodeReboot {target.operation.name}"):
            if asyncio.get_running_loop().time() > before:
                raise Transient("another process held the lock of the host for too long")
            slot = await self._node_slot()
            try:
                await self._act(slot, action)
            except Transient as error:
                raise NotDone(NODE_DOWN if action == START else NOT_STOPPED, str(error)) from error
        return None

    async def _act(self, slot: Slot, action: str) -> None:
        if action == STOP_SERVICES:
            await self._nodes.stop_services(slot)
        elif action == STOP_MACHINE:
            await self._nodes.stop(slot)
        else:
            await self._take_settings(slot)
            await self._nodes.start(slot)
            self._started_at = asyncio.get_running_loop().time()

    async def _take_settings(self, slot: Slot) -> None:
        """Apply its configuration's newest settings to the stopped slot. On an error, the reboot continues."""
        if (await self._nodes.observe(slot)).running:
            return
        try:
            applied = self._nodes.applied(slot)
            machine = await self._api.get(MACHINES, self._machine)
            version = await VersionResolver(self._api, 0.0).version(machine, fresh=True)
            if applied is None or isinstance(version, Unresolved):
                return
            settings = desired_node(machine, version, applied.goal).goal.settings
            logins = await self._logins(settings)
            if settings != applied.goal.settings or logins != await asyncio.to_thread(self._nodes.logins, slot):
                await self._nodes.configure(slot, settings)
        except Failure as error:
            log.warning("starting the node with its earlier settings", error=error, machine=self._machine)


def procedure(durations: Durations) -> Procedure:
    """Return the procedure with this host's limits; the operation's own deadline bounds them all."""
    limits = {STARTING: Kind.START, UNDOING: Kind.START, VERIFYING: Kind.RENEWAL}
    stages = NODE_REBOOT.stages
    raised = {name: replace(stages[name], limit_s=durations.limit(kind)) for name, kind in limits.items()}
    return replace(NODE_REBOOT, stages={**stages, **raised})


class LeaseRenewals:
    """Detector of a lease renewal by kubelet of the new boot: the renewal time differs from that while no kubelet ran.

    Times of another clock are only compared for equality. An agent that started after the stop has no earlier renewal
    time, and waits for one change more.
    """

    def __init__(self) -> None:
        self._before: str | None = None  # renewal time that another kubelet wrote
        self._renewed_in = ""

    def note(self, renewal: str, boot_id: str) -> None:
        """Record a renewal time.

        Args:
            boot_id: of the machine in which kubelet runs again; empty while it does not.
        """
        if not boot_id or self._before is None:
            self._before = renewal
        elif renewal != self._before:
            self._before, self._renewed_in = renewal, boot_id

    def renewed(self, boot_id: str) -> bool:
        return self._renewed_in == boot_id


def _words(facts: SlotFacts) -> str:
    if not facts.running:
        return f"{facts.slot} is not running"
    states = ", ".join(
        f"{name} {'runs' if runs else 'is not running'}"
        for name, runs in (("kubelet", facts.kubelet), ("containerd", facts.containerd))
    )
    return f"{facts.slot} runs with boot id {facts.boot_id}; {states}"
