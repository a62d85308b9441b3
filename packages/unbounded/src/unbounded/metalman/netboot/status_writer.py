"""Boot progress in the Machine's status: the patch that observations make, and its writer.

The patch is pure, from the observations since the last write. Progress only advances: of one boot, an earlier milestone
or percentage never replaces a later one, whichever replica writes. The final state of cloud-init is permanent, too. The
first write of a boot clears the record of the boot before.

One write at a time for each Machine carries all pending observations. Any replica may write: each write carries the
resourceVersion that it is based on, and observations older than the status change nothing. Percentages are written
every two seconds at most, everything else at once. A Machine has one pending record, however many reports arrive while
the API does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from unbounded.api.conditions import (
    ConditionReason,
    ConditionStatus,
    ConditionType,
    find_condition,
    fit_message,
    remove_condition,
    set_condition,
)
from unbounded.api.machine import MACHINES, HostImage, Machine, NetbootMilestone, NetbootStatus
from unbounded.api.machine_status import merge_erasures
from unbounded.api.operation import OperationKind, OperationsStatus
from unbounded.kube.api import Api, Conflict, InvalidObject, NotFound
from unbounded.kube.cache import Cache
from unbounded.kube.clock import Backoff, WallClock, rfc3339, utc_now
from unbounded.kube.controller import Controller, WorkQueue
from unbounded.kube.logs import Log
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.status_writer import StatusWriter
from unbounded.metalman.hardware_merge import hardware_change, reported
from unbounded.metalman.inspection import change_condition, is_repetition
from unbounded.metalman.netboot.installs import merged_record
from unbounded.metalman.netboot.model import BootObservation, ConditionState, milestone_rank
from unbounded.operations.execution_record import with_nulls

PERCENT_EVERY_S: Final = 2.0
RETRY_BACKOFF: Final = Backoff(base_s=0.2, max_s=10.0)
CONFLICTS: Final = 5  # in a row, before other Machines get their turn
AT_ONCE: Final = 32  # Machines: the embedded server commits what arrives together as one

log = Log("metalman.netboot")
IsRequested = Callable[[Machine, str], bool]


class BootStatusWriter:
    """Writes observations of boots.

    Args:
        is_requested: returns whether a boot is still the requested one of a Machine as it was read. Observations of
            other boots are dropped.
    """

    def __init__(
        self,
        api: Api,
        machines: Cache[Machine],
        is_requested: IsRequested,
        *,
        now: WallClock = utc_now,
        metrics: ControllerMetrics | None = None,
    ) -> None:
        self._api = api
        self._machines = machines
        self._status = StatusWriter(
            api,
            MACHINES,
            fields=(
                "netboot",
                "conditions",
                "operations",
                "targetDisk",
                "hardware",
                "layout",
                "image",
                "agent",  # of its report the parts about the system that is overwritten
            ),
            cache=machines,
        )
        self._is_requested = is_requested
        self._now = now
        self._waiting: dict[str, BootObservation] = {}
        self._flushed: dict[str, list[asyncio.Future[None]]] = {}
        self._wrote_at: dict[str, float] = {}
        self._controller: Controller[str] = Controller(
            "netboot status", self._write, workers=AT_ONCE, queue=WorkQueue(failed=RETRY_BACKOFF), metrics=metrics
        )

    async def run(self) -> None:
        """Write until cancelled."""
        await self._controller.run()

    def note(self, machine: str, observation: BootObservation) -> None:
        """Queue an observation."""
        before = self._waiting.get(machine)
        self._waiting[machine] = observation if before is None else merge_observations(before, observation)
        self._controller.enqueue(machine)

    async def flush(self, machine: str) -> None:
        """Wait until the observations that are queued now are written, or found to be no news."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flushed.setdefault(machine, []).append(done)
        self._controller.enqueue(machine)
        await done

    async def _write(self, name: str) -> float | None:
        seen = self._waiting.get(name)
        waiters = self._flushed.pop(name, [])
        if seen is not None:
            wait_s = 0.0 if waiters or seen.urgent else self._next_percent_in_s(name)
            if wait_s > 0:
                return wait_s
            del self._waiting[name]
        try:
            if seen is not None and await self._written(name, seen):
                self._note_written(name)
        except BaseException:
            if seen is not None:
                newer = self._waiting.get(name)
                self._waiting[name] = seen if newer is None else merge_observations(seen, newer)
            self._flushed[name] = waiters + self._flushed.get(name, [])
            raise
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        return None

    def _note_written(self, name: str) -> None:
        """Keep only the times that still delay a percentage, as most Machines boot once in months."""
        now = asyncio.get_running_loop().time()
        self._wrote_at = {each: at for each, at in self._wrote_at.items() if at + PERCENT_EVERY_S > now}
        self._wrote_at[name] = now

    def _next_percent_in_s(self, name: str) -> float:
        last = self._wrote_at.get(name)
        return 0.0 if last is None else last + PERCENT_EVERY_S - asyncio.get_running_loop().time()

    async def _written(self, name: str, observation: BootObservation) -> bool:
        """Write an observation; False if it was dropped, as it is no news or the Machine or its boot is gone."""
        machine = self._machines.get(name)
        for turn in range(CONFLICTS):
            try:
                if machine is None:
                    machine = await self._api.get(MACHINES, name)
                if observation.boot and not self._is_requested(machine, observation.boot):
                    log.info(
                        "ignored an observation of a boot that is not requested any more",
                        machine=name,
                        milestone=observation.milestone or "",
                    )
                    return False
                if await self._status.write(machine, status_change(machine, observation, rfc3339(self._now()))) is None:
                    return False
            except Conflict:
                if turn == CONFLICTS - 1:
                    raise
                machine = None  # read again, as the cache may be behind
            except NotFound:
                return False
            except InvalidObject as error:
                log.warning("cannot write boot progress", error=error, machine=name)
                return False
            else:
                return True
        return False


LONGEST_MESSAGE: Final = 1024  # of a message that a host sends
# reasons of CloudInitDone that do not change within one boot
_FINAL: Final = (ConditionReason.SUCCEEDED, ConditionReason.FAILED)


def merge_observations(before: BootObservation, new: BootObservation) -> BootObservation:
    """Merge two observations. An earlier boot is replaced; conditions that belong to no boot are kept."""
    conditions = {**before.conditions, **new.conditions}
    if not new.boot:
        return replace(before, conditions=conditions)
    disk = new.disk or before.disk
    hardware = new.hardware or before.hardware
    if new.boot != before.boot:
        return replace(new, conditions=new.conditions if before.boot else conditions, disk=disk)
    ahead = milestone_rank(new.milestone) - milestone_rank(before.milestone)
    counts = new.milestone is None or ahead >= 0
    message = before.message
    if ahead > 0 or (counts and new.message is not None):
        message = new.message  # None, too: the old message belongs to the milestone before
    return BootObservation(
        boot=new.boot,
        milestone=new.milestone if ahead > 0 else before.milestone,
        percent=_most(before.percent, new.percent) if counts else before.percent,
        loads=before.loads + new.loads,
        message=message,
        image=_image_of(new, before),
        image_digest=new.image_digest or before.image_digest,
        conditions=_conditions_of_one_boot(before.conditions, new.conditions),
        repave=_most(before.repave, new.repave),
        disk=disk,
        hardware=hardware,
        erasure=before.erasure or new.erasure,
        erasures=merge_erasures(before.erasures, new.erasures),
        is_erased=before.is_erased or new.is_erased,
        layout=new.layout or before.layout,
        rescue=new.rescue or before.rescue,
    )


def status_change(machine: Machine, observation: BootObservation, now: str) -> dict[str, Any]:
    """Return the status fields that an observation changes on a Machine as it was read; empty if nothing is new.

    Args:
        now: RFC 3339.
    """
    status: dict[str, Any] = {}
    old = machine.status.netboot
    begins = bool(observation.boot) and (old is None or old.boot != observation.boot)
    netboot = _netboot(None if begins else old, observation, now) if observation.boot else old
    if netboot != old and netboot is not None:
        status["netboot"] = with_nulls(netboot)
        status |= _host_image(machine, netboot)
        agent = machine.status.agent
        if "image" in status and agent is not None and (agent.stage or agent.host):
            status["agent"] = {"stage": None, "host": None}
    conditions = _conditions(machine, observation, now, begins=begins)
    if conditions is not None:
        status["conditions"] = conditions
    reached = (machine.status.operations or OperationsStatus()).repave_counter
    if observation.repave is not None and observation.repave > reached:
        status["operations"] = {"repaveCounter": observation.repave}
    if observation.disk and observation.disk != machine.status.target_disk:
        status["targetDisk"] = observation.disk
    if observation.is_erased:
        claims = machine.status
        lost = {"targetDisk": claims.target_disk, "layout": claims.layout, "image": claims.image}
        status |= {name: None for name, claim in lost.items() if claim is not None}
    if observation.layout is not None:
        layout = merged_record(machine.status.layout, observation.layout)
        if layout != machine.status.layout:
            status["layout"] = with_nulls(layout)
    if observation.hardware is not None:
        hardware = reported(machine.status.hardware, observation.hardware)
        if not is_repetition(machine.status.hardware, hardware):
            status["hardware"] = hardware_change(machine.status.hardware, hardware)
    return status


def _image_of(new: BootObservation, before: BootObservation | NetbootStatus) -> str | None:
    """Return the reference of the image: an observation that has none may still be about the known one."""
    is_known = new.image_digest in (None, before.image_digest)
    return new.image or (before.image if is_known else None)


def _host_image(machine: Machine, netboot: NetbootStatus) -> dict[str, Any]:
    """Return the change of status.image with the progress of a boot; empty for none.

    Of a boot that an earlier metalman began the reference is not known, so no image is claimed.
    """
    before = machine.status.image
    if netboot.milestone == NetbootMilestone.IMAGE_WRITTEN:
        if before is not None and before.boot == netboot.boot:
            return {}
        if netboot.image and netboot.image_digest and netboot.at:
            written = HostImage(image=netboot.image, digest=netboot.image_digest, boot=netboot.boot, at=netboot.at)
            return {"image": with_nulls(written)}
    elif netboot.milestone != NetbootMilestone.IMAGE_WRITING:
        return {}
    return {} if before is None or before.boot == netboot.boot else {"image": None}


def _netboot(old: NetbootStatus | None, observation: BootObservation, now: str) -> NetbootStatus:
    """Return the record of a boot with the observation; an older milestone changes only the count of loads."""
    old = old or NetbootStatus(boot=observation.boot)
    moves = milestone_rank(observation.milestone) > milestone_rank(old.milestone)
    counts = observation.milestone is None or milestone_rank(observation.milestone) >= milestone_rank(old.milestone)
    percent = _most(old.percent, observation.percent) if counts else old.percent
    message = (
        fit_message(observation.message, LONGEST_MESSAGE) if counts and observation.message is not None else old.message
    )
    if moves and observation.message is None:  # the old message belongs to the milestone before
        message = None
    return NetbootStatus(
        boot=observation.boot,
        milestone=observation.milestone if moves else old.milestone,
        percent=percent,
        loads=(old.loads or 0) + observation.loads or old.loads,
        message=message,
        image=_image_of(observation, old),
        image_digest=observation.image_digest or old.image_digest,
        at=now if moves else old.at,
        erasure=old.erasure or observation.erasure,  # the first one stays: consent is valid once
        erasures=merge_erasures(old.erasures, observation.erasures),
        rescue=observation.rescue or old.rescue,
    )


def _conditions(
    machine: Machine, observation: BootObservation, now: str, *, begins: bool
) -> list[dict[str, Any]] | None:
    """Return all conditions with the updates applied; None if no condition changes."""
    raw = [msgspec.to_builtins(condition) for condition in machine.status.conditions]
    changed: list[dict[str, Any]] | None = None
    if begins and not _leaves_system(machine, observation.boot):
        changed = remove_condition(raw, ConditionType.CLOUD_INIT_DONE)
        raw = changed if changed is not None else raw
    updates = dict(observation.conditions)
    if observation.hardware is not None and (
        differs := change_condition(machine.status.hardware, observation.hardware)
    ):
        updates[ConditionType.HARDWARE_CHANGED] = differs
    for kind, said in updates.items():
        after = _with_condition(raw, kind, said, now)
        if after is not None:
            changed = raw = after
    return changed


_LEAVES_SYSTEM: Final = (OperationKind.HOST_INSPECT, OperationKind.HOST_ERASE, OperationKind.HOST_RESCUE)


def _leaves_system(machine: Machine, boot: str) -> bool:
    """Return whether the beginning of a boot leaves the installed system as it is."""
    active = machine.status.active_operation
    return active is not None and active.uid == boot and active.kind in _LEAVES_SYSTEM


def _with_condition(
    conditions: list[dict[str, Any]], kind: ConditionType, condition: ConditionState | None, now: str
) -> list[dict[str, Any]] | None:
    if condition is None:
        return remove_condition(conditions, kind)
    old = find_condition(conditions, kind)
    if kind is ConditionType.CLOUD_INIT_DONE and old is not None and old.get("reason") in _FINAL:
        return None
    return set_condition(conditions, kind, condition.status, condition.reason, condition.message, now)


def _conditions_of_one_boot(
    before: Mapping[ConditionType, ConditionState | None], new: Mapping[ConditionType, ConditionState | None]
) -> dict[ConditionType, ConditionState | None]:
    both = {**before, **new}
    earlier = before.get(ConditionType.CLOUD_INIT_DONE)
    if earlier is not None and earlier.reason in _FINAL:
        both[ConditionType.CLOUD_INIT_DONE] = earlier
    return both


def cloud_init_condition(event_type: str, name: str, result: str, description: str) -> ConditionState | None:
    """Map an event of cloud-init's webhook reporter to CloudInitDone; None for an event without meaning for it."""
    if event_type == "start":
        return ConditionState(
            ConditionStatus.FALSE, ConditionReason.RUNNING, fit_message(f"{name} has started", LONGEST_MESSAGE)
        )
    if event_type != "finish":
        return None
    if result.upper() != "SUCCESS":
        text = f"{name}: {result}: {description}"
        return ConditionState(ConditionStatus.FALSE, ConditionReason.FAILED, fit_message(text, LONGEST_MESSAGE))
    if name == "modules-final":
        return ConditionState(ConditionStatus.TRUE, ConditionReason.SUCCEEDED, f"{name} has ended")
    return ConditionState(
        ConditionStatus.FALSE, ConditionReason.RUNNING, fit_message(f"{name} has ended", LONGEST_MESSAGE)
    )


def repaved_condition(image: str, *, done: bool) -> ConditionState:
    """Return the condition Repaved during a repave, and after the image is written."""
    if done:
        return ConditionState(ConditionStatus.TRUE, ConditionReason.SUCCEEDED, f"image={image}")
    return ConditionState(ConditionStatus.FALSE, ConditionReason.PENDING, f"image={image}")


def image_written(image: str, repave: int | None) -> BootObservation:
    """Return the observation that the image is written; the caller sets the boot."""
    return BootObservation(
        milestone=NetbootMilestone.IMAGE_WRITTEN,
        percent=100,
        conditions={ConditionType.REPAVED: repaved_condition(image, done=True)},
        repave=repave,
    )


def _most(one: int | None, other: int | None) -> int | None:
    return max(value for value in (one, other) if value is not None) if (one, other) != (None, None) else None
