"""OCIInstance keeps the contract of a provider, on a simulated Oracle cloud."""

from __future__ import annotations

import random
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import pytest

from tests.machineops.oci.world import TIMES, NearCalls, NearOci
from tests.operations.faults import FAIR, Incarnation
from tests.support.virtual_time import run_virtual
from unbounded.lab.cloud.oci import State
from unbounded.machineops.provider import AuthMode, Login, Power, Provider, Secret
from unbounded.machineops.providers.oci import PROVIDER
from unbounded.machineops.providers.oci.ids import provider_id
from unbounded.machineops.providers.oci.provider import OciProvider
from unbounded.machineops.testing import ProviderContract

T = TypeVar("T")

POWER: Mapping[State, Power] = {State.RUNNING: Power.RUNNING, State.STOPPED: Power.STOPPED}


class OciSubject:
    """The cloud is there while a test runs."""

    def __init__(self) -> None:
        self.cloud = NearOci(times=TIMES)
        self.running = False
        self.made = 0

    @property
    def provider(self) -> Provider:
        if not self.running:
            return PROVIDER
        life = Incarnation("contract", random.Random(1), FAIR)
        return OciProvider(calls=lambda login: NearCalls(login, self.cloud, life))

    @property
    def login(self) -> Login:
        if not self.running:
            return Login("oci", AuthMode.WORKLOAD_IDENTITY)
        held = {**self.cloud.secret_data, "privateKey": self.cloud.config["key_content"]}
        del held["privateKeyPassphrase"]  # unlocking a key takes long, and here are many sessions
        return Login("oci", AuthMode.EXTERNAL_PLUGIN, {name: Secret(value) for name, value in held.items()})

    @property
    def missing(self) -> str:
        return "oci://ocid1.instance.oc1.phx.nobody"

    async def make(self) -> str:
        self.made += 1
        return provider_id(self.cloud.add_instance(f"worker-{self.made}").id)

    async def instances(self) -> Mapping[str, Power]:
        found = self.cloud.machines().values()
        return {provider_id(each.id): POWER.get(each.state, Power.CHANGING) for each in found}


@pytest.mark.slow
class TestOCIInstance(ProviderContract):
    within_s = 600.0
    poll_s = 10.0
    cuts = 12

    @pytest.fixture
    def subject(self) -> OciSubject:
        self.ours = OciSubject()
        return self.ours

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        async def inside() -> T:
            async with self.ours.cloud as cloud:
                self.ours.running = True
                found = await main
                assert cloud.strays() == []
                return found

        return run_virtual(inside())
