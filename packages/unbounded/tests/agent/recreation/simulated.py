"""A simulated host with two slots, the kubelets in them, and a judge that checks every change of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tests.operations.faults import Incarnation
from tests.operations.simulated import Violation
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import virtual_now
from unbounded.agent.interfaces import OnProgress
from unbounded.agent.model import BuildRecord, CertificateAccess, KubeletAccess, NodeGoal, Slot, SlotFacts
from unbounded.agent.recreation.state_store import FailedRecreation, Transition
from unbounded.api.configuration import NodeSettings
from unbounded.api.core import LEASES, NODES
from unbounded.api.failures import Rejected, Transient
from unbounded.kube.api import ApiError, NotFound
from unbounded.kube.clock import rfc3339
from unbounded.kube.logs import SecretStr

LEASE_S: Final = 10.0
LEASE_NAMESPACE: Final = "kube-node-lease"
# The fault of nodes of these versions of Kubernetes.
UNBUILDABLE: Final = "9.0.0"
WILL_NOT_START: Final = "9.1.0"
NEVER_READY: Final = "9.2.0"
LIES: Final = "9.3.0"  # its kubelet reports another version
DIES: Final = "9.4.0"  # its kubelet stops soon after it was started
NEVER_REGISTERS: Final = "9.5.0"
UNWELL: Final = "9.6.0"  # its kubelet reports that it is not healthy
NO_SANDBOX: Final = "9.7.0"  # no Pod sandbox runs in its slot
BAD: Final = (UNBUILDABLE, WILL_NOT_START, NEVER_READY, LIES, DIES, NEVER_REGISTERS, UNWELL, NO_SANDBOX)


@dataclass
class SimSlot:
    """The present state of a slot; the first four fields survive a loss of power."""

    exists: bool = False
    applied: BuildRecord | None = None
    enabled: bool = False
    certificate: bool = False
    running: bool = False
    boot_id: str = ""
    containerd: bool = False
    kubelet: bool = False
    kubelet_since: float = 0.0
    registered: bool = False
    renewed_at: float = -1e9
    proven: bool = False  # its node was once Ready, and renewed its lease, in this life of the slot

    def off(self) -> None:
        self.running = self.containerd = self.kubelet = self.registered = False
        self.boot_id = ""


class MemoryBook:
    """The state of recreations on a disk that loses nothing that was written."""

    def __init__(self) -> None:
        self._current: Transition | None = None
        self._failed: FailedRecreation | None = None
        self.written: list[Transition] = []

    def current(self) -> Transition | None:
        return self._current

    def write(self, transition: Transition) -> None:
        self._current = transition
        self.written.append(transition)

    def clear(self) -> None:
        self._current = None

    def failed(self) -> FailedRecreation | None:
        return self._failed

    def fail(self, failed: FailedRecreation) -> None:
        self._failed = failed

    def forget(self) -> None:
        self._failed = None


@dataclass
class SimHost:
    """One host: it is the truth that the judge compares with."""

    machine: str
    api: MemoryApi
    slots: dict[Slot, SimSlot] = field(default_factory=lambda: {slot: SimSlot() for slot in Slot})
    store: MemoryBook = field(default_factory=MemoryBook)
    on: bool = True
    boots: int = 0
    sandboxes: list[Slot] = field(default_factory=list)  # in which one was run, one after the other
    trouble: float = 0.0  # chance of a step to fail
    stubborn: bool = False  # kubelets register again when their Node was deleted
    api_away: bool = False  # as the kubelets see it
    builds: int = 0
    ready_after_s: float = 5.0  # of kubelet's start
    log: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    applied: Callable[[Slot], None] | None = None  # called before what a slot was made from is read

    def note(self, text: str) -> None:
        self.log.append(f"{asyncio.get_running_loop().time():.1f} {text}")

    def boot_machine(self, slot: Slot) -> None:
        it = self.slots[slot]
        self.boots += 1
        it.running, it.boot_id = True, f"boot-{slot}-{self.boots}"

    def start_kubelet(self, slot: Slot) -> None:
        it = self.slots[slot]
        if it.running and not it.kubelet:
            it.kubelet, it.kubelet_since, it.registered = True, asyncio.get_running_loop().time(), False
        self.check()

    def check(self) -> None:
        """Check the rules that hold at any moment."""
        if all(it.kubelet for it in self.slots.values()):
            self.violated("two kubelets run")

    def violated(self, what: str) -> None:
        """Record a violation, whether or not the caller catches the error."""
        self.violations.append(what)
        raise Violation(f"{what}: {self.log[-30:]}")

    def cut(self) -> None:
        """The power goes."""
        self.note("power cut")
        self.on = False
        for it in self.slots.values():
            it.off()

    def boot(self) -> None:
        """It comes back, with the machines that are enabled."""
        self.on = True
        self.note("boot")
        for slot, it in self.slots.items():
            if it.enabled and it.applied is not None:
                self.boot_machine(slot)
                it.containerd = True
                self.start_kubelet(slot)

    # The kubelets

    async def live(self) -> None:
        """Let the kubelets do their work, until cancelled."""
        while True:
            await asyncio.sleep(1.0)
            for slot, it in self.slots.items():
                if it.kubelet and it.applied is not None and not self.api_away:
                    try:
                        await self._kubelet(slot, it, it.applied.goal.kubernetes_version)
                    except ApiError:
                        continue

    async def _kubelet(self, slot: Slot, it: SimSlot, version: str) -> None:
        age_s = asyncio.get_running_loop().time() - it.kubelet_since
        if version == DIES and age_s > 4.0:
            it.kubelet = False
            return
        if age_s < 2.0 or version == NEVER_REGISTERS:
            return
        ready = age_s >= self.ready_after_s and version != NEVER_READY
        node = await self._node()
        if node is None and it.registered and not self.stubborn:
            return
        if not it.registered or node is None:
            await self._register(slot, it, version, exists=node is not None)
        elif node["status"]["conditions"][0]["status"] != str(ready):
            await self._status(it, version, ready=ready)
        await self._renew(it, ready=ready)

    async def _node(self) -> dict[str, Any] | None:
        try:
            return await self.api.get(NODES.raw(), self.machine)
        except NotFound:
            return None

    async def _register(self, slot: Slot, it: SimSlot, version: str, *, exists: bool) -> None:
        if not exists:
            await self.api.create(NODES, {"metadata": {"name": self.machine}})
        it.registered, it.certificate = True, True
        self.note(f"{slot} registers")
        await self._status(it, version, ready=False)

    async def _status(self, it: SimSlot, version: str, *, ready: bool) -> None:
        reported = "1.2.3" if version == LIES else version
        status = {
            "conditions": [{"type": "Ready", "status": str(ready), "reason": "KubeletReady" if ready else "Starting"}],
            "nodeInfo": {"bootID": it.boot_id, "kubeletVersion": f"v{reported}"},
        }
        await self.api.patch(NODES, self.machine, {"status": status}, subresource="status")

    async def _renew(self, it: SimSlot, *, ready: bool) -> None:
        now = asyncio.get_running_loop().time()
        if now - it.renewed_at >= LEASE_S:
            it.renewed_at = now
            await self._renew_lease()
        it.proven = it.proven or ready

    async def _renew_lease(self) -> None:
        spec = {"holderIdentity": self.machine, "renewTime": rfc3339(virtual_now(), micro=True)}
        try:
            await self.api.patch(LEASES, self.machine, {"spec": spec}, namespace=LEASE_NAMESPACE)
        except NotFound:
            body = {"metadata": {"name": self.machine}, "spec": spec}
            await self.api.create(LEASES, body, namespace=LEASE_NAMESPACE)


class SimNodes:
    """`Nodes` over a simulated host, as one incarnation of the agent meets it: cut off at any await."""

    def __init__(self, host: SimHost, life: Incarnation) -> None:
        self._host = host
        self._life = life

    async def _do(self, what: str, effect: Any = None) -> Any:
        async def act() -> Any:
            if not self._host.on:
                await self._life.hang()
            if effect is None:
                return None
            self._host.note(what)
            return effect()

        return await self._life.through(what, act)

    def _stumble(self, what: str) -> None:
        if self._life.dice(self._host.trouble):
            raise Transient(f"{what}: trouble")

    async def observe(self, slot: Slot) -> SlotFacts:
        await self._do(f"look {slot}")
        it = self._host.slots[slot]
        return SlotFacts(slot, it.exists, it.applied, it.running, it.boot_id, it.kubelet, it.containerd)

    async def build(self, slot: Slot, goal: NodeGoal, access: KubeletAccess, report: OnProgress) -> None:
        it, host = self._host.slots[slot], self._host
        if it.running:
            host.violated(f"{slot} is built while it runs")

        def begin() -> None:
            host.slots[slot] = SimSlot(exists=True)
            host.builds += 1

        await self._do(f"build {slot} begins", begin)
        for percent in (30, 60):
            await asyncio.sleep(self._life.chance.uniform(1, 25))
            report(f"rootfs: {percent} %")
            await self._do(f"build {slot} {percent} %")
            self._stumble("download")
        if goal.kubernetes_version == UNBUILDABLE:
            raise Rejected(f"it has no kubelet {UNBUILDABLE}")

        def end() -> None:
            host.slots[slot].applied = BuildRecord(goal=goal)
            host.slots[slot].certificate = isinstance(access, CertificateAccess)

        await self._do(f"build {slot} ends", end)

    async def fetch(self, spec: NodeGoal, report: OnProgress) -> None:
        await self._do(f"fetch {spec.kubernetes_version}", lambda: None)
        await asyncio.sleep(self._life.chance.uniform(1, 25))
        if spec.kubernetes_version == UNBUILDABLE:
            raise Rejected(f"it has no kubelet {UNBUILDABLE}")
        await self._do(f"fetched {spec.kubernetes_version}", lambda: None)

    async def start(self, slot: Slot) -> None:
        host, it = self._host, self._host.slots[slot]
        if it.applied is None:
            raise Transient(f"{slot} is not whole")
        await self._do(f"enable {slot}", lambda: setattr(it, "enabled", True))
        self._stumble("machinectl")
        if not it.running:
            await self._do(f"start machine {slot}", lambda: host.boot_machine(slot))
        await asyncio.sleep(1.0)
        if it.applied.goal.kubernetes_version == WILL_NOT_START:
            raise Transient("containerd does not start")
        await self._do(f"start containerd {slot}", lambda: setattr(it, "containerd", True))
        self._stumble("kubelet")
        await self._do(f"start kubelet {slot}", lambda: host.start_kubelet(slot))

    async def stop_services(self, slot: Slot) -> None:
        it = self._host.slots[slot]
        await self._do(f"stop kubelet {slot}", lambda: setattr(it, "kubelet", False))
        self._stumble("containerd hangs")
        await self._do(f"stop containerd {slot}", lambda: setattr(it, "containerd", False))

    async def stop(self, slot: Slot) -> None:
        it = self._host.slots[slot]
        steps = [("disable", lambda: setattr(it, "enabled", False)), ("power off", it.off)]
        if self._life.dice(0.5):
            steps.reverse()
        for what, effect in steps:
            await self._do(f"{what} {slot}", effect)
            self._stumble(what)

    async def remove(self, slot: Slot) -> None:
        host, it = self._host, self._host.slots[slot]
        if it.running:
            host.violated(f"{slot} is removed while it runs")
        if it.proven and not host.slots[slot.other].proven:
            host.violated(f"{slot} is removed, and {slot.other} was never proven")
        await self._do(f"remove what {slot} was made from", lambda: setattr(it, "applied", None))
        self._stumble("busy")
        await self._do(f"remove {slot}", lambda: host.slots.__setitem__(slot, SimSlot()))

    async def kubelet_certificate(self, slot: Slot) -> CertificateAccess | None:
        await self._do(f"certificate of {slot}")
        return CertificateAccess(SecretStr("pem")) if self._host.slots[slot].certificate else None

    async def introduce(self, slot: Slot, access: CertificateAccess) -> None:
        raise AssertionError("nobody asks for it")

    async def kubelet_problem(self, slot: Slot) -> str:
        applied = self._host.slots[slot].applied
        sick = applied is not None and applied.goal.kubernetes_version == UNWELL
        return "kubelet says that it is not well: 500" if sick else ""

    async def sandbox_problem(self, slot: Slot) -> str:
        applied = self._host.slots[slot].applied
        self._host.sandboxes.append(slot)
        broken = applied is not None and applied.goal.kubernetes_version == NO_SANDBOX
        return f"no Pod sandbox starts in {slot}: open /etc/hosts: no such file or directory" if broken else ""

    async def describe(self, slot: Slot, labels: Mapping[str, str], taints: tuple[str, ...]) -> None:
        it = self._host.slots[slot]
        assert it.applied is not None
        goal = msgspec.structs.replace(it.applied.goal, labels=dict(labels), taints=taints)
        described = msgspec.structs.replace(it.applied, goal=goal)
        await self._do(f"describe {slot}", lambda: setattr(it, "applied", described))

    async def configure(self, slot: Slot, settings: NodeSettings) -> None:
        raise AssertionError("the settings stay")

    def logins(self, slot: Slot) -> bytes:
        raise AssertionError("the settings stay")

    async def registered(self, slot: Slot, node_uid: str) -> None:
        it = self._host.slots[slot]
        applied = it.applied
        if applied is None:
            raise Transient(f"{slot} is not whole")
        known = BuildRecord(goal=applied.goal, node_uid=node_uid)
        await self._do(f"{slot} is Node {node_uid}", lambda: setattr(it, "applied", known))

    def applied(self, slot: Slot) -> BuildRecord | None:
        if self._host.applied is not None:
            self._host.applied(slot)
        return self._host.slots[slot].applied
