"""A start on a made-up host: slots, identity and release are simulated, and remember what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.agent.made_up_host import MadeUpHost, made_up_host
from tests.support.authority import BASE64
from unbounded.agent.interfaces import OnProgress
from unbounded.agent.model import BuildRecord, CertificateAccess, KubeletAccess, NodeGoal, Slot, SlotFacts
from unbounded.agent.paths import HostPaths
from unbounded.agent.steps.start_steps import StartContext
from unbounded.api.configuration import NodeSettings
from unbounded.api.failures import Transient
from unbounded.api.machine_status import AgentStage
from unbounded.join.agent_config import AgentConfig, JoinedCluster, Kubelet, KubeletAuth
from unbounded.kube.logs import SecretStr

CONFIG = AgentConfig(
    machine_name="m1",
    cluster=JoinedCluster(ca_cert_base64=BASE64, version="1.34.0"),
    kubelet=Kubelet(api_server="https://10.0.0.1:6443", auth=KubeletAuth(bootstrap_token="abcdef.0123456789abcdef")),
)
GOAL = NodeGoal(machine="m1", kubernetes_version="1.34.0", api_server="https://10.0.0.1:6443", ca_pem="ca", image="x")


@dataclass
class MadeUpNodes:
    """Slots with real folders, and machines that only count as running."""

    paths: HostPaths
    running: dict[Slot, bool] = field(default_factory=dict)
    goals: dict[Slot, BuildRecord] = field(default_factory=dict)
    boots: int = 0
    did: list[str] = field(default_factory=list)
    stubborn: set[str] = field(default_factory=set)  # calls that fail, such as "stop kube1"
    certificates: set[Slot] = field(default_factory=set)  # slots whose kubelet has one that is good
    trouble: str = ""  # of kubelet
    sandbox: str = ""  # why no Pod sandbox runs
    proven: list[Slot] = field(default_factory=list)  # slots in which a sandbox was requested

    def _do(self, what: str) -> None:
        self.did.append(what)
        if what in self.stubborn:
            raise Transient(f"{what}: it does not")

    async def observe(self, slot: Slot) -> SlotFacts:
        runs = self.running.get(slot, False)
        there = self.paths.rootfs(slot).exists()
        facts = SlotFacts(slot, exists=there, applied=self.applied(slot))
        return replace(facts, running=runs, kubelet=runs, containerd=runs, boot_id=str(self.boots) if runs else "")

    async def build(self, slot: Slot, goal: NodeGoal, access: KubeletAccess, report: OnProgress) -> None:
        assert not self.running.get(slot), "a slot is built over a machine that runs"
        self._do(f"build {slot}")
        self.paths.rootfs(slot).mkdir(parents=True, exist_ok=True)
        (self.paths.rootfs(slot) / "half").write_text("")
        self.paths.nspawn(slot).parent.mkdir(parents=True, exist_ok=True)
        self.paths.nspawn(slot).write_text("[Exec]\n")
        self.paths.override(slot).parent.mkdir(parents=True, exist_ok=True)
        self.paths.override(slot).write_text("[Service]\n")
        report("half built")
        self.paths.etc.mkdir(parents=True, exist_ok=True)
        self.goals[slot] = BuildRecord(goal=goal)
        if isinstance(access, CertificateAccess):
            self.certificates.add(slot)
        self.paths.applied(slot).write_text("{}")

    async def fetch(self, spec: NodeGoal, report: OnProgress) -> None:
        raise NotImplementedError

    async def start(self, slot: Slot) -> None:
        assert not self.running.get(slot.other), "two machines run"
        self._do(f"start {slot}")
        assert self.applied(slot) is not None, "a slot that is not whole is started"
        self.running[slot] = True
        self.boots += 1

    async def stop_services(self, slot: Slot) -> None:
        self._do(f"stop_services {slot}")

    async def stop(self, slot: Slot) -> None:
        self._do(f"stop {slot}")
        self.running[slot] = False

    async def remove(self, slot: Slot) -> None:
        assert not self.running.get(slot), "a machine that runs is removed"
        self._do(f"remove {slot}")
        self.goals.pop(slot, None)
        for path in (self.paths.applied(slot), self.paths.nspawn(slot), self.paths.override(slot)):
            path.unlink(missing_ok=True)
        for path in (self.paths.rootfs(slot) / "half", self.paths.rootfs(slot), self.paths.override(slot).parent):
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)

    async def kubelet_certificate(self, slot: Slot) -> CertificateAccess | None:
        return CertificateAccess(SecretStr("pem")) if slot in self.certificates else None

    async def introduce(self, slot: Slot, access: CertificateAccess) -> None:
        self._do(f"introduce {slot}")
        self.certificates.add(slot)

    async def kubelet_problem(self, slot: Slot) -> str:
        return self.trouble

    async def sandbox_problem(self, slot: Slot) -> str:
        self.proven.append(slot)
        return self.sandbox

    async def describe(self, slot: Slot, labels: Mapping[str, str], taints: tuple[str, ...]) -> None:
        raise NotImplementedError

    async def configure(self, slot: Slot, settings: NodeSettings) -> None:
        raise NotImplementedError

    def logins(self, slot: Slot) -> bytes:
        raise NotImplementedError

    async def registered(self, slot: Slot, node_uid: str) -> None:
        raise NotImplementedError

    def applied(self, slot: Slot) -> BuildRecord | None:
        return self.goals.get(slot) if self.paths.applied(slot).exists() else None


@dataclass
class MadeUpStart:
    """One host, and what a start works on."""

    made: MadeUpHost
    nodes: MadeUpNodes
    did: list[str] = field(default_factory=list)
    config: AgentConfig = CONFIG
    goal: NodeGoal = GOAL
    wanted: NodeGoal | None = None  # from the Machine; None for the configuration's own
    asked: int = 0  # how often it was requested
    said: list[str] = field(default_factory=list)

    @property
    def paths(self) -> HostPaths:
        return self.made.paths

    @property
    def _certificate(self) -> Path:
        return self.paths.identity / "agent.pem"

    def starting(self) -> StartContext:
        async def join(report: OnProgress) -> None:
            report("waiting for a certificate")
            self.did.append("join")
            self._certificate.parent.mkdir(parents=True, exist_ok=True)
            self._certificate.write_text("certificate")

        async def access(_tell: OnProgress) -> KubeletAccess:
            assert self._certificate.exists(), "kubelet's certificate is asked for without an identity"
            return CertificateAccess(SecretStr("pem"))

        async def joined() -> bool:
            return self._certificate.exists()

        async def wanted() -> NodeGoal:
            assert self._certificate.exists(), "the Machine is asked for without an identity"
            self.asked += 1
            return self.wanted or self.goal

        async def says(stage: AgentStage, doing: str) -> None:
            self.said.append(f"{stage}: {doing}")

        async def adopt() -> None:
            self.did.append("adopt")
            release = self.paths.release("blue") / "unbounded-agent"
            release.parent.mkdir(parents=True, exist_ok=True)
            release.write_text("binary")
            self.paths.current.symlink_to(release)

        return StartContext(
            host=self.made.host,
            nodes=self.nodes,
            config=self.config,
            goal=self.goal,
            read_goal=wanted,
            joined=joined,
            join=join,
            access=access,
            says=says,
            adopted=self.paths.current.is_symlink,
            adopt=adopt,
        )


def made_up_start(root: Path) -> MadeUpStart:
    made = made_up_host(root)
    return MadeUpStart(made, MadeUpNodes(made.paths))
