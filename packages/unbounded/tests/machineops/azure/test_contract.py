"""AzureVM keeps the contract of a provider, on a simulated Azure."""

from __future__ import annotations

import base64
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import pytest

from tests.lab.cloud.azure_support import CheckedAzure
from tests.machineops.azure.world import LASTING_S, provider_for
from tests.metalman.support.swift_time import run_swiftly
from unbounded.machineops.provider import AuthMode, Login, Power, Provider, SecretStr
from unbounded.machineops.providers.azure import AzureVM
from unbounded.machineops.testing import ProviderContract, Trouble
from unbounded_lab.cloud.azure import VmShape
from unbounded_lab.cloud.azure.model import VirtualMachine
from unbounded_lab.cloud.azure.model import VmPower as Shown
from unbounded_lab.faults import FOR_EVER

T = TypeVar("T")

SHAPE = VmShape(data_disks=1, nics=2, nic_delete_option="Delete", extensions=("Acme.Agent",), system_identity=True)
POWER: Mapping[Shown | None, Power] = {
    Shown.RUNNING: Power.RUNNING,
    Shown.STOPPED: Power.STOPPED,
    Shown.DEALLOCATED: Power.RELEASED,
    None: Power.RELEASED,
}
FAULTS: Mapping[Trouble | None, Mapping[str, Any]] = {
    Trouble.THROTTLED: {"errors": ("TooManyRequests",), "errors_go_on": True},
    Trouble.LOST: {"lost_after": FOR_EVER, "of": "changes"},
    Trouble.DOWN: {"errors": ("InternalServerError",), "errors_go_on": True},
    Trouble.SLOW: {"slow_s": 1.0},
    Trouble.PAGES: {"page_size": 1},
    Trouble.FAILING: {"operation_errors": ("InternalExecutionError",)},
    None: {
        **{"errors": (), "errors_go_on": False, "lost_after": 0, "of": "any"},
        **{"slow_s": 0.0, "operation_errors": (), "page_size": 100},
    },
}


class AzureSubject:
    """The cloud is there while a test runs."""

    names = ("tenantID", "clientID")
    anew = None  # it runs by a clock of its own, which no other process has

    def __init__(self) -> None:
        self.cloud = CheckedAzure(subscriptions=2)
        self.running = False
        self.made = 0

    @property
    def provider(self) -> Provider:
        return provider_for(self.cloud) if self.running else AzureVM()

    @property
    def login(self) -> Login:
        return self._with(self.cloud.client_secret)

    @property
    def refused(self) -> Login:
        return self._with("an-old-one~which-was-taken-back")

    def _with(self, client_secret: str) -> Login:
        held = {"tenantID": self.cloud.tenant, "clientID": self.cloud.client_id, "clientSecret": client_secret}
        return Login("azure", AuthMode.EXTERNAL_PLUGIN, {key: SecretStr(value) for key, value in held.items()})

    @property
    def missing(self) -> str:
        return f"azure://{self.cloud.id_of('nobody')}"

    async def make(self) -> str:
        self.made += 1
        return f"azure://{self.cloud.add_machine(f'vm-{self.made}', SHAPE)}"

    async def make_namesake(self, provider_id: str) -> str:
        name, other = provider_id.rpartition("/")[2], self.cloud.subscriptions[1]
        return f"azure://{self.cloud.add_machine(name, SHAPE, subscription=other)}"

    async def instances(self) -> Mapping[str, Power]:
        return {name: POWER.get(machine.power, Power.CHANGING) for name, machine in self._machines().items()}

    async def boots(self, provider_id: str) -> int:
        events, machine = self.cloud.history.of("VirtualMachine"), self._machines()[provider_id]
        return sum((each.what, each.identity) == ("on", machine.vm_id) for each in events)

    async def user_data(self, provider_id: str) -> str | None:
        held = self._machines()[provider_id].custom_data
        return None if held is None else base64.b64decode(held).decode()

    def _machines(self) -> Mapping[str, VirtualMachine]:
        self.cloud.machines()  # what is due happens first
        return {f"azure://{machine.id}": machine for _, machine in self.cloud.estate.machines}

    async def set_trouble(self, trouble: Trouble | None) -> None:
        if trouble not in FAULTS:
            raise NotImplementedError(f"Azure is never {trouble}: its long calls tell")
        self.cloud.set_faults(**FAULTS[trouble])


@pytest.mark.slow
class TestAzureVM(ProviderContract):
    test_another_process_continues_a_requested_call = None  # type: ignore[assignment]  # none reaches the cloud
    # a VM is read by its name, and is in no list
    test_lagging_lists_are_not_taken_as_complete = None  # type: ignore[assignment]
    test_stale_lists_are_not_taken_as_current = None  # type: ignore[assignment]
    test_launch_of_unknown_outcome_is_done_once = None  # type: ignore[assignment]
    poll_s = 5.0

    @pytest.fixture
    def subject(self) -> AzureSubject:
        self.ours = AzureSubject()
        return self.ours

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        async def inside() -> T:
            async with self.ours.cloud as cloud:
                cloud.set_faults(token_lifetime_s=LASTING_S)
                self.ours.running = True
                found = await main
                self._nothing_stays(cloud)
                return found

        return run_swiftly(inside(), limit_s=86_400.0)

    def _nothing_stays(self, cloud: CheckedAzure) -> None:
        assert cloud.stray_disks() == []
        assert cloud.stray_nics() == []
        assert cloud.checked.mismatches == []
