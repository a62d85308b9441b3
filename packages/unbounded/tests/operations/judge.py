"""The judge of crash schedules: records what was stored, sent and read, and finds violations at the end.

It knows the rules of the engine only from outside: the API's content at each moment, the calls of each process, and the
effects on the hosts. Time in which a process was down or frozen is subtracted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from tests.operations.causes import without_cause
from tests.operations.faults import FAIR, Incarnation, Weather
from tests.operations.histories import history_faults
from tests.operations.simulated import Violation
from tests.support.virtual_time import EPOCH
from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.metalman import power
from unbounded.operations.deadline import DEADLINE_S
from unbounded.operations.supervisor_plan import LOST_SLOT_S
from unbounded.workflow.run_state import ACT_ON_S, ACT_WITHIN_S

TERMINAL: Final = ("Complete", "Failed")
CLOCK_S: Final = 2.0  # timestamps of the API have no fractions, and are taken before the write
DEADLINE_LATE_S: Final = 10.0
CLEANUP_S: Final = 75.0  # the last stage of a HostReboot, and its observations
TTL_LATE_S: Final = 10.0
GRACE_LATE_S: Final = 15.0
RETRY_S: Final = 15.0  # the longest pause of an executor after trouble with the API
AFTER_S: Final = 60.0  # in which what arrives late after an operation is still its own
DOWN_SHARE: Final = 1.0  # of the time that no process was there
EXECUTOR: Final = "metalman"
PROOF: Final = {
    "HostReboot": {power.EVIDENCE_OFF, power.EVIDENCE_ON},
    "HostPowerOff": {power.EVIDENCE_OFF, power.EVIDENCE_OFF_AGAIN},
    "HostPowerOn": {power.EVIDENCE_ON, power.EVIDENCE_ON_AGAIN},
}
DARK_S: Final = 15.0  # of a reboot: the host takes 4 s at most to come up, and is observed every 5 s
UNANNOUNCED_S: Final = 60.0  # until metalman reads on its own: 20 s for each of the changes of one process
TROUBLE_S: Final = 150.0  # that a bad way to API or host may take besides, all in all


@dataclass(frozen=True)
class Act:
    """One action that reached the outside."""

    at: float
    host: str
    machine: str
    operation: str  # UID
    action: str
    life: str
    satisfied: bool = False  # the host had the requested state already


@dataclass(frozen=True)
class Send:
    """One action that left a process."""

    at: float
    operation: str
    action: str
    life: str
    host: str


@dataclass(frozen=True)
class Owned:
    """A Machine as the API had it from a moment on."""

    since: float
    uid: str
    host: str
    holder: str  # UID of the operation in its slot
    lost: bool


@dataclass(frozen=True)
class Intent:
    """A stored intent: its time, its process, and its purpose.

    Attributes:
        told: the server's last answer about the Machine to that process; None without one.
        binding: the hosts in the record.
        uid: of the claimed Machine.
    """

    at: float
    life: str
    what: tuple[str, str, int]
    told: Owned | None
    bindings: tuple[str, ...]
    uid: str

    @property
    def action(self) -> str:
        return self.what[1]


@dataclass
class Story:
    """One operation, at the moment of each write."""

    name: str
    uid: str
    machine: str
    kind: str
    spec: dict[str, Any]
    created_at: float
    parent: bool = False
    claimed_at: float | None = None
    ended_at: float | None = None
    gone_at: float | None = None
    deleted: bool = False  # a user has deleted it
    deleting: bool = False  # and the server reports that
    released: str = ""  # UID of the Machine whose slot it gave back, and when
    released_at: float = 0.0
    writes: int = 0  # of its status while it was at work
    power_at_claim: str = ""
    status: dict[str, Any] = field(default_factory=dict)
    intents: list[Intent] = field(default_factory=list)

    @property
    def deadline_s(self) -> float:
        return float(self.spec.get("deadlineSeconds") or DEADLINE_S[OperationKind(self.kind)])

    @property
    def complete(self) -> bool:
        return bool(self.status.get("phase") == "Complete")


@dataclass
class Judge:
    """
    Args:
        call_limit_s: of the executors.
        can_be_late: whether calls of processes that died arrive afterwards.
    """

    call_limit_s: float
    stories: dict[str, Story] = field(default_factory=dict)
    machines: dict[str, list[Owned]] = field(default_factory=dict)
    acts: list[Act] = field(default_factory=list)
    sends: list[Send] = field(default_factory=list)
    reads: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # by process and operation: their ends
    bodies: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # of Machines, as they are now
    held_last: dict[str, str] = field(default_factory=dict)  # UID of who had the slot of a Machine last
    machines_gone: dict[str, list[float]] = field(default_factory=dict)
    lives: list[Incarnation] = field(default_factory=list)
    told: dict[tuple[str, str], Owned] = field(default_factory=dict)  # of Machines, to each process, last
    wrote_first: dict[tuple[str, str], float] = field(default_factory=dict)  # by process and operation
    taken: list[tuple[str, float, float]] = field(default_factory=list)  # slots that strangers had: Machine, from, to
    forced: list[tuple[str, float]] = field(default_factory=list)  # Machines deleted with their finalizers, and when
    weather: Weather = FAIR
    faults: list[str] = field(default_factory=list)  # found on the way, where a process would swallow an exception
    alone: bool = True  # one executor at a time: two of them round up the time that is spent at each turn
    deaf: bool = False  # hosts may ignore a shutdown
    troubled: bool = False  # the outside loses answers, or cannot be reached, or ignores a shutdown
    unannounced: bool = False  # events of BMCs come late or not at all

    # Events

    def stored(self, kind: str, old: Mapping[str, Any] | None, new: Mapping[str, Any], power: str, host: str) -> None:
        """Take note of a write.

        Args:
            power, host: of the Machine's host, where the object is a Machine or an operation on one.
        """
        if kind == "Machine":
            self._own(old, new, host)
        elif kind == "MachineOperation" and old is not None:
            self._tell(old, new, power)

    def _own(self, old: Mapping[str, Any] | None, machine: Mapping[str, Any], host: str) -> None:
        holder = (machine.get("status") or {}).get("activeOperation") or {}
        meta = machine["metadata"]
        self.bodies[meta["name"]] = machine
        if holder:
            self.held_last[meta["name"]] = holder["uid"]
        had = (((old or {}).get("status") or {}).get("activeOperation") or {}).get("uid")
        if had in self.stories and not holder and self.stories[had].ended_at is not None:
            self.stories[had].released, self.stories[had].released_at = meta["uid"], _now()
        now = Owned(_now(), meta.get("uid", ""), host, holder.get("uid", ""), bool(holder.get("lost")))
        states = self.machines.setdefault(meta["name"], [])
        if not states or replace(states[-1], since=now.since) != now:
            states.append(now)

    def tell(self, life: str, machine: Machine, host: str) -> None:
        """Record a Machine that a process received in an answer."""
        active = machine.status.active_operation
        uid, holder = machine.metadata.uid, "" if active is None else active.uid
        self.told[life, machine.name] = Owned(_now(), uid, host, holder, active is not None and active.lost)

    def _tell(self, old: Mapping[str, Any], new: Mapping[str, Any], power: str) -> None:
        meta, spec, status, now = new["metadata"], new["spec"], new.get("status") or {}, _now()
        before, after = (old.get("status") or {}).get("phase"), status.get("phase")
        if before in TERMINAL and before != after:
            self.faults.append(f"{meta['name']} was {before} and became {after}")
        if after and not status.get("message"):
            self.faults.append(f"{meta['name']} is {after} and does not say what it waits for")
        story = self.stories.get(meta["uid"])
        if story is None:
            story = self.stories[meta["uid"]] = Story(
                meta["name"],
                meta["uid"],
                spec.get("machineRef", ""),
                spec["operationKind"],
                spec,
                now,
                parent="machineSelector" in spec,
            )
        story.status, story.spec = status, spec
        story.deleting |= bool(meta.get("deletionTimestamp"))
        story.writes += after == "InProgress"
        execution = status.get("execution") or {}
        if execution:
            self.faults += [f"{meta['name']}: {fault}" for fault in history_faults(old.get("status") or {}, status)]
        if (action := execution.get("action")) and after not in TERMINAL:
            target = status["targets"][0]
            life = execution["incarnation"].partition("_")[2] or execution["incarnation"]
            bindings = (execution["binding"], execution.get("nextBinding") or "")
            told = self.told.get((life, story.machine))
            what = (target["stage"], action, target["attempts"])
            intent = Intent(now, life, what, told, bindings, execution["machineUID"])
            last = story.intents[-1] if story.intents else None
            if last is None or (last.life, last.what) != (intent.life, intent.what):
                story.intents.append(intent)
        if after == "InProgress" and story.claimed_at is None:
            story.claimed_at, story.power_at_claim = now, power
        if after in TERMINAL and story.ended_at is None:
            story.ended_at = now

    def gone(self, uid: str) -> None:
        if uid in self.stories:
            self.stories[uid].gone_at = _now()
        for name, body in list(self.bodies.items()):
            if body["metadata"]["uid"] == uid:
                del self.bodies[name]
                self.machines_gone.setdefault(name, []).append(_now())

    def wrote(self, life: str, operation: MachineOperation) -> None:
        """Hold the time that a process has recorded against the time since it first wrote to the operation."""
        execution, now, uid = operation.status.execution, _now(), operation.metadata.uid
        if execution is None or operation.terminal:
            return
        first = self.wrote_first.setdefault((life, uid), now)
        late_s = CLOCK_S + (RETRY_S if self.weather.lost else 0.0)  # until it knows that its claim was written
        late_s += sum(_overlap(freeze, first, now) for one in self.lives if one.name == life for freeze in one.freezes)
        if execution.spent_seconds < now - first - late_s:
            self.faults.append(f"{operation.name}: {life} wrote {execution.spent_seconds} s, and has it since {first}")
        lives = len({who for who, what in self.wrote_first if what == uid})
        started_at = (datetime.fromisoformat(operation.status.started_at or "") - EPOCH).total_seconds()
        if self.alone and execution.spent_seconds > now - started_at + CLOCK_S * (1 + lives):
            self.faults.append(f"{operation.name}: {life} wrote {execution.spent_seconds} s, started at {started_at}")

    # The verdict

    def judge(self, transitions: Mapping[str, list[tuple[float, str]]]) -> None:
        """Raise Violation for the first rule that does not hold.

        Args:
            transitions: of each host: when it became On or Off, from its first state on.
        """
        if self.faults:
            raise Violation(self.faults[0])
        self._sends_follow_their_intents()
        self._intents_rest_on_what_holds()
        self._once_is_once()
        self._one_operation_acts_on_a_host()
        for story in self.stories.values():
            self._ends_in_time(story)
            self._grace_ends_in_time(story, transitions)
            self._goes_in_time(story)
            self._complete_is_true(story, transitions)
            self._is_not_dark_for_long(story, transitions)
        self._hosts_are_left_well(transitions)
        for fault in without_cause(self, transitions):
            raise Violation(fault)

    @property
    def calm(self) -> bool:
        """Return whether the ways to the API and to the hosts have no faults."""
        return self.weather is FAIR and not self.troubled

    def _sends_follow_their_intents(self) -> None:
        """An action leaves the process that wrote its intent, within ACT_WITHIN_S."""
        for send in self.sends:
            intents = [one for one in self.stories[send.operation].intents if one.at <= send.at]
            if not intents or (intents[-1].life, intents[-1].action) != (send.life, send.action):
                raise Violation(f"{send} without an intent of its own: {intents[-1:]}")
            if send.at - intents[-1].at > ACT_WITHIN_S + self.weather.latency_s:
                raise Violation(f"{send} long after its intent at {intents[-1].at}")

    def _intents_rest_on_what_holds(self) -> None:
        """Check that an intent depends on a fresh observation, and on the lock and the target in the server's last
        answer.
        """
        slack_s = 2 * self.weather.latency_s + 0.1
        for story in self.stories.values():
            for intent in story.intents:
                reads = [at for at in self.reads.get((intent.life, story.uid), ()) if at <= intent.at]
                is_blind = intent.what == (power.RESTORING_POWER, power.SWITCH_ON, 1)
                if not is_blind and (not reads or intent.at - max(reads) > ACT_ON_S + slack_s):
                    raise Violation(f"{story.name}: {intent} rests on what was read at {reads[-1:]}")
                told = intent.told
                if told is None or (not is_blind and intent.at - told.since > ACT_ON_S + slack_s):
                    raise Violation(f"{story.name}: {intent}, and the Machine was not read")
                if told.holder != story.uid:
                    raise Violation(f"{story.name}: {intent} without the slot")
                if told.uid != intent.uid or f"host:{told.host}" not in intent.bindings:
                    raise Violation(f"{story.name}: {intent} for another Machine than was claimed")
        for send in self.sends:
            story = self.stories[send.operation]
            written = max(one.at for one in story.intents if one.at <= send.at)
            owned = list(self._owned(story.machine, written - ACT_ON_S - slack_s, send.at))
            if send.host not in {one.host for one in owned}:
                raise Violation(f"{story.name}: {send} to a host that is not the Machine's: {owned}")

    def _owned(self, machine: str, since: float, until: float) -> Iterator[Owned]:
        """Yield the states of a Machine in a time."""
        states = self.machines.get(machine, [])
        for at, state in enumerate(states):
            end = states[at + 1].since if at + 1 < len(states) else float("inf")
            if state.since <= until and end >= since:
                yield state

    def _once_is_once(self) -> None:
        once = [send.operation for send in self.sends if send.action == power.SHUT_DOWN]
        if len(once) != len(set(once)):
            raise Violation(f"a shutdown was sent twice: {self.sends}")

    def _one_operation_acts_on_a_host(self) -> None:
        """Nothing is sent after the end, nor by another operation while what was sent before may still arrive."""
        spans: dict[tuple[str, str], tuple[float, float]] = {}
        for send in self.sends:
            story = self.stories[send.operation]
            if story.ended_at is not None and send.at > story.ended_at:
                raise Violation(f"{send} after the end at {story.ended_at}")
            first, last = spans.get((send.host, send.operation), (send.at, send.at))
            spans[send.host, send.operation] = (first, max(last, send.at))
        for act in self.acts:
            first, last = spans[act.host, act.operation]
            spans[act.host, act.operation] = (first, max(last, act.at))
        for (host, uid), (first, last) in spans.items():
            for (other_host, other), (begins, _) in spans.items():
                is_forced = any(host.partition("-")[0] == of and first <= at <= last for of, at in self.forced)
                if host == other_host and uid != other and first < begins < last and not is_forced:
                    raise Violation(
                        f"{self.stories[other].name} acts on {host} at {begins}, in the midst of {first, last}"
                    )

    def _ends_in_time(self, story: Story) -> None:
        """The deadline is kept, but for the time that nothing was there to keep it."""
        if story.claimed_at is None or story.ended_at is None or story.parent:
            return
        due = story.claimed_at + story.deadline_s + DEADLINE_LATE_S
        due += CLEANUP_S if story.kind == "HostReboot" else 0.0
        due += self._down_s(EXECUTOR, story.claimed_at, story.ended_at) * DOWN_SHARE
        due += self._taken_s(story.machine, story.claimed_at, story.ended_at)
        if story.ended_at > due + self._trouble_s():
            raise Violation(f"{story.name} ended {story.ended_at - due:.1f} s too late: {story}")

    def _grace_ends_in_time(self, story: Story, transitions: Mapping[str, list[tuple[float, str]]]) -> None:
        """A host that ignores its shutdown is switched off when its grace is over, restarts or not."""
        shutdowns = [one for one in story.intents if one.action == power.SHUT_DOWN]
        if not shutdowns or story.ended_at is None or story.spec.get("cancel") or story.deleted:
            return  # a cancel waits for what is left of the shutdown
        begins = shutdowns[0].at
        after = [one.at for one in story.intents if one.at > begins and one.what[0] != power.SHUTTING_DOWN]
        went_off = [at for at, state in transitions[self._host(story)] if state == "Off" and at > begins]
        ends = min([*after, *went_off, story.ended_at])
        grace_s = float(story.spec.get("parameters", {}).get("graceSeconds", 120))
        deaths = sum(begins <= life.died_at <= ends for life in self.lives if life.name.startswith(EXECUTOR))
        limit_s = grace_s * (1 + deaths) + GRACE_LATE_S + self._down_s(EXECUTOR, begins, ends) + self._trouble_s()
        limit_s += self._taken_s(story.machine, begins, ends)
        if ends - begins > limit_s:
            raise Violation(
                f"{story.name} waits {ends - begins:.1f} s for a shutdown, of {limit_s:.1f} at most: {story}"
            )

    def _goes_in_time(self, story: Story) -> None:
        ttl = story.spec.get("ttlSecondsAfterFinished")
        if ttl is None or story.ended_at is None:
            return
        now = _now() if story.gone_at is None else story.gone_at
        early = story.gone_at is not None and now < story.ended_at + ttl - CLOCK_S and not story.deleted
        down_s = self._down_s("steward", story.ended_at, now) + self._down_s(EXECUTOR, story.ended_at, now)
        down_s += LOST_SLOT_S if self._was_lost(story) else 0.0
        late = now > story.ended_at + ttl + TTL_LATE_S + down_s + self._trouble_s()
        if early or (late and now - story.ended_at > TTL_LATE_S):
            raise Violation(f"{story.name} goes at {story.gone_at}, {ttl} s after its end at {story.ended_at}")

    def _was_lost(self, story: Story) -> bool:
        """Return whether an operation has kept its slot as that of a lost executor."""
        return any(one.lost and one.holder == story.uid for one in self.machines.get(story.machine, []))

    def _complete_is_true(self, story: Story, transitions: Mapping[str, list[tuple[float, str]]]) -> None:
        if not story.complete or story.parent:
            return
        seen = {one["what"] for one in story.status.get("evidence", ())}
        if missing := PROOF[story.kind] - seen:
            raise Violation(f"{story} is Complete without {missing}")
        host, since, until = self._host(story), story.claimed_at or 0.0, story.ended_at or 0.0
        states = [state for at, state in transitions[host] if since <= at <= until]
        wanted = "Off" if story.kind == "HostPowerOff" else "On"
        state = [state for at, state in transitions[host] if at <= until][-1]
        if state != wanted:
            raise Violation(f"{story} is Complete, and the host is {state}")
        was_on = [state for at, state in transitions[host] if at <= since][-1] == "On"
        if story.kind == "HostReboot" and was_on and "Off" not in states:
            raise Violation(f"{story} is Complete, and the host was never Off: {transitions[host]}")

    def _is_not_dark_for_long(self, story: Story, transitions: Mapping[str, list[tuple[float, str]]]) -> None:
        """A reboot keeps its host dark for no longer than its host and its processes take."""
        acts = [act for act in self.acts if act.operation == story.uid]
        if story.kind != "HostReboot" or not acts or story.ended_at is None or story.power_at_claim != "On":
            return
        host, begins = acts[0].host, acts[0].at
        ends = min([story.ended_at + AFTER_S, *self._others_begin(story, host)])
        dark_s = _dark_s(transitions[host], begins, ends)
        crashes = sum(begins <= life.died_at <= ends for life in self.lives if life.name.startswith(EXECUTOR))
        limit_s = DARK_S * (1 + crashes) + self._down_s(EXECUTOR, begins, ends) + self._trouble_s()
        limit_s += self._taken_s(story.machine, begins, ends)
        if dark_s > limit_s and not _says_left_off(story):
            raise Violation(f"{host} was dark for {dark_s:.1f} s, of {limit_s:.1f} at most: {story}")

    def _others_begin(self, story: Story, host: str) -> list[float]:
        return [send.at for send in self.sends if send.host == host and send.at > (story.ended_at or 0.0)]

    def _hosts_are_left_well(self, transitions: Mapping[str, list[tuple[float, str]]]) -> None:
        """Check that a host has the state that the last operation on it reports."""
        last: dict[str, Story] = {}
        for send in sorted(self.sends, key=lambda one: one.at):
            last[send.host] = self.stories[send.operation]
        for host, story in last.items():
            state = transitions[host][-1][1]
            cancelled = story.status.get("reason") == "Cancelled" and story.power_at_claim == "On"
            on = story.kind == "HostReboot" or (story.kind == "HostPowerOn" and story.complete) or cancelled
            if on and story.power_at_claim == "On" and state != "On" and not self._says_so(story, transitions):
                raise Violation(f"{host} was left {state} by {story}")
            if story.kind == "HostPowerOff" and story.complete and state != "Off":
                raise Violation(f"{host} is {state} after {story}")

    def _says_so(self, story: Story, transitions: Mapping[str, list[tuple[float, str]]]) -> bool:
        """Return whether it reports the host Off; or, for one that was On at its end, that it may still go Off."""
        at_end = [state for at, state in transitions[self._host(story)] if at <= (story.ended_at or 0.0)][-1]
        lingers = at_end == "On" and power.LINGERS in str(story.status.get("message", ""))
        return _says_left_off(story) or lingers

    def _host(self, story: Story) -> str:
        hosts = [send.host for send in self.sends if send.operation == story.uid]
        claimed_at = story.claimed_at or 0.0
        return hosts[-1] if hosts else next(self._owned(story.machine, claimed_at, claimed_at)).host

    def _trouble_s(self) -> float:
        trouble_s = TROUBLE_S if self.troubled or self.weather is not FAIR else 0.0
        return trouble_s + (UNANNOUNCED_S if self.unannounced else 0.0)

    def _taken_s(self, machine: str, since: float, until: float) -> float:
        """Return for how long a stranger had the slot, with the pause before its executor tries again."""
        spans = [(begins, ends + RETRY_S) for of, begins, ends in self.taken if of == machine]
        return sum(_overlap(span, since, until) for span in spans)

    def _down_s(self, process: str, since: float, until: float) -> float:
        """Return how long no process of a name worked: none ran, or it stood still."""
        lives = [life for life in self.lives if life.name.startswith(process)]
        down_s = sum(_overlap(freeze, since, until) for life in lives for freeze in life.freezes)
        ran = sorted((life.born_at, life.died_at) for life in lives)
        free, gaps = since, 0.0
        for born, died in ran:
            if born > free:
                gaps += _overlap((free, born), since, until)
            free = max(free, died)
        return down_s + gaps + _overlap((free, until), since, until)


def _overlap(span: tuple[float, float], since: float, until: float) -> float:
    return max(min(span[1], until) - max(span[0], since), 0.0)


def _dark_s(transitions: list[tuple[float, str]], since: float, until: float) -> float:
    ends = [at for at, _ in transitions[1:]] + [until]
    return sum(
        _overlap((at, end), since, until) for (at, state), end in zip(transitions, ends, strict=True) if state == "Off"
    )


def _says_left_off(story: Story) -> bool:
    """Return whether it reports the host as left Off, or its state as unknown."""
    is_lost = story.status.get("reason") == "ExecutorLost"
    return is_lost or str(story.status.get("message", "")).endswith("left Off")


def _now() -> float:
    return asyncio.get_running_loop().time()
