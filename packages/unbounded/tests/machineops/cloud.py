"""A simulated cloud with a truth of its own, and a provider for it: long calls, records that lag behind, lost answers.

Both ways to replace an instance are there: beside the old one, which ends with a hand-over, and under the same name,
between which the Machine has none.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from tests.operations.faults import Incarnation
from tests.operations.simulated import Violation
from unbounded.machineops import reasons
from unbounded.machineops.provider import (
    Action,
    AuthMode,
    Budget,
    Cancel,
    Handle,
    Instance,
    Job,
    Keep,
    Login,
    Loss,
    Next,
    OperationKind,
    Power,
    Progress,
    Rate,
    Rates,
    Record,
    Refusal,
    ReplaceStep,
    State,
    Throttled,
    Transient,
    Uncertain,
)

T = TypeVar("T")

NAME: Final = "Sim"
WHERE: Final = "the simulated cloud"
WITHDRAWN: Final = "say-friend"  # a token that it takes no more
REACHES: Final = {
    Action.RESTART: Power.RUNNING,
    Action.POWER_OFF: Power.STOPPED,
    Action.DEALLOCATE: Power.RELEASED,
    Action.POWER_ON: Power.RUNNING,
}
LOSSES: Final = (Loss("address", "its address is another one"),)
TAKES_S: Final = 6.0
CREATING_S: Final = 20.0

BESIDE: Final = (
    ReplaceStep("Saving", "Save", "the old instance's model to be kept", "its model is kept", 300, Cancel.AT_ONCE),
    ReplaceStep("StoppingOld", "StopOld", "the old instance to be off", "the old instance is off", 600),
    ReplaceStep("Launching", "Launch", "the replacement to run", "the replacement runs", 600, needs_user_data=True),
    ReplaceStep("HandingOver", "HandOver", "the Machine to name it", "the Machine names it", 600, hands_over=True),
    ReplaceStep("TerminatingOld", "TerminateOld", "the old instance to be gone", "the old instance is gone", 600),
)
ANEW: Final = (
    ReplaceStep("Saving", "Save", "the instance's model to be kept", "its model is kept", 300, Cancel.AT_ONCE),
    ReplaceStep("Deleting", "Delete", "the instance to be gone", "the instance is gone", 600),
    ReplaceStep("Creating", "Create", "the new instance to run", "the new instance runs", 600, needs_user_data=True),
)


@dataclass
class VM:
    """One instance: what it was, is and will be."""

    id: str
    made_for: str = ""  # the UID of an operation
    replaces: str = ""
    user_data: str = ""
    story: list[tuple[float, Power]] = field(default_factory=lambda: [(-100.0, Power.RUNNING)])
    restarts: int = 0  # requested restarts
    boots: int = 1

    def power_at(self, time: float) -> Power:
        past = [power for at, power in self.story if at <= time]
        return past[-1] if past else Power.GONE

    def becomes(self, power: Power, now: float, takes_s: float = TAKES_S) -> None:
        self.story = [(at, what) for at, what in self.story if at <= now]
        self.story += [(now, Power.CHANGING), (now + takes_s, power)]

    @property
    def end(self) -> Power:
        """Return the power after all changes in progress."""
        return self.story[-1][1]


@dataclass(frozen=True)
class Call:
    """One request that reached the cloud."""

    at: float
    what: str
    operation: str = ""


@dataclass
class Long:
    """A long call of the cloud."""

    done_at: float
    fails: bool


@dataclass
class Cloud:
    """The instances of all scopes, the calls that came, and dials for what goes wrong (chances, for each call)."""

    chance: random.Random = field(default_factory=lambda: random.Random(0))
    lost_before: float = 0.0
    lost_after: float = 0.0
    unanswered: bool = False  # changes are made, and no answer to them comes
    throttled: float = 0.0
    lag_s: float = 0.0  # of what it shows
    long_calls: bool = True
    shows_restarts: bool = True  # else they are accepted, and no more of them is shown anywhere
    hides_since: float | None = None  # lists do not show what was made after that
    stale_since: float | None = None  # lists show how things were then
    deaf: bool = False  # requests are accepted and not carried out, without a trace
    takes_s: float = TAKES_S  # a change of power, and its long call
    hint_s: float | None = None  # its hint when to poll
    failing: set[Action] = field(default_factory=set)  # long calls that end as failures
    closed: dict[str, float] = field(default_factory=dict)  # scopes that are throttled, until when
    stalled: dict[str, float] = field(default_factory=dict)  # seconds that every call of a scope takes
    raises: dict[str, Exception] = field(default_factory=dict)  # instead of the next call of that name
    always: dict[str, Exception] = field(default_factory=dict)  # instead of every call of that name
    loses: set[str] = field(default_factory=set)  # the answer to the next call of that name
    hangs: set[str] = field(default_factory=set)  # the next call of that name never answers
    turned_away: int = 0  # calls that came while their scope was throttled
    cut_short: list[str] = field(default_factory=list)  # calls whose session was closed meanwhile
    late_s: float = 0.0  # how late a request may arrive whose process dies while it is on its way
    soonest_s: float = 0.0  # and how late it does at the least
    violations: list[Violation] = field(default_factory=list)  # by such requests
    page_size: int = 100  # of lists, for a provider that reads them
    handle: str = "call"  # what handles begin with
    vms: dict[str, VM] = field(default_factory=dict)
    made: list[VM] = field(default_factory=list)  # for operations, those that are gone again too
    longs: dict[str, Long] = field(default_factory=dict)
    keys: dict[str, str | None] = field(default_factory=dict)  # of restarts, and the handles that they gave
    calls: list[Call] = field(default_factory=list)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def dice(self, chance: float) -> bool:
        return chance > 0 and self.chance.random() < chance

    def shown(self, vm: VM) -> Power:
        return vm.power_at(self.now() - (self.chance.uniform(0, self.lag_s) if self.lag_s else 0.0))

    def alive(self) -> list[VM]:
        """The instances that are there, or will be, when everything has come true."""
        return [vm for vm in self.vms.values() if vm.end is not Power.GONE]

    def listed(self, operation: str) -> VM | None:
        """The instance that was made for an operation, as a list shows it."""
        found = self.of(operation)
        hidden = found is not None and self.hides_since is not None and found.story[0][0] >= self.hides_since
        return None if hidden else found

    def listed_power(self, vm: VM) -> Power:
        since = self.stale_since
        return self.shown(vm) if since is None or vm.story[0][0] > since else vm.power_at(since)

    def of(self, operation: str) -> VM | None:
        """The instance that was made for an operation, in truth."""
        return next((vm for vm in self.vms.values() if vm.made_for == operation and vm.end is not Power.GONE), None)

    async def call(
        self,
        what: str,
        job: Job | None,
        scope: str,
        effect: Callable[[], T],
        *,
        changes: bool,
        life: Incarnation | None = None,
    ) -> T:
        """One request, with what may go wrong on its way there and back."""
        await asyncio.sleep(self.chance.uniform(0, 0.2) + self.stalled.get(scope, 0.0))
        if what in self.hangs:
            self.hangs.remove(what)
            await asyncio.get_running_loop().create_future()
        if what in self.raises:
            raise self.raises.pop(what)
        if what in self.always:
            raise self.always[what]
        if self.closed.get(scope, 0.0) > self.now():
            self.turned_away += 1
            raise Throttled("too many requests", self.closed[scope] - self.now())
        if self.dice(self.throttled):
            raise Throttled("too many requests", 7.0)
        lost = Uncertain if changes else Transient
        if self.dice(self.lost_before):
            raise lost("connection reset")

        def arrive() -> T:
            answer = effect()
            self.calls.append(Call(self.now(), what, job.uid if job else ""))
            return answer

        if life is None or not self.late_s:
            answer = arrive()
        else:
            late_s = self.chance.uniform(self.soonest_s, self.late_s)
            answer = await life.send(what, arrive, lambda: self._late(arrive), late_s=late_s)
        if what in self.loses or self.dice(self.lost_after) or (changes and self.unanswered):
            self.loses.discard(what)
            raise lost("connection reset")
        return answer

    def _late(self, arrive: Callable[[], object]) -> None:
        """Let a request arrive whose sender is gone, so that its result reaches no process."""
        try:
            arrive()
        except Refusal:
            return
        except Violation as violation:
            self.violations.append(violation)

    def ask(self, vm: VM, action: Action, key: str = "") -> str | None:
        """
        Args:
            key: of a restart that is not done again.
        """
        now = self.now()
        if key in self.keys:
            return self.keys[key]
        if action is Action.RESTART:
            vm.restarts += 1
        if vm.end is Power.GONE:
            raise Refusal(reasons.INSTANCE_NOT_FOUND, f"no instance {vm.id}")
        fails = action in self.failing
        if not fails and not self.deaf and (action is Action.RESTART or vm.end is not REACHES[action]):
            if action is not Action.RESTART or self.shows_restarts:
                vm.becomes(REACHES[action], now, self.takes_s)
            vm.boots += REACHES[action] is Power.RUNNING
        if action is Action.RESTART and not self.shows_restarts:
            return "accepted"
        handle = f"{self.handle}-{len(self.longs)}" if self.long_calls else None
        if handle is not None:
            self.longs[handle] = Long(now + self.takes_s, fails)
        if key:
            self.keys[key] = handle
        return handle


class SimSession:
    restarts_once = False

    def __init__(self, cloud: Cloud, life: Incarnation, login: Login, budget: Budget, flow: str) -> None:
        self.cloud = cloud
        self.life = life
        self.login = login
        self.budget = budget
        self.flow = flow
        self.closed = False
        self.under_way: list[str] = []

    async def _read(self, what: str, instance: Instance, effect: Callable[[], T], job: Job | None = None) -> T:
        async def call() -> T:
            await self.budget.read(instance.scope)
            return await self.cloud.call(what, job, instance.scope, effect, changes=False)

        return await self._through(what, call)

    async def _write(self, what: str, job: Job, effect: Callable[[], T], before: float) -> T:
        async def call() -> T:
            await self.budget.write(job.instance.scope, before=before)
            self.life.hold_if_dead()
            return await self.cloud.call(what, job, job.instance.scope, effect, changes=True, life=self.life)

        return await self._through(what, call)

    async def _through(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        if self.closed:
            raise Violation(f"{what} on a session that was closed")
        if (token := self.login.secret.get("token")) is not None and token.reveal() == WITHDRAWN:
            raise Refusal(reasons.AUTH_REFUSED, f"MachineOperationCredential {self.login.name} is refused")
        self.under_way.append(what)
        try:
            return await self.life.through(what, call)
        finally:
            self.under_way.remove(what)

    def _vm(self, instance: Instance) -> VM:
        return self.cloud.vms.get(instance.id) or VM(instance.id, story=[(0.0, Power.GONE)])

    async def look(self, instance: Instance) -> Record:
        vm = self._vm(instance)
        power = await self._read("look", instance, lambda: self.cloud.shown(vm))
        return Record(power, f"{instance.name} is {power}", WHERE)

    async def ask(self, job: Job, action: Action, *, before: float) -> str | None:
        key = job.uid if self.restarts_once and action is Action.RESTART else ""
        handle = await self._write(action, job, lambda: self.cloud.ask(self._vm(job.instance), action, key), before)
        return Handle(handle, self.cloud.hint_s) if handle else None

    async def follow(self, job: Job, handle: str) -> Progress:
        if handle == "accepted":  # the record shows nothing of it
            return Progress(State.ACCEPTED, "the restart was accepted", WHERE)
        long = self.cloud.longs[handle]

        def how_far() -> Progress:
            if self.cloud.now() < long.done_at:
                return Progress(State.RUNNING, "the call is under way", WHERE, self.cloud.hint_s)
            return Progress(State.FAILED if long.fails else State.DONE, "the call has ended", WHERE)

        return await self._read("follow", job.instance, how_far, job)

    # Replacement

    async def look_replace(self, job: Job, keep: Keep) -> Next:
        kept = await keep.load()
        old = json.loads(kept)["old"] if kept else job.instance.id
        find = self._beside if self.flow == "beside" else self._anew
        if kept is None and old not in self.cloud.vms:
            return await self._read("look_replace", job.instance, lambda: self._missing(old), job)
        return await self._read("look_replace", job.instance, lambda: find(job, old, is_kept=kept is not None), job)

    def _missing(self, old: str) -> Next:
        raise Refusal(reasons.INSTANCE_NOT_FOUND, f"there is no {old}")

    def _beside(self, job: Job, old: str, *, is_kept: bool) -> Next:
        if not is_kept:
            self._check_earlier(job, old)
            return Next("Saving", f"{old} is there", WHERE, losses=LOSSES)
        cloud, mine = self.cloud, self.cloud.listed(job.uid)
        there = f"{old} is {cloud.listed_power(cloud.vms[old])}, {mine.id if mine else 'no replacement'} is there"
        if mine is None or cloud.listed_power(mine) is Power.GONE:  # the record may lag behind
            power = cloud.listed_power(cloud.vms[old])
            is_off = power in (Power.STOPPED, Power.RELEASED)
            return Next("Launching" if is_off else "StoppingOld", there, WHERE, under_way=power is Power.CHANGING)
        if cloud.listed_power(mine) is Power.CHANGING:
            return Next("Launching", there, WHERE, under_way=True)
        if job.instance.id != mine.id:
            return Next("HandingOver", there, WHERE, new_instance=mine.id)
        power = cloud.listed_power(cloud.vms[old])
        if power is not Power.GONE:
            return Next("TerminatingOld", there, WHERE, under_way=power is Power.CHANGING)
        return Next(None, there, WHERE)

    def _check_earlier(self, job: Job, old: str) -> None:
        """There would be two instances, or one more."""
        for vm in self._earlier(job, old):
            raise Refusal(reasons.PROVIDER_REFUSED, f"{vm.id} is left of an earlier replacement, beside {old}")

    def _earlier(self, job: Job, old: str) -> list[VM]:
        """Return what a failed replacement has left."""
        before = self.cloud.vms[old].replaces
        return [vm for vm in self.cloud.alive() if vm.made_for != job.uid and (vm.replaces == old or vm.id == before)]

    def _anew(self, job: Job, old: str, *, is_kept: bool) -> Next:
        if not is_kept:
            return Next("Saving", f"{old} is there", WHERE, losses=LOSSES)
        vm = self._vm(job.instance)
        power = self.cloud.listed_power(vm)
        under_way = power is Power.CHANGING
        there = f"{old} is {power}"
        if vm.made_for == job.uid and power is not Power.GONE:
            return Next("Creating" if under_way else None, there, WHERE, under_way=under_way)
        return Next("Creating" if power is Power.GONE else "Deleting", there, WHERE, under_way=under_way)

    async def act_replace(self, job: Job, step: str, keep: Keep, user_data: str, *, before: float) -> float | None:
        if step == "Saving":
            await keep.store(json.dumps({"old": job.instance.id}).encode())
            return None
        kept = await keep.load()
        if kept is None:
            raise Violation(f"{step} with nothing kept")
        old = json.loads(kept)["old"]
        await self._write(step, job, lambda: self._act(job, step, old, user_data), before)
        return self.cloud.hint_s

    def _act(self, job: Job, step: str, old: str, user_data: str) -> None:
        cloud, mine = self.cloud, self.cloud.of(job.uid)
        match step:
            case "StoppingOld" if cloud.vms[old].end is not Power.STOPPED:
                cloud.ask(cloud.vms[old], Action.POWER_OFF)
            case "Launching" if mine is None:
                name = f"sim://{job.instance.scope}/new-{job.uid[:8]}"
                self._make(name, job, user_data, replaces=old)
            case "TerminatingOld":
                if mine is None:
                    raise Violation("the old instance was to go before there was a new one")
                self._end(cloud.vms[old])
            case "Deleting":  # by its name, whatever has that now
                self._end(cloud.vms[old])
            case "Creating" if mine is None:
                if cloud.vms[old].end is not Power.GONE:
                    raise Violation("created beside the old one of the same name")
                self._make(old, job, user_data, replaces=old)

    def _make(self, name: str, job: Job, user_data: str, *, replaces: str) -> None:
        vm = VM(name, made_for=job.uid, replaces=replaces, user_data=user_data, story=[])
        vm.becomes(Power.RUNNING, self.cloud.now(), CREATING_S)
        self.cloud.vms[name] = vm
        self.cloud.made.append(vm)

    def _end(self, vm: VM) -> None:
        if vm.end is not Power.GONE:
            vm.becomes(Power.GONE, self.cloud.now())

    async def close(self) -> None:
        self.closed = True
        self.cloud.cut_short += self.under_way


@dataclass
class SimProvider:
    """The provider of one process."""

    cloud: Cloud
    life: Incarnation
    flow: str = "beside"
    name: str = NAME
    api_version: str = "v1"
    kinds: frozenset[OperationKind] = frozenset(kind for kind in OperationKind if kind.is_host)
    modes: frozenset[AuthMode] = frozenset(AuthMode)
    secret_keys: tuple[str, ...] = ("token",)
    rates: Rates = Rates(Rate(100, 50), Rate(100, 50))  # noqa: RUF009  # frozen
    call_limit_s: float = 90.0  # longer than the pause before a request is repeated, as with real ones
    most_user_data: int = 1000
    restarts_once: bool = False
    parameters: Mapping[OperationKind, frozenset[str]] = field(
        default_factory=lambda: {OperationKind.HOST_POWER_OFF: frozenset({"deallocate"})}
    )
    sessions: list[SimSession] = field(default_factory=list)

    @property
    def replacement(self) -> tuple[ReplaceStep, ...]:
        return BESIDE if self.flow == "beside" else ANEW

    def instance(self, provider_id: str) -> Instance:
        scheme, _, rest = provider_id.partition("://")
        scope, _, name = rest.partition("/")
        if scheme != "sim" or not scope or not name:
            raise ValueError(f"{provider_id!r} is not sim://SCOPE/NAME")
        return Instance(provider_id, scope, name)

    def connect(self, login: Login, budget: Budget) -> SimSession:
        if login.secret and login.secret["token"].reveal() == "malformed":
            raise ValueError("key token is malformed")
        self.sessions.append(SimSession(self.cloud, self.life, login, budget, self.flow))
        self.sessions[-1].restarts_once = self.restarts_once
        return self.sessions[-1]
