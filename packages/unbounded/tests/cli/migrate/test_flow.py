"""Migrations between two embedded servers, which assign their own UIDs: whole ones, and ones that are cut off."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from tests.apiserver.support import Client, client_identity
from tests.cli.migrate.cutting import Killed, Life, MortalApi
from tests.cli.migrate.judging import copies_on, form, holders
from tests.cli.migrate.world import AT, SITE, World, machine, world
from tests.support.waiting import eventually
from unbounded.api.core import CONFIG_MAPS, SECRETS
from unbounded.api.failures import Rejected
from unbounded.api.machine import MACHINES
from unbounded.api.names import ANNOTATION_PAUSED, CONFIGMAP_OPERATIONS, LEASE_SUPERVISOR, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.deploy import components
from unbounded.cli.migrate import steps
from unbounded.cli.migrate.migration_record import (
    MarkerStage,
    MigrationPhase,
    MigrationRecord,
    migrated_reason,
    open_record,
    read_record,
)
from unbounded.cli.migrate.run import commands
from unbounded.cli.migrate.sides import MigrationSource, MigrationTarget
from unbounded.cli.migrate.steps import pause_of
from unbounded.kube.api import Conflict, Forbidden, NotFound
from unbounded.kube.lease import LeaderElection
from unbounded.kube.process_epoch import ProcessEpoch
from unbounded.operations.claim_gates import order

pytestmark = pytest.mark.slow

EVERY: Final = 29  # of the calls at which a process may die, one in so many is tried; a soak tries all
FIRST: Final = [
    pytest.param(number, marks=() if number in {0, 13} else pytest.mark.soak, id=str(number)) for number in range(EVERY)
]


def quiet(_text: str) -> None:
    pass


async def moved(it: World, life: Life | None = None) -> None:
    """One run of the command, up to the hand-over."""
    async with AsyncExitStack() as stack:
        life = life or Life()
        here = await stack.enter_async_context(MortalApi(it.source.api, life))
        there = await stack.enter_async_context(MortalApi(it.target.api, life))
        source, target = MigrationSource(here, it.source.marker, it.source.name), MigrationTarget(there)
        planned = await steps.plan(source, target)
        assert planned.obstacles == ()
        await steps.migrate(source, target, planned, quiet)


async def taken_back(it: World, life: Life | None = None) -> None:
    async with AsyncExitStack() as stack:
        life = life or Life()
        here = await stack.enter_async_context(MortalApi(it.source.api, life))
        there = await stack.enter_async_context(MortalApi(it.target.api, life))
        source, target = MigrationSource(here, it.source.marker, it.source.name), MigrationTarget(there)
        marker = source.marker.read()
        assert marker is not None
        if (record := await read_record(target.api, marker.migration)) is not None:
            await steps.roll_back_target(target, record, quiet)
        await steps.roll_back_source(source, marker, quiet)


async def killed(work: asyncio.Task[None]) -> bool:
    """Return whether a run died; one that completed did not."""
    try:
        await work
    except Killed:
        return True
    return False


async def copied(it: World) -> MigrationRecord:
    """A whole copy, before the point of no return."""
    assert await killed(asyncio.create_task(moved(it, Life(before_phase=MigrationPhase.RESUMED))))
    record = await open_record(it.target.api)
    assert record is not None
    assert record.phase is MigrationPhase.COPIED
    return record


async def check_that_one_side_acts_at_most(it: World) -> None:
    """The source acts without a marker; the target acts if it has Machines and no migration holds its Leases."""
    marker = it.source.marker.read()
    copies = await copies_on(it.target.api)
    if marker is None:
        assert copies == []
        return
    record = await read_record(it.target.api, marker.migration)
    resumed = record is not None and record.phase is MigrationPhase.RESUMED
    if marker.stage is MarkerStage.MOVED:
        assert resumed
    if copies and not resumed:
        assert set((await holders(it.target.api)).values()) == {f"unbounded-migrate/{marker.migration}"}
        with pytest.raises(Forbidden, match="this control plane was migrated to https://"):
            await it.source.api.create(MACHINE_OPERATIONS, {"metadata": {"name": "late"}, "spec": LATE})


LATE: Final = {"machineRef": "m-000", "operationKind": "HostReboot"}


async def test_migration_copies_all_objects_with_new_uids(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        before = await form(it.source.api)
        await moved(it)
        assert await form(it.target.api) == before
        old, new = await it.source.api.get(MACHINES, "m-001"), await it.target.api.get(MACHINES, "m-001")
        assert new.metadata.uid != old.metadata.uid
        assert (new.lasting_uid, old.lasting_uid) == (old.metadata.uid, old.metadata.uid)
        kept = await it.target.api.get(SECRETS, "m-001-kept", namespace=NAMESPACE)
        replaced = await it.source.api.get(MACHINE_OPERATIONS, "m-001-replace")
        assert kept.value("replacement") == f"disk of {replaced.metadata.uid}".encode()


async def test_operations_that_wait_for_a_machine_keep_their_turn(tmp_path: Path) -> None:
    """Off before On, though both are copied within a second, and their names are the other way round."""
    async with world(tmp_path, machines=1) as it:
        for name, kind in (("z-off", "HostPowerOff"), ("a-on", "HostPowerOn")):
            await asyncio.sleep(1.1)
            spec = {"machineRef": "m-000", "operationKind": kind}
            await it.source.api.create(MACHINE_OPERATIONS, {"metadata": {"name": name}, "spec": spec})
        await moved(it)
        waiting = [one for one in (await it.target.api.list(MACHINE_OPERATIONS)).items if not one.terminal]
        assert [one.name for one in sorted(waiting, key=order)] == ["m-000-waits", "z-off", "a-on"]


async def test_a_second_migration_keeps_the_first_uid(tmp_path: Path) -> None:
    async with world(tmp_path, machines=1) as it, world(tmp_path / "next", machines=0) as other:
        await moved(it)
        there = World(MigrationSource(it.target.api, other.source.marker, "test"), other.target)
        await moved(there)
        first = await it.source.api.get(MACHINES, "m-000")
        assert (await other.target.api.get(MACHINES, "m-000")).lasting_uid == first.metadata.uid


async def test_the_source_stays_still_and_the_target_leads(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await moved(it)
        assert "migrated to https://" in migrated_reason(it.source.marker.data)
        with pytest.raises(Forbidden, match="this control plane was migrated to"):
            await it.source.api.create(MACHINE_OPERATIONS, {"metadata": {"name": "late"}, "spec": LATE})
        assert set((await holders(it.target.api)).values()) == {""}
        election = LeaderElection(it.target.api, name=LEASE_SUPERVISOR, namespace=NAMESPACE, identity="machina")
        led = asyncio.Event()

        async def lead(_epoch: ProcessEpoch) -> None:
            led.set()

        async with asyncio.timeout(10):
            await election.run(lead)
        assert led.is_set()
        assert await pause_of(it.target.api) is None


async def test_an_agent_of_a_source_that_stands_still_reports_and_claims_nothing(tmp_path: Path) -> None:
    async with world(tmp_path, machines=1) as it:
        await copied(it)
        identity = client_identity(it.source.marker.data, "system:node:m-000", "unbounded-agent-daemons")
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=identity)) as session:
            agent = Client(session, it.source.api.config.server)
            path = "/apis/unbounded-cloud.io/v1alpha3/machines/m-000/status"
            merge = {"Content-Type": "application/merge-patch+json"}
            slot = {"uid": "u", "name": "n", "kind": "NodeRecreation", "executor": "unbounded-agent/m-000", "since": AT}
            claim = await agent.ask("PATCH", path, {"status": {"activeOperation": slot}}, headers=merge)
            assert (claim.status, "this control plane was migrated to" in claim.text) == (403, True)
            said = {"type": "NodeUpdated", "status": "False", "reason": "r", "message": "m", "lastTransitionTime": AT}
            before = (await it.source.api.get(MACHINES.raw(), "m-000"))["status"]["conditions"]
            await agent.merge(path, {"status": {"conditions": [*before, said]}})


async def test_a_controller_does_not_lead_while_objects_are_copied(tmp_path: Path) -> None:
    async with world(tmp_path, machines=1) as it:
        await copied(it)
        names = await holders(it.target.api)
        assert {LEASE_SUPERVISOR, f"metalman-{SITE}", "metalman", "machine-ops-controller"} <= names.keys()
        election = LeaderElection(it.target.api, name=LEASE_SUPERVISOR, namespace=NAMESPACE, identity="machina")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(4):
                await election.run(asyncio.Event().wait)  # type: ignore[arg-type]


async def test_a_pause_of_the_source_goes_along(tmp_path: Path) -> None:
    async with world(tmp_path, machines=1) as it:
        meta = {"name": CONFIGMAP_OPERATIONS, "namespace": NAMESPACE, "annotations": {ANNOTATION_PAUSED: "holiday"}}
        await it.source.api.create(CONFIG_MAPS, {"metadata": meta}, namespace=NAMESPACE)
        await moved(it)
        assert await pause_of(it.target.api) == "holiday"


async def test_taking_back_leaves_both_sides_as_they_were(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        before = await form(it.source.api)
        await copied(it)
        assert len(await copies_on(it.target.api)) == 3
        await taken_back(it)
        assert await form(it.source.api) == before
        assert {name for name in await form(it.target.api) if name.split("/")[0] in OURS} == set()
        assert migrated_reason(it.source.marker.data) == ""
        await it.source.api.create(MACHINE_OPERATIONS, {"metadata": {"name": "again"}, "spec": LATE})
        await it.source.api.delete(MACHINE_OPERATIONS, "again")
        await moved(it)
        assert await form(it.target.api) == before


OURS: Final = ("Machine", "MachineOperation", "MachineConfiguration", "MachineConfigurationVersion", "Node", "Secret")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", FIRST)
async def test_cut_off_at_any_call_either_way_leads_to_a_whole_state(tmp_path: Path, first: int) -> None:
    """Each point once; what follows is to finish or to take back, and that is cut off, too."""
    async with world(tmp_path, machines=2) as it:
        before = await form(it.source.api)
        for number, calls in enumerate(range(1 + first, 2000, EVERY)):
            died = await killed(asyncio.create_task(moved(it, Life(calls, after=number % 2 == 0))))
            await check_that_one_side_acts_at_most(it)
            marker = it.source.marker.read()
            if not died or (marker is not None and marker.stage is MarkerStage.MOVED):
                break
            record = None if marker is None else await read_record(it.target.api, marker.migration)
            if record is not None and record.phase is MigrationPhase.RESUMED:
                with pytest.raises(Rejected, match="cannot be reverted"):
                    await taken_back(it)
                break
            if marker is not None and number % 3 != 2:
                await killed(asyncio.create_task(taken_back(it, Life(1 + number % 60, after=number % 5 == 0))))
                await check_that_one_side_acts_at_most(it)
                if it.source.marker.read() is not None:
                    await taken_back(it)
                assert await copies_on(it.target.api) == []
                assert await form(it.source.api) == before
        await moved(it)
        assert await form(it.target.api) == before
        await check_that_one_side_acts_at_most(it)


async def test_the_target_alone_finishes_a_whole_copy_and_no_other(tmp_path: Path) -> None:
    async with world(tmp_path, machines=1) as it:
        assert await killed(asyncio.create_task(moved(it, Life(before_phase=MigrationPhase.COPIED))))
        part = await open_record(it.target.api)
        assert part is not None
        with pytest.raises(Rejected, match="only a part is copied"):
            await steps.finish(it.target, part, quiet)
        record = await copied(it)
        await steps.finish(it.target, record, quiet)
        with pytest.raises(Rejected, match="cannot be reverted"):
            await taken_back(it)
        await moved(it)
        assert "migrated to" in migrated_reason(it.source.marker.data)


async def test_rollback_after_the_finish_is_a_conflict(tmp_path: Path) -> None:
    async with world(tmp_path, machines=1) as it:
        record = await copied(it)
        await steps.finish(it.target, record, quiet)
        with pytest.raises(Conflict):
            await steps.roll_back_target(it.target, record, quiet)
        assert await copies_on(it.target.api) == ["m-000"]


async def test_what_runs_refuses_a_migration_and_stays_as_it_is(tmp_path: Path) -> None:
    async with world(tmp_path, machines=1) as it:
        planned = await steps.plan(it.source, it.target)
        execution = {"executor": "metalman/dc1", "incarnation": "i", "machineUID": "u", "binding": "b"}
        claimed = {"status": {"phase": "InProgress", "execution": execution}}
        await it.source.api.patch(MACHINE_OPERATIONS, "m-000-waits", claimed, subresource="status")
        words = "MachineOperation m-000-waits: HostReboot of m-000 is in progress"
        assert words in (await steps.plan(it.source, it.target)).obstacles[0]
        with pytest.raises(Rejected, match=words):  # it began after the plan was read
            await steps.migrate(it.source, it.target, planned, quiet)
        assert migrated_reason(it.source.marker.data) == ""
        assert await pause_of(it.source.api) is None
        assert await copies_on(it.target.api) == []
        await it.source.api.create(MACHINE_OPERATIONS, {"metadata": {"name": "still"}, "spec": LATE})


async def test_a_recreation_refuses_it_too(tmp_path: Path) -> None:
    async with world(tmp_path, machines=1) as it:
        slot = {"uid": "r", "name": "m-000", "kind": "NodeRecreation", "executor": "unbounded-agent/m-000"}
        held = {"status": {"activeOperation": slot | {"since": "2026-01-02T03:04:05Z"}}}
        await it.source.api.patch(MACHINES, "m-000", held, subresource="status")
        (word,) = (await steps.plan(it.source, it.target)).obstacles
        assert "Machine m-000: NodeRecreation m-000 (unbounded-agent/m-000) is in progress" in word


async def test_a_name_that_is_taken_is_an_obstacle(tmp_path: Path) -> None:
    async with world(tmp_path, machines=1) as it:
        await it.target.prepare()
        await machine(it.target.api, "m-000")
        words = (await steps.plan(it.source, it.target)).obstacles
        assert any("machine.unbounded-cloud.io m-000 exists on the target already" in one for one in words)
        assert any("secret unbounded-kube/m-000-bmc exists on the target already" in one for one in words)
        assert any("node m-000 exists on the target already" in one for one in words)


async def test_definitions_of_another_version_are_an_obstacle(tmp_path: Path) -> None:
    async with world(tmp_path, machines=1) as it:
        await it.target.prepare()
        from unbounded.cli.manifests import CRDS

        short = {"spec": {"names": {"shortNames": ["another"]}}}
        await it.target.api.patch(CRDS, "machines.unbounded-cloud.io", short)
        (word,) = (await steps.plan(it.source, it.target)).obstacles
        assert "machines.unbounded-cloud.io on the target is of another version" in word


async def test_a_control_plane_that_leads_there_is_an_obstacle(tmp_path: Path) -> None:
    async with world(tmp_path, machines=1) as it:
        await it.target.prepare()
        election = LeaderElection(
            it.target.api,
            name=LEASE_SUPERVISOR,
            namespace=NAMESPACE,
            identity="machina-1",
            duration_s=3,
            renew_s=2,
            retry_s=1,
        )
        leading = asyncio.create_task(election.run(lambda _epoch: asyncio.Event().wait()))  # type: ignore[arg-type,return-value]

        async def leads() -> bool:
            return (await holders(it.target.api)).get(LEASE_SUPERVISOR) == "machina-1"

        await eventually(leads)
        (word,) = (await steps.plan(it.source, it.target)).obstacles
        assert "Lease unbounded-kube/unbounded-operations, held by machina-1" in word
        leading.cancel()
        await asyncio.wait([leading])
        assert (await steps.plan(it.source, it.target)).obstacles == ()


async def test_the_plan_names_the_settings_with_which_booting_machines_were_served(tmp_path: Path) -> None:
    async with world(tmp_path, machines=1) as it:
        await it.source.api.patch(MACHINES, "m-000", {"spec": {"pxe": {"image": "registry.example.com/image:1"}}})
        pxe = {"interface": "eth1", "dhcp-mode": "proxy", "ek-ca": "/a b/roots.pem"}
        await components.publish(it.source.api, {"agentUrl": "https://a.example/x"}, pxe)
        install, deploy = commands((await steps.plan(it.source, it.target)).source, "k")
        assert install == "kubectl unbounded install --kubeconfig k --agent-url https://a.example/x"
        flags = f"--site {SITE} --kubeconfig k --interface eth1 --dhcp-mode proxy --ek-ca '/a b/roots.pem'"
        assert sorted(deploy.split(" --")) == sorted(f"kubectl unbounded site deploy-pxe {flags}".split(" --"))
        await components.publish(it.source.api, {})
        _install, deploy = commands((await steps.plan(it.source, it.target)).source, "k")
        assert deploy == f"kubectl unbounded site deploy-pxe --site {SITE} --kubeconfig k"


async def test_an_unbounded_up_is_no_target(tmp_path: Path) -> None:
    async with world(tmp_path, machines=1) as it:
        await it.target.prepare()
        await components.publish(it.target.api, {})
        (word,) = (await steps.plan(it.source, it.target)).obstacles
        assert "the target is unbounded up" in word


async def test_another_cluster_is_refused_once_a_migration_has_begun(tmp_path: Path) -> None:
    async with world(tmp_path, machines=1) as it, world(tmp_path / "next", machines=0) as other:
        await copied(it)
        with pytest.raises(Rejected, match=r"the data is being migrated to .*, but .* is another cluster"):
            await steps.plan(it.source, other.target)


async def test_two_sources_exclude_each_other_on_a_target(tmp_path: Path) -> None:
    async with world(tmp_path, machines=1) as it, world(tmp_path / "next", machines=1) as other:
        await copied(it)
        words = (await steps.plan(other.source, it.target)).obstacles
        assert any("unbounded-migrate/" in one for one in words)


async def test_a_repave_that_was_carried_out_is_never_asked_for_again(tmp_path: Path) -> None:
    """At no moment is a counter of a copy above the one in its status."""
    async with world(tmp_path, machines=1) as it:
        calls, seen = 100, 0
        while await killed(asyncio.create_task(moved(it, Life(calls, after=True)))):
            calls += 9
            try:
                copy = await it.target.api.get(MACHINES, "m-000")
            except NotFound:
                continue
            seen += 1
            asked, reached = copy.spec.operations, copy.status.operations
            assert asked is None or (reached is not None and asked.repave_counter <= reached.repave_counter)
        assert seen
        assert (await it.target.api.get(MACHINES, "m-000")).spec.operations is not None
