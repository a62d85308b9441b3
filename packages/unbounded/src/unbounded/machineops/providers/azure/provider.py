"""Provider `AzureVM`: its login, the session of a login, and its description.

A session observes virtual machines, requests changes, and follows them.
"""

from __future__ import annotations

import re
import secrets
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import msgspec
from azure.core import AzureClouds
from azure.core.pipeline.transport import AioHttpTransport
from azure.core.settings import settings
from azure.identity.aio import ClientSecretCredential, DefaultAzureCredential
from azure.mgmt.core.tools import get_arm_endpoints

from unbounded.kube.tls import client_context
from unbounded.machineops import provider, reasons
from unbounded.machineops.providers.azure import images, long_running_operations, model, replacement_plan, vm_properties
from unbounded.machineops.providers.azure.errors import ArmRequest, Closed
from unbounded.machineops.providers.azure.model import VmReplacementState
from unbounded.machineops.providers.azure.replacement_plan import AzureAction, AzureObservation, StepDecision
from unbounded.machineops.providers.azure.sdk_client import NOTHING, AzureClient, AzureCredential, retry_after
from unbounded.machineops.providers.azure.vm_properties import VmId, vm_id

VERBS: Final = {
    provider.Action.RESTART: ("restart", "restart"),
    provider.Action.POWER_OFF: ("power off", "powerOff"),
    provider.Action.DEALLOCATE: ("deallocate", "deallocate"),
    provider.Action.POWER_ON: ("start", "start"),
}
"""Each action in words, and as Azure names it in a path."""

MAX_OBSERVATIONS: Final = 1000  # observations without an action since


@dataclass(frozen=True)
class _ObservedDecision:
    """Result of observing a replacement."""

    position: StepDecision
    seen: AzureObservation


class AzureSession:
    def __init__(self, calls: AzureClient) -> None:
        self._calls = calls
        self._observations: dict[str, _ObservedDecision] = {}

    async def look(self, instance: provider.Instance) -> provider.Record:
        where = f"Azure, instance view of {instance.id}"
        try:
            view = await self._calls.show(ArmRequest("read VM", instance.name, instance), f"{instance.id}/instanceView")
        except provider.Refusal as refusal:
            if refusal.reason != reasons.INSTANCE_NOT_FOUND:
                raise
            return provider.Record(provider.Power.GONE, str(refusal), where)
        statuses = view.get("statuses") or []
        return provider.Record(
            vm_properties.power(statuses), f"VM {instance.name}: {vm_properties.describe(statuses)}", where
        )

    async def ask(self, job: provider.Job, action: provider.Action, *, before: float) -> str | None:
        verb, name = VERBS[action]
        request = ArmRequest(f"{verb} VM", job.instance.name, job.instance, changes=True)
        query = {"skipShutdown": "true"} if action is provider.Action.POWER_OFF and job.says("force") else {}
        path = f"{job.instance.id}/{name}"
        headers = await self._calls.change(request, "POST", path, before=before, query=query)
        return long_running_operations.handle_of(headers)

    async def follow(self, job: provider.Job, handle: str) -> provider.Progress:
        return await long_running_operations.progress(self._calls, job, handle)

    # Replacement

    async def look_replace(self, job: provider.Job, keep: provider.Keep) -> provider.Next:
        found = await self._observe(job, keep, self._observations.pop(job.uid, None))
        self._observations[job.uid] = found
        while len(self._observations) > MAX_OBSERVATIONS:
            del self._observations[next(iter(self._observations))]
        return found.position.next

    async def act_replace(
        self, job: provider.Job, step: str, keep: provider.Keep, user_data: str, *, before: float
    ) -> provider.Taken:
        # If Azure is slow, an observation takes longer than a call may wait, so the previous one is used; the etag
        # guards it.
        found = self._observations.pop(job.uid, None)
        if found is None or found.position.do is AzureAction.NOTHING:
            found = await self._observe(job, keep)
        if step == provider.PUT_BACK:
            return await self._put_back(found, job, before)
        if found.position.next.step != step:
            return None  # completed in between
        try:
            return await self._execute(found, job, keep, user_data, before)
        except provider.Refusal as refusal:
            if step in (replacement_plan.SAVING, replacement_plan.DETACHING, replacement_plan.DELETING):
                raise
            # Without the old VM the operation must not fail at once; what was not found is a part, such as the image.
            not_found = refusal.reason == reasons.INSTANCE_NOT_FOUND
            reason = reasons.PROVIDER_REFUSED if not_found else refusal.reason
            raise provider.NotDone(reason, str(refusal), refusal.cause) from refusal

    async def _put_back(self, found: _ObservedDecision, job: provider.Job, before: float) -> float | None:
        """Restore the old VM's delete options, unless they are original or a change is in progress."""
        following, vm, stored = found.position.next, found.seen.vm, found.seen.kept
        if (
            vm is None
            or stored is None
            or following.under_way
            or following.is_as_it_was
            or not model.is_old(vm, stored)
        ):
            return None
        return await self._update(
            "restore the delete options of VM", job, stored, vm, model.put_back(vm, stored), before
        )

    async def _observe(
        self, job: provider.Job, keep: provider.Keep, before: _ObservedDecision | None = None
    ) -> _ObservedDecision:
        """Observe a replacement.

        Args:
            before: the previous observation. While the same step continues, its state is reused instead of read again.
        """
        waiting_with = before.seen.kept if before is not None and before.position.next.under_way else None
        stored = waiting_with or _decoded(await keep.load())
        former = _decoded(await keep.former()) if stored is None else None
        vm = await self._vm(job.instance, "instanceView")
        disks = {}
        for disk_id in replacement_plan.disks_to_read(vm, stored):
            if (disk := await self._disk(job.instance, disk_id)) is not None:
                disks[disk_id] = disk
        missing = unsure = ""
        if vm is not None and stored is None and not any(model.obstacles(vm)):
            missing, unsure = await self._image(job.instance, vm)
        creation = await self.follow(job, job.handle) if vm is None and stored is not None and job.handle else None
        observation = AzureObservation(vm, disks, stored, former, keep.place, missing, unsure, creation)
        found = _ObservedDecision(replacement_plan.decide(observation, job), observation)
        if waiting_with is not None and not found.position.next.under_way and _decoded(await keep.load()) != stored:
            return await self._observe(job, keep)
        return found

    async def _execute(
        self, found: _ObservedDecision, job: provider.Job, keep: provider.Keep, user_data: str, before: float
    ) -> provider.Taken:
        """Carry out the action of a position; return when Azure wants to be polled."""
        stored, former, vm = found.seen.kept, found.seen.former, found.seen.vm
        match found.position.do:
            case AzureAction.SAVE:
                await self._save(job, keep, found.seen)
            case AzureAction.TAKE_UP if former is not None:
                await keep.store(model.adopted(former, job.uid).encoded())
            case AzureAction.DELETE_OLD if stored is not None:
                return await self._delete_old(job, keep, stored, before)
            case AzureAction.EXTEND if stored is not None and vm is not None:
                return await self._extend(job, keep, stored, vm, before)
            case do if stored is not None:
                return await self._change_vm(do, job, stored, vm, found.position.disk, user_data, before)
        return None

    async def _change_vm(
        self,
        do: AzureAction,
        job: provider.Job,
        state: VmReplacementState,
        vm: model.Document | None,
        disk: str,
        user_data: str,
        before: float,
    ) -> provider.Taken:
        match do:
            case AzureAction.DETACH if vm is not None:
                return await self._update("detach the resources of VM", job, state, vm, model.detached(vm), before)
            case AzureAction.RESTORE if vm is not None:
                return await self._update(
                    "restore the delete options of VM", job, state, vm, model.restored(vm, state), before
                )
            case AzureAction.DELETE_VM:
                return await self._delete_vm(job, state, before)
            case AzureAction.CREATE:
                return await self._create(job, state, user_data, before)
            case AzureAction.DELETE_DISK:
                return await self._delete_disk(job, disk, before)
        return None

    async def _save(self, job: provider.Job, keep: provider.Keep, observation: AzureObservation) -> None:
        vm, stored, lost = await self._current_state(job)
        provider.check_losses(lost, job.parameters, f"VM {stored.name}")
        stored, former = msgspec.structs.replace(stored, unsure=observation.unsure), observation.former
        if former is not None and (model.is_old(vm, former) or model.is_made_by(vm, former)):
            stored = model.completed_from_former(stored, model.reduced_to_missing(former, vm))
        await keep.store(stored.encoded())

    async def _current_state(self, job: provider.Job) -> tuple[model.Document, VmReplacementState, list[provider.Loss]]:
        """Return the virtual machine, its state to save, and the losses."""
        vm = await self._vm(job.instance, "userData")
        if vm is None or model.pending_disks(vm):
            raise provider.Transient(
                f"VM {job.instance.name} does not exist any more, or a disk is being attached to it"
            )
        disk = await self._disk(job.instance, vm["properties"]["storageProfile"]["osDisk"]["managedDisk"]["id"])
        return (
            vm,
            model.build_state(vm, disk or {}, vm_id(str(vm["id"])).group, job.uid),
            replacement_plan.losses(vm, disk or {}),
        )

    async def _delete_old(
        self, job: provider.Job, keep: provider.Keep, state: VmReplacementState, before: float
    ) -> float | None:
        """Delete the old VM unless it was changed since its state was saved. Azure checks no etag on deletion."""
        vm, now, lost = await self._current_state(job)
        if not model.is_old(vm, state):
            raise provider.Transient(f"VM {state.name} is not the same one any more")
        # A successful change leaves it succeeded. A failed VM may be half deleted and shows less than it had.
        anew = None if model.provisioning(vm) == "failed" else model.updated_state(now, state)
        if anew is not None:
            provider.check_losses(lost, job.parameters, f"VM {state.name}")
        if not model.is_detached(vm):
            await self._update("detach the resources of VM", job, state, vm, model.detached(vm), before)
        if anew is not None:
            await keep.store(anew.encoded())
        if anew is not None or not model.is_detached(vm):
            raise provider.Transient(
                f"VM {state.name} was changed since its model was stored; storing and detaching the changes first"
            )
        return await self._delete_vm(job, state, before)

    async def _delete_vm(self, job: provider.Job, state: VmReplacementState, before: float) -> float | None:
        return await self._change("delete VM", state.name, job, "DELETE", _vm_path(job, state), before=before)

    async def _update(
        self,
        verb: str,
        job: provider.Job,
        state: VmReplacementState,
        vm: model.Document,
        body: dict[str, Any],
        before: float,
    ) -> float | None:
        unchanged = {"If-Match": _quoted(vm["etag"])}
        place = _vm_path(job, state)
        return await self._change(verb, state.name, job, "PATCH", place, body, before=before, condition=unchanged)

    async def _create(
        self, job: provider.Job, state: VmReplacementState, user_data: str, before: float
    ) -> provider.Taken:
        """Create the VM and follow its long call: if that fails and removes the VM, no other record shows it."""
        # for a login that needs one; Azure requires three kinds of characters
        password = f"aA1-{secrets.token_urlsafe(32)}"
        body = model.created(state, user_data, password)
        request = ArmRequest("create VM", state.name, job.instance, changes=True)
        missing = {"If-None-Match": "*"}
        headers = await self._calls.change(request, "PUT", _vm_path(job, state), body, before=before, condition=missing)
        handle = long_running_operations.handle_of(headers)
        followed = handle is not None and long_running_operations.is_ours(self._calls, handle, job.instance.scope)
        return handle if followed else retry_after(headers)

    async def _extend(
        self, job: provider.Job, keep: provider.Keep, state: VmReplacementState, vm: model.Document, before: float
    ) -> float | None:
        """Request all missing extensions. Each is a call of its own, and Azure may refuse those after the first for
        now.
        """
        again_s: float | None = None
        for number, name in enumerate(replacement_plan.extensions_to_add(vm, state)):
            try:
                again_s = await self._put_extension(job, state, name, before)
            except provider.Transient:
                if number == 0:
                    raise
                return again_s
            except provider.Refusal as refusal:
                if refusal.reason == reasons.AUTH_REFUSED or isinstance(refusal, Closed):
                    raise
                state = model.with_refused_extension(state, name, str(refusal))
                await keep.store(state.encoded())
        return again_s

    async def _put_extension(
        self, job: provider.Job, state: VmReplacementState, name: str, before: float
    ) -> float | None:
        place, body = f"{_vm_path(job, state)}/extensions/{name}", state.extensions[name]
        return await self._change(f"add extension {name} to VM", state.name, job, "PUT", place, body, before=before)

    async def _delete_disk(self, job: provider.Job, disk_id: str, before: float) -> float | None:
        place, name = _disk_path(job.instance, disk_id), model.last(disk_id)
        return await self._change("delete disk", name, job, "DELETE", place, before=before)

    async def _change(
        self,
        verb: str,
        name: str,
        job: provider.Job,
        method: str,
        resource_id: str,
        body: dict[str, Any] | None = None,
        *,
        before: float,
        condition: Mapping[str, str] = NOTHING,
    ) -> float | None:
        """Request a change; return when Azure wants to be polled."""
        request = ArmRequest(verb, name, job.instance, changes=True)
        headers = await self._calls.change(request, method, resource_id, body, before=before, condition=condition)
        return retry_after(headers)

    async def _vm(self, instance: provider.Instance, expand: str) -> model.Document | None:
        request = ArmRequest("read VM", instance.name, instance)
        return await self._get(request, instance.id, {"$expand": expand})

    async def _disk(self, instance: provider.Instance, disk_id: str) -> model.Document | None:
        request = ArmRequest("read disk", model.last(disk_id), instance)
        return await self._get(request, _disk_path(instance, disk_id), {})

    async def _image(self, instance: provider.Instance, vm: model.Document) -> tuple[str, str]:
        """Return why the VM's image is not available, and the possible loss if that is unknown; each may be empty.

        Raises:
            Refusal: this login cannot create a VM from the image.
        """
        image = images.image_of(vm)
        if isinstance(image, str):
            return "", images.possible_loss(image, "its name has an unknown form")
        try:
            versions = await self._calls.read(
                ArmRequest("read image", image.name, image.instance(instance)), image.shown
            )
        except provider.Refusal as refusal:
            if refusal.reason == reasons.AUTH_REFUSED:
                return "", images.unreadable_loss(image, refusal)
            return str(refusal), ""
        return image.missing(versions), ""

    async def _get(self, request: ArmRequest, resource_id: str, query: Mapping[str, str]) -> model.Document | None:
        """Return a resource; None if it does not exist."""
        try:
            return await self._calls.show(request, resource_id, **query)
        except provider.Refusal as refusal:
            if refusal.reason != reasons.INSTANCE_NOT_FOUND:
                raise
            return None

    async def close(self) -> None:
        await self._calls.close()


def _decoded(content: bytes | None) -> VmReplacementState | None:
    return None if content is None else model.decoded(content)


def _vm_path(job: provider.Job, state: VmReplacementState) -> str:
    return str(VmId(job.instance.scope, state.group, state.name))


def _disk_path(instance: provider.Instance, disk_id: str) -> str:
    group, name = model.disk_place(disk_id)
    return f"/subscriptions/{instance.scope}/resourceGroups/{group}/providers/Microsoft.Compute/disks/{name}"


def _quoted(etag: str) -> str:
    """Return an etag as a header field has it (RFC 9110, 8.8.3)."""
    return etag if etag.startswith(('"', "W/")) else f'"{etag}"'


_GUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DEVELOPERS: Final = {
    f"exclude_{name}_credential": True
    for name in ("cli", "developer_cli", "powershell", "shared_token_cache", "visual_studio_code")
}
"""Credentials of a user's developer tools; a controller does not start their programs."""


class AzureVM:
    """Provider of Azure virtual machines.

    Args:
        endpoint: of Resource Manager; empty for that of the cloud that the SDK is configured for.
        authority: issuer of tokens; empty for AZURE_AUTHORITY_HOST, else the public one.
        context: TLS context with the trusted authorities.
    """

    name = "AzureVM"
    api_version = "v1"
    kinds = frozenset(kind for kind in provider.OperationKind if kind.is_host)
    modes = frozenset({provider.AuthMode.WORKLOAD_IDENTITY, provider.AuthMode.EXTERNAL_PLUGIN})
    secret_keys = ("tenantID", "clientID", "clientSecret")
    # learn.microsoft.com/azure/azure-resource-manager/management/request-limits-and-throttling: of each subscription
    # and principal
    rates = provider.Rates(reads=provider.Rate(250, 25), writes=provider.Rate(200, 10))
    call_limit_s = 120.0  # a token, if none is cached, and two or three requests
    restarts_once = False
    most_user_data = 65_535  # of customData, before base64
    parameters: Final = MappingProxyType(
        {
            provider.OperationKind.HOST_POWER_OFF: frozenset({"deallocate", "force"}),
            provider.OperationKind.HOST_REPLACE: frozenset({"keep", "accept"}),
        }
    )
    replacement = replacement_plan.STEPS

    def __init__(
        self, *, endpoint: str = "", authority: str = "", context: Callable[[], ssl.SSLContext] = client_context
    ) -> None:
        self._endpoint = endpoint or _public_endpoint()
        self._authority = authority
        self._context = context

    def instance(self, provider_id: str) -> provider.Instance:
        return vm_properties.instance(provider_id)

    def connect(self, login: provider.Login, budget: provider.Budget) -> AzureSession:
        if login.mode is provider.AuthMode.EXTERNAL_PLUGIN:
            check(login.secret)

        def log_in(transport: AioHttpTransport) -> AzureCredential:
            return self.credential(login, transport)

        return AzureSession(AzureClient(login.name, log_in, budget, endpoint=self._endpoint, context=self._context))

    def credential(self, login: provider.Login, transport: AioHttpTransport) -> AzureCredential:
        """Return the SDK's credential."""
        options: dict[str, Any] = {"transport": transport, "retry_total": 0, "disable_instance_discovery": True}
        if self._authority:
            options["authority"] = self._authority
        if login.mode is provider.AuthMode.WORKLOAD_IDENTITY:
            return DefaultAzureCredential(**_DEVELOPERS, **options)
        tenant, client, secret = (login.secret[key].reveal().strip() for key in self.secret_keys)
        return ClientSecretCredential(tenant, client, secret, **options)


def _public_endpoint() -> str:
    cloud: AzureClouds = settings.azure_cloud()
    return str(get_arm_endpoints(cloud)["resource_manager"])


def check(secret: Mapping[str, provider.SecretStr]) -> None:
    """Check the content of a credential's Secret.

    Raises:
        ValueError: a value is invalid.
    """
    for key in ("tenantID", "clientID"):
        if not _GUID.fullmatch(secret[key].reveal().strip()):
            raise ValueError(f"{key} of the Secret is not a GUID, such as 00000000-0000-0000-0000-000000000000")
    if not secret["clientSecret"].reveal().strip().isprintable():
        raise ValueError("clientSecret of the Secret contains characters that Azure does not use in secrets")
