"""Profiles of hosts: the layout that metalman compiles, and the Machine that refers to it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import pytest
import yaml

from tests.api.test_profile_rules import MIRROR
from tests.containercloud.unread import watched_caches
from tests.metalman.layout.support import FOREIGN, disk, layout, lines
from tests.operations.faults import FAIR, Incarnation, WeatheredApi
from tests.support.memory_api import MemoryApi
from tests.support.stories import told_in
from tests.support.virtual_time import virtual_now
from unbounded.api.container_cloud.host import BARE_METAL_HOST_PROFILES, BareMetalHostProfile
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine
from unbounded.api.container_cloud.names import ANNOTATION_HOST_PROFILE
from unbounded.api.hardware import DiskFacts
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.profile import MACHINE_PROFILES, MachineProfile
from unbounded.containercloud.caches import ControllerContext
from unbounded.containercloud.profiles.controller import ProfileController
from unbounded.containercloud.profiles.plan import (
    ProfileReason,
    ProfileView,
    choose_profile,
    layout_name,
    plan_profile,
    profile_obstacle,
)
from unbounded.metalman.layout.compiler import LayoutRequest, compile_layout
from unbounded.metalman.layout.disk_matching import DiskConsent
from unbounded.metalman.layout.model import DiskLayout, LayoutRefused

CLUSTER: Final = "example-ns"


def example(**changes: Any) -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load(MIRROR)
    return spec | changes


def profile(name: str = "default", namespace: str = "default", **changes: Any) -> BareMetalHostProfile:
    body = {"metadata": {"name": name, "namespace": namespace, "generation": 1}, "spec": example(**changes)}
    return msgspec.convert(body, BareMetalHostProfile)


def machine(profile: dict[str, str] | None = None, **status: Any) -> ContainerCloudMachine:
    value: dict[str, Any] = {"apiVersion": "baremetal.k8s.io/v1alpha1", "kind": "BareMetalMachineProviderSpec"}
    if profile is not None:
        value["bareMetalHostProfile"] = profile
    body = {
        "metadata": {"name": "m", "namespace": CLUSTER},
        "spec": {"providerSpec": {"value": value}},
        "status": status,
    }
    return msgspec.convert(body, ContainerCloudMachine)


def compiled(spec: BareMetalHostProfile, disks: Sequence[DiskFacts], **consent: Any) -> DiskLayout | str:
    """The layout that metalman compiles from the MachineProfile of a profile, or why it refuses."""
    body = plan_profile(ProfileView(spec)).create
    assert body is not None
    made = msgspec.convert(body, MachineProfile)
    request = LayoutRequest(made.name, made.spec, "uid-1", DiskConsent(machine="m1", **consent))
    choice = compile_layout(request, disks)
    return choice.message if isinstance(choice, LayoutRefused) else layout(choice)


# ---- the layout


def test_the_example_of_the_reference_becomes_a_layout_with_its_defaults() -> None:
    made = compiled(profile(), [disk("sda", gib=16), disk("sdb", gib=16)])
    assert isinstance(made, DiskLayout)
    assert [line[:3] for line in lines(made, "raid")] == [["md0", "1", "1.0"]]
    assert lines(made, "group") == [["system", "raid:md0"]]
    assert lines(made, "volume") == [
        ["system", "root", str(6 << 30), "linear"],
        ["system", "data", "rest", "linear"],
    ]
    assert [line[:2] for line in lines(made, "mount")] == [
        ["volume:system/root", "/"],
        ["d1/1", "/boot/efi"],
        ["volume:system/data", "/var/lib/data"],
    ]


def with_device(**selector: Any) -> BareMetalHostProfile:
    devices = example()["devices"]
    devices[0]["device"] |= selector
    return profile(devices=devices)


@pytest.mark.parametrize(
    ("selector", "erase", "refusal"),
    [
        ({"byName": "/dev/disk/by-id/wwn-0xsda", "wipe": True}, (), ""),
        ({"byName": "/dev/disk/by-id/wwn-0xsda", "wipeDevice": {"eraseMetadata": {"enabled": True}}}, (), ""),
        ({"byName": "/dev/disk/by-id/wwn-0xsda"}, (), "spec.devices[0]: sda"),
        ({"byName": "/dev/sda", "wipe": True}, (), "spec.devices[0]: sda"),
        ({"byName": "/dev/sda", "wipe": True}, ("S-sda",), ""),
        ({"wipe": True}, (), "spec.devices[0]: sda"),
    ],
)
def test_foreign_data_is_lost_only_where_the_entry_names_the_disk_and_wipes(
    selector: dict[str, Any], erase: tuple[str, ...], refusal: str
) -> None:
    disks = [disk("sda", FOREIGN, gib=16), disk("sdb", FOREIGN if "byName" not in selector else "Blank", gib=17)]
    made = compiled(with_device(**selector), disks, erase=erase)
    if not refusal:
        assert isinstance(made, DiskLayout)
        assert [one.serial_number for one in made.erasures] == ["S-sda"]
    else:
        assert isinstance(made, str)
        assert refusal in made
        assert "holds data of others: ext4 LABEL=data" in made


@pytest.mark.parametrize(
    ("changes", "entry"),
    [
        (
            {"logicalVolumes": [{"name": "root", "vg": "other", "size": 0}]},
            "spec.logicalVolumes[0].vg: there is no volume group with the name 'other'",
        ),
        (
            {"fileSystems": [{"fileSystem": "ext4", "logicalVolume": "root", "mountPoint": "/"}]},
            "spec.devices[0].partitions[0]: an esp needs a vfat",
        ),
        (
            {"volumeGroups": [{"name": "system", "devices": [{"partition": "root-a"}]}]},
            "spec.volumeGroups[0].devices[0]: softRaidDevices[0].devices[0] uses the same device",
        ),
        (
            {"softRaidDevices": []},
            "spec.volumeGroups[0].devices[0].softRaidDevice: there is no array",
        ),
    ],
)
def test_a_profile_that_no_host_can_have_names_its_entry(changes: dict[str, Any], entry: str) -> None:
    plan = plan_profile(ProfileView(profile(**changes)))
    assert (plan.create, plan.reason) == (None, ProfileReason.INVALID)
    assert plan.message.startswith(entry)


def test_scripts_are_named_with_the_flag_that_they_need() -> None:
    plan = plan_profile(ProfileView(profile(postDeployScript="#!/bin/sh\ntrue\n")))
    assert plan.create is not None
    assert plan.message.endswith("; metalman runs postDeployScript only with --allow-profile-scripts")
    refused = compiled(profile(postDeployScript="true"), [disk("sda"), disk("sdb")])
    assert isinstance(refused, str)
    assert "postDeployScript" in refused


def test_a_new_version_has_a_new_name_and_the_used_one_stays() -> None:
    first, second = profile(), profile(kernelParameters={})
    assert layout_name(first) == layout_name(profile())
    assert layout_name(first) != layout_name(second) != layout_name(profile(namespace="other", kernelParameters={}))
    old = msgspec.convert(plan_profile(ProfileView(first)).create, MachineProfile)
    assert plan_profile(ProfileView(second, (old,), referred=frozenset({old.name}))).delete == ()
    assert plan_profile(ProfileView(second, (old,))).delete == (old,)
    assert plan_profile(ProfileView(None, (old,))).delete == (old,)
    assert plan_profile(ProfileView(first, (old,))).create is None
    long = profile("p" * 253)
    assert len(layout_name(long)) == 253


def test_a_machine_profile_of_others_is_not_taken() -> None:
    plan = plan_profile(ProfileView(profile(), taken=True))
    assert (plan.create, plan.reason) == (None, ProfileReason.NAME_TAKEN)
    assert plan.message.startswith("MachineProfile default.default-")


# ---- the profile of a Machine


def test_a_machine_has_the_profile_that_it_names_or_the_default_one() -> None:
    own = profile("own", CLUSTER)
    marks = {"kaas.mirantis.com/defaultBMHProfile": "true"}
    default = msgspec.structs.replace(own, metadata=msgspec.structs.replace(own.metadata, name="d", labels=marks))
    second = msgspec.structs.replace(default, metadata=msgspec.structs.replace(default.metadata, name="e"))
    known = [own, default, profile()]
    assert choose_profile(machine(), known).profile is default
    assert choose_profile(machine({"name": "own"}), known).profile is own
    assert choose_profile(machine({"name": "default", "namespace": "default"}), known).profile is known[2]
    assert choose_profile(machine(), [own]) == choose_profile(machine(), [])
    missing = choose_profile(machine({"name": "none"}), known).fault
    assert missing is not None
    assert (missing.reason, missing.message.rpartition(" ")[2]) == (ProfileReason.MISSING, f"{CLUSTER}/none")
    several = choose_profile(machine(), [default, second]).fault
    assert several is not None
    assert several.reason is ProfileReason.AMBIGUOUS
    assert several.message.endswith(": d, e")


class ProfileWorld:
    """Profiles and Machines on the in-memory API, and the controller of profiles."""

    def __init__(self, api: MemoryApi) -> None:
        self.api = api

    async def profile(self, name: str = "default", namespace: str = "default", **changes: Any) -> None:
        body = {"metadata": {"name": name}, "spec": example(**changes)}
        await self.api.create(BARE_METAL_HOST_PROFILES, body, namespace=namespace)

    async def edit(self, **changes: Any) -> None:
        patch = {"spec": example(**changes)}
        await self.api.patch(BARE_METAL_HOST_PROFILES, "default", patch, namespace="default")

    async def claimed(self, **pxe: Any) -> None:
        await self.api.create(MACHINES, {"metadata": {"name": "master-0.default"}, "spec": {"pxe": pxe}})
        spec = msgspec.to_builtins(machine({"name": "default", "namespace": "default"}).spec)
        await self.api.create(CONTAINER_CLOUD_MACHINES, {"metadata": {"name": "m"}, "spec": spec}, namespace=CLUSTER)
        await self.stage("Planning")

    async def stage(self, stage: str) -> None:
        host = {"namespace": "default", "name": "master-0", "uid": "h-1"}
        execution = {"stage": stage, "machine": "master-0.default", "host": host}
        status = {"status": {"execution": execution}}
        await self.api.patch(CONTAINER_CLOUD_MACHINES, "m", status, namespace=CLUSTER, subresource="status")

    async def target_status(self, **status: Any) -> None:
        await self.api.patch(MACHINES, "master-0.default", {"status": status}, subresource="status")

    async def target(self) -> Machine:
        return await self.api.get(MACHINES, "master-0.default")

    async def reference(self) -> str:
        pxe = (await self.target()).spec.pxe
        return "" if pxe is None or pxe.profile_ref is None else pxe.profile_ref.name

    async def present(self) -> BareMetalHostProfile:
        return await self.api.get(BARE_METAL_HOST_PROFILES, "default", namespace="default")

    async def layouts(self) -> list[str]:
        return sorted(one.name for one in (await self.api.list(MACHINE_PROFILES)).items)

    async def obstacle(self) -> str:
        made = await self.api.get(CONTAINER_CLOUD_MACHINES, "m", namespace=CLUSTER)
        found = profile_obstacle(made, await self.target(), [await self.present()])
        return "" if found is None else f"{found.reason}: {found.message}"

    async def until(self, look: Callable[[], Any], holds: Callable[[Any], bool]) -> None:
        found = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(600):
                while True:
                    found = await look()
                    if holds(found):
                        return
                    await asyncio.sleep(0.2)
        raise AssertionError(f"not there: {found}")


@asynccontextmanager
async def profiles() -> AsyncIterator[ProfileWorld]:
    api = MemoryApi(now=virtual_now, namespaces=("default", "unbounded-kube", CLUSTER))

    async def main() -> None:
        life = Incarnation("profiles", random.Random(1), FAIR)
        slow = WeatheredApi(api, life)
        caches = watched_caches(slow)
        async with asyncio.TaskGroup() as group:
            for cache in caches.followed:
                group.create_task(cache.run())
            await asyncio.gather(*(cache.synced.wait() for cache in caches.followed))
            context = ControllerContext(api=slow, caches=caches, epoch=life.epoch, now=virtual_now)
            group.create_task(ProfileController(context).run())

    task = asyncio.create_task(main())
    try:
        yield ProfileWorld(api)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


story: Final = told_in(profiles)


@story
async def test_a_claimed_host_gets_the_profile_of_its_machine(world: ProfileWorld) -> None:
    await world.claimed(rootDeviceHints={"model": "x"})
    await asyncio.sleep(5)
    assert await world.layouts() == []
    await world.profile()
    name = layout_name(await world.present())
    await world.until(world.reference, lambda found: found == name)
    pxe = (await world.target()).spec.pxe
    assert pxe is not None
    assert pxe.root_device_hints is None
    made = await world.api.get(MACHINE_PROFILES, name)
    assert made.spec == (await world.present()).spec
    assert made.metadata.annotations[ANNOTATION_HOST_PROFILE] == "default/default"
    await world.until(world.obstacle, lambda found: found == "")

    await world.target_status(layout={"boot": "b1", "profile": name, "digest": "a" * 64, "disks": []})
    await world.until(world.present, lambda one: one.status.planned == {"default/master-0": "a" * 64})
    await asyncio.sleep(5)
    writes = world.api.writes
    await asyncio.sleep(7200)
    assert world.api.writes == writes


@story
async def test_an_edit_waits_for_the_end_of_an_install(world: ProfileWorld) -> None:
    await world.profile()
    await world.claimed()
    first = layout_name(await world.present())
    await world.until(world.reference, lambda found: found == first)
    lock = {"uid": "o-1", "name": "o", "kind": "HostReplace", "executor": "metalman", "since": "2030-01-01T00:00:00Z"}
    await world.target_status(activeOperation=lock)
    await world.edit(kernelParameters={"sysctl": {"kernel.panic": "20"}})
    second = layout_name(await world.present())
    await world.until(world.layouts, lambda found: found == sorted((first, second)))
    await asyncio.sleep(60)
    assert await world.reference() == first
    assert "does not refer to MachineProfile" in await world.obstacle()
    await world.target_status(activeOperation=None)
    await world.until(world.reference, lambda found: found == second)
    await world.until(world.layouts, lambda found: found == [second])


@story
async def test_a_broken_profile_is_named_and_goes_on_when_it_is_right(world: ProfileWorld) -> None:
    await world.profile(volumeGroups=[])
    await world.claimed()
    await world.until(world.obstacle, lambda found: found.startswith("ProfileInvalid: BareMetalHostProfile default/de"))
    assert "spec.logicalVolumes[0].vg: there is no volume group with the name 'system'" in await world.obstacle()
    (condition,) = (await world.present()).status.conditions
    assert (condition.type, condition.status, condition.reason) == ("Usable", "False", "ProfileInvalid")
    assert (await world.layouts(), await world.reference()) == ([], "")
    await world.edit()
    await world.until(world.obstacle, lambda found: found == "")


@story
async def test_a_host_that_is_released_keeps_no_layout_alive(world: ProfileWorld) -> None:
    await world.profile()
    await world.claimed()
    await world.until(world.reference, bool)
    await world.api.delete(BARE_METAL_HOST_PROFILES, "default", namespace="default")
    await asyncio.sleep(60)
    assert len(await world.layouts()) == 1
    await world.stage("Releasing")
    await world.api.patch(MACHINES, "master-0.default", {"spec": {"pxe": {"profileRef": None}}})
    await world.until(world.layouts, lambda found: found == [])
