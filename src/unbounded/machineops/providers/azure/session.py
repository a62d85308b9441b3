"""One login to Azure: looking at virtual machines, asking for changes, following what goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from unbounded.machineops import reasons
from unbounded.machineops.provider import (
    Action,
    Instance,
    Job,
    Keep,
    Next,
    OperationKind,
    Power,
    Progress,
    Record,
    Refusal,
    State,
    Transient,
    said,
)
from unbounded.machineops.providers.azure import states
from unbounded.machineops.providers.azure.calls import Calls, answered, retry_after
from unbounded.machineops.providers.azure.ids import VmId, vm_id
from unbounded.operations import reasons as common

VERBS: Final = {
    Action.RESTART: "restart",
    Action.POWER_OFF: "power off",
    Action.DEALLOCATE: "deallocate",
    Action.POWER_ON: "start",
}


class _Status(msgspec.Struct):
    """The document of a long call."""

    status: str = ""
    error: dict[str, Any] | None = None


class AzureSession:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def look(self, instance: Instance) -> Record:
        vm, where = vm_id(instance.id), f"Azure, instance view of {instance.id}"
        try:
            view = await self._calls.read(
                f"look at VM {instance.name}",
                instance.scope,
                lambda client: client.virtual_machines.instance_view(vm.group, vm.name),
            )
        except Refusal as refusal:
            if refusal.reason != reasons.INSTANCE_NOT_FOUND:
                raise
            return Record(Power.GONE, str(refusal), where)
        statuses = view.as_dict().get("statuses") or []
        return Record(states.power(statuses), f"VM {instance.name}: {states.described(statuses)}", where)

    async def ask(self, job: Job, action: Action, *, before: float) -> str | None:
        vm, what = vm_id(job.instance.id), f"{VERBS[action]} VM {job.instance.name}"
        answer = await self._calls.change(what, job.instance.scope, _power_call(job, action, vm), before=before)
        headers: Mapping[str, str] = answer.http_response.headers
        return headers.get("azure-asyncoperation") or headers.get("location")

    async def follow(self, job: Job, handle: str) -> Progress:
        if not self._is_ours(handle, job.instance.scope):
            raise Transient(
                f"the place to follow the long call at is not one of {self._calls.endpoint}: {said(handle)}"
            )
        what = f"follow the long call for VM {job.instance.name}"
        where = f"Azure, status of the long call for {job.instance.id}"
        status, headers, content = await self._calls.get(what, job.instance.scope, handle)
        again_s = retry_after(headers)
        if status == 404:
            return await self._follow_forgotten(job, where)
        if status == 202:
            return Progress(State.RUNNING, "the long call is in progress", where, again_s)
        if status >= 400:  # where a Location is followed, it answers as the call itself would have
            error = answered(status, headers, content)
            return Progress(State.FAILED, said(f"{error.code}: {error.message}"), where)
        document = msgspec.json.decode(content, type=_Status) if content else _Status("Succeeded")
        words = f"the long call: {document.status}"
        if document.error:
            words += f", {document.error.get('code')}: {document.error.get('message')}"
        return Progress(states.progress(document.status), said(words), where, again_s)

    async def _follow_forgotten(self, job: Job, where: str) -> Progress:
        """Azure knows no such call, though it gave its address: the VM shows whether something goes on."""
        words = "Azure has no status of the long call any more"
        record = await self.look(job.instance)
        if record.power is Power.CHANGING:
            return Progress(State.RUNNING, f"{words}; {record.detail}", where)
        if job.kind is OperationKind.HOST_REBOOT:  # of which the record shows nothing once it is over
            raise Transient(f"{words}, so that its end cannot be seen; {record.detail}")
        return Progress(State.DONE, f"{words}; {record.detail}", where)

    def _is_ours(self, url: str, scope: str) -> bool:
        ours, given = urlsplit(self._calls.endpoint), urlsplit(url)
        same = (given.scheme, given.netloc.lower()) == (ours.scheme, ours.netloc.lower())
        return same and given.path.lower().startswith(f"/subscriptions/{scope.lower()}/")

    async def look_replace(self, job: Job, keep: Keep) -> Next:  # noqa: ARG002 - the port
        raise Refusal(common.UNSUPPORTED_OPERATION, f"AzureVM does not carry out {job.kind} on {job.instance.name}")

    async def act_replace(self, job: Job, step: str, keep: Keep, user_data: str, *, before: float) -> None:  # noqa: ARG002
        raise Refusal(common.UNSUPPORTED_OPERATION, f"AzureVM does not carry out {job.kind} on {job.instance.name}")

    async def close(self) -> None:
        await self._calls.close()


def _power_call(job: Job, action: Action, vm: VmId) -> Callable[[Any], Awaitable[Any]]:
    """The call of an action, which gives its answer; the SDK does not poll."""
    options: dict[str, Any] = {"polling": False, "cls": lambda response, _body, _headers: response}

    async def call(client: Any) -> Any:
        machines = client.virtual_machines
        match action:
            case Action.RESTART:
                poller = await machines.begin_restart(vm.group, vm.name, **options)
            case Action.POWER_OFF:
                skip = {"skip_shutdown": True} if job.says("force") else {}
                poller = await machines.begin_power_off(vm.group, vm.name, **skip, **options)
            case Action.DEALLOCATE:
                poller = await machines.begin_deallocate(vm.group, vm.name, **options)
            case Action.POWER_ON:
                poller = await machines.begin_start(vm.group, vm.name, **options)
        return await poller.result()

    return call
