"""OCIInstance keeps the contract of a provider, on a simulated Oracle cloud."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import pytest

from tests.machineops.oci.world import TIMES, NearCalls, NearOci
from tests.operations.faults import FAIR, Incarnation
from tests.support.virtual_time import run_virtual
from unbounded.machineops.provider import AuthMode, Login, Power, Provider, SecretStr
from unbounded.machineops.providers.oci import PROVIDER
from unbounded.machineops.providers.oci.instances import provider_id
from unbounded.machineops.providers.oci.provider import OciProvider
from unbounded.machineops.testing import ProviderContract, Trouble
from unbounded_lab.cloud.oci import InstanceState
from unbounded_lab.cloud.oci.misbehaviours import MOST_ON_A_PAGE
from unbounded_lab.faults import FOR_EVER

T = TypeVar("T")

POWER: Mapping[InstanceState, Power] = {InstanceState.RUNNING: Power.RUNNING, InstanceState.STOPPED: Power.STOPPED}
LAG_S = 20.0
FAULTS: Mapping[Trouble | None, Mapping[str, Any]] = {
    Trouble.THROTTLED: {"errors": ("TooManyRequests",), "errors_go_on": True},
    Trouble.LOST: {"lost_after": FOR_EVER, "of": "changes"},
    Trouble.DOWN: {"errors": ("InternalServerError",), "errors_go_on": True},
    Trouble.SLOW: {"slow_s": 1.0},
    Trouble.FAILING: {"failing_starts": FOR_EVER},
    Trouble.IGNORED: {"deaf_actions": FOR_EVER},
    Trouble.PAGES: {"page_size": 1},
    Trouble.LAGGING: {"list_lag_s": LAG_S},
    Trouble.STALE: {"list_lag_s": LAG_S},  # each list is as it was, with what is new and what has ended
    Trouble.UNKNOWN: {"list_lag_s": LAG_S, "lost_after": FOR_EVER, "of": "changes"},
    None: {
        **{"errors": (), "errors_go_on": False, "lost_after": 0, "of": "any", "slow_s": 0.0},
        **{"failing_starts": 0, "deaf_actions": 0, "list_lag_s": 0.0, "page_size": MOST_ON_A_PAGE},
    },
}


class OciSubject:
    """The cloud is there while a test runs."""

    anew = None  # its calls use no socket

    def __init__(self) -> None:
        self.cloud = NearOci(profile="actions-have-work-requests", times=TIMES)  # or there is nothing to follow
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
        return Login("oci", AuthMode.EXTERNAL_PLUGIN, {name: SecretStr(value) for name, value in held.items()})

    @property
    def refused(self) -> Login:
        login = self.login
        return replace(login, secret={**login.secret, "userOCID": SecretStr("ocid1.user.oc1..stranger")})

    @property
    def missing(self) -> str:
        return "oci://ocid1.instance.oc1.phx.nobody"

    async def make(self) -> str:
        self.made += 1
        return provider_id(self.cloud.add_instance(f"worker-{self.made}").id)

    async def instances(self) -> Mapping[str, Power]:
        found = self.cloud.machines().values()
        return {provider_id(each.id): POWER.get(each.state, Power.CHANGING) for each in found}

    async def boots(self, provider_id: str) -> int:
        ocid = provider_id.removeprefix("oci://")
        events = self.cloud.history.of("Instance")
        return sum(
            each.detail == InstanceState.RUNNING for each in events if (each.identity, each.what) == (ocid, "state")
        )

    async def user_data(self, provider_id: str) -> str | None:
        held = self.cloud.machines()[provider_id.removeprefix("oci://")].metadata.get("user_data")
        return None if held is None else base64.b64decode(held).decode()

    async def set_trouble(self, trouble: Trouble | None) -> None:
        if "list_lag_s" in FAULTS[trouble]:
            await asyncio.sleep(LAG_S + 1)  # what there is by now is shown
        self.cloud.set_faults(**FAULTS[trouble])


@pytest.mark.slow
class TestOCIInstance(ProviderContract):
    test_another_process_continues_a_requested_call = None  # type: ignore[assignment]  # none reaches the cloud
    test_same_name_in_another_account_is_another_instance = None  # type: ignore[assignment]  # OCIDs are unique
    within_s = 600.0
    poll_s = 10.0
    cuts: ClassVar[int | None] = 12  # at each call it takes half a minute: the soak does that

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


@pytest.mark.soak
class TestCutOffAtEachCall(TestOCIInstance):
    cuts = None
