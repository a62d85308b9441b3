"""A control plane in virtual time in front of a simulated cloud, and its judge."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.machineops.cloud import ANEW, BESIDE, VM, Call, Cloud, SimProvider
from tests.operations.faults import Incarnation
from tests.operations.simulated import Act, Violation
from tests.operations.world import TERMINAL, Process, Story, World, run_engine
from tests.support.spans import SpanList
from tests.support.stories import Tell, told_in
from unbounded.api.core import SECRETS
from unbounded.api.credential import MACHINE_OPERATION_CREDENTIALS
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.api.names import ANNOTATION_PROVIDER, NAMESPACE
from unbounded.kube.api import Api
from unbounded.kube.cache import Cache
from unbounded.kube.tracing import Tracer
from unbounded.machineops import power
from unbounded.machineops.controller import BRIEF_S
from unbounded.machineops.credentials import SiteLogins
from unbounded.machineops.executor import CloudExecutor
from unbounded.machineops.preflight import INDEX_INSTANCE, by_instance
from unbounded.machineops.provider import Provider
from unbounded.machineops.rate_limits import ScopeBudget
from unbounded.operations.executor_protocol import Refusal

PROOF = {
    "HostReboot": {power.EVIDENCE_RESTARTED},
    "HostPowerOff": {power.EVIDENCE_OFF, power.EVIDENCE_OFF_AGAIN},
    "HostPowerOn": {power.EVIDENCE_ON, power.EVIDENCE_ON_AGAIN},
    "HostReplace": {BESIDE[-1].seen, ANEW[-1].seen},
}
SITE = "lab"


@dataclass
class CloudWorld(World):
    """A world with a cloud.

    Args:
        flow: `beside` or `anew`, how instances are replaced.
    """

    flow: str = "beside"
    call_limit_s: float = SimProvider.call_limit_s
    cloud: Cloud = field(init=False)
    providers: list[SimProvider] = field(default_factory=list)
    powers: dict[str, str] = field(default_factory=dict)  # of the instance, when its operation ended
    handles: dict[tuple[str, str], float] = field(default_factory=dict)  # when they were first written
    asked_for_user_data: int = 0
    no_user_data_at: int = -1  # number of the request for which it is missing
    no_user_data: str = ""  # what is missing for it
    spans: SpanList = field(default_factory=SpanList)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cloud = Cloud(self.chance)

    def _write_down(self, kind: Kind[Any], old: dict[str, Any] | None, new: dict[str, Any]) -> None:
        super()._write_down(kind, old, new)
        phase = (new.get("status") or {}).get("phase")
        if (handle := ((new.get("status") or {}).get("execution") or {}).get("handle")) is not None:
            self.handles.setdefault((new["metadata"]["uid"], handle), asyncio.get_running_loop().time())
        if kind.kind == "MachineOperation" and phase in TERMINAL:
            self.powers.setdefault(new["metadata"]["uid"], self._power(new["spec"]["machineRef"]))

    def _power(self, machine: str) -> str:
        vm = self.cloud.vms.get(self.bound.get(machine, ""))
        return vm.power_at(self.cloud.now()) if vm else "None"

    @property
    def bound(self) -> dict[str, str]:
        """spec.providerID of the Machines."""
        versions = self.api._collection(MACHINES).versions
        return {name: version.body["spec"].get("providerID", "") for (_, name), version in versions.items()}

    # Actions of users

    async def instance(
        self, machine: str = "m1", scope: str = "sub-1", site: str = SITE, annotated: str = "", **spec: Any
    ) -> VM:
        """A Machine and what it names, its provider in its spec or in its annotation."""
        provider_id = f"sim://{scope}/{machine}"
        vm = self.cloud.vms[provider_id] = VM(provider_id)
        labels = {"unbounded-cloud.io/site": site} if site else {}
        annotations = {ANNOTATION_PROVIDER: annotated} if annotated else {}
        spec = ({} if annotated else {"provider": "Sim"}) | {"providerID": provider_id} | spec
        metadata = {"name": machine, "labels": labels, "annotations": annotations}
        await self.api.create(MACHINES, {"metadata": metadata, "spec": spec})
        return vm

    async def credential(self, name: str = "sim", **auth: Any) -> None:
        spec = {"siteName": SITE, "provider": "Sim", "auth": auth or {"mode": "WorkloadIdentity"}}
        await self.api.create(MACHINE_OPERATION_CREDENTIALS, {"metadata": {"name": name}, "spec": spec})

    async def secret(self, token: str, name: str = "sim-auth") -> None:
        data = {"token": base64.b64encode(token.encode()).decode()}
        await self.api.create(SECRETS, {"metadata": {"name": name}, "data": data}, namespace=NAMESPACE)

    # Processes

    def controller(self, site: str = SITE, **described: Any) -> Process:
        def main(life: Incarnation, api: Api) -> Coroutine[Any, Any, None]:
            provider = SimProvider(self.cloud, life, self.flow, **described)
            self.providers.append(provider)
            return self._live(life, api, provider, site)

        return Process(self, "machine-ops-controller/lab/Sim", main)

    async def _live(
        self, life: Incarnation, api: Api, provider: Provider, site: str, budget: ScopeBudget | None = None
    ) -> None:
        """Serve the Machines of one site.

        Args:
            budget: of all sites of one process.
        """
        budget = budget or ScopeBudget(provider.rates)
        credentials = Cache(api, MACHINE_OPERATION_CREDENTIALS)
        machines = Cache(api, MACHINES, indexes={INDEX_INSTANCE: by_instance({provider.name: provider})})
        logins = SiteLogins(api, credentials, provider, namespace=NAMESPACE)
        executor = CloudExecutor(api, machines, provider, site, logins=logins, budget=budget, user_data=self._user_data)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(credentials.run())
            tasks.create_task(machines.run())
            await credentials.synced.wait()
            await machines.synced.wait()
            await run_engine(
                life,
                api,
                executor,
                self.announce,
                concurrent=10,
                alone=False,
                watches_pause=True,
                brief_s=BRIEF_S,
                tracer=Tracer(self.spans),
            )

    async def _user_data(self, machine: Machine) -> str:
        self.asked_for_user_data += 1
        if self.no_user_data or self.asked_for_user_data == self.no_user_data_at:
            raise Refusal("BootstrapDataFailed", self.no_user_data or "there is none for once")
        return f"#cloud-config of {machine.name}"

    # The judge

    def judge(self) -> None:
        """Everything that must hold at the end of any schedule."""
        for call in self.cloud.calls:
            if call.operation and call.what not in ("look", "follow", "look_replace"):
                story = self.stories[call.operation]
                self.outside.acts.append(Act(call.at, story.machine, call.operation, self._action(call.what)))
            if call.what == "Restart" and not self._is_repeated(call):
                self.outside.sent.append(call.operation)
            if call.what == "follow" and not any(
                uid == call.operation and at <= call.at for (uid, _), at in self.handles.items()
            ):
                raise Violation(f"{call} of a call whose handle is not stored: {self.handles}")
        if self.cloud.violations:
            raise self.cloud.violations[0]
        if self.cloud.cut_short:
            raise Violation(f"cut short by the end of their session: {self.cloud.cut_short}")
        super().judge()
        self._no_machine_is_lost()
        self.outside.acts.clear()
        self.outside.sent.clear()

    def has_arrived(self, story: Story, by: float) -> bool:
        """Return whether an operation's last request before that time was to the cloud, and had reached it by then."""
        intents = [(at, action) for at, action in story.intents if at <= by]
        if not intents:
            return False
        asked = intents[-1][1]
        since = min(at for at, action in intents if action == asked)
        return any(since <= call.at <= by and self._action(call.what) == asked for call in self.cloud.calls)

    def _is_repeated(self, call: Call) -> bool:
        """Return whether it has a key that makes it a repetition without effect."""
        same = (one for one in self.cloud.calls if (one.what, one.operation) == (call.what, call.operation))
        return call.operation in self.cloud.keys and call is not next(same)

    def _action(self, what: str) -> str:
        return {step.stage: step.action for step in (*BESIDE, *ANEW)}.get(what, what)

    def _no_machine_is_lost(self) -> None:
        """Each Machine has one instance, which is there, and there is no other."""
        alive = sorted(vm.id for vm in self.cloud.alive())
        if alive != sorted(self.bound.values()):
            raise Violation(f"there are {alive}, and Machines are bound to {self.bound}")
        if any(not vm.user_data for vm in self.cloud.made):
            raise Violation(f"made with nothing to join with: {self.cloud.made}")
        secrets = self.api._collection(SECRETS).versions
        kept = [name for _, name in secrets if name.startswith("replacement-")]
        if kept:
            raise Violation(f"still kept: {kept}")

    def _complete_is_true(self) -> None:
        for uid, story in self.stories.items():
            if story.status.get("phase") != "Complete":
                continue
            kind = self.kinds[story.name]
            seen = {evidence["what"] for evidence in story.status.get("evidence", ())}
            if not (PROOF[kind] <= seen or (kind == "HostReplace" and PROOF[kind] & seen)):
                raise Violation(f"{story} is Complete without proof")
            if not self._came_true(kind, uid):
                raise Violation(f"{story} is Complete, and it did not happen: {self.cloud.vms}")

    def _came_true(self, kind: str, uid: str) -> bool:
        match kind:
            case "HostReboot":
                asked = [call for call in self.cloud.calls if call.what == "Restart" and call.operation == uid]
                return sum(not self._is_repeated(call) for call in asked) == 1
            case "HostPowerOff":
                return self.powers[uid] in ("Stopped", "Released")
            case "HostPowerOn":
                return self.powers[uid] == "Running"
            case _:
                return [vm.made_for for vm in self.cloud.made].count(uid) == 1 and self.powers[uid] == "Running"


def cloud_story(*, flow: str = "beside", credential: bool = True) -> Callable[[Tell], Callable[..., None]]:
    """A test from an `async def test(world, …)`: run in virtual time and judged; parameters come from pytest."""

    @asynccontextmanager
    async def world() -> AsyncIterator[CloudWorld]:
        world = CloudWorld(random.Random(1), flow=flow)
        if credential:
            await world.credential()
        yield world
        world.judge()

    return told_in(world)
