"""Observation of a replacement in the cloud, and the calls of its steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from unbounded.api.failures import Failure
from unbounded.machineops import provider, reasons
from unbounded.machineops.providers.oci import instances, launch
from unbounded.machineops.providers.oci import replacement_plan as plan
from unbounded.machineops.providers.oci.errors import OciNotFound, TokenUsed
from unbounded.machineops.providers.oci.sdk_client import Body, OciClient, OciReply
from unbounded.machineops.providers.oci.work_requests import FAILED, CallTimes, OciWorkRequests, WorkOperation

UBUNTU: Final = {"operating_system": "Canonical Ubuntu", "operating_system_version": "24.04"}
LANDING_S: Final = 60.0  # time until a launched instance must be shown: lists lag
ATTACHED: Final = frozenset({"ATTACHING", "ATTACHED"})
"""Active attachments. Lists also contain past ones, of volumes and VNICs that other instances use now."""


@dataclass(frozen=True)
class PartKind:
    """Kind of parts of an instance: the call and fields of the instance that list them, and the call that reads one."""

    what: str
    listed: str
    within: tuple[str, ...]
    key: str
    read: str = ""


BOOT_VOLUMES: Final = PartKind(
    "boot volume",
    "list_boot_volume_attachments",
    ("availabilityDomain", "compartmentId"),
    "bootVolumeId",
    "get_boot_volume",
)
VNICS: Final = PartKind("VNIC", "list_vnic_attachments", ("compartmentId",), "vnicId", "get_vnic")
VOLUMES: Final = PartKind("volume", "list_volume_attachments", ("compartmentId",), "volumeId")


class OciReplacement:
    """One pass of a replacement: an observation or an action."""

    def __init__(
        self, calls: OciClient, budget: provider.Budget, job: provider.Job, keep: provider.Keep, clock: CallTimes
    ) -> None:
        self._calls = calls
        self._budget = budget
        self._job = job
        self._keep = keep
        self._clock = clock
        self._works = OciWorkRequests(calls, budget)
        self._old_shown: Body | None = None
        self._where = f"OCI {job.instance.scope} ListInstances, GetInstance {job.instance.id}"

    async def look(self) -> provider.Next:
        stored = await self._load()
        if stored is None:
            old = await self._old_instance()
            stored, lost = await self._build_state(old, "")
            losing = plan.describe_losses(stored.lost)
            message = f"instance {stored.old}, which is {_state(old)}, can be replaced; {losing}"
            room = launch.user_data_room(stored.launch or {})
            return provider.Next(
                plan.SAVING, message, self._where, progress=losing, most_user_data=room, losses=tuple(lost)
            )
        try:
            observation = await self._observe(stored)
            return plan.next_step(
                await self._with_launch_progress(observation, stored)
                if observation.bound == stored.old
                else observation,
                stored,
                self._where,
            )
        except Failure as failure:  # this may be the last message about these resources
            failure.args = (f"{failure}; {stored.known(self._job.uid)}",)
            raise

    async def act(self, step: str, user_data: str, *, before: float) -> None:
        stored = await self._load()
        if step == plan.SAVING:
            if stored is None:
                stored, lost = await self._build_state(await self._old_instance(), user_data)
                provider.check_losses(lost, self._job.parameters, f"instance {stored.old}")
                await self._store(stored)
            return
        if stored is None:
            raise provider.Transient(f"{step}: no state is stored for it; observing again")
        match step:
            case provider.PUT_BACK:
                await self._put_back(stored, before)
            case plan.STOPPING_OLD:
                await self._stop(stored, before)
            case plan.LAUNCHING:
                await self._launch_once(stored, before)
            case plan.TERMINATING_OLD:
                await self._terminate(stored, before)

    # Observation

    async def _load(self) -> plan.OciReplacementState | None:
        """Return the stored state. If it was lost after the launch, rebuild it from the new instance's tags."""
        content = await self._keep.load()
        if content is not None:
            return msgspec.json.decode(content, type=plan.OciReplacementState)
        bound = await self._get("get_instance", self._job.instance.id)
        if bound is None:
            return None
        if launch.operation_of(bound) == self._job.uid:
            return plan.OciReplacementState(launch.predecessor(bound), new=bound["id"])
        mine = [each for each in await self._replacements_of(bound) if launch.operation_of(each) == self._job.uid]
        return plan.OciReplacementState(bound["id"], new=mine[0]["id"]) if mine else None

    async def _store(self, state: plan.OciReplacementState) -> None:
        await self._keep.store(msgspec.json.encode(state))

    async def _observe(self, state: plan.OciReplacementState) -> plan.OciObservation:
        async with _concurrently() as calls:
            found, replacement = (
                calls.create_task(self._get("get_instance", state.old)),
                calls.create_task(self._find_replacement(state)),
            )
        self._old_shown, (new_id, new) = found.result(), replacement.result()
        bound = self._job.instance.id
        landing = state.launching and not new and self._clock.launched_s(self._job.uid) < LANDING_S
        observation = plan.OciObservation(
            bound, _state(self._old_shown), new_id, _state(new), orphans=state.orphans, landing=landing
        )
        if bound == state.old or observation.is_old_there:
            return observation
        async with _concurrently() as calls:
            of_volumes = calls.create_task(self._remaining(BOOT_VOLUMES, state.boot_volumes, new))
            of_vnics = calls.create_task(self._remaining(VNICS, state.vnics, new))
            of_orphans = calls.create_task(self._remaining(BOOT_VOLUMES, state.orphans, new))
        (volumes, unsure), (vnics, unsure_too) = of_volumes.result(), of_vnics.result()
        orphans = of_orphans.result()[0]
        return replace(observation, boot_volumes=volumes, vnics=vnics, orphans=orphans, hidden=unsure + unsure_too)

    async def _find_replacement(self, state: plan.OciReplacementState) -> tuple[str, Body | None]:
        """Return the replacement: the known one, else one with the operation's tags."""
        known = self._job.instance.id if self._job.instance.id != state.old else state.new
        if known is not None:
            return known, await self._get("get_instance", known)
        assert state.launch is not None  # noqa: S101  # without it the replacement is known
        found = await self._replacements_of({**state.launch, "id": state.old})
        mine = [each for each in found if launch.operation_of(each) == self._job.uid]
        return (str(mine[0]["id"]), mine[0]) if mine else ("", None)

    async def _replacements_of(self, old: Body) -> list[Body]:
        """Return instances of this name that any operation launched to replace this one or one of its replacements."""
        place = {"availability_domain": old["availabilityDomain"], "display_name": old["displayName"]}
        found = await self._list("list_instances", old["compartmentId"], **place)
        return [each for each in launch.successors(str(old["id"]), found) if _state(each) not in instances.ENDED]

    async def _remaining(
        self, kind: PartKind, idents: tuple[str, ...], new: Body | None
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the existing parts, and descriptions of those that may exist.

        A hidden part counts as deleted only if the login sees such parts of the replacement.
        """
        shown = {ident: await self._get(kind.read, ident) for ident in idents}
        left = tuple(
            ident for ident, body in shown.items() if body is not None and _state(body) != instances.TERMINATED
        )
        hidden = tuple(f"{kind.what} {ident}" for ident, body in shown.items() if body is None)
        return left, hidden if hidden and not await self._can_see(kind, new) else ()

    async def _can_see(self, kind: PartKind, owner: Body | None) -> bool:
        if owner is None:
            return False
        return any([await self._get(kind.read, each) is not None for each in await self._attached(kind, owner)])

    async def _attached(self, kind: PartKind, owner: Body, *, held: bool = True) -> tuple[str, ...]:
        """Return the OCIDs of an instance's parts of a kind; with `held` False also of past ones."""
        found = await self._list(kind.listed, *(owner[name] for name in kind.within), instance_id=owner["id"])
        there = (each for each in found if not held or each.get("lifecycleState") in ATTACHED)
        return tuple(each[kind.key] for each in there if each.get(kind.key))

    # Checks before the first change

    async def _old_instance(self) -> Body:
        """Return the old instance.

        Raises:
            Refusal: it does not exist.
        """
        ident = self._job.instance.id
        old = await self._get("get_instance", ident)
        if old is None:
            message = f"instance {ident} does not exist, or {self._calls.credential} has no permission to read it"
            raise provider.Refusal(reasons.INSTANCE_NOT_FOUND, message)
        if _state(old) in instances.ENDED:
            message = f"instance {ident} is {_state(old)}"
            made = await self._replacements_of(old)
            for each in made:
                message += (
                    f"; instance {each['id']}, which is {_state(each)}, was launched in its place by operation "
                    f"{launch.operation_name(each)}: have spec.providerID of Machine {self._job.machine} name "
                    f"{instances.provider_id(each['id'])}"
                )
            raise provider.Refusal(reasons.INSTANCE_NOT_FOUND, message, _replaced_by(made))
        return old

    async def _build_state(self, old: Body, user_data: str) -> tuple[plan.OciReplacementState, list[provider.Loss]]:
        """Return the state to store of the old instance, and the losses.

        Raises:
            Refusal: the instance cannot be replaced.
        """
        ident = self._job.instance.id
        async with _concurrently() as calls:
            of_vnics = calls.create_task(self._vnics(old))
            of_volumes = calls.create_task(self._attached(VOLUMES, old))
            of_boot_volumes = calls.create_task(self._attached(BOOT_VOLUMES, old))
            of_image = calls.create_task(self._image(old))
            calls.create_task(self._check_earlier(old))
        vnics, boot_volumes, image = of_vnics.result(), of_boot_volumes.result(), of_image.result()
        primary = next((each for each in vnics if each.get("isPrimary") and each.get("subnetId")), None)
        if primary is None:
            raise provider.Refusal(reasons.PROVIDER_REFUSED, f"instance {ident} has no primary VNIC with a subnet")
        launch.check(old, of_volumes.result(), await self._require("get_subnet", primary["subnetId"]), self._job)
        if not boot_volumes:
            message = f"instance {ident} has no boot volume, which determines the size of the new one: attach one"
            raise provider.Refusal(reasons.PROVIDER_REFUSED, message)
        boot_volume = await self._require("get_boot_volume", boot_volumes[0])
        lost = launch.losses(old, vnics, image, boot_volume)
        body = launch.details(old, primary, image, boot_volume, job=self._job, user_data=user_data)
        vnic_ids = tuple(str(each["id"]) for each in vnics)
        in_words = tuple(each.consequence for each in lost)
        return plan.OciReplacementState(
            ident, body, boot_volumes, vnic_ids, in_words, was_off=_state(old) == instances.STOPPED
        ), lost

    async def _vnics(self, old: Body) -> list[Body]:
        return [await self._require("get_vnic", each) for each in await self._attached(VNICS, old)]

    async def _check_earlier(self, old: Body) -> None:
        """Check for instances of an earlier replacement.

        Raises:
            Refusal: an instance remains. With it there would be two replacements, or a forgotten one.
        """
        for each in await self._replacements_of(old):
            raise provider.Refusal(
                reasons.PROVIDER_REFUSED,
                f"instance {each['id']}, which is {_state(each)}, was launched in place of {old['id']} by "
                f"operation {launch.operation_name(each)}, which did not come to its end: terminate it, or have "
                f"spec.providerID of Machine {self._job.machine} name it; nothing was touched",
                provider.Cause(code=reasons.EARLIER_INSTANCE, about={reasons.INSTANCE: str(each["id"])}),
            )
        before = launch.predecessor(old)
        if before and (state := _state(await self._get("get_instance", before))) not in ("", *instances.ENDED):
            raise provider.Refusal(
                reasons.PROVIDER_REFUSED,
                f"instance {before}, which is {state}, is still there: {old['id']} was launched in its place by "
                f"operation {launch.operation_name(old)}, which did not come to its end: terminate it, or take the tag "
                f"{launch.TAG_OLD} off {old['id']} if it is to stay; nothing was touched",
                provider.Cause(code=reasons.EARLIER_INSTANCE, about={reasons.INSTANCE: before}),
            )

    async def _image(self, old: Body) -> Body:
        """Return the image of the parameter, else the newest Ubuntu 24.04 for the shape."""
        compartment, shape = str(old["compartmentId"]), str(old["shape"])
        desired = self._job.parameters.get("imageID")
        if desired is None:
            newest = {"sort_by": "TIMECREATED", "sort_order": "DESC", "lifecycle_state": "AVAILABLE"}
            found = await self._list("list_images", compartment, shape=shape, **UBUNTU, **newest)
            # without custom images of the tenancy
            found = [each for each in found if each.get("compartmentId") is None]
            if not found:
                words = f"no image of Canonical Ubuntu 24.04 fits shape {shape}: name an image in the parameter imageID"
                raise provider.Refusal(reasons.PROVIDER_REFUSED, words)
            return found[0]
        image = await self._get("get_image", desired)
        if image is None or image.get("lifecycleState") != "AVAILABLE":
            words = f"the image {desired[:255]!r} of the parameter imageID is {_state(image) or 'missing'}"
            raise provider.Refusal(reasons.PROVIDER_REFUSED, words)
        shapes = await self._list("list_shapes", compartment, image_id=desired)
        if shape not in [each.get("shape") for each in shapes]:
            words = f"the image {desired} of the parameter imageID does not fit shape {shape}"
            raise provider.Refusal(reasons.PROVIDER_REFUSED, words)
        return image

    # Steps

    async def _stop(self, stored: plan.OciReplacementState, before: float) -> None:
        state = _state(await self._get("get_instance", stored.old))
        if state not in (instances.STOPPED, instances.STOPPING, *instances.ENDED):
            await self._write("instance_action", stored.old, "STOP", before=before)

    async def _put_back(self, state: plan.OciReplacementState, before: float) -> None:
        """Start the old instance again unless a replacement exists or is being launched."""
        observation = await self._observe(state)
        if observation.landing:
            message = f"a launch was sent, and its instance may still appear: the old one stays for {LANDING_S:.0f} s"
            raise provider.Transient(f"{message}; {plan.describe(observation, state)}")
        if (
            observation.bound == state.old
            and not observation.has_new
            and observation.old == instances.STOPPED
            and not state.was_off
        ):
            await self._write("instance_action", state.old, "START", before=before)

    async def _launch_once(self, stored: plan.OciReplacementState, before: float) -> None:
        observation = await self._observe(stored)
        if observation.has_new:
            if observation.new == instances.STOPPED:
                await self._write("instance_action", observation.new_id, "START", before=before)
            return
        body = stored.launch
        if body is None or not (observation.old and stored.may_launch(observation.old)):
            raise provider.Transient(f"no launch in this state: {plan.describe(observation, stored)}")
        if observation.new in instances.ENDED:
            stored = await self._next_launch(
                stored, observation.new_id, str(await self._launch_failure(stored, observation.new_id, observation.new))
            )
        if not stored.launching:
            stored = msgspec.structs.replace(stored, launching=True)
            await self._store(stored)
        try:
            reply = await self._launch_now(stored, body, before)
        except TokenUsed as error:  # the instance of this token has ended and is not shown any more
            await self._next_launch(stored, stored.new, f"the launched instance does not exist any more; {error}")
            raise provider.NotDone(
                reasons.PROVIDER_OPERATION_FAILED, f"an earlier launch had no result; {error}"
            ) from error
        ident, state = str(reply.body["id"]), _state(reply.body)
        stored = msgspec.structs.replace(stored, new=ident, work=reply.work_request)
        if state in instances.ENDED:
            why = await self._launch_failure(stored, ident, state)
            await self._next_launch(stored, ident, str(why))
            raise why
        await self._store(stored)

    async def _launch_now(self, state: plan.OciReplacementState, body: Body, before: float) -> OciReply:
        self._clock.launches(self._job.uid)
        try:
            token = state.retry_token(self._job.uid)
            return await self._write("launch_instance", body, before=before, opc_retry_token=token)
        finally:
            self._clock.launches(self._job.uid)

    async def _with_launch_progress(
        self, observation: plan.OciObservation, state: plan.OciReplacementState
    ) -> plan.OciObservation:
        """Return the observation with the progress of the last launch, or its failure."""
        if observation.new in instances.ENDED:
            return replace(observation, failed=await self._launch_failure(state, observation.new_id, observation.new))
        if observation.new != instances.PROVISIONING or not state.work:
            return observation
        work = await self._works.get(self._job.instance, state.work)
        return observation if work is None else replace(observation, work=work.how_far, again_s=work.again_s)

    async def _launch_failure(self, stored: plan.OciReplacementState, ident: str, state: str) -> provider.NotDone:
        """Return the failure of an ended launch, from its work request if one is shown."""
        message = f"instance {ident} was launched and is {state}"
        work = await self._works.get(self._job.instance, stored.work) if stored.work else None
        if work is None:
            place = {"id": ident, "compartmentId": (stored.launch or {}).get("compartmentId")}
            work = await self._works.first_of(self._job.instance, place, WorkOperation.LAUNCH)
        if work is None:
            return provider.NotDone(reasons.NO_CAPACITY, f"{message}: there may be no host for it")
        if work.status not in FAILED:
            return provider.NotDone(
                reasons.PROVIDER_OPERATION_FAILED, f"{message}: {work.words}, and it was terminated from outside"
            )
        why = await self._works.why(self._job.instance, work)
        return provider.NotDone(why.reason, f"{message}: {why}")

    async def _next_launch(
        self, state: plan.OciReplacementState, ident: str | None, why: str
    ) -> plan.OciReplacementState:
        """Store the state for the next launch, with the remains of the last one's instance, if that is known."""
        orphans = state.orphans
        if ident is not None:
            owner = {**(state.launch or {}), "id": ident}
            orphans += await self._attached(BOOT_VOLUMES, owner, held=False)
        state = msgspec.structs.replace(state, orphans=orphans, ended=state.ended + 1, new=None, work="", failed=why)
        await self._store(state)
        return state

    async def _terminate(self, state: plan.OciReplacementState, before: float) -> None:
        observation = await self._observe(state)
        if observation.new in instances.ENDED:
            end = f"the replacement {observation.new_id} is {observation.new}"
            message = f"{end}: the resources of the old instance stay as they are"
            raise provider.Refusal(reasons.INSTANCE_NOT_FOUND, message)
        if observation.bound == state.old or observation.new != instances.RUNNING:
            raise provider.Transient(f"no termination in this state: {plan.describe(observation, state)}")
        if observation.is_old_there:
            await self._store(await self._current_state(state))
            keeps = {"preserve_boot_volume": False, "preserve_data_volumes_created_at_launch": True}
            await self._write("terminate_instance", state.old, before=before, **keeps)
            return
        if observation.boot_volumes and not state.terminating:
            message = (
                f"{state.old} was terminated from outside and its boot volume was preserved: delete that if you do "
                "not need it"
            )
            raise provider.Refusal(reasons.WOULD_BE_LOST, message)
        for each in observation.boot_volumes if plan.is_gone(observation, state) else ():
            await self._write("delete_boot_volume", each, before=before)

    async def _current_state(self, state: plan.OciReplacementState) -> plan.OciReplacementState:
        """Return the state with the parts that the termination of the old instance deletes now.

        Raises:
            NotDone: a part would be lost or left behind without notice.
        """
        old = self._old_shown or await self._require("get_instance", state.old)
        async with _concurrently() as calls:
            of_boot_volumes = calls.create_task(self._attached(BOOT_VOLUMES, old))
            of_vnics = calls.create_task(self._attached(VNICS, old))
            of_volumes = calls.create_task(self._attached(VOLUMES, old))
        boot_volumes, vnics, volumes = of_boot_volumes.result(), of_vnics.result(), of_volumes.result()
        away = tuple(each for each in state.boot_volumes if each not in boot_volumes)
        came = plan.changes_since_start(
            state,
            boot_volumes=boot_volumes,
            detached=(await self._remaining(BOOT_VOLUMES, away, old))[0],
            vnics=vnics,
            volumes=volumes,
        )
        changes = tuple(launch.changes(old, state.launch, self._job)) if state.launch else ()
        came += [f"{each} was changed" for each in launch.unaccepted_changes(changes, self._job)]
        if came:
            message = (
                f"{', '.join(came)} since the replacement of {state.old} began; it is terminated once that is undone"
            )
            raise provider.NotDone(reasons.WOULD_BE_LOST, message)
        lost = dict.fromkeys((*state.lost, *(f"its {each} as changed since" for each in changes)))
        return msgspec.structs.replace(
            state, boot_volumes=boot_volumes, vnics=vnics, lost=tuple(lost), terminating=True
        )

    # Calls

    async def _read(self, call: str, ident: str) -> Body:
        await self._budget.read(self._calls.scope(self._job.instance))
        found: Body = (await self._calls.read(self._job.instance, call, ident)).body
        return found

    async def _get(self, call: str, ident: str) -> Body | None:
        """Read a resource; return None if it is not shown."""
        try:
            return await self._read(call, ident)
        except OciNotFound:
            return None

    async def _require(self, call: str, ident: str) -> Body:
        """Read a resource; raise Refusal if it is not shown, as the replacement cannot start or end without it."""
        try:
            return await self._read(call, ident)
        except OciNotFound as error:
            raise provider.Refusal(reasons.AUTH_REFUSED, f"{ident}: {error}") from error

    async def _list(self, call: str, *args: str, **query: str) -> list[Body]:
        try:
            return await self._calls.every(self._budget, self._job.instance, call, *args, **query)
        except OciNotFound as error:
            raise provider.Refusal(reasons.AUTH_REFUSED, str(error)) from error

    async def _write(self, call: str, *args: str | Body, before: float, **options: Any) -> OciReply:
        await self._budget.write(self._calls.scope(self._job.instance), before=before)
        try:
            return await self._calls.write(self._job.instance, call, *args, before=before, **options)
        except OciNotFound as error:  # the last observation showed it
            raise provider.Refusal(reasons.AUTH_REFUSED, str(error)) from error


def _replaced_by(made: Sequence[Body]) -> provider.Cause | None:
    """Return the cause that other instances replaced this one; a single one is named."""
    ids = [instances.provider_id(each["id"]) for each in made]
    about = {reasons.PROVIDER_ID: ids[0]} if len(ids) == 1 else {}
    return provider.Cause(code=reasons.INSTANCE_REPLACED, about=about) if ids else None


@asynccontextmanager
async def _concurrently() -> AsyncIterator[asyncio.TaskGroup]:
    """Run calls concurrently, as sequential ones take too long in a slow cloud; raise the first failure."""
    try:
        async with asyncio.TaskGroup() as calls:
            yield calls
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from group


def _state(body: Body | None) -> str:
    return str(body.get("lifecycleState") or "") if body else ""
