"""The engine with the provider of Oracle's cloud in virtual time: the real SDK, answered in this process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from oci.signer import Signer

from tests.lab.cloud.oci.direct import Direct, connect
from tests.machineops.world import SITE, CloudWorld
from tests.operations.faults import Incarnation
from tests.operations.world import TERMINAL, Process
from tests.support.stories import Tell, told_in
from unbounded.api.core import SECRETS
from unbounded.api.credential import MACHINE_OPERATION_CREDENTIALS
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.machineops.provider import AuthMode, Login
from unbounded.machineops.providers.oci import sdk_client
from unbounded.machineops.providers.oci.instances import provider_id
from unbounded.machineops.providers.oci.launch import TAG_UID
from unbounded.machineops.providers.oci.provider import OciProvider
from unbounded.machineops.providers.oci.sdk_client import OciClient, Wire
from unbounded_lab.clock import LoopClock
from unbounded_lab.cloud.frontend import CloudFrontend
from unbounded_lab.cloud.oci import LabOci, OciTimes
from unbounded_lab.cloud.oci.model import OciInstance

TIMES: Final = OciTimes(provision_s=40.0, boot_s=20.0, stop_s=20.0, terminate_s=30.0)
ENDPOINT: Final = "https://cloud.test"


class NearOci(LabOci):
    """A simulated cloud that is called without a socket; its clock is the loop's."""

    async def start(self) -> None:
        self.clock = LoopClock()
        self.front = CloudFrontend(self._begin(self._faults, self.clock.now()), self.clock.now())

    async def stop(self) -> None:
        return


@cache
def _identity(*key: str) -> sdk_client.OciIdentity:
    """Loading a key takes longer than a whole operation."""
    tenancy, user, fingerprint, pem, region = key
    signer = Signer(tenancy, user, fingerprint, None, private_key_content=pem)
    config = {"tenancy": tenancy, "user": user, "fingerprint": fingerprint, "region": region, "key_content": pem}
    return sdk_client.OciIdentity(signer, config, region)


@cache
def _client(kind: Callable[..., Any], identity: sdk_client.OciIdentity) -> Any:
    """One for all worlds, which have the same name and the same keys: making it takes long, too."""
    login = Login("oci", AuthMode.WORKLOAD_IDENTITY)
    return OciClient(login, Wire(endpoint=ENDPOINT))._new_client(kind, identity)


class NearCalls(OciClient):
    """Calls of one life: each is a point at which it can be cut off, before and after it has acted."""

    def __init__(self, login: Login, cloud: NearOci, life: Incarnation) -> None:
        super().__init__(login, Wire(endpoint=ENDPOINT))
        self._cloud = cloud
        self._life = life
        self._ways: list[Direct] = []
        self._threads = asyncio.Semaphore(sdk_client.THREADS)  # they are held as long as a call lasts

    def _log_in(self) -> sdk_client.OciIdentity:
        config = dict(self._cloud.config)
        if self._key is not None:
            config["user"] = self._key.user
        names = ("tenancy", "user", "fingerprint", "key_content", "region")
        return _identity(*(config[name] for name in names))

    def _new_client(self, kind: Callable[..., Any], identity: sdk_client.OciIdentity) -> Any:
        client = _client(kind, identity)
        self._ways.append(connect(client, self._cloud))
        return client

    async def _threaded(self, name: str, send: Callable[[], Any]) -> Any:
        async def answered() -> Any:
            async with self._threads:
                for way in self._ways:
                    way.waited_s = 0.0
                try:
                    return await super(NearCalls, self)._threaded(name, send)
                finally:
                    await asyncio.sleep(sum(way.waited_s for way in self._ways))

        return await self._life.through(name, answered)


@dataclass
class OciWorld(CloudWorld):
    near: NearOci = field(init=False)
    first: str = ""  # spec.providerID of the last Machine that was made, as it was then
    made_for: dict[str, str] = field(
        default_factory=dict
    )  # what the instance was launched for, when an operation ended

    def _write_down(self, kind: Kind[Any], old: dict[str, Any] | None, new: dict[str, Any]) -> None:
        super()._write_down(kind, old, new)
        if kind.kind == "MachineOperation" and (new.get("status") or {}).get("phase") in TERMINAL:
            found = self._instance(new["spec"]["machineRef"])
            self.made_for.setdefault(new["metadata"]["uid"], found.freeform_tags.get(TAG_UID, "") if found else "")

    def _instance(self, machine: str) -> OciInstance | None:
        return self.near.tenancy.instances.get(self.bound.get(machine, "").removeprefix("oci://"))

    def _power(self, machine: str) -> str:
        found = self._instance(machine)
        return found.state.value if found is not None else "None"

    async def oci_machine(self, name: str = "m1", **wanted: Any) -> OciInstance:
        """A Machine and the instance that it is."""
        instance = self.near.add_instance(name, **wanted)
        await asyncio.sleep(60)  # or records that lag behind would not show it yet
        labels = {"unbounded-cloud.io/site": SITE}
        self.first = provider_id(instance.id)
        spec = {"provider": "OCIInstance", "providerID": self.first}
        await self.api.create(MACHINES, {"metadata": {"name": name, "labels": labels}, "spec": spec})
        return instance

    async def login(self) -> None:
        auth = {"mode": "WorkloadIdentity"}
        spec = {"siteName": SITE, "provider": "OCIInstance", "auth": auth}
        await self.api.create(MACHINE_OPERATION_CREDENTIALS, {"metadata": {"name": "oci"}, "spec": spec})

    def controller(self, site: str = SITE, **described: Any) -> Process:
        def main(life: Incarnation, api: Any) -> Any:
            return self._live(life, api, self.provider(life, **described), site)

        return Process(self, "machine-ops-controller/lab/OCIInstance", main)

    def provider(self, life: Incarnation, **described: Any) -> OciProvider:
        return OciProvider(calls=lambda login: NearCalls(login, self.near, life), **described)

    @property
    def asked(self) -> list[str]:
        """The changes that reached the cloud, in the order in which they came; those that were lost too."""
        return [
            each.path.rpartition("action=")[2] if each.call == "InstanceAction" else each.call
            for each in self.near.journal
            if each.method != "GET"
        ]

    def judge(self) -> None:
        """At the end each Machine is one instance, there is no other, and nothing belongs to none."""
        alive = sorted(map(provider_id, self.near.machines()))
        assert alive == sorted(self.bound.values()), (alive, self.bound)
        assert self.near.strays() == []
        kept = [name for _, name in self.api._collection(SECRETS).versions if name.startswith("replacement-")]
        assert kept == []


async def wait(true: Callable[[], object]) -> None:
    while not true():  # noqa: ASYNC110  # time is virtual
        await asyncio.sleep(0.05)


def oci_story(profile: str = "ideal", *, judged: bool = True) -> Callable[[Tell], Callable[..., None]]:
    """A test from an `async def test(world, …)`, run in virtual time; parameters come from pytest.

    Args:
        judged: False where something is to be left behind.
    """

    @asynccontextmanager
    async def world() -> AsyncIterator[OciWorld]:
        world = OciWorld(random.Random(1))
        async with NearOci(profile=profile, times=TIMES) as world.near:
            await world.login()
            yield world
            if judged:
                world.judge()

    return told_in(world)
