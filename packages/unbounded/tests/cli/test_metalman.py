"""metalman's controllers beside the engine: counters, pins, and one engine for each site."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.api.core import EVENTS, NODES, SECRETS
from unbounded.api.failures import Rejected, Transient
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.cache import Cache
from unbounded.kube.events import EventRecorder
from unbounded.kube.process import Runtime, running_caches
from unbounded.metalman import controller
from unbounded.metalman.bmc_access import PinController
from unbounded.metalman.counter_controller import CounterController
from unbounded.metalman.settings import MetalmanSettings
from unbounded.operations.caches import Caches
from unbounded.operations.telemetry import OperationMetrics
from unbounded_lab.bmc import LabBmc
from unbounded_lab.machines import manifests

BMC = {"url": "https://bmc", "username": "u", "passwordRef": {"name": "s", "namespace": "unbounded-kube"}}
REBOOT_ONCE = {"rebootCounter": 1}


@dataclass
class World:
    """An in-memory API, with a controller on it in virtual time."""

    api: MemoryApi = field(default_factory=lambda: MemoryApi(now=virtual_now))

    async def machine(self, name: str = "m1", site: str = "", bmc: dict[str, Any] = BMC, **spec: Any) -> Machine:
        labels = {"unbounded-cloud.io/site": site} if site else {}
        body = {"metadata": {"name": name, "labels": labels}, "spec": {"pxe": {"image": "i", "redfish": bmc}, **spec}}
        return await self.api.create(MACHINES, body)

    async def status(self, name: str, **status: Any) -> None:
        await self.api.patch(MACHINES, name, {"status": status}, subresource="status")

    async def operations(self) -> list[MachineOperation]:
        return list((await self.api.list(MACHINE_OPERATIONS)).items)

    async def counters(self, name: str = "m1") -> tuple[int, int]:
        reached = (await self.api.get(MACHINES, name)).status.operations
        return (reached.reboot_counter, reached.repave_counter) if reached else (0, 0)

    async def end(self, name: str, phase: str = "Failed") -> None:
        await self.api.patch(MACHINE_OPERATIONS, name, {"status": {"phase": phase}}, subresource="status")


async def until(condition: Callable[[], Awaitable[bool]], *, within_s: float = 30) -> None:
    """Wait for a condition, in virtual time."""
    async with asyncio.timeout(within_s):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.1)


async def settled() -> None:
    """Time enough for everything that would happen by itself."""
    await asyncio.sleep(60)


def counting(story: Callable[[World], Coroutine[Any, Any, None]], *, site: str | None = None) -> None:
    """Run a story beside the counters' controller."""

    async def main() -> None:
        world = World()
        events = EventRecorder(world.api, "metalman", now=virtual_now)
        runtime = Runtime(world.api, events=events)
        caches = controller.caches_of(world.api)
        async with running_caches(runtime, caches.operations, caches.machines), asyncio.TaskGroup() as tasks:
            counters = CounterController(runtime, caches.machines, caches.operations, site=site)
            running = [tasks.create_task(counters.run()), tasks.create_task(events.run())]
            try:
                await story(world)
            finally:
                for task in running:
                    task.cancel()

    run_virtual(main())


async def _one_operation(world: World) -> bool:
    return len(await world.operations()) == 1


def test_a_counter_that_is_ahead_becomes_one_operation_that_its_machine_owns() -> None:
    async def story(world: World) -> None:
        machine = await world.machine(operations=REBOOT_ONCE)
        await until(lambda: _one_operation(world))
        await settled()
        (operation,) = await world.operations()
        assert (operation.name, operation.spec.operation_kind) == ("m1-reboot-1", "HostReboot")
        assert operation.metadata.owner_references[0].uid == machine.metadata.uid

    counting(story)


def test_a_counter_moves_when_its_operation_has_ended_without_a_claim() -> None:
    async def story(world: World) -> None:
        await world.machine(operations={"repaveCounter": 2, "rebootCounter": 1})
        await until(lambda: _one_operation(world))
        await world.end("m1-repave-2")
        await until(lambda: _is(world.counters(), (0, 2)))
        await world.end("m1-reboot-1")
        await until(lambda: _is(world.counters(), (1, 2)))

    counting(story)


async def _is(value: Awaitable[Any], wanted: Any) -> bool:
    return bool(await value == wanted)


def test_a_counter_waits_for_who_holds_the_slot_of_its_machine() -> None:
    async def story(world: World) -> None:
        await world.machine(operations=REBOOT_ONCE)
        await until(lambda: _one_operation(world))
        (operation,) = await world.operations()
        slot = {"uid": operation.metadata.uid, "name": operation.name, "kind": "HostReboot", "executor": "metalman"}
        await world.status("m1", activeOperation=slot | {"since": "2030-01-01T00:00:00Z"})
        await world.end("m1-reboot-1", "Complete")
        await settled()
        assert await world.counters() == (0, 0)
        await world.status("m1", activeOperation=None)
        await until(lambda: _is(world.counters(), (1, 0)))

    counting(story)


def test_foreign_operation_with_the_same_name_is_reported_and_unchanged() -> None:
    async def story(world: World) -> None:
        spec = {"machineRef": "m1", "operationKind": "HostPowerOff"}
        await world.api.create(MACHINE_OPERATIONS, {"metadata": {"name": "m1-reboot-1"}, "spec": spec})
        await world.machine(operations=REBOOT_ONCE)
        await settled()
        (event,) = (await world.api.list(EVENTS, namespace="default")).items
        assert (event.type, event.reason, event.involved_object.name) == ("Warning", "OperationNameTaken", "m1")
        await world.api.delete(MACHINE_OPERATIONS, "m1-reboot-1")
        await until(lambda: _one_operation(world))
        assert (await world.operations())[0].spec.operation_kind == "HostReboot"

    counting(story)


def test_counters_of_other_sites_and_of_clouds_are_left_alone() -> None:
    async def story(world: World) -> None:
        await world.machine("elsewhere", site="rack2", operations=REBOOT_ONCE)
        await world.machine("cloud", site="rack1", provider="AzureVM", providerID="azure:///x", operations=REBOOT_ONCE)
        await settled()
        assert await world.operations() == []
        await world.machine("here", site="rack1", operations=REBOOT_ONCE)
        await until(lambda: _one_operation(world))

    counting(story, site="rack1")


class Certificates:
    """BMCs that show a certificate, or are silent."""

    def __init__(self, api: MemoryApi) -> None:
        self.api = api
        self.silent: set[str] = set()
        self.refused: set[str] = set()
        self.asked: list[tuple[str, float]] = []

    async def pin(self, machine: Machine) -> str:
        self.asked.append((machine.name, asyncio.get_running_loop().time()))
        if machine.name in self.silent:
            raise Transient("no answer")
        if machine.name in self.refused:
            raise Rejected("no address")
        patch = {"status": {"redfish": {"certFingerprint": "ab"}}}
        await self.api.patch(MACHINES, machine.name, patch, subresource="status")
        return "ab"

    def asked_about(self, name: str) -> list[float]:
        return [at for asked, at in self.asked if asked == name]


def pinning(story: Callable[[World, Certificates], Coroutine[Any, Any, None]], *, site: str | None = None) -> None:
    """Run a story beside the pins' controller."""

    async def main() -> None:
        world = World()
        certificates = Certificates(world.api)
        runtime = Runtime(world.api)
        machines = controller.caches_of(world.api).machines
        async with running_caches(runtime, machines), asyncio.TaskGroup() as tasks:
            pins = tasks.create_task(PinController(runtime, machines, certificates, site=site).run())
            try:
                await story(world, certificates)
            finally:
                pins.cancel()

    run_virtual(main())


def test_a_new_bmc_is_pinned_once() -> None:
    async def story(world: World, certificates: Certificates) -> None:
        await world.machine()
        await settled()
        await world.status("m1", message="something else")
        await settled()
        assert len(certificates.asked) == 1

    pinning(story)


def test_a_pin_that_was_taken_away_is_made_anew() -> None:
    async def story(world: World, certificates: Certificates) -> None:
        await world.machine()
        await settled()
        await world.status("m1", redfish=None)
        await settled()
        assert len(certificates.asked) == 2

    pinning(story)


def test_silent_bmc_is_polled_with_backoff_up_to_five_minutes() -> None:
    async def story(world: World, certificates: Certificates) -> None:
        certificates.silent.add("m1")
        await world.machine()
        for _ in range(60):
            await asyncio.sleep(60)
            await world.status("m1", message=f"at {asyncio.get_running_loop().time()}")
        asked = certificates.asked_about("m1")
        waits = [later - earlier for earlier, later in pairwise(asked)]
        assert max(waits) <= 300
        assert min(waits[-5:]) >= 150
        assert waits[0] < 1

    pinning(story)


def test_a_silent_bmc_is_logged_once_until_its_machine_changes(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World, certificates: Certificates) -> None:
        certificates.silent.add("m1")
        await world.machine()
        await asyncio.sleep(3600)
        assert len(certificates.asked) > 10
        assert [record.message for record in caplog.records] == [
            "BMC does not answer; its certificate is pinned once it does"
        ]
        await world.api.patch(MACHINES, "m1", {"spec": {"pxe": {"redfish": {"url": "https://other"}}}})
        await asyncio.sleep(60)
        assert len(caplog.records) == 2

    caplog.set_level("WARNING")
    pinning(story)


def test_bmc_with_invalid_address_is_observed_again_after_machine_change() -> None:
    async def story(world: World, certificates: Certificates) -> None:
        certificates.refused.add("m1")
        await world.machine()
        await asyncio.sleep(3600)
        assert len(certificates.asked) == 1
        certificates.refused.clear()
        await world.api.patch(MACHINES, "m1", {"spec": {"pxe": {"redfish": {"url": "https://other"}}}})
        await settled()
        assert len(certificates.asked) == 2

    pinning(story)


@pytest.mark.slow
def test_silent_bmcs_delay_no_other() -> None:
    async def story(world: World, certificates: Certificates) -> None:
        for number in range(100):
            certificates.silent.add(f"silent-{number}")
            await world.machine(f"silent-{number}")
        await asyncio.sleep(300)
        await world.machine("new")
        began = asyncio.get_running_loop().time()
        await until(lambda: _is(_value(len(certificates.asked_about("new"))), 1))
        assert certificates.asked_about("new")[0] - began < 1

    pinning(story)


async def _value(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    "bmc", [BMC | {"caBundle": "PEM"}, BMC | {"url": "http://bmc"}], ids=["vouched for", "not encrypted"]
)
def test_machine_without_anything_to_pin_is_not_contacted(bmc: dict[str, Any]) -> None:
    async def story(world: World, certificates: Certificates) -> None:
        await world.machine(bmc=bmc)
        await settled()
        assert certificates.asked == []

    pinning(story)


def test_bmcs_of_other_sites_are_not_asked() -> None:
    async def story(world: World, certificates: Certificates) -> None:
        await world.machine("elsewhere", site="rack2")
        await world.machine("nowhere")
        await world.machine("here", site="rack1")
        await settled()
        assert {name for name, _ in certificates.asked} == {"here"}

    pinning(story, site="rack1")


# With real BMCs of the lab


@asynccontextmanager
async def metalman(api: MemoryApi, site: str | None) -> AsyncIterator[Caches]:
    """Run metalman on given caches, which the test can read."""
    runtime = Runtime(api)
    caches, nodes = controller.caches_of(api), Cache(api, NODES)
    shared = controller.SharedCaches(caches, nodes, OperationMetrics(runtime.metrics.registry))
    async with running_caches(runtime, *caches.followed, nodes), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(controller.run(runtime, MetalmanSettings(site=site), shared=shared))
        try:
            yield caches
        finally:
            running.cancel()


async def _known(api: MemoryApi, bmc: LabBmc, site: str) -> None:
    """Make a lab machine known, as one of this site."""
    for manifest in manifests([_Named(bmc)], site=site):
        if manifest["kind"] == "Secret":
            await api.create(SECRETS, manifest)
        else:
            if not site:
                del manifest["metadata"]["labels"]
            await api.create(MACHINES, manifest)


@dataclass(frozen=True)
class _Named:
    """A lab BMC as manifests want it."""

    bmc: LabBmc

    @property
    def name(self) -> str:
        return self.bmc.identity.name

    @property
    def url(self) -> str:
        return self.bmc.url

    @property
    def username(self) -> str:
        return self.bmc.username

    @property
    def password(self) -> str:
        return self.bmc.password

    @property
    def device_ids(self) -> tuple[str, ...]:
        return self.bmc.device_ids


async def _reboot(api: MemoryApi, machine: str) -> None:
    spec = {"machineRef": machine, "operationKind": "HostReboot", "startDeadlineSeconds": 3600}
    await api.create(MACHINE_OPERATIONS, {"metadata": {"name": f"reboot-{machine}"}, "spec": spec})


@pytest.mark.slow
async def test_for_all_sites_each_site_has_an_executor_of_its_name() -> None:
    api = MemoryApi()
    sites = {"lab-01": "rack1", "lab-02": "rack2", "lab-03": ""}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(metalman(api, None))
        for name, site in sites.items():
            bmc = await stack.enter_async_context(LabBmc(name, shutdown_s=0.1, boot_s=0.1))
            await _known(api, bmc, site)
            await _reboot(api, name)
        for name, site in sites.items():
            operation = await _ended(api, f"reboot-{name}")
            assert operation.status.phase == "Complete"
            assert operation.status.execution is not None
            assert operation.status.execution.executor == (f"metalman/{site}" if site else "metalman")


@pytest.mark.slow
async def test_machine_with_a_new_site_keeps_the_executor_of_its_operation() -> None:
    api = MemoryApi()
    async with AsyncExitStack() as stack:
        bmc = await stack.enter_async_context(LabBmc("lab-01", shutdown_s=1.0, boot_s=0.5))
        await stack.enter_async_context(metalman(api, "rack1"))
        await _known(api, bmc, "rack1")
        await _reboot(api, "lab-01")
        await until(lambda: _in_progress(api, "reboot-lab-01"))
        labels = {"metadata": {"labels": {"unbounded-cloud.io/site": "rack2"}}}
        await api.patch(MACHINES, "lab-01", labels)
        assert (await _ended(api, "reboot-lab-01")).status.phase == "Complete"


async def _in_progress(api: MemoryApi, name: str) -> bool:
    return (await api.get(MACHINE_OPERATIONS, name)).status.phase == "InProgress"


async def _ended(api: MemoryApi, name: str) -> MachineOperation:
    async with asyncio.timeout(30):
        while True:
            operation = await api.get(MACHINE_OPERATIONS, name)
            if operation.terminal:
                return operation
            await asyncio.sleep(0.05)
