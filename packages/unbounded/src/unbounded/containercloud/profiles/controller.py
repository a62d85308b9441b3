"""The controller of BareMetalHostProfiles: it observes them and the Machines of hosts, and executes their plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import msgspec

from unbounded.api.conditions import ConditionStatus, set_condition
from unbounded.api.container_cloud.host import BARE_METAL_HOST_PROFILES, BareMetalHostProfile
from unbounded.api.container_cloud.machine import ContainerCloudMachine
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.profile import MACHINE_PROFILES, MachineProfile
from unbounded.containercloud.caches import (
    INDEX_HOST_MACHINE,
    INDEX_PROFILE,
    ControllerContext,
    by_host_machine,
    by_profile,
)
from unbounded.containercloud.claims import is_claimed_by
from unbounded.containercloud.hosts.adoption import leaves_as_is
from unbounded.containercloud.profiles.plan import (
    USABLE,
    ProfilePlan,
    ProfileReason,
    ProfileView,
    choose_profile,
    layout_name,
    plan_profile,
    plan_reference,
)
from unbounded.containercloud.refused import RefusalEvents, WriteAttempt
from unbounded.kube.api import AlreadyExists, NotFound, ObjectKey, key_of
from unbounded.kube.clock import rfc3339
from unbounded.kube.controller import Controller
from unbounded.kube.logs import Log
from unbounded.kube.status_writer import StatusWriter

log = Log("containercloud.profiles")


class ProfileKey(NamedTuple):
    """A profile, or a Machine that uses one."""

    is_machine: bool
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{'Machine' if self.is_machine else 'BareMetalHostProfile'} {self.namespace}/{self.name}"


class ProfileController:
    """Controller of BareMetalHostProfiles, and of the profiles of Machines."""

    def __init__(self, context: ControllerContext) -> None:
        self._api, self._epoch, self._now = context.api, context.epoch, context.now
        self._refused, caches = context.refused, context.caches
        self._events = RefusalEvents(context.emit_event)
        self._profiles = caches.profiles
        self._machines = caches.machines
        self._targets = caches.host_machines
        self._hosts = caches.hosts
        self._layouts = caches.layouts
        self._status = StatusWriter(
            context.api, BARE_METAL_HOST_PROFILES, fields=("conditions", "planned"), cache=caches.profiles
        )
        self._controller: Controller[ProfileKey] = Controller("host profiles", self._reconcile, metrics=context.metrics)
        follow = self._controller.follow
        follow(caches.profiles, self._of_profile, parts=_content)
        follow(caches.machines, lambda machine: (_key(machine, is_machine=True),), parts=_parts_of_machine)
        follow(caches.host_machines, self._of_target, parts=_parts_of_target)
        follow(caches.layouts, _of_layout)
        follow(caches.layouts, self._all_machines, parts=lambda _layout: None)  # a new one, and one that is gone

    async def run(self) -> None:
        """Run until cancelled."""
        await self._controller.run()

    # ---- events

    def _all_machines(self, _item: object) -> Iterator[ProfileKey]:
        return (_key(machine, is_machine=True) for machine in self._machines.all())

    def _of_profile(self, profile: BareMetalHostProfile) -> Iterator[ProfileKey]:
        yield _key(profile, is_machine=False)
        yield from self._all_machines(profile)

    def _of_target(self, target: Machine) -> Iterator[ProfileKey]:
        """Follow the end of installs, and Machines that left a MachineProfile or got a layout from one."""
        for machine in self._machines.by(INDEX_HOST_MACHINE, target.name):
            yield _key(machine, is_machine=True)
        for name in _names_of(target):
            if (layout := self._layouts.get(name)) is not None:
                yield from _of_layout(layout)

    # ---- work

    async def _reconcile(self, key: ProfileKey) -> float | None:
        if key.is_machine:
            with self._refused.recorded(ObjectKey(key.namespace, key.name), "profiles") as attempt:
                await self._refer(key, attempt)
        else:
            await self._reconcile_profile(key)
        return None

    async def _reconcile_profile(self, key: ProfileKey) -> None:
        view = self._view(key)
        plan = plan_profile(view)
        self._epoch.check_leads()
        if view.profile is None:
            self._events.forget(ObjectKey(key.namespace, key.name))
            self._forget_others(key, set())
            await self._delete(plan)
            return
        with self._events.recorded(view.profile, "write the MachineProfile of this BareMetalHostProfile") as attempt:
            with self._recorded_at_users(key, view):
                if not await self._create(plan):
                    return
            attempt.what = "write the status of this BareMetalHostProfile"
            await self._write(view.profile, plan)
            attempt.what = "delete the former MachineProfiles of this BareMetalHostProfile"
            await self._delete(plan)

    @contextmanager
    def _recorded_at_users(self, key: ProfileKey, view: ProfileView) -> Iterator[None]:
        """Record a refusal at each Machine whose next install is by the profile."""
        users = self._users(view)
        self._forget_others(key, users)
        with ExitStack() as stack:
            for user in users:
                attempt = stack.enter_context(self._refused.recorded(user, f"profile {key}"))
                attempt.what = f"write the MachineProfile of {key}"
            yield

    def _forget_others(self, key: ProfileKey, users: set[ObjectKey]) -> None:
        for machine in self._machines.all():
            if key_of(machine) not in users:
                self._refused.forget(key_of(machine), f"profile {key}")

    def _users(self, view: ProfileView) -> set[ObjectKey]:
        """Return the Machines whose next install is by a profile."""
        profiles = self._profiles.all()
        return {key_of(one) for one in self._machines.all() if choose_profile(one, profiles).profile is view.profile}

    def _view(self, key: ProfileKey) -> ProfileView:
        profile = self._profiles.get(key.name, key.namespace)
        layouts = self._layouts.by(INDEX_PROFILE, f"{key.namespace}/{key.name}")
        names = {one.name for one in layouts}
        wanted = "" if profile is None else layout_name(profile)
        return ProfileView(
            profile,
            layouts,
            taken=wanted not in names and self._layouts.get(wanted) is not None,
            machines=tuple(self._pairs()),
            referred=frozenset(name for target in self._targets.all() for name in _referred(target)),
        )

    def _pairs(self) -> Iterator[tuple[ContainerCloudMachine, Machine]]:
        for machine in self._machines.all():
            for name in by_host_machine(machine):
                if (target := self._targets.get(name)) is not None:
                    yield machine, target

    async def _create(self, plan: ProfilePlan) -> bool:
        """Create the MachineProfile; return False where it exists and the cache lacks it."""
        if plan.create is None:
            return True
        try:
            self._layouts.observe(await self._api.create(MACHINE_PROFILES, plan.create))
        except AlreadyExists:
            return False  # the watch delivers it
        log.info("MachineProfile created", profile=plan.create["metadata"]["name"])
        return True

    async def _delete(self, plan: ProfilePlan) -> None:
        for layout in plan.delete:
            self._epoch.check_leads()
            try:
                await self._api.delete(MACHINE_PROFILES, layout.name, uid=layout.metadata.uid)
            except NotFound:
                continue
            log.info("MachineProfile deleted", profile=layout.name)

    async def _write(self, profile: BareMetalHostProfile, plan: ProfilePlan) -> None:
        status = ConditionStatus.TRUE if plan.reason is ProfileReason.USABLE else ConditionStatus.FALSE
        present = [msgspec.to_builtins(one) for one in profile.status.conditions]
        generation, now = profile.metadata.generation, rfc3339(self._now())
        conditions = set_condition(
            present, USABLE, status, plan.reason, plan.message, now, observed_generation=generation
        )
        patch: dict[str, Any] = {} if conditions is None else {"conditions": conditions}
        if profile.status.planned != plan.planned:
            patch["planned"] = {**dict.fromkeys(profile.status.planned), **plan.planned}
        await self._status.write(profile, patch)

    async def _refer(self, key: ProfileKey, attempt: WriteAttempt) -> None:
        machine = self._machines.get(key.name, key.namespace)
        if machine is None:
            return
        target = next((self._targets.get(name) for name in by_host_machine(machine)), None)
        claimed = machine.status.execution.host if machine.status.execution is not None else None
        host = None if claimed is None else self._hosts.get(claimed.name, claimed.namespace)
        if leaves_as_is(host, target):  # its disks are never written
            return
        if host is not None and not is_claimed_by(host, machine):  # the status of a forced deletion may be refused
            return
        change = plan_reference(
            machine, target, self._profiles.all(), {one.name for one in self._layouts.all() if by_profile(one)}
        )
        if target is None or change is None:
            return
        self._epoch.check_leads()
        attempt.what = f"change the profile of Machine {target.name}"
        patch = {"metadata": {"resourceVersion": target.metadata.resource_version}, "spec": {"pxe": change}}
        self._targets.observe(await self._api.patch(MACHINES, target.name, patch))
        log.info("profile of a host", machine=target.name, profile=(change["profileRef"] or {}).get("name", "none"))


def _key(item: BareMetalHostProfile | ContainerCloudMachine, *, is_machine: bool) -> ProfileKey:
    return ProfileKey(is_machine, *key_of(item))


def _of_layout(layout: MachineProfile) -> Iterator[ProfileKey]:
    for profile in by_profile(layout):
        namespace, _, name = profile.partition("/")
        yield ProfileKey(False, namespace, name)


def _referred(target: Machine) -> tuple[str, ...]:
    pxe = target.spec.pxe
    return () if pxe is None or pxe.profile_ref is None else (pxe.profile_ref.name,)


def _names_of(target: Machine) -> set[str]:
    layout = target.status.layout
    return {*_referred(target), *((layout.profile,) if layout is not None else ())}


def _content(profile: BareMetalHostProfile) -> tuple[object, ...]:
    return profile.spec, profile.metadata.labels, profile.metadata.deletion_timestamp


def _parts_of_machine(machine: ContainerCloudMachine) -> tuple[object, ...]:
    execution = machine.status.execution
    return machine.value.bare_metal_host_profile, None if execution is None else (execution.machine, execution.stage)


def _parts_of_target(target: Machine) -> tuple[object, ...]:
    return target.spec.pxe, target.status.layout, target.status.active_operation
