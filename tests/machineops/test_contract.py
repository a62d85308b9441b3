"""The contract of providers, run against the simulated one; and against ones with faults, which it has to find."""

from __future__ import annotations

import random
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import pytest

from tests.machineops.cloud import VM, Cloud, SimProvider, SimSession
from tests.operations.faults import FAIR, Incarnation, Weather
from tests.support.virtual_time import run_virtual
from unbounded.machineops.provider import (
    Action,
    AuthMode,
    Budget,
    Instance,
    Job,
    Keep,
    Login,
    Power,
    Record,
    Refusal,
    Secret,
)
from unbounded.machineops.testing import ProviderContract, Subject

T = TypeVar("T")


@dataclass
class SimSubject:
    provider: SimProvider
    login: Login = field(
        default_factory=lambda: Login("sim", AuthMode.EXTERNAL_PLUGIN, {"token": Secret("open-sesame")})
    )
    missing: str = "sim://sub-1/nobody"
    made: int = 0

    async def make(self) -> str:
        self.made += 1
        provider_id = f"sim://sub-1/m{self.made}"
        self.provider.cloud.vms[provider_id] = VM(provider_id)
        return provider_id

    async def instances(self) -> Mapping[str, Power]:
        return {vm.id: vm.end for vm in self.provider.cloud.alive()}


def _subject(flow: str, kind: type[SimProvider] = SimProvider, weather: Weather = FAIR) -> SimSubject:
    return SimSubject(kind(Cloud(), Incarnation("one", random.Random(0), weather), flow))


class _InVirtualTime(ProviderContract):
    flow: ClassVar[str]

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        return run_virtual(main)

    @pytest.fixture
    def subject(self) -> Subject:
        return _subject(self.flow)


class TestBeside(_InVirtualTime):
    flow = "beside"


class TestAnew(_InVirtualTime):
    flow = "anew"


# Providers with faults


class _Sessions(SimProvider):
    """A provider of which one session method is wrong."""

    session: ClassVar[type[SimSession]]

    def connect(self, login: Login, budget: Budget) -> SimSession:
        return self.session(self.cloud, self.life, login, budget, self.flow)


def _with(session: type[SimSession]) -> type[SimProvider]:
    return type("Faulty", (_Sessions,), {"session": session})


class _Late(SimSession):
    """Does not look at the time that it is given."""

    async def ask(self, job: Job, action: Action, *, before: float) -> str | None:
        return await super().ask(job, action, before=before + 100)


class _Forgetful(SimSession):
    """Makes a new instance each time that it is asked to."""

    def _act(self, job: Job, step: str, old: str, user_data: str) -> None:
        if step == "Launching":
            self._make(f"sim://sub-1/new-{len(self.cloud.vms)}", job, user_data, replaces=old)
        else:
            super()._act(job, step, old, user_data)


class _Leaving(SimSession):
    """Remembers in the process what it has begun, and not in the cloud."""

    async def act_replace(self, job: Job, step: str, keep: Keep, user_data: str, *, before: float) -> None:
        self.begun = step
        await super().act_replace(replace(job, uid=f"{job.uid}-{id(self)}"), step, keep, user_data, before=before)

    async def look_replace(self, job: Job, keep: Keep) -> Any:
        return await super().look_replace(replace(job, uid=f"{job.uid}-{id(self)}"), keep)


class _Silent(SimSession):
    """Does not ask its budget."""

    async def look(self, instance: Instance) -> Record:
        power = self.cloud.shown(self._vm(instance))
        return Record(power, f"{instance.name} is {power}", "a record of its own")


class _Scattered(SimSession):
    """Takes each instance for an account."""

    async def look(self, instance: Instance) -> Record:
        return await super().look(replace(instance, scope=instance.id))


class _Unfair(SimSession):
    """Asks the budget of an account for looks, and of another one for changes."""

    async def ask(self, job: Job, action: Action, *, before: float) -> str | None:
        return await super().ask(replace(job, instance=replace(job.instance, scope="?")), action, before=before)


class _Chatty(SimProvider):
    """Connects at once, and says the secret when it cannot."""

    def connect(self, login: Login, budget: Budget) -> SimSession:
        if login.secret["token"].reveal() != "open-sesame":
            raise ValueError(f"token {login.secret['token'].reveal()} is wrong")
        return super().connect(login, budget)


@pytest.mark.parametrize(
    ("provider", "test"),
    [
        (_with(_Late), "test_what_comes_too_late_is_not_sent"),
        (_with(_Forgetful), "test_every_step_of_a_replacement_that_is_asked_for_twice_is_done_once"),
        (_with(_Leaving), "test_a_replacement_that_is_cut_off_anywhere_is_gone_on_with"),
        (_with(_Silent), "test_the_record_is_what_there_is"),
        (_with(_Scattered), "test_the_instances_of_one_account_count_for_one_scope"),
        (_with(_Unfair), "test_power_follows_what_is_asked_for_and_asking_twice_does_it_once"),
        (_Chatty, "test_connecting_sends_nothing_and_names_the_key_it_cannot_read"),
    ],
)
def test_the_contract_finds_each_fault(provider: type[SimProvider], test: str) -> None:
    subject = _subject("beside", provider)
    contract = TestBeside()
    with pytest.raises((AssertionError, Refusal, pytest.fail.Exception)):
        getattr(contract, test)(subject)
