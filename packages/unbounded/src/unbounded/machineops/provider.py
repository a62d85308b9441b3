"""Port of a cloud: the interface through which `machine-ops-controller` executes host operations.

A package registers a provider by an entry point of the group `unbounded.providers`. The entry point's name is the value
of `spec.provider` in Machines, and its object is a `Provider`. A provider observes, requests actions, and follows its
requests. It never decides about the next action or about a lost answer. It raises

- `Refusal(reason, message)` if the user must act: a wrong id, a refused login, a quota;
- `Throttled(message, after_s)` if a rate limit refused the request, and nothing was done;
- `Transient` if surely nothing was done, or `NotDone(reason, message)` if that has a reason of its own;
- `Uncertain` if the answer was lost: the controller observes again before the next request.

A provider declares in `api_version` the version of this API that it is written for. `API_VERSION` is the version that
this release serves. It changes only if a provider of the former version would no longer work unchanged.

Texts of the cloud in these messages must pass through `said`. `unbounded.machineops.testing` has the tests that every
provider must pass.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from unbounded.api.credential import AuthMode
from unbounded.api.failures import Transient, Uncertain
from unbounded.api.fields import Cause
from unbounded.api.operation import OperationKind
from unbounded.kube.logs import SecretStr
from unbounded.machineops import reasons
from unbounded.operations.executor_protocol import NotDone, Refusal
from unbounded.workflow.procedure import Cancel

__all__ = [
    "API_VERSION",
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
    "SecretStr",
    "Session",
    "State",
    "Throttled",
    "Transient",
    "Uncertain",
    "check_losses",
    "said",
]

API_VERSION: Final = "v1"
GROUP: Final = "unbounded.providers"
Secret = SecretStr  # its name in packages that are written for v1
PUT_BACK: Final = "PutBack"
SAID_CHARS: Final = 512
_HIDDEN: Final = "***"


@dataclass(frozen=True)
class Loss:
    """Property of the old instance that the new one will not have.

    Args:
        field: path in the cloud's API, such as vnic.privateIp. Users accept losses by it, so it must not depend on the
            instance. At most 256 characters, without blanks and commas.
        consequence: effect of the loss, for users; one line.
        lessens_security: the new instance is less secure; the loss is refused unless it is accepted.
    """

    field: str
    consequence: str
    lessens_security: bool = False


def check_losses(losses: Sequence[Loss], parameters: Mapping[str, str], named: str) -> None:
    """Check that all losses are acceptable.

    A loss of security needs acceptance by name (parameter `accept`); with `keep: strict` every loss does. The
    controller checks after each observation with losses. A provider checks if it observes again by itself.

    Args:
        named: the instance, for the message.
    Raises:
        Refusal: a loss is not accepted; the message names what to accept.
    """
    accepted = {one.strip() for one in parameters.get("accept", "").split(",")}
    left = [one for one in losses if one.field not in accepted]
    strict = parameters.get("keep") == "strict"
    if wrong := [one for one in left if strict or one.lessens_security]:
        rule = "keep: strict allows no loss" if strict else "security must not decrease"
        message = "; ".join(f"{one.field} ({one.consequence})" for one in wrong)
        accept = ",".join(one.field for one in losses if one in wrong or one.field in accepted)
        words = f"{rule} unless parameters.accept names it, and {named} would lose: {message}"
        raise Refusal(reasons.WOULD_BE_LOST, f'{words}; to accept, set accept: "{accept}"')


class Throttled(Transient):
    """Nothing was done: the cloud wants no further requests of this account for so many seconds.

    Args:
        scope: the account, if only the login knows it; defaults to that of the instance.
    """

    def __init__(self, message: str, after_s: float, *, scope: str | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s
        self.scope = scope


class Power(StrEnum):
    """Power of an instance in the cloud's record."""

    RUNNING = "Running"
    STOPPED = "Stopped"  # off, and billed
    RELEASED = "Released"  # off, and its hardware released
    CHANGING = "Changing"
    GONE = "Gone"


class Action(StrEnum):
    """Actions on an instance."""

    RESTART = "Restart"
    POWER_OFF = "PowerOff"
    DEALLOCATE = "Deallocate"
    POWER_ON = "PowerOn"


@dataclass(frozen=True)
class Instance:
    """Instance of a providerID.

    Args:
        id: in the form of the cloud's API; equal for all spellings of the same id.
        scope: account whose rate limits apply, such as a subscription, as far as the id names it.
        name: short, for users.
    """

    id: str
    scope: str
    name: str

    @functools.cached_property
    def binding(self) -> str:
        """Digest of the instance; actions on another digest go to another host."""
        return "instance:" + hashlib.sha256(self.id.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Login:
    """Authentication data.

    Args:
        name: of the MachineOperationCredential, for messages.
        secret: content of the Secret of an ExternalPlugin credential; empty for WorkloadIdentity.
    """

    name: str
    mode: AuthMode
    secret: Mapping[str, SecretStr] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """One operation, as input of a provider.

    Args:
        instance: current instance of the Machine.
        uid: of the operation. New resources carry it, so that each is created once.
        handle: of the long call of the last action; None without one.
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
        """Return whether a boolean parameter is "true"."""
        return self.parameters.get(parameter) == "true"


@dataclass(frozen=True)
class Record:
    """One observation of an instance.

    Args:
        detail: state in the cloud's words.
        where: source of the observation, for evidence.
    """

    power: Power
    detail: str
    where: str


class Handle(str):
    """Handle of a long call, and the seconds after which the cloud wants to be polled; None for any time."""

    __slots__ = ("again_s",)
    again_s: float | None

    def __new__(cls, text: str, again_s: float | None = None) -> Handle:
        made = super().__new__(cls, text)
        made.again_s = again_s
        return made


Taken = float | Handle | None
"""Result of a requested step: the seconds after which the cloud wants to be polled, or the handle of a long call."""


class State(StrEnum):
    """State of a long call."""

    RUNNING = "Running"
    DONE = "Done"
    FAILED = "Failed"
    ON_ITS_WAY = "OnItsWay"  # no call is shown, and the instance is in transition: its record shows the rest
    FORGOTTEN = "Forgotten"  # the cloud does not know the call any more: only its record of the instance remains
    ACCEPTED = "Accepted"  # accepted, and the cloud never shows more of it: it offers no evidence


@dataclass(frozen=True)
class Progress:
    """One observation of a long call.

    Args:
        again_s: seconds after which the cloud wants to be polled; None for any time.
    """

    state: State
    detail: str
    where: str
    again_s: float | None = None


@dataclass(frozen=True)
class Rate:
    """A token bucket: its size, and its refill per second."""

    burst: float
    per_s: float


@dataclass(frozen=True)
class Rates:
    """Published limits of a cloud for one scope."""

    reads: Rate
    writes: Rate


class Budget(Protocol):
    """Remaining rate limits of a scope. A provider must acquire a turn before each call of the cloud's API."""

    async def read(self, scope: str) -> None:
        """Wait until a read may be sent."""
        ...

    async def write(self, scope: str, *, before: float) -> None:
        """Wait until a write may be sent; raises Transient if that would be after this time of the loop."""
        ...

    def left(self, scope: str, *, reads: float | None = None, writes: float | None = None) -> None:
        """Apply the remainders of a response."""
        ...


class Keep(Protocol):
    """Store of a replacement's state: a Secret that is deleted with the operation, unless a step needs it for longer

    (`ReplaceStep.needs_what_is_kept`).
    """

    @property
    def place(self) -> str:
        """Reference for messages: "Secret unbounded-kube/replacement-…"."""
        ...

    async def load(self) -> bytes | None:
        """Return the last stored state of this operation."""
        ...

    async def former(self) -> bytes | None:
        """Return the state of an earlier replacement of the instance that did not complete.

        `store` overwrites it, so the new state must contain the parts that are still needed.

        Raises:
            Transient: the earlier replacement is running.
        """
        ...

    async def store(self, content: bytes) -> None:
        """Replace the state, up to 900 KB, durably. It is removed at the end of the replacement."""
        ...


@dataclass(frozen=True)
class ReplaceStep:
    """One step of a replacement. Steps are taken in their order.

    Args:
        stage: value of `status.targets[].stage` during the step, such as StoppingOld.
        action: requested action, such as Stop. A repeated request must act once.
        waits_for: end of the sentence "waiting for …".
        seen: what the completed step proves, for the evidence.
        limit_s: limit of the step.
        late_s: extension of the limit while `Next.under_way`, so that a step is not given up shortly before its end.
        cancel: AT_ONCE while nothing is lost by a cancellation, then TOO_LATE. A cancellation at once removes the state
            unless `Next.still_needed`.
        undo: the step changes or ends the old instance, and the change can be reverted until the instance has ended. If
            the operation ends in this step, or is cancelled in one with AT_ONCE, the controller requests PUT_BACK from
            `act_replace` until `Next.is_as_it_was`. Then it removes the state, as with AT_ONCE.
        hands_over: the controller binds the Machine to `Next.new_instance`.
        needs_user_data: the step creates the new host. Neither the step nor the replacement starts while a new host
            could not join.
        needs_what_is_kept: the state may be the only record of the old instance. From here on the state outlives the
            operation unless it completes, and the next replacement of the instance finds it by `Keep.former`.
        settles: a late request could destroy what a later step creates, as a delete before a create under the same name
            does. If an ended controller may have sent one, no other request is sent until it cannot arrive any more, or
            the step has completed. False if a late request does no harm.
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
    """Observation of a replacement.

    Args:
        step: stage of the first incomplete step; None if all are complete.
        under_way: the step was requested and is in progress.
        detail: state in the cloud's words, with the names of all resources of this replacement: a failure ends with
            this
            text, and the user must find the remains. After the last step it is the operation's final message, in one
            line: the name of the running instance, the end of the old one, and the losses.
        where: source of the observation, for evidence.
        progress: for the message.
        is_as_it_was: the old instance is as before the replacement, with no change in progress.
        still_needed: the state must stay although the replacement fails: the next one of the instance needs it.
        new_instance: new spec.providerID of the Machine, if the next step hands it over.
        again_s: seconds after which the cloud wants to be polled; None for those that `act_replace` returned.
        more: a part of the step is complete, and the cloud accepts the next one now: it is requested at once.
        most_user_data: limit of user data in bytes, if it is lower for this instance.
        failed: the last accepted request has failed, for this reason: it is repeated after a pause, and the message
            names the reason.
        losses: properties that the new instance will not have, besides the content of the old boot disk; set before the
            first change. The controller shows them and refuses those that are not accepted: see `check_losses`.
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
    """One login of a provider. Its methods may run concurrently for different instances."""

    async def look(self, instance: Instance) -> Record: ...

    async def ask(self, job: Job, action: Action, *, before: float) -> str | None:
        """Request an action; return once it is accepted, with the handle of a long call if there is one.

        The end of the long call proves the action. Without a handle, the record proves a restart and must show it as
        CHANGING. If the record never does, and the cloud shows no call either, return a handle for which `follow`
        returns ACCEPTED. With `restarts_once`, a repeated restart of the same `job.uid` is accepted again and changes
        nothing.

        Args:
            before: time of the loop after which the request must not be sent: raise Transient then.
        Returns:
            At most 4 KiB without secrets. The handle is stored before the first `follow`, and survives restarts. A
            `Handle` names the time of that `follow`.
        """
        ...

    async def follow(self, job: Job, handle: str) -> Progress:
        """Observe a long call by its handle alone.

        DONE claims that a restart was executed, on the evidence of the cloud. Return ACCEPTED if the cloud shows only
        the request.
        """
        ...

    async def look_replace(self, job: Job, keep: Keep) -> Next:
        """Observe a replacement, from the cloud and the stored state alone.

        Raises:
            Refusal: before the first step: the replacement is impossible, and nothing was changed. Its losses belong in
                `Next.losses`.
        """
        ...

    async def act_replace(self, job: Job, step: str, keep: Keep, user_data: str, *, before: float) -> Taken:
        """Request a step that `look_replace` has named, or PUT_BACK, which restores the old instance.

        Args:
            user_data: for cloud-init, with which the new host joins; contains a token. Empty in steps that do not need
                it.
        Returns:
            Seconds after which the cloud wants to be polled, such as its Retry-After; None for any time. Until then the
            step counts as under way. Then it is observed, at this interval while `Next.under_way` names no `again_s` of
            its own. A `Handle` has this time as well, and `look_replace` finds the handle in `Job.handle` from then on,
            in this process and in the next: it belongs to a long call whose failure nothing else shows.
        """
        ...

    async def close(self) -> None: ...


class Provider(Protocol):
    """One kind of cloud. Class constants suffice for the properties."""

    @property
    def name(self) -> str:
        """Value of `spec.provider`."""
        ...

    @property
    def api_version(self) -> str:
        """Version of this API that the provider is written for, as a literal: "v1".

        Do not return `API_VERSION`: that is the version of the installed release.
        """
        ...

    @property
    def kinds(self) -> frozenset[OperationKind]:
        """Supported ones of HostReboot, HostPowerOff, HostPowerOn and HostReplace."""
        ...

    @property
    def modes(self) -> frozenset[AuthMode]:
        """Supported authentication modes."""
        ...

    @property
    def secret_keys(self) -> tuple[str, ...]:
        """Required keys in the Secret of an ExternalPlugin credential."""
        ...

    @property
    def rates(self) -> Rates: ...

    @property
    def call_limit_s(self) -> float:
        """Limit of one call of a session in seconds. A longer call is cancelled, and the outcome of an action is
        unknown.

        Work in a thread must then end by itself within the same time: a successor waits no longer before its first
        request.
        """
        ...

    @property
    def most_user_data(self) -> int:
        """Limit of a new host's user data in bytes; more is refused before the first change."""
        ...

    @property
    def restarts_once(self) -> bool:
        """Return whether the cloud accepts an idempotency key with a restart.

        With a key, the controller repeats a restart whose answer was lost. Without one, it never does.
        """
        ...

    @property
    def parameters(self) -> Mapping[OperationKind, frozenset[str]]:
        """Supported `spec.parameters`, by kind.

        An operation with another parameter is refused before the first change, so that no parameter is silently
        ignored.
        """
        ...

    @property
    def replacement(self) -> tuple[ReplaceStep, ...]:
        """Steps of a HostReplace; empty if the provider does not support it."""
        ...

    def instance(self, provider_id: str) -> Instance:
        """Parse a providerID; raises ValueError with a message for the user."""
        ...

    def connect(self, login: Login, budget: Budget) -> Session:
        """Return a session; nothing is sent yet.

        Raises:
            ValueError: the Secret has an invalid value; the message names the key, not the value.
        """
        ...


def said(text: str, *, hide: Iterable[str] = ()) -> str:
    """Sanitize a cloud's text for a status: one line of printable text, at most 512 characters, without secrets."""
    for secret in sorted(filter(None, hide), key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return one_line(text, SAID_CHARS)


def one_line(text: str, most: int) -> str:
    """Return printable text without line ends and repeated blanks, of at most so many characters."""
    text = text[: 8 * most]
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text)
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"
