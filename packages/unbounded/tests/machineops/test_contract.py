"""The contract of providers, run against the simulated one; and against ones with faults, which it has to find."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import pytest

from tests.machineops.cloud import VM, WITHDRAWN, Cloud, SimProvider, SimSession
from tests.operations.faults import FAIR, Incarnation, Weather
from tests.support.virtual_time import run_virtual
from unbounded.machineops import reasons
from unbounded.machineops.provider import (
    PUT_BACK,
    Action,
    AuthMode,
    Budget,
    Cancel,
    Instance,
    Job,
    Keep,
    Login,
    Next,
    Power,
    Progress,
    Record,
    Refusal,
    ReplaceStep,
    SecretStr,
    State,
    Throttled,
    Transient,
    Uncertain,
)
from unbounded.machineops.testing import ProviderContract, Subject, Trouble
from unbounded.machineops.testing import contract as contract_tests

T = TypeVar("T")


@dataclass
class SimSubject:
    provider: SimProvider
    login: Login = field(
        default_factory=lambda: Login("sim", AuthMode.EXTERNAL_PLUGIN, {"token": SecretStr("open-sesame")})
    )
    refused: Login = field(
        default_factory=lambda: Login("sim", AuthMode.EXTERNAL_PLUGIN, {"token": SecretStr(WITHDRAWN)})
    )
    missing: str = "sim://sub-1/nobody"
    made: int = 0
    anew: None = None  # the cloud is here

    async def make(self) -> str:
        self.made += 1
        provider_id = f"sim://sub-1/m{self.made}"
        self.provider.cloud.vms[provider_id] = VM(provider_id)
        return provider_id

    async def make_namesake(self, provider_id: str) -> str:
        other = provider_id.replace("sub-1", "sub-2")
        self.provider.cloud.vms[other] = VM(other)
        return other

    async def instances(self) -> Mapping[str, Power]:
        return {vm.id: vm.end for vm in self.provider.cloud.alive()}

    async def boots(self, provider_id: str) -> int:
        return self.provider.cloud.vms[provider_id].boots

    async def user_data(self, provider_id: str) -> str | None:
        return self.provider.cloud.vms[provider_id].user_data

    async def set_trouble(self, trouble: Trouble | None) -> None:
        cloud = self.provider.cloud
        if trouble is Trouble.IGNORED and cloud.long_calls and cloud.shows_restarts:
            raise NotImplementedError("its long calls tell")
        cloud.page_size = 1 if trouble is Trouble.PAGES else 100
        cloud.throttled = float(trouble is Trouble.THROTTLED)
        cloud.unanswered = trouble in (Trouble.LOST, Trouble.UNKNOWN)
        cloud.hides_since = cloud.now() if trouble in (Trouble.LAGGING, Trouble.UNKNOWN) else None
        cloud.stale_since = cloud.now() if trouble is Trouble.STALE else None
        cloud.lost_before = float(trouble is Trouble.DOWN)
        cloud.stalled = {"sub-1": 1.0} if trouble is Trouble.SLOW else {}
        cloud.failing = set(Action) if trouble is Trouble.FAILING else set()
        cloud.deaf = trouble is Trouble.IGNORED


def _subject(flow: str, kind: type[SimProvider] = SimProvider, weather: Weather = FAIR) -> SimSubject:
    return SimSubject(kind(Cloud(), Incarnation("one", random.Random(0), weather), flow))


class _InVirtualTime(ProviderContract):
    test_another_process_continues_a_requested_call = None  # type: ignore[assignment]  # none reaches the cloud
    flow: ClassVar[str]

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        return run_virtual(main)

    @pytest.fixture
    def subject(self) -> Subject:
        return _subject(self.flow)


class TestBeside(_InVirtualTime):
    flow = "beside"


class TestRestartsUnshown(_InVirtualTime):
    """A cloud that accepts restarts, and shows no more of them."""

    flow = "beside"

    @pytest.fixture
    def subject(self) -> Subject:
        subject = _subject(self.flow)
        subject.provider.cloud.shows_restarts = False
        return subject


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
    """Ignores its time limit."""

    async def ask(self, job: Job, action: Action, *, before: float) -> str | None:
        return await super().ask(job, action, before=before + 100)


class _Forgetful(SimSession):
    """Makes a new instance at each request."""

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
    """Does not acquire its budget."""

    async def look(self, instance: Instance) -> Record:
        power = self.cloud.shown(self._vm(instance))
        return Record(power, f"{instance.name} is {power}", "a record of its own")


class _Scattered(SimSession):
    """Takes each instance for an account."""

    async def look(self, instance: Instance) -> Record:
        return await super().look(replace(instance, scope=instance.id))


class _Unfair(SimSession):
    """Acquires the budget of one account for observations, and of another one for changes."""

    async def ask(self, job: Job, action: Action, *, before: float) -> str | None:
        return await super().ask(replace(job, instance=replace(job.instance, scope="?")), action, before=before)


class _Idle(SimSession):
    """Reports a restart without one."""

    async def ask(self, job: Job, action: Action, *, before: float) -> str | None:
        done = Action.POWER_ON if action is Action.RESTART else action
        return await super().ask(job, done, before=before)


class _Twice(_Forgetful):
    """Sends again by itself what got no answer."""

    async def ask(self, job: Job, action: Action, *, before: float) -> str | None:
        try:
            return await super().ask(job, action, before=before)
        except Uncertain:
            return await super().ask(job, action, before=before)

    async def act_replace(self, job: Job, step: str, keep: Keep, user_data: str, *, before: float) -> None:
        try:
            await super().act_replace(job, step, keep, user_data, before=before)
        except Uncertain:
            await super().act_replace(job, step, keep, user_data, before=before)


class _Sure(SimSession):
    """Takes what got no answer for what was not done."""

    async def ask(self, job: Job, action: Action, *, before: float) -> str | None:
        try:
            return await super().ask(job, action, before=before)
        except Uncertain as error:
            raise Transient(str(error)) from error

    async def act_replace(self, job: Job, step: str, keep: Keep, user_data: str, *, before: float) -> None:
        try:
            await super().act_replace(job, step, keep, user_data, before=before)
        except Uncertain as error:
            raise Transient(str(error)) from error


class _Vague(SimSession):
    """Does not report that it was throttled."""

    async def look(self, instance: Instance) -> Record:
        try:
            return await super().look(instance)
        except Throttled as error:
            raise Transient(str(error)) from error


class _Deleting(SimSession):
    """Releases an instance by ending it."""

    async def ask(self, job: Job, action: Action, *, before: float) -> str | None:
        handle = await super().ask(job, action, before=before)
        if action is Action.DEALLOCATE:
            self._end(self._vm(job.instance))
        return handle


class _Mute(SimSession):
    """Makes the new host without its user data."""

    def _make(self, name: str, job: Job, user_data: str, *, replaces: str) -> None:
        super()._make(name, job, "", replaces=replaces)


class _LateSteps(SimSession):
    """Ignores the time limit of a step."""

    async def act_replace(self, job: Job, step: str, keep: Keep, user_data: str, *, before: float) -> None:
        await super().act_replace(job, step, keep, user_data, before=before + 100)


class _Free(SimSession):
    """Respects the time limit, and does not acquire its budget for changes."""

    async def _write(self, what: str, job: Job, effect: Callable[[], T], before: float) -> T:
        if self.cloud.now() > before:
            raise Transient("too late")
        return await self.cloud.call(what, job, job.instance.scope, effect, changes=True)


class _Anyhow(SimSession):
    """Begins to replace what is not there."""

    def _missing(self, old: str) -> Next:
        return Next("Saving", f"{old} is there", "a record of its own")


class _KeepsLate(SimSession):
    """Knows what it made by what it keeps after that alone."""

    async def look_replace(self, job: Job, keep: Keep) -> Next:
        found = await super().look_replace(job, keep)
        if found.step in ("Launching", "HandingOver") and b"new" not in (await keep.load() or b""):
            return replace(found, step="Launching", under_way=False, new_instance=None)
        return found

    async def act_replace(self, job: Job, step: str, keep: Keep, user_data: str, *, before: float) -> None:
        kept = json.loads(await keep.load() or b"{}")
        if step != "Launching":
            await super().act_replace(job, step, keep, user_data, before=before)
        elif "new" not in kept:
            name = f"sim://sub-1/new-{len(self.cloud.vms)}"
            await self._write(step, job, lambda: self._make(name, job, user_data, replaces=kept["old"]), before)
            await keep.store(json.dumps({**kept, "new": name}).encode())


class _Sweeping(SimSession):
    """Ends whatever is off in the account, as it takes that for what it replaces."""

    def _act(self, job: Job, step: str, old: str, user_data: str) -> None:
        super()._act(job, step, old, user_data)
        if step == "TerminatingOld":
            for vm in self.cloud.alive():
                if vm.made_for != job.uid:
                    self._end(vm)


class _Broad(SimSession):
    """Switches off whatever the account has."""

    async def ask(self, job: Job, action: Action, *, before: float) -> str | None:
        if action is Action.POWER_OFF:
            for vm in self.cloud.alive():
                self.cloud.ask(vm, action)
        return await super().ask(job, action, before=before)


class _Hopeful(SimSession):
    """Takes any error of an observation for a missing instance."""

    async def look(self, instance: Instance) -> Record:
        try:
            return await super().look(instance)
        except Throttled:
            raise
        except (Transient, Refusal):
            return Record(Power.GONE, f"{instance.name} is gone", "a record of its own")


class _Content(SimSession):
    """Takes each long call that has ended for one that did what it was to do."""

    async def follow(self, job: Job, handle: str) -> Progress:
        progress = await super().follow(job, handle)
        return progress if progress.state is State.RUNNING else replace(progress, state=State.DONE)


class _Believing(SimSession):
    """Takes each restart that was accepted for one that was done."""

    async def follow(self, job: Job, handle: str) -> Progress:
        await super().follow(job, handle)
        return Progress(State.DONE, "the restart was accepted", "a record of its own")


class _Tokenless(SimSession):
    """Searches for its instance, and makes it if it is not shown, without an idempotency key."""

    async def act_replace(self, job: Job, step: str, keep: Keep, user_data: str, *, before: float) -> float | None:
        if step != "Launching":
            return await super().act_replace(job, step, keep, user_data, before=before)
        old = json.loads(await keep.load() or b"{}")["old"]
        if await self._read("list", job.instance, lambda: self.cloud.listed(job.uid), job) is None:
            await self._write(step, job, lambda: self._make_another(job, user_data, old), before)
        return None

    def _make_another(self, job: Job, user_data: str, old: str) -> None:
        self._make(f"sim://sub-1/new-{len(self.cloud.vms)}", job, user_data, replaces=old)


class _Impatient(SimSession):
    """Takes an old instance that is still listed for one that cannot be ended."""

    async def look_replace(self, job: Job, keep: Keep) -> Next:
        found = await super().look_replace(job, keep)
        if found.step == "TerminatingOld" and not found.under_way and job.uid in vars(self).get("ended", ()):
            raise Refusal(reasons.PROVIDER_REFUSED, "it does not end")
        return found

    async def act_replace(self, job: Job, step: str, keep: Keep, user_data: str, *, before: float) -> float | None:
        if step == "TerminatingOld":
            vars(self).setdefault("ended", set()).add(job.uid)
        return await super().act_replace(job, step, keep, user_data, before=before)


class _Blocking(SimSession):
    """Blocks the event loop during calls."""

    async def look(self, instance: Instance) -> Record:
        time.sleep(0.3 * self.cloud.stalled.get(instance.scope, 0.0))  # noqa: ASYNC251  # the fault
        return await super().look(instance)


class _BlockingSteps(SimSession):
    """Blocks the event loop during observations of a replacement."""

    async def look_replace(self, job: Job, keep: Keep) -> Next:
        time.sleep(0.3 * self.cloud.stalled.get(job.instance.scope, 0.0))  # noqa: ASYNC251  # the fault
        return await super().look_replace(job, keep)


class _Meddling(SimSession):
    """Carries out the next step as part of an observation."""

    async def look_replace(self, job: Job, keep: Keep) -> Next:
        found = await super().look_replace(job, keep)
        if found.step == "StoppingOld" and not found.under_way:
            await self.act_replace(job, found.step, keep, "", before=self.cloud.now() + 10)
        return found


class _OneAtATime(SimSession):
    """Remembers requests in the session."""

    async def ask(self, job: Job, action: Action, *, before: float) -> str | None:
        self.job = job
        await self.look(job.instance)
        return await super().ask(self.job, action, before=before)


class _OneReplacementAtATime(SimSession):
    """Remembers the user data of a replacement in the session."""

    async def act_replace(self, job: Job, step: str, keep: Keep, user_data: str, *, before: float) -> None:
        self.user_data = user_data
        await asyncio.sleep(2)
        await super().act_replace(job, step, keep, self.user_data, before=before)


class _Stubborn(SimSession):
    """Continues after its cancellation."""

    async def look(self, instance: Instance) -> Record:
        try:
            return await super().look(instance)
        except asyncio.CancelledError:
            return Record(Power.RUNNING, f"{instance.name} is there", "a record of its own")


class _LeakingUserData(SimSession):
    """Puts the new host's secrets into a message."""

    async def look_replace(self, job: Job, keep: Keep) -> Next:
        found, mine = await super().look_replace(job, keep), self.cloud.of(job.uid)
        return replace(found, detail=f"{found.detail}, made with {mine.user_data if mine else 'nothing'}")


class _LeakingLogin(SimSession):
    """Puts its login into a message."""

    async def look_replace(self, job: Job, keep: Keep) -> Next:
        found = await super().look_replace(job, keep)
        return replace(found, where=f"{found.where}?token={self.login.secret['token'].reveal()}")


class _Lasting(SimProvider):
    """Continues to use the login of the first session."""

    def connect(self, login: Login, budget: Budget) -> SimSession:
        return super().connect(self.sessions[0].login if self.sessions else login, budget)


class _Careless(SimProvider):
    """Declares that all its steps can be cancelled."""

    @property
    def replacement(self) -> tuple[ReplaceStep, ...]:
        return tuple(replace(step, cancel=Cancel.AT_ONCE) for step in super().replacement)


class _Hasty(SimProvider):
    """Gives its steps less time than a single call of them may take."""

    @property
    def replacement(self) -> tuple[ReplaceStep, ...]:
        return tuple(replace(step, limit_s=0.001) for step in super().replacement)


class _Chatty(SimProvider):
    """Connects at once, and puts the secret into its error."""

    def connect(self, login: Login, budget: Budget) -> SimSession:
        if login.secret["token"].reveal() != "open-sesame":
            raise ValueError(f"token {login.secret['token'].reveal()} is wrong")
        return super().connect(login, budget)


class _Boasting(_Sessions):
    """Declares that it restarts once, and sends no key."""

    session = SimSession

    def __init__(self, cloud: Cloud, life: Incarnation, flow: str) -> None:
        super().__init__(cloud, life, flow, restarts_once=True)


class _Cached(SimSession):
    """Observes once."""

    async def look(self, instance: Instance) -> Record:
        seen: dict[str, Record] = vars(self).setdefault("seen", {})
        if instance.id not in seen:
            seen[instance.id] = await super().look(instance)
        return seen[instance.id]


class _ByName(SimSession):
    """Takes what has the name for the instance, in whatever account."""

    def _vm(self, instance: Instance) -> VM:
        return next(
            (vm for vm in self.cloud.vms.values() if vm.id.endswith(f"/{instance.name}")), super()._vm(instance)
        )


class _Raw(SimSession):
    """Passes the cloud's words on unchanged."""

    async def look(self, instance: Instance) -> Record:
        found = await super().look(instance)
        return replace(found, detail=f"<html>\n<body>\n{found.detail}")


class _Babbling(SimSession):
    """Puts its whole request, with its login, into an error."""

    async def look(self, instance: Instance) -> Record:
        try:
            return await super().look(instance)
        except Throttled:
            raise
        except Transient as error:
            raise Transient(f"GET /{instance.id}?token={self.login.secret['token'].reveal()}: {error}") from error


class _Absolute(SimSession):
    """Takes the cloud's time of the next poll for a duration."""

    async def look(self, instance: Instance) -> Record:
        try:
            return await super().look(instance)
        except Throttled as error:
            raise Throttled(str(error), time.time() + error.after_s) from error


class _Elsewhen(SimSession):
    """Takes the time of its next observation for one of another zone."""

    async def follow(self, job: Job, handle: str) -> Progress:
        return replace(await super().follow(job, handle), again_s=5.0 - 7200.0)


class _Short(SimSession):
    """Makes the new host with as much of its user data as an older API took."""

    def _make(self, name: str, job: Job, user_data: str, *, replaces: str) -> None:
        super()._make(name, job, user_data[:500], replaces=replaces)


class _Ascii(SimSession):
    """Makes the new host with what it can write of its user data."""

    def _make(self, name: str, job: Job, user_data: str, *, replaces: str) -> None:
        super()._make(name, job, user_data.encode("ascii", "replace").decode(), replaces=replaces)


class _ByContent(SimSession):
    """Knows what it made by the user data of that."""

    def _act(self, job: Job, step: str, old: str, user_data: str) -> None:
        if step != "Launching":
            super()._act(job, step, old, user_data)
        elif not any(vm.user_data == user_data for vm in self.cloud.vms.values()):
            self._make(f"sim://sub-1/new-{len(self.cloud.vms)}", job, user_data, replaces=old)


class _Busy(SimSession):
    """Refuses for good what is possible a moment later."""

    async def ask(self, job: Job, action: Action, *, before: float) -> str | None:
        if self.cloud.shown(self._vm(job.instance)) is Power.CHANGING:
            raise Refusal("ProviderRefused", "409 Conflict")
        return await super().ask(job, action, before=before)


class _Unseen(SimSession):
    """Has no long calls, and a record that shows a request as done at once."""

    async def look(self, instance: Instance) -> Record:
        found = await super().look(instance)
        return replace(found, power=Power.RUNNING) if found.power is Power.CHANGING else found

    async def ask(self, job: Job, action: Action, *, before: float) -> str | None:
        await super().ask(job, action, before=before)
        return None


class _Nameless(SimSession):
    """Does not name what it has made."""

    async def look_replace(self, job: Job, keep: Keep) -> Next:
        return replace(await super().look_replace(job, keep), detail="the replacement goes on")


class _Remembering(SimSession):
    """Reads its stored state, and not the cloud."""

    async def look_replace(self, job: Job, keep: Keep) -> Next:
        found = self._beside(job, json.loads(kept)["old"], is_kept=True) if (kept := await keep.load()) else None
        return found or await super().look_replace(job, keep)


class _OncePerInstance(_Boasting):
    """Sends a key with a restart that is the same for the next one."""

    class session(SimSession):  # noqa: N801  # as the attribute is called
        restarts_once = True

        async def ask(self, job: Job, action: Action, *, before: float) -> str | None:
            return await super().ask(replace(job, uid=job.instance.id), action, before=before)


class _Loose(SimProvider):
    """Takes an id in whatever case for what it names, and for another one in each."""

    def instance(self, provider_id: str) -> Instance:
        return replace(super().instance(provider_id), id=provider_id)

    def connect(self, login: Login, budget: Budget) -> SimSession:
        found = super().connect(login, budget)
        found._vm = lambda instance: SimSession._vm(found, replace(instance, id=instance.id.lower()))  # type: ignore[method-assign]
        return found


class _GivingUp(SimSession):
    """Takes a cloud that is down for a permanent refusal."""

    async def act_replace(self, job: Job, step: str, keep: Keep, user_data: str, *, before: float) -> float | None:
        try:
            return await super().act_replace(job, step, keep, user_data, before=before)
        except Uncertain as error:
            raise Refusal("ProviderRefused", str(error)) from error


class _FirstPage(SimSession):
    """Searches only the first page for what it made."""

    def _beside(self, job: Job, old: str, *, is_kept: bool) -> Next:
        page = self.cloud.alive()[: self.cloud.page_size]
        is_shown = any(vm.made_for == job.uid for vm in page)
        return super()._beside(job if is_shown else replace(job, uid="nobody's"), old, is_kept=is_kept)


class _Locked(SimSession):
    """Holds a lock that it never releases after a cancellation."""

    async def look(self, instance: Instance) -> Record:
        lock: asyncio.Lock = vars(self).setdefault("lock", asyncio.Lock())
        await lock.acquire()
        found = await super().look(instance)
        lock.release()
        return found


class _Sulking(SimSession):
    """Takes an account that was throttled for one that is for ever."""

    async def look(self, instance: Instance) -> Record:
        try:
            if trouble := vars(self).get("trouble"):
                raise trouble
            return await super().look(instance)
        except Throttled as error:
            self.trouble = error
            raise


class _Holding(SimSession):
    """Keeps its connection when it is closed."""

    async def look(self, instance: Instance) -> Record:
        if not hasattr(self, "connection"):
            self.connection = socket.socketpair()
        return await super().look(instance)


class _Dropping(_Holding):
    """Forgets its connection when it is closed."""

    async def close(self) -> None:
        await super().close()
        del self.connection


class _Renewing(SimSession):
    """Continues to renew its login after its close."""

    async def look(self, instance: Instance) -> Record:
        self.renewing = asyncio.create_task(asyncio.sleep(3600))
        return await super().look(instance)


class _Threading(SimSession):
    """Has a thread of its own, which continues after its close."""

    async def look(self, instance: Instance) -> Record:
        if not hasattr(self, "threads"):
            self.threads = ThreadPoolExecutor(1)
        self.threads.submit(int).result()
        return await super().look(instance)


class _Heedless(SimSession):
    """Launches another one beside what an earlier replacement has left."""

    def _check_earlier(self, job: Job, old: str) -> None:
        return


class _LookingAhead(SimSession):
    """Searches for the instance launched in place of another, and not for the one that it replaced."""

    def _earlier(self, job: Job, old: str) -> list[VM]:
        return [vm for vm in super()._earlier(job, old) if vm.replaces == old]


class _Curt(SimSession):
    """Does not name what an earlier replacement has left."""

    def _check_earlier(self, job: Job, old: str) -> None:
        if self._earlier(job, old):
            raise Refusal("ProviderRefused", "an earlier replacement has left something")


class _LateChecks(_Heedless):
    """Searches for what an earlier replacement has left only when the old instance is off."""

    def _act(self, job: Job, step: str, old: str, user_data: str) -> None:
        if step == "Launching":
            SimSession._check_earlier(self, job, old)
        super()._act(job, step, old, user_data)


class _Unforgiving(SimSession):
    """Is refused for what an earlier replacement has made, though that is gone."""

    def _earlier(self, job: Job, old: str) -> list[VM]:
        return [vm for vm in self.cloud.made if vm.made_for != job.uid and vm.replaces == old]


class _Removing(_Heedless):
    """Ends what an earlier replacement has left, in the end."""

    def _act(self, job: Job, step: str, old: str, user_data: str) -> None:
        super()._act(job, step, old, user_data)
        if step == "TerminatingOld":
            for vm in self._earlier(job, old):
                self._end(vm)


class _PuttingBack(_Sessions):
    """Launches an instance that is off at first; if that was all, a rollback ends it and starts the old one again."""

    class session(SimSession):  # noqa: N801  # as the attribute is called
        async def look_replace(self, job: Job, keep: Keep) -> Next:
            found, mine = await super().look_replace(job, keep), self.cloud.of(job.uid)
            if mine is not None and self.cloud.shown(mine) is Power.STOPPED:
                return replace(found, step="Launching")
            is_old_on = found.step == "StoppingOld" and not found.under_way
            return replace(found, is_as_it_was=mine is None and (is_old_on or found.step == "Saving"))

        def _act(self, job: Job, step: str, old: str, user_data: str) -> None:
            mine = self.cloud.of(job.uid)
            if step == PUT_BACK:
                if mine is not None:
                    self._end(mine)
                self.cloud.ask(self.cloud.vms[old], Action.POWER_ON)
            elif step == "Launching" and mine is not None:
                self.cloud.ask(mine, Action.POWER_ON)
            else:
                super()._act(job, step, old, user_data)

        def _make(self, name: str, job: Job, user_data: str, *, replaces: str) -> None:
            super()._make(name, job, user_data, replaces=replaces)
            self.cloud.vms[name].becomes(Power.STOPPED, self.cloud.now())

    @property
    def replacement(self) -> tuple[ReplaceStep, ...]:
        saving, stopping, launching, *rest = super().replacement
        return (
            replace(saving, cancel=Cancel.AT_ONCE),
            replace(stopping, cancel=Cancel.AT_ONCE, undo=True),
            replace(launching, undo=True),
            *rest,
        )


class _PuttingBackUnforgiving(_PuttingBack):
    class session(_Unforgiving, _PuttingBack.session):  # noqa: N801  # as the attribute is called
        pass


NOT_BESIDE_IT = "test_next_replacement_launches_no_second_instance_beside_a_failed_one"


@pytest.mark.slow
@pytest.mark.parametrize("provider", [_with(_Removing), _PuttingBack])
def test_contract_accepts_each_way_to_clean_up_a_replacement(provider: type[SimProvider]) -> None:
    subject = _subject("beside", provider)
    contract = TestBeside()
    contract.test_provider_properties_are_consistent(subject)
    contract.test_a_replacement_ends_with_one_instance_that_can_join(subject)
    getattr(contract, NOT_BESIDE_IT)(subject)


@pytest.mark.parametrize(
    ("provider", "test"),
    [
        (_with(_Heedless), NOT_BESIDE_IT),
        (_with(_LookingAhead), NOT_BESIDE_IT),
        (_with(_Curt), NOT_BESIDE_IT),
        (_with(_LateChecks), NOT_BESIDE_IT),
        (_PuttingBackUnforgiving, NOT_BESIDE_IT),
        (_with(_Cached), "test_power_follows_a_request_and_a_repeated_one_acts_once"),
        (_with(_ByName), "test_same_name_in_another_account_is_another_instance"),
        (_with(_Raw), "test_power_follows_a_request_and_a_repeated_one_acts_once"),
        (_with(_Babbling), "test_unavailable_cloud_gives_no_record"),
        (_with(_Absolute), "test_throttled_account_raises_throttled_and_changes_nothing"),
        (_with(_Elsewhen), "test_power_follows_a_request_and_a_repeated_one_acts_once"),
        (_with(_Short), "test_a_replacement_ends_with_one_instance_that_can_join"),
        (_with(_Ascii), "test_a_replacement_ends_with_one_instance_that_can_join"),
        (_with(_ByContent), "test_repeated_replacement_steps_act_once"),
        (_with(_Busy), "test_request_during_another_change_is_transient"),
        (_with(_Unseen), "test_record_shows_a_restart_without_a_long_call"),
        (_with(_Nameless), "test_a_replacement_ends_with_one_instance_that_can_join"),
        (_with(_Remembering), "test_a_replacement_ends_with_one_instance_that_can_join"),
        (_OncePerInstance, "test_each_operation_restarts_the_instance_once"),
        (_Loose, "test_spellings_of_an_instance_have_one_id"),
        (_with(_GivingUp), "test_replacement_continues_after_an_outage_of_the_cloud"),
        (_with(_FirstPage), "test_paged_list_is_read_to_its_end"),
        (_with(_Locked), "test_cancelled_call_ends"),
        (_with(_Sulking), "test_throttled_account_raises_throttled_and_changes_nothing"),
        (_with(_Holding), "test_closed_session_leaves_no_connection_open"),
        (_with(_Dropping), "test_closed_session_leaves_no_connection_open"),
        (_with(_Renewing), "test_closed_session_leaves_no_connection_open"),
        (_with(_Threading), "test_closed_session_leaves_no_connection_open"),
        (_with(_Late), "test_late_request_is_not_sent"),
        (
            _with(_Tokenless),
            "test_late_request_of_a_former_process_makes_no_second_instance",
        ),
        (_with(_Impatient), "test_stale_lists_are_not_taken_as_current"),
        (_with(_Tokenless), "test_lagging_lists_are_not_taken_as_complete"),
        (_with(_Tokenless), "test_launch_of_unknown_outcome_is_done_once"),
        (_with(_Forgetful), "test_repeated_replacement_steps_act_once"),
        (_with(_Leaving), "test_interrupted_replacement_resumes_at_any_step"),
        (_with(_Silent), "test_record_shows_the_state_of_the_instance"),
        (_with(_Scattered), "test_instances_of_one_account_share_a_scope"),
        (_with(_Unfair), "test_power_follows_a_request_and_a_repeated_one_acts_once"),
        (_with(_Idle), "test_each_operation_restarts_the_instance_once"),
        (_with(_Twice), "test_restart_with_a_lost_answer_is_uncertain_and_done_once"),
        (_with(_Sure), "test_restart_with_a_lost_answer_is_uncertain_and_done_once"),
        (_Boasting, "test_restart_with_a_lost_answer_is_uncertain_and_done_once"),
        (_with(_Sure), "test_replacement_with_lost_answers_is_uncertain_and_done_once"),
        (_with(_Twice), "test_replacement_with_lost_answers_is_uncertain_and_done_once"),
        (_with(_Vague), "test_throttled_account_raises_throttled_and_changes_nothing"),
        (_with(_Deleting), "test_power_follows_a_request_and_a_repeated_one_acts_once"),
        (_with(_Mute), "test_a_replacement_ends_with_one_instance_that_can_join"),
        (_with(_LateSteps), "test_late_replacement_step_is_not_sent"),
        (_with(_LateSteps), "test_a_replacement_ends_with_one_instance_that_can_join"),
        (_with(_Free), "test_a_replacement_ends_with_one_instance_that_can_join"),
        (_with(_Free), "test_each_operation_restarts_the_instance_once"),
        (_with(_KeepsLate), "test_interrupted_replacement_resumes_at_any_step"),
        (_with(_Anyhow), "test_missing_instance_is_rejected"),
        (_with(_Sweeping), "test_a_replacement_ends_with_one_instance_that_can_join"),
        (_with(_Broad), "test_power_follows_a_request_and_a_repeated_one_acts_once"),
        (_with(_Hopeful), "test_unavailable_cloud_gives_no_record"),
        (_with(_Hopeful), "test_rejected_login_is_reported_despite_an_earlier_one"),
        (_with(_Content), "test_failed_long_call_is_followed_to_its_failure"),
        (_with(_Content), "test_failed_restart_is_not_reported_as_done"),
        (_with(_Believing), "test_failed_restart_is_not_reported_as_done"),
        (_with(_Blocking), "test_other_sessions_continue_while_a_cloud_is_slow"),
        (_with(_BlockingSteps), "test_other_sessions_continue_while_a_cloud_is_slow"),
        (_with(_Meddling), "test_a_replacement_ends_with_one_instance_that_can_join"),
        (_with(_OneAtATime), "test_operations_of_one_session_act_on_their_own_instances"),
        (_with(_OneReplacementAtATime), "test_operations_of_one_session_act_on_their_own_instances"),
        (_with(_Stubborn), "test_cancelled_call_ends"),
        (_with(_LeakingUserData), "test_a_replacement_ends_with_one_instance_that_can_join"),
        (_with(_LeakingLogin), "test_a_replacement_ends_with_one_instance_that_can_join"),
        (_Lasting, "test_rejected_login_is_reported_despite_an_earlier_one"),
        (_Careless, "test_provider_properties_are_consistent"),
        (_Careless, "test_cancelled_replacement_restores_the_former_state"),
        (_Hasty, "test_provider_properties_are_consistent"),
        (_Chatty, "test_connect_sends_nothing_and_names_an_invalid_key"),
    ],
)
def test_the_contract_finds_each_fault(provider: type[SimProvider], test: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract_tests, "CLOSES_IN_S", 0.02)
    subject = _subject("beside", provider)
    contract = TestBeside()
    with pytest.raises((AssertionError, Refusal, Transient, pytest.fail.Exception)):
        getattr(contract, test)(subject)
