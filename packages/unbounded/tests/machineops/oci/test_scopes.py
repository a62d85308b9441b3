"""A tenancy with late answers delays no other one of the same controller."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from tests.machineops.oci.test_session import job, key_of, session
from tests.machineops.oci.world import TIMES, NearCalls, NearOci, OciWorld
from tests.operations.faults import Incarnation
from tests.operations.staging import result
from tests.operations.world import Process
from tests.support.virtual_time import run_virtual
from unbounded.api.credential import MACHINE_OPERATION_CREDENTIALS
from unbounded.api.machine import MACHINES
from unbounded.machineops.provider import Power
from unbounded.machineops.providers.oci.instances import provider_id
from unbounded.machineops.providers.oci.provider import OciProvider
from unbounded.machineops.providers.oci.sdk_client import THREADS
from unbounded.machineops.rate_limits import ScopeBudget
from unbounded_lab.cloud.oci import LabOci
from unbounded_lab.faults import FOR_EVER

OPERATIONS: Final = 18  # in each tenancy: more than are worked on at once, and than a login has threads
STALLS: Final = {"stalls": FOR_EVER, "stall_s": 30.0}


@dataclass
class Tenancies(OciWorld):
    """A site for each tenancy, with a credential of its own; one controller for both."""

    clouds: dict[str, NearOci] = field(default_factory=dict)

    def provider(self, life: Incarnation, **described: Any) -> OciProvider:
        return OciProvider(calls=lambda login: NearCalls(login, self.clouds[login.name], life), **described)

    def controller(self, *_: Any, **described: Any) -> Process:
        async def main(life: Incarnation, api: Any) -> None:
            provider = self.provider(life, **described)
            budget = ScopeBudget(provider.rates)
            async with asyncio.TaskGroup() as sites:
                for site in self.clouds:
                    sites.create_task(self._live(life, api, provider, site, budget))

        return Process(self, "machine-ops-controller", main)

    async def ask(self, site: str) -> list[str]:
        """An operation on each of so many instances of a tenancy; their names."""
        names = [f"{site}-{number}" for number in range(OPERATIONS)]
        for name in names:
            spec = {"provider": "OCIInstance", "providerID": provider_id(self.clouds[site].add_instance(name).id)}
            metadata = {"name": name, "labels": {"unbounded-cloud.io/site": site}}
            await self.api.create(MACHINES, {"metadata": metadata, "spec": spec})
            await self.operation(name, "HostReboot", name)
        return names


def _took_s(*, stalled: bool) -> float:
    """Return the duration of the operations of the second tenancy; those of the first one are older."""

    async def story() -> float:
        world = Tenancies(random.Random(1))
        async with NearOci("first", times=TIMES) as first, NearOci("second", times=TIMES) as world.near:
            world.clouds = {"first": first, "second": world.near}
            for site in world.clouds:
                spec = {"siteName": site, "provider": "OCIInstance", "auth": {"mode": "WorkloadIdentity"}}
                await world.api.create(MACHINE_OPERATION_CREDENTIALS, {"metadata": {"name": site}, "spec": spec})
            first.set_faults(**(STALLS if stalled else {}))
            world.steward().start()
            world.controller().start()
            late, others = await world.ask("first"), await world.ask("second")
            began = asyncio.get_running_loop().time()
            for name in others:
                assert result(await world.ended(name, within_s=900)) == ("Complete", "Succeeded")
            took_s = asyncio.get_running_loop().time() - began
            phases = {(await world.get(name)).status.phase for name in late}
            assert phases == {"InProgress"} or not stalled
            first.set_profile("ideal")
            for name in late:
                assert result(await world.ended(name, within_s=3600)) == ("Complete", "Succeeded")
            assert {len(cloud.machines()) for cloud in world.clouds.values()} == {OPERATIONS}
            return took_s

    return run_virtual(story())


@pytest.mark.slow
def test_a_tenancy_that_answers_after_30_s_does_not_delay_another_one() -> None:
    assert _took_s(stalled=True) <= 1.1 * _took_s(stalled=False)


@pytest.mark.slow
async def test_a_login_whose_threads_all_wait_leaves_those_of_another_one_alone() -> None:
    async with (
        LabOci("first") as first,
        LabOci("second") as second,
        session(first, key_of(first)) as stalled,
        session(second, key_of(second)) as well,
    ):
        late, other = job(first.add_instance("worker").id).instance, job(second.add_instance("worker").id).instance
        first.set_faults(**STALLS)
        looks = [asyncio.create_task(stalled.look(late)) for _ in range(2 * THREADS)]
        await asyncio.sleep(0)  # each of them has a thread, or waits for one
        assert (await well.look(other)).power is Power.RUNNING
        assert not any(look.done() for look in looks)
        for look in looks:
            look.cancel()
