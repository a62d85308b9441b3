"""A control plane in front of a simulated Azure, to which it speaks by the official SDK, in swift time."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final

from tests.lab.cloud.azure_support import CheckedAzure
from tests.metalman.support.swift_time import run_swiftly
from tests.operations.faults import Incarnation
from tests.operations.world import Process, World, run_engine
from unbounded.api.core import SECRETS
from unbounded.api.credential import MACHINE_OPERATION_CREDENTIALS
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MachineOperation
from unbounded.kube.api import Api
from unbounded.kube.cache import Cache
from unbounded.kube.tls import client_context
from unbounded.machineops.controller import BRIEF_S
from unbounded.machineops.credentials import SiteLogins
from unbounded.machineops.executor import CloudExecutor
from unbounded.machineops.preflight import INDEX_INSTANCE, by_instance
from unbounded.machineops.provider import Provider, Rates
from unbounded.machineops.providers.azure import AzureVM
from unbounded.machineops.rate_limits import ScopeBudget
from unbounded_lab.cloud.azure import LabAzure, VmShape

SITE: Final = "lab"
USER_DATA: Final = "#cloud-config\nruncmd: [join]\n"
LASTING_S: Final = 1e6  # of tokens: the SDK measures their age on a clock that does not run ahead


def provider_for(cloud: LabAzure) -> Provider:
    return AzureVM(endpoint=cloud.url, authority=cloud.url, context=lambda: client_context(ca=cloud.ca))


class LifeBudget(ScopeBudget):
    """Before and after each call's turn its process can come to its end."""

    def __init__(self, rates: Rates, life: Incarnation) -> None:
        super().__init__(rates)
        self._life = life

    async def read(self, scope: str) -> None:
        await self._life.through("azure read", lambda: ScopeBudget.read(self, scope))

    async def write(self, scope: str, *, before: float) -> None:
        await self._life.through("azure write", lambda: ScopeBudget.write(self, scope, before=before))


@dataclass
class AzureWorld(World):
    """
    Args:
        cloud: with one virtual machine, `vm-1`, which is Machine `m1`.
    """

    cloud: LabAzure = field(kw_only=True)
    user_data: str = USER_DATA

    async def begin(self, *, secret: str | None = None) -> None:
        """Put the Machine and its credential; start a controller and a steward."""
        machine = {"provider": "AzureVM", "providerID": f"azure://{self.cloud.id_of('vm-1')}"}
        labels = {"unbounded-cloud.io/site": SITE}
        await self.api.create(MACHINES, {"metadata": {"name": "m1", "labels": labels}, "spec": machine})
        values = {"tenantID": self.cloud.tenant, "clientID": self.cloud.client_id}
        values["clientSecret"] = secret or self.cloud.client_secret
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        await self.api.create(SECRETS, {"metadata": {"name": "azure-auth"}, "data": data}, namespace=NAMESPACE)
        auth = {"mode": "ExternalPlugin", "secretRef": {"name": "azure-auth", "namespace": NAMESPACE}}
        spec = {"siteName": SITE, "provider": "AzureVM", "auth": auth}
        await self.api.create(MACHINE_OPERATION_CREDENTIALS, {"metadata": {"name": "azure"}, "spec": spec})
        self.steward().start()

    def controller(self) -> Process:
        def main(life: Incarnation, api: Api) -> Coroutine[Any, Any, None]:
            return self._live_as(life, api, provider_for(self.cloud))

        return Process(self, f"machine-ops-controller/{SITE}/AzureVM", main)

    async def _live_as(self, life: Incarnation, api: Api, provider: Provider) -> None:
        credentials = Cache(api, MACHINE_OPERATION_CREDENTIALS)
        machines = Cache(api, MACHINES, indexes={INDEX_INSTANCE: by_instance({provider.name: provider})})
        logins = SiteLogins(api, credentials, provider, namespace=NAMESPACE)
        budget = LifeBudget(provider.rates, life)

        async def user_data(_machine: Machine) -> str:
            return self.user_data

        executor = CloudExecutor(api, machines, provider, SITE, logins=logins, budget=budget, user_data=user_data)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(credentials.run())
                tasks.create_task(machines.run())
                await credentials.synced.wait()
                await machines.synced.wait()
                await run_engine(
                    life, api, executor, self.announce, concurrent=10, alone=False, watches_pause=True, brief_s=BRIEF_S
                )
        finally:
            await executor.close()

    async def carried_out(
        self, kind: str, parameters: Mapping[str, str] = {}, *, name: str = "op", **spec: Any
    ) -> MachineOperation:
        """An operation, at its end."""
        await self.operation(name, kind, "m1", parameters=dict(parameters or {}), **spec)
        return await self.ended(name, within_s=9000)

    def asked(self, *, reads: bool = False) -> list[str]:
        """The calls that came to the cloud, without logins."""
        return [
            each.call.removeprefix("VirtualMachines.")
            for each in self.cloud.journal
            if not each.call.startswith("Login.") and (reads or each.method != "GET")
        ]


@asynccontextmanager
async def azure_world(
    profile: str = "ideal",
    *,
    shape: VmShape | None = None,
    chance: random.Random | None = None,
    subscriptions: int = 1,
) -> AsyncIterator[AzureWorld]:
    """A world whose processes end with it."""
    async with CheckedAzure(subscriptions=subscriptions) as cloud:
        cloud.add_machine("vm-1", shape)
        cloud.set_profile(profile)
        if "short-tokens" not in profile:
            cloud.set_faults(token_lifetime_s=LASTING_S)
        world = AzureWorld(chance or random.Random(1), cloud=cloud)
        before = asyncio.all_tasks()
        try:
            yield world
        finally:
            for life in world.lives:
                life.crash()
            left = [
                task for task in asyncio.all_tasks() - before if task.get_name().startswith(("machine-ops", "stew"))
            ]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        assert cloud.checked.mismatches == [], cloud.checked.mismatches


@asynccontextmanager
async def running_azure(
    profile: str = "ideal", *, shape: VmShape | None = None, **faults: Any
) -> AsyncIterator[AzureWorld]:
    """A world with its Machine, these faults, and a controller."""
    async with azure_world(profile, shape=shape) as world:
        await world.begin()
        if faults:
            world.cloud.set_faults(**faults)
        world.controller().start()
        yield world


def swift(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in time that only passes while nothing is to be done."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_swiftly(test(*args, **kwargs), limit_s=86_400.0)

    return run
