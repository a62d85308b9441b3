"""The loop of recreations: decides when one begins and runs it. Each pass observes everything, also after a restart."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from unbounded.agent.durations import Durations, TimedWork
from unbounded.agent.interfaces import Nodes
from unbounded.agent.lock import host_lock
from unbounded.agent.model import BuildRecord, Slot, SlotFacts
from unbounded.agent.node.pull_secrets import BringLogins, bring_none
from unbounded.agent.node_spec import DesiredNode, desired_node
from unbounded.agent.paths import HostPaths
from unbounded.agent.recreation import recreation_decision, report, state_store
from unbounded.agent.recreation.node_sync import LabelSync, NodeRestarter, labels_differ
from unbounded.agent.recreation.perform import AccessFor, Lock, Performer
from unbounded.agent.recreation.plan import RecreationLimits
from unbounded.agent.recreation.prefetch import Prefetch, is_rolled, requested_version
from unbounded.agent.recreation.reconcile import RecreationReconciler
from unbounded.agent.recreation.report import ConditionReport
from unbounded.agent.recreation.status import RecreationStatusWriter, holder_message
from unbounded.agent.recreation.version_resolution import Unresolved, Version, VersionResolver, pending_condition
from unbounded.api.conditions import ConditionStatus, ConditionType
from unbounded.api.configuration import MachineConfigurationVersion
from unbounded.api.core import CONFIG_MAPS, NODES, Node
from unbounded.api.failures import Failure, Rejected
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import CONFIGMAP_OPERATIONS, NAMESPACE
from unbounded.kube.api import Api, NotFound
from unbounded.kube.cache import Cache
from unbounded.kube.clock import Backoff, WallClock, utc_now
from unbounded.kube.controller import Controller, WorkQueue
from unbounded.kube.logs import Log
from unbounded.operations.claim_gates import is_paused

RETRY_BACKOFF: Final = Backoff(base_s=0.5, max_s=30.0)
BLOCKED_S: Final = 10.0  # between passes while a pause or a missing configuration blocks a recreation
CHANGED_S: Final = 0.5  # until the next pass where a configuration changed while a recreation began
RESOLUTION_S: Final = 0.05  # shortest wait that the clock resolves
_KEY: Final = "node"

log = Log("agent")


@dataclass(frozen=True)
class RecreationCaches:
    """Caches of a recreation: the agent's own Machine, and the Node of that name."""

    machines: Cache[Machine]
    nodes: Cache[Node]


class RecreationController:
    """Recreates the node of one Machine in the other slot when its Node is gone, and proves the new node.

    Args:
        access: supplies kubelet's credential in the new slot; see access.carried_or.
        lock: the host's lock; its argument names the holder; None for that of `paths`.
        store: stores its state; None for the files of `paths`.
        durations: of earlier work on this host, from which limits follow.
        logins: brings the logins of the settings' Secrets to this host.
        more: returns further conditions of this host, given the types that the Machine has.
    """

    def __init__(
        self,
        api: Api,
        machine: str,
        nodes: Nodes,
        paths: HostPaths,
        caches: RecreationCaches,
        access: AccessFor,
        *,
        limits: RecreationLimits = RecreationLimits(),  # noqa: B008  # frozen
        now: WallClock = utc_now,
        lock: Lock | None = None,
        store: state_store.RecreationStore | None = None,
        durations: Durations | None = None,
        logins: BringLogins = bring_none,
        more: Callable[[Collection[str]], Iterable[ConditionReport]] = lambda _types: (),
        new_uid: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._api = api
        self._name = machine
        self._nodes = nodes
        self._paths = paths
        self._caches = caches
        self._limits = limits
        self._new_uid = new_uid
        self._store = store or state_store.DiskStore(paths)
        self._status = RecreationStatusWriter(api, machine, now=now)
        self._resolver = VersionResolver(api, limits.resolve_s)
        self._durations = durations or Durations()
        self._more = more
        performer = Performer(nodes, access, lock or partial(host_lock, paths), limits, self._durations, logins)
        self._carrier = RecreationReconciler(
            api, machine, nodes, self._store, self._status, self._resolver, performer, limits, self._durations
        )
        self._lock = lock or partial(host_lock, paths)
        self._follower = LabelSync(api, machine, nodes, self._lock, self._blocked_reason)
        self._keeper = NodeRestarter(nodes, self._lock, limits, self._blocked_reason)
        self._prefetch = Prefetch(nodes, logins, self._status.report_prepared)
        self._since: dict[str, float] = {}  # start of each condition on the process's clock, by its name
        self._controller: Controller[str] = Controller(
            "node recreation", self._reconcile, workers=1, queue=WorkQueue(failed=RETRY_BACKOFF)
        )

    async def run(self) -> None:
        """Run until cancelled; the caches have to be synced."""
        caches = self._caches
        with caches.machines.subscribed(self._machine_changed), caches.nodes.subscribed(self._node_changed):
            self._controller.enqueue(_KEY)
            try:
                await self._controller.run()
            finally:
                await self._prefetch.stop()

    async def resume(self) -> None:
        """Claim the Machine again for a recreation under way; call this before operations are claimed.

        It retries until the API server answers. Another holder by then keeps the claim, and the recreation waits.
        """
        failures = 0
        while True:
            try:
                transition = self._store.current()
                if transition is not None:
                    await self._status.claim(transition, report.in_progress(transition))
            except (
                Rejected
            ) as error:  # an unreadable record, or a rejected write; the next pass reports it in the status
                log.warning("cannot resume recreation", machine=self._name, error=error)
            except Failure as error:
                failures += 1
                log.warning("recreation: cannot acquire the Machine's lock yet", machine=self._name, error=error)
                await asyncio.sleep(RETRY_BACKOFF.after(failures))
                continue
            return

    def _machine_changed(self, old: Machine | None, new: Machine | None) -> None:
        if old is None or new is None or _decides(old) != _decides(new):
            self._controller.enqueue(_KEY)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if old is None or new is None or _shows(old) != _shows(new):
            self._controller.enqueue(_KEY)

    # One pass

    async def _reconcile(self, _key: str) -> float | None:
        if self._paths.reset_state.exists():
            await self._prefetch.stop()
            return None
        try:
            transition = self._store.current()
            failed = self._store.failed()
            built = [slot for slot in Slot if self._nodes.applied(slot) is not None]
        except Rejected as error:  # a record on this host's disk is unreadable
            await self._status.report((report.unreadable(str(error)),), None, None)
            raise
        node = self._caches.nodes.get(self._name)
        if transition is not None:
            self._since.clear()
            await self._prefetch.stop()
            return await self._carrier.reconcile(transition, node)
        machine = self._caches.machines.get(self._name)
        if machine is None or machine.metadata.deletion_timestamp:
            return None
        if self._status.is_leftover(machine):
            await self._status.release_leftover()
        home = await self._home(built, node)
        return None if home is None else await self._reconcile_node(machine, home, node, failed)

    async def _home(self, built: list[Slot], node: Node | None) -> Slot | None:
        """Return the node's slot; None while no slot is complete."""
        if len(built) < 2:
            return built[0] if built else None
        facts = [await self._nodes.observe(slot) for slot in built]
        return choose_home(facts, node)

    async def _reconcile_node(
        self, machine: Machine, home: Slot, node: Node | None, failed: state_store.FailedRecreation | None
    ) -> float | None:
        applied = self._nodes.applied(home)
        if applied is None:
            return 0.0
        check_s = await self._ensure_running(machine, home)  # before any API read, as the API server may not answer
        version = await self._resolver.version(machine, fresh=requested_version(machine) is not None)
        desired = _desired_of(version, machine, applied)
        again_s = self._resolver.again_s(machine)
        boot_id = (
            (await self._nodes.observe(home)).boot_id
            if recreation_decision.needs_boot_id(applied, failed, node)
            else ""
        )
        view = recreation_decision.NodeObservation(
            applied=applied,
            node=node,
            desired=desired if isinstance(desired, DesiredNode) else None,
            failed=failed,
            boot_id=boot_id,
            is_rolled=is_rolled(machine),
            joining_s=self._age(f"joining {home}", so=not applied.node_uid),
            failed_s=0.0 if failed is None else self._age(f"failed {failed.uid}"),
        )
        if view.is_own_node and node is not None:
            self._time_first_ready(node)
        refused = ""
        if view.is_own_node and isinstance(desired, DesiredNode) and labels_differ(applied.goal, desired.goal):
            refused = await self._follower.sync(home, applied.node_uid, applied.goal, desired.goal)
            if not refused:
                return 0.0
        decided = recreation_decision.verdict(view, self._limits)
        if isinstance(decided, recreation_decision.Recreate) and _is_node(machine):
            begun_s = await self._begin(machine, home, applied, desired, decided)
            return begun_s if check_s is None else min(begun_s, check_s)
        if isinstance(decided, recreation_decision.Registered):
            return await self._remember(home, decided.node_uid, failed)
        if isinstance(decided, recreation_decision.ForgetFailure):
            self._store.forget()
            failed = None
        self._prefetch.follow(machine, view, version if isinstance(version, MachineConfigurationVersion) else None)
        await self._report(applied, desired, failed, refused)
        rest_s = decided.requeue_after_s if isinstance(decided, recreation_decision.NoRecreation) else None
        waits_s = [max(one, RESOLUTION_S) for one in (rest_s, again_s, check_s) if one is not None]
        return min(waits_s, default=None)

    def _time_first_ready(self, node: Node) -> None:
        """Record how long the host's first Node takes, as an estimate for the first recreation."""
        if self._durations.known(TimedWork.READY):
            return
        now = asyncio.get_running_loop().time()
        if not node.ready:
            self._since.setdefault("not ready", now)
        elif (since := self._since.pop("not ready", None)) is not None:
            self._durations.completed(TimedWork.READY, now - since)

    async def _ensure_running(self, machine: Machine, home: Slot) -> float | None:
        """Start stopped parts of the node; return the seconds until the next check, None without a node to run."""
        return max(await self._keeper.ensure_running(home), RESOLUTION_S) if _is_node(machine) else None

    def _blocked_reason(self) -> str:
        """Return why this loop may not start the node's parts; empty where it may."""
        machine = self._caches.machines.get(self._name)
        if machine is None or machine.metadata.deletion_timestamp:
            return "the Machine does not exist"
        if self._paths.reset_state.exists():
            return "a reset is in progress"
        if is_paused(machine.metadata.annotations):
            return "the Machine is paused"
        active = machine.status.active_operation
        return "" if active is None or active.lost else holder_message(active)

    async def _report(
        self,
        applied: BuildRecord,
        desired: DesiredNode | Unresolved,
        failed: state_store.FailedRecreation | None,
        refused: str,
    ) -> None:
        """Update the Machine's status; read it live only where the cached one differs.

        Args:
            refused: why labels and taints of the Node cannot be updated.
        """
        if isinstance(desired, Unresolved):
            known, pending = None, report.unresolved(desired.why)
        else:
            known, pending = desired, report.repave_pending(desired, failed, refused)
        machine = self._caches.machines.get(self._name)
        types = () if machine is None else [one.type for one in machine.status.conditions]
        conditions = (pending, report.bootstrapped(), *await asyncio.to_thread(self._more, types))
        cached = {} if machine is None else {"status": msgspec.to_builtins(machine.status)}
        stage = report.stage_of_node(applied)
        if report.status_change(cached, conditions, applied, known, now=self._status.now(), agent=stage):
            await self._status.report(conditions, applied, known, agent=stage)

    async def _desired(
        self, machine: Machine, applied: BuildRecord, *, fresh: bool = False
    ) -> DesiredNode | Unresolved:
        return _desired_of(await self._resolver.version(machine, fresh=fresh), machine, applied)

    async def _remember(self, home: Slot, node_uid: str, failed: state_store.FailedRecreation | None) -> float:
        async with self._lock("registration of the node"):
            await self._nodes.registered(home, node_uid)
        log.info("node registered", machine=self._name, slot=str(home), uid=node_uid)
        if failed is not None and failed.stranded:
            self._store.fail(msgspec.structs.replace(failed, stranded=False))
            await self._status.report((report.restored(home, failed),), None, None)
        return 0.0

    # Start of a recreation

    async def _begin(
        self,
        cached: Machine,
        home: Slot,
        applied: BuildRecord,
        desired: DesiredNode | Unresolved,
        decided: recreation_decision.Recreate,
    ) -> float:
        """Decide by live reads. Claim the Machine, write the decision to disk, and begin.

        The claim names the configuration version of the new node; machina then does not change that version. A read
        after the claim detects a change in between. If the version has changed, the decision is made again.
        """
        machine, node = await self._live(cached.name)
        if machine is None or machine.metadata.deletion_timestamp or not _is_node(machine):
            return BLOCKED_S
        if decided.lost_node and node is not None and node.metadata.uid == decided.lost_node:
            return BLOCKED_S  # the cache lags behind
        desired = await self._desired(machine, applied, fresh=True)
        blocker = await self._blocked_by(machine, desired)
        if blocker or isinstance(desired, Unresolved):
            await self._status.report((report.blocked(decided.why, blocker),), None, None)
            return BLOCKED_S
        why = await self._report_discarded(machine, decided.why)
        transition = state_store.Transition(
            uid=self._new_uid(),
            phase=state_store.RecreationPhase.CLEARING,
            source=home,
            goal=desired.goal,
            why=why,
            since=self._status.now(),
            lost_node=decided.lost_node,
            attempt=decided.attempt,
        )
        if await self._status.claim(transition, report.in_progress(transition)):
            return BLOCKED_S
        if await self._desired(machine, applied, fresh=True) != desired:
            await self._status.release_leftover()
            return CHANGED_S
        self._store.write(transition)
        log.info("recreation started", machine=self._name, why=why, slot=str(transition.target))
        return 0.0

    async def _report_discarded(self, machine: Machine, why: str) -> str:
        """Update the host's conditions once more; return the cause together with the user's changes in the slot."""
        conditions = tuple(await asyncio.to_thread(self._more, [one.type for one in machine.status.conditions]))
        if conditions:
            await self._status.report(conditions, None, None)
        changed = [
            one.message
            for one in conditions
            if one.type is ConditionType.NODE_MODIFIED and one.status is ConditionStatus.TRUE
        ]
        return "; ".join((why, *changed))

    async def _blocked_by(self, machine: Machine, desired: DesiredNode | Unresolved) -> str:
        """Return what blocks a recreation that is due; empty when it can begin."""
        if isinstance(desired, Unresolved):
            return desired.why
        if is_paused(machine.metadata.annotations):
            return "the Machine is paused"
        try:
            pause = await self._api.get(CONFIG_MAPS, CONFIGMAP_OPERATIONS, namespace=NAMESPACE)
        except NotFound:
            pause = None
        if pause is not None and is_paused(pause.metadata.annotations):
            return f"all operations are paused by ConfigMap {CONFIGMAP_OPERATIONS}"
        active = machine.status.active_operation
        if active is None or active.lost or self._status.is_leftover(machine):
            return ""
        return holder_message(active)

    async def _live(self, name: str) -> tuple[Machine | None, Node | None]:
        try:
            machine = await self._api.get(MACHINES, name)
        except NotFound:
            return None, None
        try:
            return machine, await self._api.get(NODES, name)
        except NotFound:
            return machine, None

    def _age(self, what: str, *, so: bool = True) -> float:
        """Return the seconds since this process first observed a condition; a condition that ends is forgotten."""
        if not so:
            self._since.pop(what, None)
            return 0.0
        now = asyncio.get_running_loop().time()
        return now - self._since.setdefault(what, now)


def _desired_of(version: Version, machine: Machine, applied: BuildRecord) -> DesiredNode | Unresolved:
    return version if isinstance(version, Unresolved) else desired_node(machine, version, applied.goal)


def choose_home(facts: list[SlotFacts], node: Node | None) -> Slot:
    """Return which of two complete slots holds the node: the running one, else the one that registered the Node."""
    running = [one.slot for one in facts if one.running]
    if len(running) == 1:
        return running[0]
    uid = node.metadata.uid if node is not None else ""
    return next((one.slot for one in facts if uid and one.applied and one.applied.node_uid == uid), facts[0].slot)


def _is_node(machine: Machine) -> bool:
    """Return whether the Machine should be a node."""
    return machine.spec.kubernetes is not None or machine.spec.configuration_ref is not None


def _decides(machine: Machine) -> object:
    """Return the fields of a Machine that a decision uses; other changes, such as the agent's own writes, start no
    pass.
    """
    meta, status = machine.metadata, machine.status
    pending = pending_condition(machine)
    held = (status.active_operation, status.node_update)
    return (meta.uid, meta.generation, meta.annotations, meta.deletion_timestamp, *held, pending)


def _shows(node: Node) -> object:
    info = node.status.node_info
    return (node.metadata.uid, node.ready, info and info.boot_id, info and info.kubelet_version)
