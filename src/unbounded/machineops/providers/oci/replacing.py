"""A replacement as it is seen in the cloud, and the calls of its steps."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from unbounded.api.failures import Failure
from unbounded.machineops import reasons
from unbounded.machineops.provider import Budget, Job, Keep, Next, NotDone, Refusal, Transient
from unbounded.machineops.providers.oci import launch
from unbounded.machineops.providers.oci import replacement as names
from unbounded.machineops.providers.oci.calls import Body, Calls
from unbounded.machineops.providers.oci.errors import NotThere, TokenUsed
from unbounded.machineops.providers.oci.ids import SCHEME
from unbounded.machineops.providers.oci.replacement import STOPPING_OLD, Kept, Seen, following, words
from unbounded.machineops.providers.oci.states import ENDED, STOPPED, STOPPING

UBUNTU: Final = {"operating_system": "Canonical Ubuntu", "operating_system_version": "24.04"}
TERMINATED_TOO: Final = ("TERMINATED", "")


class Replacing:
    """One replacement, for one look or one ask."""

    def __init__(self, calls: Calls, budget: Budget, job: Job, keep: Keep) -> None:
        self._calls = calls
        self._budget = budget
        self._job = job
        self._keep = keep
        self._where = f"OCI {job.instance.scope} ListInstances, GetInstance {job.instance.id}"

    async def look(self) -> Next:
        kept = await self._kept()
        if kept is None:
            kept = await self._launch("")
            losing = names.losing(kept.lost)
            told = f"instance {self._job.instance.id} can be replaced; {losing}"
            room = launch.room(kept.launch or {})
            return Next(STOPPING_OLD, told, self._where, progress=losing, most_user_data=room)
        try:
            return following(await self._seen(kept), kept, self._where)
        except Failure as failure:  # it may be the last that is told of all this
            failure.args = (f"{failure}; {kept.known(self._job.uid)}",)
            raise

    async def act(self, step: str, user_data: str, *, before: float) -> None:
        kept = await self._kept()
        if kept is None and step == STOPPING_OLD:
            kept = await self._launch(user_data)
            await self._store(kept)
        if kept is None:
            raise Transient(f"{step}: nothing is kept of what it would need; it is looked at again")
        match step:
            case names.STOPPING_OLD:
                await self._stop(kept, before)
            case names.LAUNCHING:
                await self._launch_once(kept, before)
            case names.TERMINATING_OLD:
                await self._terminate(kept, before)

    # What is known

    async def _kept(self) -> Kept | None:
        """What was kept; where that is lost after the hand-over, the tags of the new instance have what is needed."""
        content = await self._keep.load()
        if content is not None:
            return msgspec.json.decode(content, type=Kept)
        bound = await self._get("get_instance", self._job.instance.id)
        tags = (bound or {}).get("freeformTags") or {}
        if tags.get(launch.TAG_UID) != self._job.uid:
            return None
        return Kept(tags[launch.TAG_OLD].removeprefix(SCHEME), new=self._job.instance.id)

    async def _store(self, kept: Kept) -> None:
        await self._keep.store(msgspec.json.encode(kept))

    async def _seen(self, kept: Kept) -> Seen:
        old = _state(await self._get("get_instance", kept.old))
        new_id, new = await self._new(kept)
        bound = self._job.instance.id
        if bound == kept.old or (old != "" and old not in ENDED):
            return Seen(bound, old, new_id, new)
        volumes = [each for each in kept.boot_volumes if await self._is_there("get_boot_volume", each)]
        vnics = [each for each in kept.vnics if await self._is_there("get_vnic", each)]
        return Seen(bound, old, new_id, new, tuple(volumes), tuple(vnics))

    async def _new(self, kept: Kept) -> tuple[str, str]:
        """The replacement and its state: the one that is known, else one that has the operation's tags."""
        known = self._job.instance.id if self._job.instance.id != kept.old else kept.new
        if known is not None:
            return known, _state(await self._get("get_instance", known))
        assert kept.launch is not None  # noqa: S101  # without it the Machine is handed over
        found = await self._of_its_name(kept.launch)
        mine = [each for each in found if launch.is_for(each, self._job.uid, kept.old) and _state(each) not in ENDED]
        return (str(mine[0]["id"]), _state(mine[0])) if mine else ("", "")

    async def _of_its_name(self, body: Body) -> list[Body]:
        """The instances that are called as this one is, where it is."""
        place = {"availability_domain": body["availabilityDomain"], "display_name": body["displayName"]}
        return await self._list("list_instances", body["compartmentId"], **place)

    async def _is_there(self, call: str, ident: str) -> bool:
        return _state(await self._get(call, ident)) not in TERMINATED_TOO

    # Before anything is touched

    async def _launch(self, user_data: str) -> Kept:
        """All that is needed of the old instance.

        Raises:
            Refusal: it cannot be replaced, or would lose something that is to be kept.
        """
        ident = self._job.instance.id
        old = await self._get("get_instance", ident)
        if old is None or _state(old) in ENDED:
            raise Refusal(
                reasons.INSTANCE_NOT_FOUND,
                f"instance {ident} is {_state(old) or 'not there'}, or {self._calls.credential} may not see it",
            )
        compartment, domain = str(old.get("compartmentId")), str(old.get("availabilityDomain"))
        vnics = await self._vnics(compartment, ident)
        primary = next((each for each in vnics if each.get("isPrimary") and each.get("subnetId")), None)
        if primary is None:
            raise Refusal(reasons.PROVIDER_REFUSED, f"instance {ident} has no primary VNIC with a subnet")
        volumes = await self._list("list_volume_attachments", compartment, instance_id=ident)
        subnet = await self._get("get_subnet", primary["subnetId"])
        launch.check(old, volumes, subnet, self._job)
        lost = launch.losses(old, vnics)
        launch.check_losses(lost, self._job)
        await self._check_earlier(old)
        image = await self._image(old)
        attached = await self._list("list_boot_volume_attachments", domain, compartment, instance_id=ident)
        boot_volumes = tuple(str(each["bootVolumeId"]) for each in attached)
        boot_volume = await self._get("get_boot_volume", boot_volumes[0]) if boot_volumes else None
        body = launch.details(old, primary, image, boot_volume, job=self._job, user_data=user_data)
        return Kept(ident, body, boot_volumes, tuple(str(each["id"]) for each in vnics), tuple(lost))

    async def _check_earlier(self, old: Body) -> None:
        """
        Raises:
            Refusal: a replacement that was begun earlier has left an instance; there would be two of them.
        """
        for each in await self._of_its_name(old):
            uid = launch.made_for(each, old["id"])
            if uid not in ("", self._job.uid) and _state(each) not in ENDED:
                by = each["freeformTags"].get(launch.TAG_OPERATION)
                raise Refusal(
                    reasons.PROVIDER_REFUSED,
                    f"instance {each['id']}, which is {_state(each)}, was launched in place of {old['id']} by "
                    f"operation {by}, which did not come to its end: terminate it, or have spec.providerID of Machine "
                    f"{self._job.machine} name it; nothing was touched",
                )

    async def _vnics(self, compartment: str, ident: str) -> list[Body]:
        attachments = await self._list("list_vnic_attachments", compartment, instance_id=ident)
        attached = [each["vnicId"] for each in attachments if each.get("lifecycleState") == "ATTACHED"]
        return [found for each in attached if (found := await self._get("get_vnic", each)) is not None]

    async def _image(self, old: Body) -> Body:
        """The image that is asked for, else the newest Ubuntu 24.04 for the shape."""
        compartment, shape = str(old["compartmentId"]), str(old["shape"])
        wanted = self._job.parameters.get("imageID")
        if wanted is None:
            newest = {"sort_by": "TIMECREATED", "sort_order": "DESC", "lifecycle_state": "AVAILABLE"}
            found = await self._list("list_images", compartment, shape=shape, **UBUNTU, **newest)
            found = [each for each in found if each.get("compartmentId") is None]  # and not one of somebody's instance
            if not found:
                words = f"no Canonical Ubuntu 24.04 is there for shape {shape}: name an image in the parameter imageID"
                raise Refusal(reasons.PROVIDER_REFUSED, words)
            return found[0]
        image = await self._get("get_image", wanted)
        if image is None or image.get("lifecycleState") != "AVAILABLE":
            words = f"the image {wanted[:255]!r} of the parameter imageID is {_state(image) or 'not there'}"
            raise Refusal(reasons.PROVIDER_REFUSED, words)
        shapes = await self._list("list_shapes", compartment, image_id=wanted)
        if shape not in [each.get("shape") for each in shapes]:
            words = f"the image {wanted} of the parameter imageID does not fit shape {shape}"
            raise Refusal(reasons.PROVIDER_REFUSED, words)
        return image

    # The steps

    async def _stop(self, kept: Kept, before: float) -> None:
        state = _state(await self._get("get_instance", kept.old))
        if state not in (STOPPED, STOPPING, *ENDED):
            await self._write("instance_action", kept.old, "STOP", before=before)

    async def _launch_once(self, kept: Kept, before: float) -> None:
        seen = await self._seen(kept)
        if seen.has_new:
            if seen.new == STOPPED:
                await self._write("instance_action", seen.new_id, "START", before=before)
            return
        body = kept.launch
        if body is None or not (seen.old == STOPPED or seen.old in ENDED):
            raise Transient(f"nothing is launched while it is so: {words(seen, kept)}")
        if seen.new in ENDED:
            kept = await self._next_launch(kept)
        try:
            token = kept.retry_token(self._job.uid)
            made = await self._write("launch_instance", body, before=before, opc_retry_token=token)
        except TokenUsed as error:  # what was launched with it has ended, and is not shown any more
            await self._next_launch(kept)
            raise NotDone(reasons.PROVIDER_OPERATION_FAILED, f"an earlier launch came to nothing; {error}") from error
        if _state(made) in ENDED:
            await self._next_launch(kept)
            told = f"instance {made['id']} was launched and is {_state(made)}: there may be no host for it"
            raise NotDone(reasons.NO_CAPACITY, told)
        await self._store(msgspec.structs.replace(kept, new=str(made["id"])))

    async def _next_launch(self, kept: Kept) -> Kept:
        kept = msgspec.structs.replace(kept, ended=kept.ended + 1, new=None)
        await self._store(kept)
        return kept

    async def _terminate(self, kept: Kept, before: float) -> None:
        seen = await self._seen(kept)
        if seen.bound == kept.old or not seen.has_new:
            raise Transient(f"nothing is terminated while it is so: {words(seen, kept)}")
        if seen.old != "" and seen.old not in ENDED:
            keeps = {"preserve_boot_volume": False, "preserve_data_volumes_created_at_launch": True}
            await self._write("terminate_instance", kept.old, before=before, **keeps)
        for each in seen.boot_volumes if seen.old in TERMINATED_TOO else ():
            await self._write("delete_boot_volume", each, before=before)

    # Calls

    async def _get(self, call: str, ident: str) -> Body | None:
        """What there is under an OCID; None where nothing is shown."""
        await self._budget.read(self._calls.scope(self._job.instance))
        try:
            found: Body = await self._calls.read(self._job.instance, call, ident)
        except NotThere:
            return None
        return found

    async def _list(self, call: str, *args: str, **query: str) -> list[Body]:
        found: list[Body] = []
        page: dict[str, str] = {}
        while True:
            await self._budget.read(self._calls.scope(self._job.instance))
            try:
                shown, token = await self._calls.page(self._job.instance, call, *args, **query, **page)
            except NotThere as error:
                raise Refusal(reasons.AUTH_REFUSED, str(error)) from error
            found += shown
            if not token:
                return found
            page = {"page": token}

    async def _write(self, call: str, *args: str | Body, before: float, **options: Any) -> Any:
        await self._budget.write(self._calls.scope(self._job.instance), before=before)
        try:
            return await self._calls.write(self._job.instance, call, *args, before=before, **options)
        except NotThere as error:  # it was there when it was looked at
            raise Refusal(reasons.AUTH_REFUSED, str(error)) from error


def _state(body: Body | None) -> str:
    return str(body.get("lifecycleState") or "") if body else ""
