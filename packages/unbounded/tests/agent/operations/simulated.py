"""A host with a node on it, in virtual time: what stays when its agent dies, and what goes when its power does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import msgspec

from tests.operations.faults import Incarnation
from unbounded.agent.interfaces import OnProgress
from unbounded.agent.model import BuildRecord, CertificateAccess, KubeletAccess, NodeGoal, Slot, SlotFacts
from unbounded.api.configuration import NodeSettings
from unbounded.api.core import LEASES
from unbounded.api.failures import Transient
from unbounded.kube.api import AlreadyExists, Api

RENEWS_S = 10.0
NAMESPACE = "kube-node-lease"


@dataclass
class SimulatedHost:
    """Slot kube1 is whole and serves. Chances and refusals are dials.

    Args:
        hangs: kubelet does not stop by itself, and is killed.
        refuses_stop, refuses_start: how often the machine is not stopped, or not started, before it is.
        pace: of everything that takes time.
        first_renewal_s: until kubelet renews the lease for the first time after its start.
        trouble: why kubelet is not well.
    """

    machine: str = "m1"
    running: bool = True
    enabled: bool = True
    kubelet: bool = True
    containerd: bool = True
    boot: int = 1
    host_boot: int = 1
    renewals: int = 0
    hangs: bool = False
    refuses_stop: int = 0
    refuses_start: int = 0
    whole: bool = True
    pace: float = 1.0
    renews_s: float = RENEWS_S
    first_renewal_s: float = 0.0
    trouble: str = ""
    acts: list[str] = field(default_factory=list)
    applied: BuildRecord = field(init=False)
    started: asyncio.Event | None = None  # by which kubelet's start is noticed

    def __post_init__(self) -> None:
        goal = NodeGoal(machine=self.machine, kubernetes_version="1.34.0", api_server="https://a", ca_pem="")
        self.applied = BuildRecord(goal=goal, node_uid="node-1")

    def boot_machine(self) -> None:
        self.running, self.boot = True, self.boot + 1
        self.kubelet = self.containerd = False

    def cut(self) -> None:
        """The power is lost, and comes back: an enabled machine starts with the host, and what is enabled in it."""
        self.host_boot += 1
        self.running = self.kubelet = self.containerd = False
        if self.enabled:
            self.boot_machine()
            self.kubelet = self.containerd = True

    async def kubelet_forever(self, api: Api) -> None:
        """Renew the Node's lease as long as kubelet runs, and at once when it starts."""
        self.started = asyncio.Event()
        with suppress(AlreadyExists):
            await api.create(LEASES, {"metadata": {"name": self.machine}}, namespace=NAMESPACE)
        while True:
            if self.running and self.kubelet:
                self.renewals += 1
                when = {"renewTime": f"2030-01-01T00:00:00.{self.renewals:06d}Z"}
                await api.patch(LEASES, self.machine, {"spec": when}, namespace=NAMESPACE)
            self.started.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.renews_s * self.pace):
                    await self.started.wait()
            if self.started.is_set():
                await asyncio.sleep(self.first_renewal_s)


class SimulatedNodes:
    """The port `Nodes` over such a host, as one life of an agent has it: every part of a call can be its last."""

    def __init__(self, host: SimulatedHost, life: Incarnation) -> None:
        self.host = host
        self.life = life

    async def observe(self, slot: Slot) -> SlotFacts:
        async def seen() -> SlotFacts:
            host = self.host
            if slot is Slot.KUBE2:
                return SlotFacts(slot)
            boot = f"boot-{host.boot}" if host.running else ""
            services = (host.running and host.kubelet, host.running and host.containerd)
            return SlotFacts(slot, True, host.applied, host.running, boot, *services)

        return await self.life.through("look", seen)

    async def stop_services(self, slot: Slot) -> None:
        await self._do("stop kubelet", self._stop_kubelet, takes_s=35.0 if self.host.hangs else 0.5)
        await self._do("stop containerd", self._stop_containerd)

    async def stop(self, slot: Slot) -> None:
        if self.host.refuses_stop:
            self.host.refuses_stop -= 1
            raise Transient("machinectl: the machine does not go")
        await self._do("disable", self._disable)
        await self._do("stop machine", self._stop_machine, takes_s=2.0)

    async def start(self, slot: Slot) -> None:
        if self.host.refuses_start:
            self.host.refuses_start -= 1
            raise Transient("machinectl: no such image")
        await self._do("enable", self._enable)
        await self._do("start machine", self._start_machine, takes_s=3.0)
        await self._do("start containerd", self._start_containerd)
        await self._do("start kubelet", self._start_kubelet)

    async def _do(self, what: str, effect: Callable[[], bool], *, takes_s: float = 0.1) -> None:
        async def act() -> None:
            self.life.hold_if_dead()
            if effect():
                self.host.acts.append(what)

        await asyncio.sleep(takes_s * self.host.pace)
        await self.life.through(what, act)

    def _stop_kubelet(self) -> bool:
        was, self.host.kubelet = self.host.kubelet, False
        return was

    def _stop_containerd(self) -> bool:
        was, self.host.containerd = self.host.containerd, False
        return was

    def _disable(self) -> bool:
        self.host.enabled = False
        return False

    def _enable(self) -> bool:
        self.host.enabled = True
        return False

    def _stop_machine(self) -> bool:
        was, self.host.running = self.host.running, False
        return was

    def _start_machine(self) -> bool:
        if self.host.running:
            return False
        self.host.boot_machine()
        return True

    def _start_containerd(self) -> bool:
        was, self.host.containerd = self.host.containerd, True
        return not was

    def _start_kubelet(self) -> bool:
        was, self.host.kubelet = self.host.kubelet, True
        if self.host.started is not None:
            self.host.started.set()
        return not was

    def applied(self, slot: Slot) -> BuildRecord | None:
        return self.host.applied if slot is Slot.KUBE1 and self.host.whole else None

    async def build(self, slot: Slot, goal: NodeGoal, access: KubeletAccess, report: OnProgress) -> None:
        raise AssertionError("the root file system stays")

    async def fetch(self, spec: NodeGoal, report: OnProgress) -> None:
        raise AssertionError("no rolling update requests it")

    async def remove(self, slot: Slot) -> None:
        raise AssertionError("the root file system stays")

    async def kubelet_certificate(self, slot: Slot) -> CertificateAccess | None:
        raise AssertionError("nobody asks for it")

    async def introduce(self, slot: Slot, access: CertificateAccess) -> None:
        raise AssertionError("nobody asks for it")

    async def kubelet_problem(self, slot: Slot) -> str:
        return self.host.trouble

    async def sandbox_problem(self, slot: Slot) -> str:
        raise AssertionError("nobody asks for it")

    async def describe(self, slot: Slot, labels: Mapping[str, str], taints: tuple[str, ...]) -> None:
        goal = msgspec.structs.replace(self.host.applied.goal, labels=dict(labels), taints=taints)
        self.host.applied = msgspec.structs.replace(self.host.applied, goal=goal)

    async def configure(self, slot: Slot, settings: NodeSettings) -> None:
        assert not self.host.running
        goal = msgspec.structs.replace(self.host.applied.goal, settings=settings)
        self.host.applied = msgspec.structs.replace(self.host.applied, goal=goal)

    def logins(self, slot: Slot) -> bytes:
        return b""

    async def registered(self, slot: Slot, node_uid: str) -> None:
        raise AssertionError("the Node stays")


@asynccontextmanager
async def unlocked(_who: str) -> AsyncIterator[None]:
    """The lock of a host without other holders."""
    yield
