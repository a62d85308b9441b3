"""The port of a cloud: what `machine-ops-controller` needs so that host operations can be carried out there.

A package registers a provider by an entry point of the group `unbounded.providers`, whose name is the value that
Machines have in `spec.provider` and whose object is a `Provider`. What comes next is never for a provider to decide,
nor is what becomes of a lost answer: it looks, it asks, and it follows what it asked for. For its trouble it raises

- `Refusal(reason, message)` where only a person can change something: a wrong id, a login that is refused, a quota;
- `Throttled(message, after_s)` where nothing was done, as too much was asked for;
- `Transient` where surely nothing was done, `NotDone(reason, message)` where that has a name of its own;
- `Uncertain` where the answer was lost: it is looked at before anything is asked for again.

Texts of the cloud in these messages go through `said` first. `unbounded.machineops.testing` has the tests that every
provider has to pass.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from unbounded.api.credential import AuthMode
from unbounded.api.failures import Transient, Uncertain
from unbounded.api.operation import Cause, OperationKind
from unbounded.kube.logs import Secret
from unbounded.machineops.losses import Loss, check_losses
from unbounded.operations.ports import NotDone, Refusal
from unbounded.operations.procedure import Cancel

__all__ = [
    "GROUP",
    "PUT_BACK",
    "Action",
    "AuthMode",
    "Budget",
    "Cancel",
    "Cause",
    "Handle",
    "Instance",
    "Job",
    "Keep",
    "Login",
    "Loss",
    "Next",
    "NotDone",
    "OperationKind",
    "Power",
    "Progress",
    "Provider",
    "Rate",
    "Rates",
    "Record",
    "Refusal",
    "ReplaceStep",
    "Secret",
    "Session",
    "State",
    "Throttled",
    "Transient",
    "Uncertain",
    "check_losses",
    "said",
]

GROUP: Final = "unbounded.providers"
PUT_BACK: Final = "PutBack"
SAID_CHARS: Final = 512
_HIDDEN: Final = "***"


class Throttled(Transient):
    """Nothing was done: the cloud wants fewer requests of this account for so many seconds.

    Args:
        scope: the account, where the login tells it and not the providerID; else that of the instance.
    """

    def __init__(self, message: str, after_s: float, *, scope: str | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s
        self.scope = scope


class Power(StrEnum):
    """What the cloud's record says of an instance."""

    RUNNING = "Running"
    STOPPED = "Stopped"  # off, and paid for
    RELEASED = "Released"  # off, and its hardware given back
    CHANGING = "Changing"
    GONE = "Gone"


class Action(StrEnum):
    """What may be asked for of an instance."""

    RESTART = "Restart"
    POWER_OFF = "PowerOff"
    DEALLOCATE = "Deallocate"
    POWER_ON = "PowerOn"


@dataclass(frozen=True)
class Instance:
    """What a providerID names.

    Args:
        id: as the cloud's API takes it; equal for all ways to write the same one.
        scope: the account whose rate limits it counts for, such as a subscription; as far as the id tells it.
        name: short, for people.
    """

    id: str
    scope: str
    name: str

    @functools.cached_property
    def binding(self) -> str:
        """A digest of it; actions on another one go to another host."""
        return "instance:" + hashlib.sha256(self.id.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Login:
    """How to authenticate.

    Args:
        name: of the MachineOperationCredential, for messages.
        secret: what the Secret of an ExternalPlugin credential holds; empty for WorkloadIdentity.
    """

    name: str
    mode: AuthMode
    secret: Mapping[str, Secret] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """One operation as a provider meets it.

    Args:
        instance: what the Machine is bound to now.
        uid: of the operation: what is made for it carries it, so that it is made once.
        handle: of the long call that was begun with what was asked for last; None where none was given.
    """

    operation: str
    uid: str
    kind: OperationKind
    machine: str
    machine_uid: str
    instance: Instance
    parameters: Mapping[str, str] = field(default_factory=dict)
    handle: str | None = None

    def says(self, parameter: str) -> bool:
        """Whether a parameter of yes or no is given as "true"."""
        return self.parameters.get(parameter) == "true"


@dataclass(frozen=True)
class Record:
    """One look at an instance.

    Args:
        detail: the state as the cloud words it.
        where: the place that was read, for evidence.
    """

    power: Power
    detail: str
    where: str


class Handle(str):
    """The handle of a long call, and when the cloud wants to be asked how far that is; None for whenever."""

    __slots__ = ("again_s",)
    again_s: float | None

    def __new__(cls, text: str, again_s: float | None = None) -> Handle:
        made = super().__new__(cls, text)
        made.again_s = again_s
        return made


Taken = float | Handle | None
"""What a step that was asked for gives: when the cloud wants to be asked how far it is, in seconds, and by what."""


class State(StrEnum):
    """How far a long call is."""

    RUNNING = "Running"
    DONE = "Done"
    FAILED = "Failed"
    ON_ITS_WAY = "OnItsWay"  # no call is shown, and the instance is on its way: the record tells the rest
    FORGOTTEN = "Forgotten"  # the cloud knows nothing of it any more: what is left is its record of the instance
    ACCEPTED = "Accepted"  # it was taken on, and the cloud shows no more of it, ever: it cannot be proven there


@dataclass(frozen=True)
class Progress:
    """One look at a long call.

    Args:
        again_s: when the cloud wants to be asked again; None for whenever.
    """

    state: State
    detail: str
    where: str
    again_s: float | None = None


@dataclass(frozen=True)
class Rate:
    """A bucket of so many calls that fills up again by so many in a second."""

    burst: float
    per_s: float


@dataclass(frozen=True)
class Rates:
    """What a cloud publishes of its limits for one scope."""

    reads: Rate
    writes: Rate


class Budget(Protocol):
    """The share of a scope's rate limits that is left. A provider asks it before each call of the cloud's API."""

    async def read(self, scope: str) -> None:
        """Wait until a read may be sent."""
        ...

    async def write(self, scope: str, *, before: float) -> None:
        """Wait until a write may be sent; raises Transient when that is not before this time of the loop."""
        ...

    def left(self, scope: str, *, reads: float | None = None, writes: float | None = None) -> None:
        """What an answer said is left."""
        ...


class Keep(Protocol):
    """Where a replacement puts down what it could not go on without: a Secret that goes with the operation, but for
    what a step needs (`ReplaceStep.needs_what_is_kept`).
    """

    @property
    def place(self) -> str:
        """Where it is, for messages: "Secret unbounded-kube/replacement-…"."""
        ...

    async def load(self) -> bytes | None:
        """What was stored last for this operation."""
        ...

    async def former(self) -> bytes | None:
        """What an earlier replacement of the instance has left, which did not come to its end: storing takes its
        place, so what is still needed of it has to be in what is stored.

        Raises:
            Transient: it is still at work.
        """
        ...

    async def store(self, content: bytes) -> None:
        """Keep up to 900 KB, in place of what was kept; returns once it is safe. At the end it is removed."""
        ...


@dataclass(frozen=True)
class ReplaceStep:
    """One step of a replacement; the steps stand in the order in which they are taken.

    Args:
        stage: as `status.targets[].stage` shows it while the step is under way, such as StoppingOld.
        action: what is asked for in it, such as Stop. Asking twice must do it once.
        waits_for: ends the sentence "waiting for …".
        seen: what its end proves, for the evidence.
        limit_s: how long it may take.
        late_s: and how much longer where it is `Next.under_way` then: what is made is not given up just before it is.
        cancel: AT_ONCE as long as nothing is lost by leaving off, then TOO_LATE. What was kept is removed then, unless
            `Next.still_needed`.
        undo: it changes the old instance, or ends it, and as long as that has not ended the change can be taken back.
            Where the operation ends in this step, or is cancelled in one with AT_ONCE, `act_replace` is asked for
            PUT_BACK until `Next.is_as_it_was`; then what was kept is removed, as with AT_ONCE.
        hands_over: in it the Machine is bound to its new instance, which the controller does by what `Next` says.
        needs_user_data: it makes the new host. It is not begun while there is nothing for the host to join with, and
            nor is the replacement.
        needs_what_is_kept: there may be nothing left of the old instance but what is kept: that outlives the operation
            from here on, unless it completes, and the next replacement of the instance finds it by `Keep.former`.
        settles: a request for it that arrived late could destroy what a later step makes, as a delete before a create
            under the same name does. Where a controller has ended that may have sent one, nothing else is asked for
            until it can no longer arrive, or the step is seen to be done. False where late arrival does no harm.
    """

    stage: str
    action: str
    waits_for: str
    seen: str
    limit_s: float
    cancel: Cancel = Cancel.TOO_LATE
    undo: bool = False
    hands_over: bool = False
    needs_user_data: bool = False
    needs_what_is_kept: bool = False
    late_s: float = 0.0
    settles: bool = True


@dataclass(frozen=True)
class Next:
    """Where a replacement stands.

    Args:
        step: the stage of the first step that is not done; None when all are.
        under_way: it was asked for, and is not done yet.
        detail: what was seen, as the cloud words it, with the names of all that exists for this replacement: a failure
            ends with these words, and somebody has to find what it left. When all steps are done, it is what the
            operation says in the end, in one line: which instance runs now, by a name with which it is found, that the
            old one is gone, and what was not kept.
        where: the place that was read, for evidence.
        progress: how far it is, for the message.
        is_as_it_was: nothing of the old instance is other than before the replacement, and nothing of it under way.
        still_needed: though the replacement comes to nothing, what is kept for it must stay: the next one of the
            instance could not do all of its work without.
        new_instance: the spec.providerID that the Machine is to have, where the next step hands it over.
        again_s: when the cloud wants to be asked again; None for as `act_replace` has said.
        more: a part of the step is done, and the cloud takes the next one now: it is asked for at once.
        most_user_data: how many bytes of user data this one can be given, where that is less than for others.
        failed: what was asked for last was accepted, and has come to nothing by now, for this reason: it is asked for
            again after a pause, and the message says why.
        losses: what the new instance will not have, beside what is on the boot disk of the old one; told as long as
            nothing is touched. The controller shows it, and refuses what nobody has accepted: see `check_losses`.
    """

    step: str | None
    detail: str
    where: str
    under_way: bool = False
    progress: str = ""
    is_as_it_was: bool = False
    still_needed: bool = False
    new_instance: str | None = None
    again_s: float | None = None
    more: bool = False
    most_user_data: int | None = None
    failed: NotDone | None = None
    losses: tuple[Loss, ...] = ()


class Session(Protocol):
    """One login of a provider. Its methods may run at the same time for different instances."""

    async def look(self, instance: Instance) -> Record: ...

    async def ask(self, job: Job, action: Action, *, before: float) -> str | None:
        """Ask for an action; returns once it is accepted, with a handle where there is a long call to follow: its end
        is what counts then. Without one, a restart is proven by the record, which has to show it as CHANGING; where it
        never does, and no call is shown either, `follow` of some handle says ACCEPTED. With `restarts_once`, asking
        again for the restart of the same `job.uid` is accepted again, and changes nothing.

        Args:
            before: the time of the loop after which the request must no longer be sent: Transient then.
        Returns:
            At most 4 KiB, with no secret in it; it is stored before the first `follow`, and survives restarts. A
            `Handle` says when that `follow` is wanted.
        """
        ...

    async def follow(self, job: Job, handle: str) -> Progress:
        """How far a long call is, of which nothing but the handle is known any more. DONE of a restart is a claim that
        it was done, by what the cloud shows of it: where that shows the request alone, it is ACCEPTED.
        """
        ...

    async def look_replace(self, job: Job, keep: Keep) -> Next:
        """Where the replacement stands, by what the cloud shows and what was kept; nothing else is known of it.

        Raises:
            Refusal: before the first step: it cannot be done; nothing was touched. What would be lost by it is in
                `Next.losses`.
        """
        ...

    async def act_replace(self, job: Job, step: str, keep: Keep, user_data: str, *, before: float) -> Taken:
        """Take a step that `look_replace` has named, or PUT_BACK: set the old instance back as it was.

        Args:
            user_data: cloud-init's, with which the new host makes itself a node; with a token in it. Empty in steps
                that do not need it.
        Returns:
            After how many seconds the cloud wants to be asked how far that is, such as its Retry-After; None for
            whenever. Until then the step counts as under way; then it is looked at, and as long as `Next.under_way` has
            no `again_s` of its own, every so many seconds. A `Handle` says that, too, and is what `look_replace` finds
            in `Job.handle` from then on, in this process and in the next: there is a long call, which tells of a
            failure that nothing else shows.
        """
        ...

    async def close(self) -> None: ...


class Provider(Protocol):
    """One kind of cloud: constants of a class do for what it says of itself."""

    @property
    def name(self) -> str:
        """The value of `spec.provider`."""
        ...

    @property
    def kinds(self) -> frozenset[OperationKind]:
        """What it carries out of HostReboot, HostPowerOff, HostPowerOn and HostReplace."""
        ...

    @property
    def modes(self) -> frozenset[AuthMode]:
        """How one can authenticate."""
        ...

    @property
    def secret_keys(self) -> tuple[str, ...]:
        """What the Secret of an ExternalPlugin credential has to hold."""
        ...

    @property
    def rates(self) -> Rates: ...

    @property
    def call_limit_s(self) -> float:
        """The longest that one call of a session lasts; it is cut off then, and the outcome of an ask is open. What
        goes on in a thread then must end by itself within the same time: a successor waits no longer before it asks.
        """
        ...

    @property
    def most_user_data(self) -> int:
        """How many bytes of user data a new host can be given: more is refused before anything is touched."""
        ...

    @property
    def restarts_once(self) -> bool:
        """Whether the cloud takes a key with a restart, by which a second one of the same operation is no other one:
        one whose answer was lost is asked for again then. Without it, it never is.
        """
        ...

    @property
    def parameters(self) -> Mapping[OperationKind, frozenset[str]]:
        """Which of `spec.parameters` it heeds, by kind: an operation with another one is refused before anything is
        touched, so that nobody takes for done what was ignored.
        """
        ...

    @property
    def replacement(self) -> tuple[ReplaceStep, ...]:
        """The steps of a HostReplace; empty where there is none."""
        ...

    def instance(self, provider_id: str) -> Instance:
        """What a providerID names; raises ValueError with the words for who wrote it."""
        ...

    def connect(self, login: Login, budget: Budget) -> Session:
        """A session, for which nothing is sent yet.

        Raises:
            ValueError: the Secret holds something that cannot be meant; the message names the key, not the value.
        """
        ...


def said(text: str, *, hide: Iterable[str] = ()) -> str:
    """What a cloud said, fit for a status: one line of printable text, at most 512 characters, without secrets."""
    for secret in sorted(filter(None, hide), key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return one_line(text, SAID_CHARS)


def one_line(text: str, most: int) -> str:
    """Printable, without line ends and runs of blanks, and at most so many characters."""
    text = text[: 8 * most]
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text)
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"
