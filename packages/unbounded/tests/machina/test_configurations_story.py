"""Random lives of a configuration, in virtual time: edits, nodes made and gone, deletions, and controllers that die.

Invariants are checked at every write: no number twice, no deployed version edited, none in use deleted. At the end the
versions' statuses are true.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgspec
import pytest

from tests.support.memory_api import MemoryApi
from tests.support.seeds import first_seed
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.agent.node_spec import configuration_id
from unbounded.agent.recreation.version_resolution import VersionResolver
from unbounded.api.configuration import (
    MACHINE_CONFIGURATION_VERSIONS,
    MACHINE_CONFIGURATIONS,
    MachineConfigurationVersion,
)
from unbounded.api.machine import MACHINES, NODE_RECREATION, Machine
from unbounded.api.meta import Kind
from unbounded.api.names import ANNOTATION_ABOUT_TO_CHANGE, LABEL_CONFIGURATION, LABEL_CONFIGURATION_VERSION
from unbounded.kube.api import Api, ApiError, InvalidObject, ServerUnreachable
from unbounded.kube.cache import Cache
from unbounded.machina.configuration_binding import BindingController
from unbounded.machina.configuration_plan import configurations_of
from unbounded.machina.configuration_versions import (
    CONFIGURATIONS,
    INDEX_CONFIGURATION,
    VERSIONS,
    VersionController,
    by_configuration,
)

T = TypeVar("T")
NAMES = ("c1", "c2")
HOSTS = ("m1", "m2", "m3")
STORIES = 12


@dataclass(frozen=True)
class Making:
    """A node that is being made from a version, as it was when its agent began."""

    version: MachineConfigurationVersion

    @property
    def name(self) -> str:
        return self.version.metadata.name


class Judge(MemoryApi):
    """An API that sees to what must hold, and refuses what the policies of deploy/ refuse."""

    def __init__(self) -> None:
        super().__init__(admit=self._look, now=virtual_now, defaults=_defaults)
        self.numbers: set[tuple[str, int]] = set()
        self.broken: list[str] = []  # what did not hold: controllers live on after what a call raises
        self.making: dict[str, Making] = {}  # by Machine

    def _hold(self, holds: bool, words: str) -> None:
        if not holds:
            self.broken.append(words)
            raise AssertionError(words)

    def _look(self, kind: Kind[Any], old: dict[str, Any] | None, new: dict[str, Any]) -> None:
        if kind.plural != "machineconfigurationversions":
            return
        owner, number = new["metadata"]["ownerReferences"][0]["uid"], new["spec"]["version"]
        if old is None:
            self._hold((owner, number) not in self.numbers, f"number {number} was given out again")
            self.numbers.add((owner, number))
        elif new["spec"] != old["spec"]:
            of_it = [making.name for making in self.making.values()]
            self._hold(new["metadata"]["name"] not in of_it, "a version was edited while a node was made from it")
        if old is not None and old.get("status", {}).get("deployed"):
            self._hold(new["spec"] == old["spec"], "a deployed version was edited")
            self._hold(new["status"]["deployed"], "deployed was taken back")

    async def delete(
        self, kind: Kind[T], name: str, *, namespace: str = "", uid: str = "", resource_version: str = ""
    ) -> None:
        obj = await self.get(kind.raw(), name)
        for condition in obj.get("status", {}).get("conditions", ()):
            if condition["type"] == "InUse" and condition["status"] == "True":
                raise InvalidObject(condition["message"])
        await super().delete(kind, name, namespace=namespace, uid=uid, resource_version=resource_version)


class Mortal:
    """The API as one incarnation of machina has it: its writes are late at times, and after its death none arrives."""

    def __init__(self, api: Judge, chance: random.Random, lives: int) -> None:
        self._api = api
        self._chance = chance
        self._lives = lives
        self.died = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def _before(self) -> None:
        await asyncio.sleep(self._chance.choice((0, 0, 0.05)))
        self._lives -= 1
        if self._lives <= 0:
            self.died.set()
            raise ServerUnreachable("dead")

    async def create(self, kind: Kind[T], body: Mapping[str, Any], *, namespace: str = "") -> T:
        await self._before()
        return await self._api.create(kind, body, namespace=namespace)

    async def patch(
        self, kind: Kind[T], name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        await self._before()
        return await self._api.patch(kind, name, patch, namespace=namespace, subresource=subresource)

    async def delete(self, kind: Kind[T], name: str, **where: Any) -> None:
        await self._before()
        if kind.plural == "machineconfigurationversions":
            obj = await self._api.get(kind.raw(), name)
            used = obj.get("status", {}).get("deployedMachines")
            if used:
                self._api.broken.append(f"machina deletes {name}, which {used} Machines use")
            if name in [making.name for making in self._api.making.values()]:
                self._api.broken.append(f"machina deletes {name}, which a node is being made from")
        await self._api.delete(kind, name, **where)


def _defaults(kind: Kind[Any], new: dict[str, Any]) -> None:
    if kind.plural == "machineconfigurations":
        new["spec"].setdefault("priority", 0)
        new["spec"].setdefault("revisionHistoryLimit", 10)


async def incarnation(api: Judge, chance: random.Random, lives: int) -> None:
    """machina's controllers of configurations until they die."""
    mortal = Mortal(api, chance, lives)
    as_api = cast("Api", mortal)
    configurations, versions = (
        Cache(as_api, CONFIGURATIONS),
        Cache(as_api, VERSIONS, indexes={INDEX_CONFIGURATION: by_configuration}),
    )
    machines = Cache(as_api, MACHINES, indexes={INDEX_CONFIGURATION: configurations_of})
    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(asyncio.TaskGroup())
        tasks = [group.create_task(cache.run()) for cache in (configurations, versions, machines)]
        for cache in (configurations, versions, machines):
            await cache.synced.wait()
        parts = (as_api, configurations, versions, machines)
        tasks += [
            group.create_task(part(*parts, now=virtual_now).run()) for part in (VersionController, BindingController)
        ]
        await mortal.died.wait()
        for task in tasks:
            task.cancel()


class World:
    """Actions of people and agents meanwhile."""

    def __init__(self, api: Judge, chance: random.Random) -> None:
        self.api, self.chance = api, chance
        self.count = 0

    def _spec(self) -> dict[str, Any]:
        self.count += 1
        return {
            "template": {"agent": {"image": f"image:{self.chance.choice((1, 2, self.count))}"}},
            "machineSelector": {"matchLabels": {"role": self.chance.choice("ab")}},
            "priority": self.chance.randrange(2),
            "revisionHistoryLimit": self.chance.randrange(3),
        }

    async def configure(self) -> None:
        name = self.chance.choice(NAMES)
        try:
            await self.api.patch(MACHINE_CONFIGURATIONS, name, {"spec": self._spec()})
        except ApiError:
            await self.api.create(MACHINE_CONFIGURATIONS, {"metadata": {"name": name}, "spec": self._spec()})

    async def label(self) -> None:
        patch = {"metadata": {"labels": {"role": self.chance.choice("abc")}}}
        await self.api.patch(MACHINES, self.chance.choice(HOSTS), patch)

    async def point(self) -> None:
        """Name a configuration in a Machine, one of its versions, or remove the name."""
        ref = self.chance.choice((None, {"name": "c1", "version": None}, {"name": "c1", "version": 1}))
        await self.api.patch(MACHINES, self.chance.choice(HOSTS), {"spec": {"configurationRef": ref}})

    async def begin_node(self, machine: str = "") -> None:
        """Let an agent take its Machine's lock for a version, the newest or the named one, and check that it is still
        the one.
        """
        name = machine or self.chance.choice(HOSTS)
        if name in self.api.making:
            return
        found = await self._found(name)
        if isinstance(found, MachineConfigurationVersion):
            slot = {"uid": "u", "name": "n", "kind": NODE_RECREATION, "executor": "e", "since": "s"}
            await self._tell(name, {"activeOperation": {**slot, "configuration": _id(found)}})
            await asyncio.sleep(self.chance.choice((0, 0.01, 0.1)))
            again = await self._found(name)
            if isinstance(again, MachineConfigurationVersion) and again.spec == found.spec:
                self.api.making[name] = Making(found)
            else:
                await self._tell(name, {"activeOperation": None})

    async def _found(self, name: str) -> object:
        return await VersionResolver(self.api, 0.0).version(await self.api.get(MACHINES, name), fresh=True)

    async def end_node(self) -> None:
        """Let an agent report that it has made its node, or failed."""
        name = self.chance.choice(HOSTS)
        making = self.api.making.get(name)
        if making is not None:
            made = {"configuration": _id(making.version)} if self.chance.random() < 0.8 else {}
            await self._tell(name, {"activeOperation": None, **made})
            del self.api.making[name]

    async def _tell(self, name: str, status: dict[str, Any]) -> None:
        await self.api.patch(MACHINES, name, {"status": status}, subresource="status")

    async def leave(self) -> None:
        patch = {"status": {"configuration": None}}
        await self.api.patch(MACHINES, self.chance.choice(HOSTS), patch, subresource="status")

    async def delete(self) -> None:
        versions = (await self.api.list(MACHINE_CONFIGURATION_VERSIONS)).items
        if versions and self.chance.random() < 0.7:
            await self.api.delete(MACHINE_CONFIGURATION_VERSIONS, self.chance.choice(versions).metadata.name)
        else:
            await self.api.delete(MACHINE_CONFIGURATIONS, self.chance.choice(NAMES))

    async def live(self, steps: int) -> None:
        acts = (self.configure, self.configure, self.label, self.point, self.begin_node, self.end_node, self.leave)
        for _ in range(steps):
            with suppress(ApiError):
                await self.chance.choice((*acts, self.delete))()
            await asyncio.sleep(self.chance.choice((0, 0.01, 0.1, 3)))


async def story(seed: int) -> None:
    chance = random.Random(seed)
    random.seed(seed)
    api = Judge()
    for name in HOSTS:
        await api.create(MACHINES, {"metadata": {"name": name, "labels": {"role": "a"}}})
    world = asyncio.create_task(World(api, chance).live(60))
    while not world.done():
        with suppress(TimeoutError):
            async with asyncio.timeout(chance.randrange(1, 30)):
                await incarnation(api, chance, chance.randrange(2, 40))
    await world
    with suppress(TimeoutError):
        async with asyncio.timeout(600):
            await incarnation(api, chance, 10_000)
    await check(api)


async def check(api: Judge) -> None:
    """Check that all invariants held, and that the final statuses are true."""
    assert api.broken == []
    machines = (await api.list(MACHINES)).items
    versions = (await api.list(MACHINE_CONFIGURATION_VERSIONS)).items
    for configuration in (await api.list(MACHINE_CONFIGURATIONS)).items:
        name = configuration.metadata.name
        own = [one for one in versions if one.configuration == name]
        newest = max(own, key=lambda one: one.spec.version)
        assert newest.spec.template == configuration.spec.template
        status = configuration.status
        assert status.current_version == newest.spec.version
        given_out = {number for owner, number in api.numbers if owner == configuration.metadata.uid}
        assert (status.latest_version or 0) >= max(given_out)
        for version in own:
            users = [m for m in machines if _made_from(m, name, version.spec.version)]
            assert version.status.deployed_machines == len(users)
            assert version.status.deployed or not users
        free = [one for one in own if one is not newest and not _in_use(one)]
        assert len(free) <= configuration.spec.revision_history_limit


def _in_use(version: Any) -> bool:
    return any(condition.status == "True" for condition in version.status.conditions)


def _made_from(machine: Machine, name: str, number: int) -> bool:
    active = machine.status.active_operation
    made = (machine.status.configuration, None if active is None else active.configuration)
    return any(one is not None and (one.name, one.version) == (name, number) for one in made)


def _id(version: MachineConfigurationVersion) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(configuration_id(version))
    return told


@pytest.mark.slow
def test_whatever_happens_numbers_are_used_once_and_what_is_deployed_stays() -> None:
    begin = first_seed()
    for seed in range(begin, begin + STORIES):
        run_virtual(_named(seed))


@pytest.mark.soak
def test_many_lives() -> None:
    begin = first_seed() + STORIES
    for seed in range(begin, begin + 500):
        run_virtual(_named(seed))


async def _named(seed: int) -> None:
    try:
        await story(seed)
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise


def test_used_version_is_not_edited_while_the_watch_lags() -> None:
    """An agent takes the version while the watch is silent; the template changes at the same time."""

    async def main() -> None:
        api = Judge()
        await api.create(MACHINES, {"metadata": {"name": "m1"}})
        spec = {"template": {"agent": {"image": "a"}}}
        await api.create(MACHINE_CONFIGURATIONS, {"metadata": {"name": "c"}, "spec": spec})
        caches = (
            Cache(api, CONFIGURATIONS),
            Cache(api, VERSIONS, indexes={INDEX_CONFIGURATION: by_configuration}),
        )
        machines = Cache(api, MACHINES, indexes={INDEX_CONFIGURATION: configurations_of})
        async with asyncio.TaskGroup() as group:
            silent = group.create_task(machines.run())
            tasks = [group.create_task(cache.run()) for cache in caches]
            await asyncio.sleep(1)
            silent.cancel()
            tasks.append(group.create_task(VersionController(api, *caches, machines, now=virtual_now).run()))
            await asyncio.sleep(1)
            made = {"configuration": {"name": "c", "version": 1, "versionName": "c-v1"}}
            await api.patch(MACHINES, "m1", {"status": made}, subresource="status")
            await api.patch(MACHINE_CONFIGURATIONS, "c", {"spec": {"template": {"agent": {"image": "b"}}}})
            await asyncio.sleep(10)
            for task in tasks:
                task.cancel()
        versions = (await api.list(MACHINE_CONFIGURATION_VERSIONS)).items
        images = {one.spec.version: one.spec.template.agent and one.spec.template.agent.image for one in versions}
        assert images == {1: "a", 2: "b"}

    run_virtual(main())


def test_orphaned_version_loses_its_about_to_change_annotation() -> None:
    """The configuration was deleted with `--cascade=orphan` between the word and the deed."""

    async def main() -> None:
        api = MemoryApi(now=virtual_now)
        labels = {LABEL_CONFIGURATION: "c", LABEL_CONFIGURATION_VERSION: "1"}
        meta = {"name": "c-v1", "labels": labels, "annotations": {ANNOTATION_ABOUT_TO_CHANGE: "true"}}
        await api.create(VERSIONS, {"metadata": meta, "spec": {"version": 1, "template": {}}})
        versions = Cache(api, VERSIONS, indexes={INDEX_CONFIGURATION: by_configuration})
        caches = (Cache(api, CONFIGURATIONS), versions)
        machines = Cache(api, MACHINES, indexes={INDEX_CONFIGURATION: configurations_of})
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(cache.run()) for cache in (*caches, machines)]
            await asyncio.sleep(1)
            tasks.append(group.create_task(VersionController(api, *caches, machines, now=virtual_now).run()))
            await asyncio.sleep(5)
            for task in tasks:
                task.cancel()
        (left,) = (await api.list(MACHINE_CONFIGURATION_VERSIONS)).items
        assert not left.about_to_change

    run_virtual(main())


class SlowEdits(Judge):
    """An API to which edits of a version are long under way."""

    async def patch(
        self, kind: Kind[T], name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        if kind.plural == "machineconfigurationversions" and "spec" in patch:
            await asyncio.sleep(10)
        return await super().patch(kind, name, patch, namespace=namespace, subresource=subresource)


def test_node_creation_does_not_start_from_a_version_during_its_edit() -> None:
    async def main() -> None:
        api, chance = SlowEdits(), random.Random(1)
        await api.create(
            MACHINES, {"metadata": {"name": "m1"}, "spec": {"configurationRef": {"name": "c", "version": 1}}}
        )
        await api.create(
            MACHINE_CONFIGURATIONS, {"metadata": {"name": "c"}, "spec": {"template": {"agent": {"image": "a"}}}}
        )
        machina = asyncio.create_task(incarnation(api, chance, 10_000))
        await asyncio.sleep(5)
        world = World(api, chance)
        await api.patch(MACHINE_CONFIGURATIONS, "c", {"spec": {"template": {"agent": {"image": "b"}}}})
        await asyncio.sleep(5)
        await world.begin_node("m1")
        assert api.making == {}
        await asyncio.sleep(20)
        await world.begin_node("m1")
        made = api.making["m1"].version.spec.template.agent
        assert made is not None
        assert made.image == "b"
        await asyncio.sleep(20)
        machina.cancel()
        assert api.broken == []

    run_virtual(main())


def test_the_judge_sees_a_number_that_is_given_out_again() -> None:
    async def twice() -> None:
        api = Judge()
        body = {
            "metadata": {
                "name": "c1-v1",
                "ownerReferences": [{"apiVersion": "x/v1", "kind": "X", "name": "c1", "uid": "u"}],
            },
            "spec": {"version": 1, "template": {}},
        }
        await api.create(MACHINE_CONFIGURATION_VERSIONS, body)
        await api.delete(MACHINE_CONFIGURATION_VERSIONS, "c1-v1")
        with pytest.raises(AssertionError, match="given out again"):
            await api.create(MACHINE_CONFIGURATION_VERSIONS, body)
        assert api.broken

    run_virtual(twice())
