"""Provider `OCIInstance`, the object of the entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from unbounded.machineops import provider, reasons
from unbounded.machineops.providers.oci import instances
from unbounded.machineops.providers.oci.errors import OciNotFound, TokenUsed, WrongState
from unbounded.machineops.providers.oci.instances import power
from unbounded.machineops.providers.oci.launch import METADATA_BYTES
from unbounded.machineops.providers.oci.logins import KEYS
from unbounded.machineops.providers.oci.replacement_calls import OciReplacement
from unbounded.machineops.providers.oci.replacement_plan import STEPS
from unbounded.machineops.providers.oci.sdk_client import Body, OciClient, Wire
from unbounded.machineops.providers.oci.work_requests import (
    CallTimes,
    OciWorkRequests,
    ResetObservation,
    accepted,
    of_handle,
)
from unbounded.operations.reasons import OUTCOME_UNKNOWN

ACTIONS: Final = {
    provider.Action.RESTART: "RESET",
    provider.Action.POWER_OFF: "SOFTSTOP",
    provider.Action.POWER_ON: "START",
}
FORCED: Final = {**ACTIONS, provider.Action.POWER_OFF: "STOP"}
"""SOFTSTOP signals the operating system first and cuts the power a quarter of an hour later."""
REACHED: Final = {provider.Action.POWER_OFF: provider.Power.STOPPED, provider.Action.POWER_ON: provider.Power.RUNNING}


class OciSession:
    """Session of one login: observes instances and requests changes."""

    def __init__(self, calls: OciClient, budget: provider.Budget) -> None:
        self._calls = calls
        self._budget = budget
        self._clock = CallTimes()

    async def look(self, instance: provider.Instance) -> provider.Record:
        where = _where(instance)
        try:
            state = str((await self._instance(instance)).get("lifecycleState"))
        except OciNotFound as error:
            return provider.Record(provider.Power.GONE, str(error), where)
        return provider.Record(power(state), f"{instance.name} is {state}", where)

    async def _instance(self, instance: provider.Instance) -> Body:
        """Read an instance.

        Raises:
            OciNotFound
        """
        await self._budget.read(self._calls.scope(instance))
        shown: Body = (await self._calls.read(instance, "get_instance", instance.id)).body
        return shown

    async def ask(self, job: provider.Job, action: provider.Action, *, before: float) -> str | None:
        """Request an action. Only a RESET has a handle; the effect of the others shows in the instance's lifecycle
        state.
        """
        desired = (FORCED if job.says("force") else ACTIONS)[action]
        await self._budget.write(self._calls.scope(job.instance), before=before)
        call = ("instance_action", job.instance.id, desired)
        self._clock.asked_s(job.uid)
        try:
            reply = await self._calls.write(job.instance, *call, before=before, **_key(job, action))
        except TokenUsed as error:
            message = f"{desired} of {job.instance.id} was done, and something else changed since: {error}"
            raise provider.Refusal(OUTCOME_UNKNOWN, message) from error
        except OciNotFound as error:  # the last observation showed it
            raise provider.Refusal(reasons.AUTH_REFUSED, f"{desired} of {job.instance.id}: {error}") from error
        except WrongState:
            if action not in REACHED or (await self.look(job.instance)).power is not REACHED[action]:
                raise
            return None
        if action is not provider.Action.RESTART:
            return None
        self._clock.accepted_s(job.uid)
        return accepted(reply, self._clock.asked_s(job.uid)).handle

    async def follow(self, job: provider.Job, handle: str) -> provider.Progress:
        known, where = of_handle(handle), _where(job.instance)
        try:
            shown = await self._instance(job.instance)
        except OciNotFound as error:
            return provider.Progress(provider.State.FORGOTTEN, str(error), where)
        reset = ResetObservation(
            OciWorkRequests(self._calls, self._budget), job, known, self._clock.accepted_s(job.uid)
        )
        return await reset.progress(shown, where)

    async def look_replace(self, job: provider.Job, keep: provider.Keep) -> provider.Next:
        return await OciReplacement(self._calls, self._budget, job, keep, self._clock).look()

    async def act_replace(
        self, job: provider.Job, step: str, keep: provider.Keep, user_data: str, *, before: float
    ) -> None:
        replacing = OciReplacement(self._calls, self._budget, job, keep, self._clock)
        await replacing.act(step, user_data, before=before)

    async def close(self) -> None:
        self._calls.close()


def _where(instance: provider.Instance) -> str:
    return f"OCI {instance.scope} GetInstance {instance.id}"


def _key(job: provider.Job, action: provider.Action) -> dict[str, str]:
    """Return the retry token of a restart. The others set a state and may need a repetition: a START can fail."""
    return {"opc_retry_token": f"unbounded-reset-{job.uid}"} if action is provider.Action.RESTART else {}


PARAMETERS: Final = MappingProxyType(
    {
        provider.OperationKind.HOST_REBOOT: frozenset({"force"}),  # RESET cuts the power in any case
        provider.OperationKind.HOST_POWER_OFF: frozenset({"force"}),
        provider.OperationKind.HOST_REPLACE: frozenset(
            {"keep", "accept", "imageID", "sshAuthorizedKeys", "assignPublicIP"}
        ),
    }
)


@dataclass(frozen=True)
class OciProvider:
    """Provider of OCI instances.

    Args:
        calls: makes the calls of a login; raises ValueError as `connect` does.
    """

    calls: Callable[[provider.Login], OciClient] = lambda login: OciClient(login, Wire())
    name: str = "OCIInstance"
    api_version: str = "v1"
    kinds: frozenset[provider.OperationKind] = frozenset(kind for kind in provider.OperationKind if kind.is_host)
    modes: frozenset[provider.AuthMode] = frozenset(provider.AuthMode)
    secret_keys: tuple[str, ...] = KEYS
    rates: provider.Rates = provider.Rates(reads=provider.Rate(200, 100), writes=provider.Rate(200, 10))  # noqa: RUF009  # frozen; Oracle names no figures
    call_limit_s: float = 45.0
    # the metadata has it in base64; `launch` subtracts the rest of the metadata
    most_user_data: int = METADATA_BYTES * 3 // 4
    restarts_once: bool = True
    parameters: Mapping[provider.OperationKind, frozenset[str]] = field(default_factory=lambda: PARAMETERS)
    replacement: tuple[provider.ReplaceStep, ...] = STEPS

    def instance(self, provider_id: str) -> provider.Instance:
        return instances.instance(provider_id)

    def connect(self, login: provider.Login, budget: provider.Budget) -> OciSession:
        return OciSession(self.calls(login), budget)
