"""machine-ops-controller as an executor: the host operations of one site's machines at one provider.

`power` and `replacement` decide; a provider's session observes the cloud and requests actions.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import msgspec

from unbounded.api.failures import Failure, Stale, Transient, Uncertain
from unbounded.api.fields import Cause
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MACHINE_OPERATIONS, MAX_HANDLE, MachineOperation, OperationKind
from unbounded.kube.api import Api, ApiError
from unbounded.kube.cache import Cache
from unbounded.kube.clock import loop_time
from unbounded.kube.logs import Log
from unbounded.kube.status_writer import StatusWriter
from unbounded.kube.tracing import SpanKind, span
from unbounded.machineops import power, reasons, replacement
from unbounded.machineops.credentials import Sessions, SiteLogins
from unbounded.machineops.long_calls import LongCalls
from unbounded.machineops.preflight import invalid_provider_id, others_bound_to, procedure_of, provider_id_of
from unbounded.machineops.provider import (
    PUT_BACK,
    Action,
    Handle,
    Instance,
    Job,
    Loss,
    Next,
    Provider,
    Session,
    State,
    Taken,
    Throttled,
    check_losses,
)
from unbounded.machineops.rate_limits import BudgetWait, ScopeBudget, track_wait
from unbounded.machineops.replacement_state import ReplacementSecret
from unbounded.machineops.sanitize import parse_instance, sanitize_failures, sanitize_observation, status_losses
from unbounded.operations.claim_gates import Gate
from unbounded.operations.executor_protocol import NotDone, Refusal, Target
from unbounded.operations.executor_selection import ExecutorKind, executor_name
from unbounded.workflow.procedure import Observation, Procedure

UNTOUCHED: Final = frozenset({power.STARTING, replacement.CHECKING})
INSTANCES: Final = 4096  # cached ids: each event of a Machine needs its target digest
NAMED: Final = 3  # of the Machines that share an instance
ACCEPTED: Final = ""  # handle of an accepted action without a long call, so that the acceptance survives a crash

T = TypeVar("T")

UserData = Callable[[Machine], Awaitable[str]]
"""Returns the user data with which a new host of a Machine joins; raises Refusal for a missing prerequisite."""

log = Log("machine-ops-controller")


class CloudExecutor:
    """Executor of one site and provider.

    Args:
        machines: of all sites, indexed by INDEX_INSTANCE.
        budget: of the provider; shared by all sites, whose machines may belong to the same account.
    """

    def __init__(
        self,
        api: Api,
        machines: Cache[Machine],
        provider: Provider,
        site: str,
        *,
        logins: SiteLogins,
        budget: ScopeBudget,
        user_data: UserData,
    ) -> None:
        self.name = "/".join(part for part in (ExecutorKind.CLOUD, site, provider.name) if part)
        self._api = api
        self._status = StatusWriter(api, MACHINE_OPERATIONS, fields=("losses",))
        self._machines = machines
        self._provider = provider
        self._sessions = Sessions(provider, site, logins, budget)
        self._budget = budget
        self._user_data = user_data
        self._instance_of = functools.lru_cache(INSTANCES)(functools.partial(parse_instance, provider))
        self._long_calls = LongCalls()
        self._losses: dict[str, tuple[Loss, ...]] = {}  # of replacements that are about to start
        self._waits: dict[str, BudgetWait] = {}

    @property
    def call_limit_s(self) -> float:
        return self._provider.call_limit_s

    def claims(self, kind: OperationKind, machine: Machine) -> bool:
        return executor_name(kind, machine) == self.name

    def procedure(self, operation: MachineOperation) -> Procedure:
        return procedure_of(self._provider, operation)

    def endpoint(self, machine: Machine) -> str:
        waiting = self._waits.get(machine.name)
        why = (
            f", as its rate limits delay {waiting.waits_for}: nothing was sent"
            if waiting is not None and waiting.waits_for
            else ""
        )
        return f"{self._provider.name} {machine.spec.provider_id or 'without spec.providerID'}{why}"

    def concurrency_group(self, machine: Machine) -> str:
        try:
            return self._instance(machine).scope
        except Refusal:
            return ""

    def target_digest(self, machine: Machine) -> str:
        """Return the target digest; empty for an invalid spec.providerID, whose fault the observation reports."""
        try:
            return self._instance(machine).binding
        except Refusal:
            return ""

    def claim_gate(self, _operation: MachineOperation, _machine: Machine) -> Gate | None:
        return None

    def observation_key(self, _operation: MachineOperation, _machine: Machine) -> object:
        return None

    async def observe(self, target: Target) -> Observation:
        with track_wait() as wait:
            self._waits[target.machine.name] = wait
            try:
                observation = sanitize_observation(await self._observe(target))
                is_reboot = target.operation.spec.operation_kind == OperationKind.HOST_REBOOT
                return replace(observation, boot_id=_boots(target).before) if is_reboot else observation
            finally:
                self._waits.pop(target.machine.name, None)

    async def _observe(self, target: Target) -> Observation:
        if (known := self._long_calls.last_observation(target)) is not None:
            return known
        job = self._job(target)
        if target.run.stage in UNTOUCHED:
            self._check_exclusive(target.machine, job.instance)
        if target.run.stage == replacement.CLEARING:
            return await self._observe_clearing(target)
        if target.run.stage == replacement.REMOVING_STATE:
            return await self._observe_removing(target, job)
        async with self._sessions.use() as session:
            if target.run.stage == replacement.PUTTING_BACK:
                return await self._observe_putting_back(target, session, job)
            if job.kind is OperationKind.HOST_REPLACE:
                return await self._observe_replace(target, session, job)
            if target.run.action is not None and target.run.handle:
                progress = await self._bounded(job, session.follow(job, target.run.handle))
                if progress.state in (State.FORGOTTEN, State.ACCEPTED):
                    record = await self._bounded(job, session.look(job.instance))
                    return power.call_unknown(progress, record, job.kind, _boots(target))
                if progress.state is not State.DONE or job.kind is OperationKind.HOST_REBOOT:
                    return self._long_calls.pause(target, power.call_progress(progress), progress.again_s)
            record = await self._bounded(job, session.look(job.instance))
            if target.run.stage == power.AWAITING_HOST:
                return power.host_fact(record, _boots(target))
            return power.record_fact(record, accepted=target.run.handle is not None)

    async def _observe_replace(self, target: Target, session: Session, job: Job) -> Observation:
        steps = self._provider.replacement
        found = await self._read_replacement(target, session, job)
        checking = target.run.stage in ("", replacement.CHECKING)
        await self._check_losses(target, job, found.losses)
        if replacement.needs_user_data(steps, found, checking=checking):
            await self._fitting_user_data(
                target.machine, found.most_user_data
            )  # a replacement does not start unless it can complete
        binding = self._provider.instance(found.new_instance).binding if found.new_instance is not None else None
        observation = replacement.step_fact(steps, found, binding)
        return self._long_calls.pause(target, observation, self._again_s(target, found))

    async def _check_losses(self, target: Target, job: Job, losses: Sequence[Loss]) -> None:
        """Check the losses, and remember them for the status write before the first step.

        Raises:
            Refusal: a loss is not accepted; the losses are written to the status at once.
        """
        try:
            check_losses(losses, job.parameters, job.instance.name)
        except Refusal:
            await self._write_losses(target, losses)
            raise
        if losses:
            self._losses[job.uid] = tuple(losses)
            while len(self._losses) > INSTANCES:
                del self._losses[next(iter(self._losses))]

    async def _write_losses(self, target: Target, losses: Sequence[Loss]) -> None:
        """Write the losses to the status if they differ."""
        operation = target.operation
        reported = status_losses(losses)
        if not reported or reported == tuple(operation.status.losses):
            return
        losses_told = {"losses": msgspec.to_builtins(reported)}
        try:
            await self._status.merge(operation.name, losses_told, uid=operation.metadata.uid)
        except ApiError as error:
            raise Transient(f"cannot write the losses to its status: {error}") from error

    async def _read_replacement(self, target: Target, session: Session, job: Job) -> Next:
        """Observe a replacement; raise Refusal if the stored state, on which it depends, is gone."""
        steps, keep, stage = self._provider.replacement, self._state(target), target.run.stage
        try:
            found = await self._bounded(job, session.look_replace(job, keep))
        except Refusal:
            if replacement.depends_on_state(steps, stage) and await keep.load() is None:
                raise _state_is_gone(keep) from None
            raise
        begins_anew = found.step == steps[0].stage and replacement.depends_on_state(steps, stage)
        if begins_anew and await keep.load() is None:
            raise _state_is_gone(keep)
        return found

    async def _observe_putting_back(self, target: Target, session: Session, job: Job) -> Observation:
        found = await self._bounded(job, session.look_replace(job, self._state(target)))
        observation = replacement.restore_fact(self._provider.replacement, found)
        return self._long_calls.pause(target, observation, self._again_s(target, found))

    async def _observe_removing(self, target: Target, job: Job) -> Observation:
        steps, keep = self._provider.replacement, self._state(target)
        if await keep.load() is None:
            return replacement.removal_fact(steps, target.run, None, keep.place)
        async with self._sessions.use() as session:
            found = await self._bounded(job, session.look_replace(job, keep))
        return replacement.removal_fact(steps, target.run, found, keep.place)

    async def _observe_clearing(self, target: Target) -> Observation:
        """Observe the removal of the stored state, the last step. The provider's final message stays."""
        keep = self._state(target)
        left = f"; {keep.place} is left"
        told = target.run.standing.removesuffix(left)
        try:
            is_clear = await keep.load() is None
        except Failure:  # the request for its removal reports the cause
            is_clear = False
        return replacement.clearing_fact(
            self._provider.replacement, is_clear, told if is_clear else told + left, keep.place
        )

    async def perform(self, target: Target, action: str, *, before: float) -> str | None:
        job = self._job(target)
        if target.run.stage in (replacement.CLEARING, replacement.REMOVING_STATE):
            await self._state(target).delete()
            return None
        async with self._sessions.use() as session:
            if job.kind is OperationKind.HOST_REPLACE:
                taken = await self._act_replace(target, session, job, before)
                again_s = taken.again_s if isinstance(taken, Handle) else taken
                self._long_calls.pause(
                    target, replacement.step_accepted(self._provider.replacement, target.run.standing), again_s
                )
                return _storable(taken) if isinstance(taken, Handle) else None
            _check_deadline(before)
            handle = await self._bounded(job, session.ask(job, Action(action), before=before), asks=True)
        stored = None if handle is None else _storable(handle)
        if stored is None:
            return ACCEPTED
        if isinstance(handle, Handle):
            self._long_calls.pause(target, power.call_accepted(target.run.standing), handle.again_s)
        return stored

    async def _act_replace(self, target: Target, session: Session, job: Job, before: float) -> Taken:
        """Request a step; return the time until the next poll and the handle of a long call."""
        keep = self._state(target)
        if target.run.stage == replacement.PUTTING_BACK:
            return await self._bounded(job, session.act_replace(job, PUT_BACK, keep, "", before=before), asks=True)
        step = replacement.step_of(self._provider.replacement, target.run.stage)
        if step.hands_over:
            found = await self._bounded(job, session.look_replace(job, keep))
            await self._hand_over(target, job, found, before)
            return None
        user_data = await self._user_data_now(target.machine) if step.needs_user_data else ""
        if step.needs_what_is_kept:
            await keep.outlive_operation()
        await self._write_losses(target, self._losses.get(job.uid, ()))
        self._losses.pop(job.uid, None)
        _check_deadline(before)
        call = session.act_replace(job, step.stage, keep, user_data, before=before)
        return await self._bounded(job, call, asks=True)

    async def _fitting_user_data(self, machine: Machine, most: int | None = None) -> str:
        text, most = await self._user_data(machine), self._provider.most_user_data if most is None else most
        if (size := len(text.encode())) > most:
            message = (
                f"the user data of Machine {machine.name} has {size} bytes; the limit of {self._provider.name} is "
                f"{most}"
            )
            raise Refusal(reasons.BOOTSTRAP_DATA_FAILED, message, Cause(code=reasons.USER_DATA_TOO_LONG))
        return text

    async def _user_data_now(self, machine: Machine) -> str:
        try:
            return await self._fitting_user_data(machine)
        except Refusal as refusal:  # the last observation had user data; the old instance may be gone by now
            raise NotDone(refusal.reason, str(refusal), refusal.cause) from refusal

    async def _hand_over(self, target: Target, job: Job, found: Next, before: float) -> None:
        """Bind the Machine to its new instance, which is the one in the intent."""
        provider_id, name = found.new_instance, target.machine.name
        if provider_id is None or self._provider.instance(provider_id).binding != target.run.next_target_digest:
            raise Transient(f"the instance for the Machine has changed: {found.detail}")
        machine = await self._api.get(MACHINES, name)  # read live: agents write its status all the time
        if machine.metadata.uid != job.machine_uid or self.target_digest(machine) != job.instance.binding:
            raise Stale(f"Machine {name} has changed")
        _check_deadline(before)
        meta = {"uid": machine.metadata.uid, "resourceVersion": machine.metadata.resource_version}
        await self._api.patch(MACHINES, name, {"metadata": meta, "spec": {"providerID": provider_id}})
        log.info("machine bound to its replacement", machine=name, instance=provider_id)

    # Helpers

    def _instance(self, machine: Machine) -> Instance:
        try:
            return self._instance_of(provider_id_of(machine))
        except ValueError as error:
            raise invalid_provider_id(machine, error) from error

    def _check_exclusive(self, machine: Machine, instance: Instance) -> None:
        """Raise Refusal if other Machines have the same instance: a Machine's lock does not protect its instance from
        them.
        """
        others = others_bound_to(self._machines, self._provider, instance, machine)
        if others:
            more = f" and {len(others) - NAMED} others" if len(others) > NAMED else ""
            raise Refusal(
                reasons.PROVIDER_ID_SHARED,
                f"spec.providerID of Machine {machine.name} is also that of Machine "
                f"{', '.join(others[:NAMED])}{more}: no operation starts on an instance that two Machines name. "
                "Give each its own, or delete one",
            )

    def _job(self, target: Target) -> Job:
        operation = target.operation
        return Job(
            operation=operation.name,
            uid=operation.metadata.uid,
            kind=OperationKind(operation.spec.operation_kind),
            machine=target.machine.name,
            machine_uid=target.machine.metadata.uid,
            instance=self._instance(target.machine),
            parameters=operation.spec.parameters,
            handle=(target.run.handle or None) if target.run.action is not None else None,
        )

    def _state(self, target: Target) -> ReplacementSecret:
        return ReplacementSecret(self._api, target.operation, target.machine, target.run.target_digest)

    def _again_s(self, target: Target, found: Next) -> float | None:
        """Return the time until the next poll: the last that the cloud has named, perhaps at the acceptance."""
        if not found.under_way or found.again_s is not None:
            return found.again_s if found.under_way else None
        return self._long_calls.interval_s(target)

    async def _bounded(self, job: Job, call: Awaitable[T], *, asks: bool = False) -> T:
        """Make a call within the provider's limit, and return its result. A throttled call closes its scope."""
        limit_s = self._provider.call_limit_s
        try:
            with (
                sanitize_failures(),
                span(f"{self._provider.name} {getattr(call, '__name__', 'call')}", kind=SpanKind.CLIENT),
            ):
                async with asyncio.timeout(limit_s):
                    return await call
        except TimeoutError as error:
            words = f"{self._provider.name} did not answer within {limit_s:.0f} s"
            raise (Uncertain if asks else Transient)(words) from error
        except Throttled as error:
            self._budget.throttled(error.scope or job.instance.scope, error.after_s)
            raise
        except Refusal as refusal:
            if refusal.reason == reasons.AUTH_REFUSED:
                refusal.cause = reasons.credential_cause(reasons.CREDENTIAL_REFUSED, self._sessions.invalidate_login())
            raise

    async def close(self) -> None:
        """Close the session, if there is one."""
        await self._sessions.close()


def _boots(target: Target) -> power.BootIDs:
    """Return the boot IDs of the host: the current one, and the one at the first request; equal before a request."""
    agent, run = target.machine.status.agent, target.run
    now = agent.host_boot_id if agent is not None else None
    before = now if run.called_at is None else run.boot_id
    return power.BootIDs(before, now, f"Machine {target.machine.name} status.agent.hostBootID")


def _storable(handle: str) -> str | None:
    """Return a handle in its stored form; None if it is empty or too long."""
    if len(handle) > MAX_HANDLE:
        log.error("handle is too long to store; observing the instance instead", length=len(handle))
        return None
    return str(handle) or None


def _state_is_gone(keep: ReplacementSecret) -> Refusal:
    words = (
        f"{keep.place} does not exist any more, and the replacement cannot continue without it: restore it, or create"
    )
    cause = reasons.secret_cause(reasons.SECRET_MISSING, keep.secret)
    return Refusal(reasons.STATE_IS_GONE, f"{words} the instance by hand", cause)


def _check_deadline(before: float) -> None:
    if loop_time() > before:
        raise Transient("the time limit for the request has passed")
