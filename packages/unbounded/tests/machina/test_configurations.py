"""Configurations on a real API server: machina with its rights, and what the policies of deploy/ refuse to all."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from tests.cli.running import KUBECTL
from tests.support.waiting import eventually
from unbounded.api.configuration import (
    MACHINE_CONFIGURATION_VERSIONS,
    MACHINE_CONFIGURATIONS,
    MachineConfiguration,
    MachineConfigurationVersion,
)
from unbounded.api.core import NODES
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.cli.manifests import CRDS
from unbounded.cli.servers import component_runtime
from unbounded.kube.api import Forbidden, InvalidObject, NotFound
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import rfc3339, utc_now
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.process import running_caches
from unbounded.kube.process_epoch import ProcessEpoch
from unbounded.machina.configuration_binding import BindingController
from unbounded.machina.configuration_versions import VersionController
from unbounded.machina.controller import create_machina_caches
from unbounded.machina.rolling_updates import RollingUpdateController
from unbounded.operations.disruption.controller import DrainController

pytestmark = pytest.mark.slow

NUMBERS: Final = itertools.count(1)
PATIENCE_S: Final = 30.0
T = TypeVar("T")


@asynccontextmanager
async def keeping(admin: HttpApi) -> AsyncIterator[None]:
    """machina's controllers of configurations at work, as its service account."""
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(component_runtime("machina", admin, metrics=ControllerMetrics()))
        caches = create_machina_caches(runtime.api)
        await stack.enter_async_context(
            running_caches(runtime, caches.configurations, caches.versions, caches.machines)
        )
        group = await stack.enter_async_context(asyncio.TaskGroup())
        parts = (runtime.api, caches.configurations, caches.versions, caches.machines)
        tasks = [group.create_task(part(*parts).run()) for part in (VersionController, BindingController)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


@pytest.fixture
async def kept(admin: HttpApi) -> AsyncIterator[HttpApi]:
    async with keeping(admin):
        yield admin


def template(version: str, **more: Any) -> dict[str, Any]:
    return {"template": {"kubernetes": {"version": version, **more}}}


async def configured(admin: HttpApi, **spec: Any) -> str:
    """A new configuration with a label of its own that its selector wants; its name."""
    name = f"c{next(NUMBERS)}"
    selector = {"machineSelector": {"matchLabels": {"for": name}}}
    await admin.create(
        MACHINE_CONFIGURATIONS, {"metadata": {"name": name}, "spec": {**template("v1.33.0"), **selector, **spec}}
    )
    return name


async def machine(admin: HttpApi, label: str = "", **spec: Any) -> str:
    name = f"host{next(NUMBERS)}"
    labels = {"labels": {"for": label}} if label else {}
    await admin.create(MACHINES, {"metadata": {"name": name, **labels}, "spec": spec})
    return name


async def edit(admin: HttpApi, name: str, **spec: Any) -> None:
    await admin.patch(MACHINE_CONFIGURATIONS, name, {"spec": spec})


async def make_node(admin: HttpApi, name: str, configuration: str, number: int) -> None:
    """Write what the agent writes when it makes the node of a Machine from a version."""
    made = {"name": configuration, "version": number, "versionName": f"{configuration}-v{number}"}
    await admin.patch(MACHINES, name, {"status": {"configuration": made}}, subresource="status")


async def until(look: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> T:
    async def seen() -> T | None:
        try:
            found = await look()
        except NotFound:
            return None
        return found if holds(found) else None

    found: T = await eventually(seen, within_s=PATIENCE_S)
    return found


async def version_that(
    admin: HttpApi, name: str, holds: Callable[[MachineConfigurationVersion], bool] = lambda _one: True
) -> MachineConfigurationVersion:
    return await until(lambda: admin.get(MACHINE_CONFIGURATION_VERSIONS, name), holds)


async def configuration_that(
    admin: HttpApi, name: str, holds: Callable[[MachineConfiguration], bool]
) -> MachineConfiguration:
    return await until(lambda: admin.get(MACHINE_CONFIGURATIONS, name), holds)


async def machine_that(admin: HttpApi, name: str, holds: Callable[[Machine], bool]) -> Machine:
    return await until(lambda: admin.get(MACHINES, name), holds)


def pending(one: Machine) -> str:
    """Return status and message of the condition ConfigurationPending; empty without it."""
    found = (c for c in one.status.conditions if c.type == "ConfigurationPending")
    return next((f"{c.status}: {c.message}" for c in found), "")


def kubernetes(one: MachineConfigurationVersion) -> Any:
    return one.spec.template.kubernetes


async def test_versions_are_edited_until_a_node_was_made_from_them(kept: HttpApi) -> None:
    name = await configured(kept)
    first = await version_that(kept, f"{name}-v1")
    assert first.metadata.labels == {
        "unbounded-cloud.io/machine-configuration": name,
        "unbounded-cloud.io/machine-configuration-version": "1",
    }
    (owner,) = first.metadata.owner_references
    assert (owner.kind, owner.name, owner.controller) == ("MachineConfiguration", name, True)

    await edit(kept, name, template={"kubernetes": {"version": "v1.34.0", "nodeLabels": {"a": "b"}}})
    await version_that(kept, f"{name}-v1", lambda one: kubernetes(one).node_labels == {"a": "b"})
    await edit(kept, name, template={"kubernetes": {"version": "v1.34.0", "nodeLabels": None}})
    edited = await version_that(kept, f"{name}-v1", lambda one: not kubernetes(one).node_labels)
    assert kubernetes(edited).version == "v1.34.0"

    await make_node(kept, await machine(kept, name), name, 1)
    await version_that(kept, f"{name}-v1", lambda one: one.status.deployed and one.status.deployed_machines == 1)
    await edit(kept, name, **template("v1.35.0"))
    assert kubernetes(await version_that(kept, f"{name}-v2")).version == "v1.35.0"
    assert kubernetes(await version_that(kept, f"{name}-v1")).version == "v1.34.0"
    told = await configuration_that(kept, name, lambda one: one.status.current_version == 2)
    assert told.status.latest_version == 2


async def test_a_machine_is_bound_by_name_to_what_selects_it(kept: HttpApi) -> None:
    low = await configured(kept)
    name = await machine(kept, low)
    bound = await machine_that(kept, name, lambda one: pending(one).startswith("False: "))
    ref = bound.spec.configuration_ref
    assert ref is not None
    assert (ref.name, ref.version) == (low, None)
    high = await configured(kept, priority=1, machineSelector={"matchLabels": {"for": low}})
    await machine_that(kept, name, lambda one: one.spec.configuration_ref is not None and _name(one) == high)
    await kept.patch(MACHINES, name, {"metadata": {"labels": {"for": None}}})
    free = await machine_that(kept, name, lambda one: one.spec.configuration_ref is None)
    assert free.metadata.annotations == {}


def _name(one: Machine) -> str:
    return one.spec.configuration_ref.name if one.spec.configuration_ref else ""


async def test_rollback_is_to_name_an_older_version(kept: HttpApi) -> None:
    name = await configured(kept)
    host = await machine(kept, name)
    await machine_that(kept, host, lambda one: _name(one) == name)
    await make_node(kept, host, name, 1)
    await version_that(kept, f"{name}-v1", lambda one: one.status.deployed)
    await edit(kept, name, **template("v1.34.0"))
    await machine_that(kept, host, lambda one: "its newest version, now 2" in pending(one))
    await kept.patch(MACHINES, host, {"spec": {"configurationRef": {"version": 1}}})
    back = await machine_that(kept, host, lambda one: "its version 1" in pending(one))
    await edit(kept, name, priority=5)
    await make_node(kept, host, name, 1)
    assert (await kept.get(MACHINES, host)).spec == back.spec
    await kept.patch(MACHINES, host, {"spec": {"configurationRef": {"version": 7}}})
    await machine_that(
        kept, host, lambda one: pending(one).startswith(f"True: MachineConfiguration {name} has no vers")
    )


async def test_a_reference_to_nothing_is_pending_until_there_is_something(kept: HttpApi) -> None:
    later = f"later{next(NUMBERS)}"
    host = await machine(kept, configurationRef={"name": later})
    words = f"True: spec.configurationRef names MachineConfiguration {later}, which does not exist"
    await machine_that(kept, host, lambda one: pending(one) == words)
    await kept.create(MACHINE_CONFIGURATIONS, {"metadata": {"name": later}, "spec": template("v1.33.0")})
    await machine_that(kept, host, lambda one: pending(one).startswith("False: "))


async def test_what_machines_use_cannot_be_deleted_and_what_nobody_uses_can(kept: HttpApi) -> None:
    name = await configured(kept)
    host = await machine(kept, name)
    await make_node(kept, host, name, 1)
    await version_that(kept, f"{name}-v1", lambda one: one.status.deployed_machines == 1)
    await configuration_that(kept, name, lambda one: any(c.status == "True" for c in one.status.conditions))
    words = f"in use and cannot be deleted: the node of {host} uses it"
    with pytest.raises(Forbidden, match=f"{name}-v1 is {words}"):
        await kept.delete(MACHINE_CONFIGURATION_VERSIONS, f"{name}-v1")
    with pytest.raises(Forbidden, match=f"MachineConfiguration {name} is {words}"):
        await kept.delete(MACHINE_CONFIGURATIONS, name)

    await kept.delete(MACHINES, host)
    await configuration_that(kept, name, lambda one: all(c.status == "False" for c in one.status.conditions))
    bound = await machine(kept, name)
    await machine_that(kept, bound, lambda one: _name(one) == name)
    await kept.delete(MACHINE_CONFIGURATIONS, name)
    await machine_that(kept, bound, lambda one: one.spec.configuration_ref is None)

    async def gone() -> bool:
        found = (await kept.list(MACHINE_CONFIGURATION_VERSIONS)).items
        return all(one.configuration != name for one in found)

    await eventually(gone, within_s=PATIENCE_S)


async def test_a_number_whose_version_was_deleted_is_not_used_again(kept: HttpApi) -> None:
    name = await configured(kept)
    await version_that(kept, f"{name}-v1", lambda one: bool(one.status.conditions))
    await kept.delete(MACHINE_CONFIGURATION_VERSIONS, f"{name}-v1")
    await version_that(kept, f"{name}-v2")


async def test_the_history_holds_what_it_is_told_to(kept: HttpApi) -> None:
    name = await configured(kept, revisionHistoryLimit=1)
    host = await machine(kept, name)
    for number in (1, 2, 3):
        await version_that(kept, f"{name}-v{number}")
        await make_node(kept, host, name, number)
        await version_that(kept, f"{name}-v{number}", lambda one: one.status.deployed)
        await edit(kept, name, **template(f"v1.{33 + number}.0"))
    await version_that(kept, f"{name}-v4")

    async def left() -> bool:
        found = (await kept.list(MACHINE_CONFIGURATION_VERSIONS)).items
        return sorted(one.spec.version for one in found if one.configuration == name) == [2, 3, 4]

    await eventually(left, within_s=PATIENCE_S)


ONE: Final = {"name": "one", "size": 1}
REST: Final = {"name": "rest", "size": "100%"}
STRATEGY: Final = r"spec\.updateStrategy"
REFUSED: Final[list[tuple[dict[str, Any], str]]] = [
    ({"type": "OnDelete", "rollingUpdate": {}}, rf"{STRATEGY}\.rollingUpdate: .*needs type RollingUpdate"),
    ({"maxUnavailable": 0}, rf"{STRATEGY}\.maxUnavailable: .*greater than or equal to 1"),
    ({"rollingUpdate": {"maxFailures": 0}}, rf"{STRATEGY}\.rollingUpdate\.maxFailures: .*greater than or equal to 1"),
    ({"rollingUpdate": {"onFailure": "Fail"}}, rf"{STRATEGY}\.rollingUpdate\.onFailure: .*\"Halt\", \"Rollback\""),
    ({"rollingUpdate": {"stages": [ONE, ONE]}}, rf"{STRATEGY}\.rollingUpdate\.stages\[1\]: Duplicate value"),
    ({"rollingUpdate": {"stages": [{**ONE, "size": 0}]}}, r"stages\[0\]\.size: .*a number from 1, or a percentage"),
    ({"rollingUpdate": {"stages": [{**ONE, "size": "101%"}]}}, r"stages\[0\]\.size: .*from 1% to 100%"),
    ({"rollingUpdate": {"stages": [{"name": "none"}]}}, r"stages\[0\]: .*exactly one of size and machineSelector"),
    (
        {"rollingUpdate": {"stages": [{**ONE, "startAfter": {"stage": "rest"}}, REST]}},
        r"rollingUpdate\.stages: .*startAfter must name an earlier stage of this rollingUpdate",
    ),
    (
        {"rollingUpdate": {"stages": [ONE, {**REST, "startAfter": {"stage": "none"}}]}},
        r"rollingUpdate\.stages: .*startAfter must name an earlier stage of this rollingUpdate",
    ),
    (
        {"rollingUpdate": {"stages": [ONE, {**REST, "startAfter": {"stage": "one", "targets": 0}}]}},
        r"stages\[1\]\.startAfter\.targets: .*must be a number from 1, or All",
    ),
    ({"rollingUpdate": {"stages": [{**ONE, "pauseAfter": "yes"}]}}, r"stages\[0\]\.pauseAfter: .*boolean"),
    ({"rollingUpdate": {"host": "yes"}}, rf"{STRATEGY}\.rollingUpdate\.host: .*boolean"),
    ({"type": "OnDelete", "rollingUpdate": {"host": True}}, rf"{STRATEGY}\.rollingUpdate: .*needs type RollingUpdate"),
    (
        {"rollingUpdate": {"prepareAhead": -1}},
        rf"{STRATEGY}\.rollingUpdate\.prepareAhead: .*greater than or equal to 0",
    ),
    (
        {"rollingUpdate": {"prepareAhead": 1001}},
        rf"{STRATEGY}\.rollingUpdate\.prepareAhead: .*less than or equal to 1000",
    ),
]


@pytest.mark.parametrize(("strategy", "words"), REFUSED)
async def test_bad_rolling_updates_are_refused_by_field(admin: HttpApi, strategy: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidObject, match=words):
        await configured(admin, updateStrategy={"type": "RollingUpdate", **strategy})


async def test_settings_of_a_rolling_update_change_at_any_time(admin: HttpApi) -> None:
    canary = {"name": "canary", "machineSelector": {"matchLabels": {"canary": "yes"}}, "soakSeconds": 60}
    stages = [canary, {**REST, "maxConcurrent": "20%", "startAfter": {"stage": "canary"}}]
    name = await configured(admin, updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"stages": stages}})
    for settings in (
        {"paused": True},
        {"maxFailures": 3, "onFailure": "Rollback"},
        {"host": True, "prepareAhead": 0},
        {"stages": [REST]},
    ):
        await edit(admin, name, updateStrategy={"rollingUpdate": settings})
    found = (await admin.get(MACHINE_CONFIGURATIONS, name)).spec.update_strategy
    assert found.rolling_update is not None
    assert (found.rolling_update.paused, found.rolling_update.max_failures) == (True, 3)


async def test_a_name_that_is_no_label_is_refused(admin: HttpApi) -> None:
    with pytest.raises(InvalidObject, match="at most 63 characters"):
        await admin.create(MACHINE_CONFIGURATIONS, {"metadata": {"name": "c" * 64}, "spec": template("v1.33.0")})


async def test_a_deployed_version_stays_as_it_is_for_everybody(kept: HttpApi) -> None:
    name = await configured(kept)
    await version_that(kept, f"{name}-v1")
    await make_node(kept, await machine(kept, name), name, 1)
    await version_that(kept, f"{name}-v1", lambda one: one.status.deployed)

    async def edit() -> None:
        await kept.patch(MACHINE_CONFIGURATION_VERSIONS, f"{name}-v1", {"spec": template("v1.40.0")})

    async def take_back() -> None:
        patch = {"status": {"deployed": False}}
        await kept.patch(MACHINE_CONFIGURATION_VERSIONS, f"{name}-v1", patch, subresource="status")

    with pytest.raises(InvalidObject, match="a deployed version is immutable"):
        await edit()
    with pytest.raises(InvalidObject, match="deployed can change from false to true only"):
        await take_back()
    async with without_rules(kept, f"{MACHINE_CONFIGURATION_VERSIONS.plural}.unbounded-cloud.io"):
        with pytest.raises(
            Forbidden,
            match=f"{name}-v1 is deployed, and therefore immutable",
        ):
            await edit()
        with pytest.raises(
            Forbidden,
            match=f"{name}-v1 is deployed: deployed can change from false to true only",
        ):
            await take_back()


@asynccontextmanager
async def without_rules(admin: HttpApi, name: str) -> AsyncIterator[None]:
    """A definition as an older or a changed one may be, whose schema lets everything through: the policies remain."""
    whole = (await admin.get(CRDS, name))["spec"]["versions"]
    bare = _bare(whole)
    assert bare != whole
    await admin.patch(CRDS, name, {"spec": {"versions": bare}})
    try:
        yield
    finally:
        await admin.patch(CRDS, name, {"spec": {"versions": whole}})


def _bare(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_bare(one) for one in schema]
    if isinstance(schema, dict):
        return {key: _bare(value) for key, value in schema.items() if key != "x-kubernetes-validations"}
    return schema


async def test_of_a_machine_machina_writes_the_binding_and_nothing_else(admin: HttpApi) -> None:
    host = await machine(admin)
    async with component_runtime("machina", admin, metrics=ControllerMetrics()) as runtime:
        for patch, words in (
            ({"spec": {"joinCounter": 1}}, "machina may write only configurationRef and kubernetes.nodeRef"),
            (
                {"metadata": {"annotations": {"unbounded-cloud.io/paused": "true"}}},
                "machina may write only the annotation unbounded-cloud.io/bound-conf",
            ),
        ):
            with pytest.raises(Forbidden, match=words):
                await runtime.api.patch(MACHINES, host, patch)


@pytest.mark.skipif(KUBECTL is None, reason="needs kubectl")
async def test_kubectl_shows_and_explains_them(kept: HttpApi, server: Path) -> None:
    name = await configured(kept)
    await version_that(kept, f"{name}-v1", lambda one: bool(one.status.conditions))
    await configuration_that(kept, name, lambda one: one.status.current_version == 1)

    def kubectl(*arguments: str) -> list[str]:
        command = [KUBECTL or "kubectl", f"--kubeconfig={server}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()

    configurations = await asyncio.to_thread(kubectl, "get", "mc", name)
    assert configurations[0].split() == ["NAME", "LATEST", "VERSION", "UPDATE", "STRATEGY", "AGE"]
    assert configurations[1].split()[:3] == [name, "1", "OnDelete"]
    versions = await asyncio.to_thread(kubectl, "get", "mcv", f"{name}-v1")
    assert versions[0].split() == ["NAME", "CONFIGURATION", "VERSION", "DEPLOYED", "MACHINES", "AGE"]
    assert versions[1].split()[:5] == [f"{name}-v1", name, "1", "false", "0"]
    explained = await asyncio.to_thread(kubectl, "explain", "mcv.status.deployed")
    assert any("True once a Node was created from this version." in line for line in explained)


@asynccontextmanager
async def rolling(admin: HttpApi) -> AsyncIterator[None]:
    """machina's controllers of configurations and disruptions at work, as its service account."""
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(component_runtime("machina", admin, metrics=ControllerMetrics()))
        api, caches, epoch = runtime.api, create_machina_caches(runtime.api), ProcessEpoch()
        await stack.enter_async_context(running_caches(runtime, *caches.each()))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        parts = (api, caches.configurations, caches.versions, caches.machines)
        controllers = (
            VersionController(*parts),
            BindingController(*parts),
            RollingUpdateController(*parts, caches.nodes, caches.operations, epoch=epoch),
            DrainController(api, caches.supervisor, caches.budgets, epoch=epoch),
        )
        tasks = [group.create_task(one.run()) for one in controllers]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def _ready_node(admin: HttpApi, name: str) -> str:
    """Create a Node that is Ready, as kubelet does; return its UID."""
    await admin.create(NODES, {"metadata": {"name": name}})
    at = rfc3339(utc_now())
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastTransitionTime": at}
    node = await admin.patch(NODES, name, {"status": {"conditions": [ready]}}, subresource="status")
    return node.metadata.uid


async def test_a_rolling_update_needs_no_more_than_the_rights_of_machina(admin: HttpApi) -> None:
    async with rolling(admin):
        name = await configured(admin, updateStrategy={"type": "RollingUpdate"})
        host = await machine(admin, name, kubernetes={})
        await admin.patch(MACHINES, host, {"status": {"agent": {"version": "0.2.0"}}}, subresource="status")
        uid = await _ready_node(admin, host)
        await version_that(admin, f"{name}-v1")
        await make_node(admin, host, name, 1)
        await configuration_that(admin, name, _is_complete_with(1))
        await edit(admin, name, **template("v1.34.0"))

        def prepares(one: Machine) -> bool:
            return one.status.node_update is not None and one.status.node_update.phase == "Preparing"

        update = (await machine_that(admin, host, prepares)).status.node_update
        assert update is not None
        assert (await admin.get(NODES, host)).metadata.uid == uid, "no Node is disrupted before the download"
        prepared = {"version": update.version, "generation": update.generation, "complete": True}
        await admin.patch(MACHINES, host, {"status": {"agent": {"prepared": prepared}}}, subresource="status")

        async def deleted() -> bool:
            try:
                return (await admin.get(NODES, host)).metadata.uid != uid
            except NotFound:
                return True

        await eventually(deleted, within_s=PATIENCE_S)
        result = {"name": "r", "uid": "r", "kind": "NodeRecreation", "phase": "Complete"}
        await admin.patch(MACHINES, host, {"status": {"recentOperations": [result]}}, subresource="status")
        await make_node(admin, host, name, 2)
        await _ready_node(admin, host)
        done = await machine_that(
            admin, host, lambda one: one.status.node_update is not None and one.status.node_update.phase == "Complete"
        )
        assert done.status.node_update is not None
        assert done.status.node_update.node_uid == uid
        assert not (await admin.get(NODES, host)).spec.unschedulable
        await configuration_that(admin, name, lambda one: _phase(one) == ("Complete", 2))


async def test_machina_pauses_after_a_stage_and_replaces_a_host_with_its_rights(admin: HttpApi) -> None:
    async with rolling(admin):
        stages = [{"name": "canary", "size": 1, "pauseAfter": True}, REST]
        settings = {"host": True, "stages": stages}
        name = await configured(admin, updateStrategy={"type": "RollingUpdate", "rollingUpdate": settings})
        await version_that(admin, f"{name}-v1")
        redfish = {
            "url": "https://192.0.2.7",
            "username": "u",
            "passwordRef": {"name": "s", "namespace": "unbounded-kube"},
        }
        hosts = [
            await machine(admin, name, kubernetes={}, pxe={"image": "os:v1", "redfish": redfish}) for _ in range(2)
        ]
        for host in hosts:
            await _ready_node(admin, host)
            await make_node(admin, host, name, 1)
            written = {"image": "os:v1", "digest": "sha256:1", "boot": "b", "at": rfc3339(utc_now())}
            await admin.patch(MACHINES, host, {"status": {"image": written}}, subresource="status")
        await configuration_that(admin, name, _is_complete_with(2))
        first, second = sorted(hosts)  # host10 comes before host9
        for host in (first, second):  # the update may begin between the two writes
            await admin.patch(MACHINES, host, {"spec": {"pxe": {"image": "os:v2"}}})
        pulled = {"type": "NetbootImageReady", "status": "True", "reason": "Pulled", "message": ""}
        ready = {**pulled, "lastTransitionTime": rfc3339(utc_now())}
        await admin.patch(MACHINES, first, {"status": {"conditions": [ready]}}, subresource="status")

        async def replaces() -> MachineOperation | None:
            found = (await admin.list(MACHINE_OPERATIONS)).items
            return next((one for one in found if one.spec.machine_ref in hosts), None)

        operation = await eventually(replaces, within_s=PATIENCE_S)
        assert operation is not None
        assert (operation.spec.machine_ref, operation.spec.operation_kind) == (first, "HostReplace")
        assert operation.spec.drain is not None
        assert operation.spec.drain.mode == "Always"
        drained = await machine_that(
            admin, first, lambda one: one.status.disruption is not None and one.status.disruption.stage == "Drained"
        )
        assert drained.status.disruption is not None
        assert drained.status.disruption.holder.uid == operation.metadata.uid
        assert (await admin.get(NODES, first)).spec.unschedulable
        image = {"image": "os:v2", "digest": "sha256:2", "boot": operation.metadata.uid, "at": rfc3339(utc_now())}
        await admin.patch(MACHINES, first, {"status": {"image": image}}, subresource="status")
        done = {"phase": "Complete", "completedAt": rfc3339(utc_now()), "message": "done"}
        await admin.patch(MACHINE_OPERATIONS, operation.name, {"status": done}, subresource="status")
        await configuration_that(admin, name, lambda one: _phase(one) == ("Paused", 1))
        paused = (await admin.get(MACHINE_CONFIGURATIONS, name)).spec.update_strategy.rolling_update
        assert paused is not None
        assert paused.paused
        # its image was requested ahead of its turn; the pause takes the request back, after the phase
        await machine_that(admin, second, lambda one: one.status.node_update is None)
        created = [one.spec.machine_ref for one in (await admin.list(MACHINE_OPERATIONS)).items]
        assert [one for one in created if one in hosts] == [first]


async def test_machina_may_only_pause_a_configuration(admin: HttpApi) -> None:
    name = await configured(admin, updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"paused": True}})
    other = await configured(admin, updateStrategy={"type": "RollingUpdate"})
    async with component_runtime("machina", admin, metrics=ControllerMetrics()) as runtime:
        pause = {"spec": {"updateStrategy": {"rollingUpdate": {"paused": True}}}}
        await runtime.api.patch(MACHINE_CONFIGURATIONS, other, pause)
        words = "machina may only set updateStrategy.rollingUpdate.paused to true"
        for strategy in (
            {"rollingUpdate": {"paused": False}},
            {"rollingUpdate": {"paused": None}},
            {"rollingUpdate": {"paused": True, "host": True}},
            {"rollingUpdate": None},
            {"maxUnavailable": 3},
        ):
            with pytest.raises(Forbidden, match=words):
                await runtime.api.patch(MACHINE_CONFIGURATIONS, name, {"spec": {"updateStrategy": strategy}})
        with pytest.raises(Forbidden, match=words):
            await runtime.api.patch(MACHINE_CONFIGURATIONS, name, {"spec": template("v1.35.0")})
        with pytest.raises(Forbidden, match="machina may change neither labels, annotations"):
            await runtime.api.patch(MACHINE_CONFIGURATIONS, name, {"metadata": {"labels": {"a": "b"}}})


def _is_complete_with(nodes: int) -> Callable[[MachineConfiguration], bool]:
    """Return a check for version 1 on so many Nodes: it is complete on none, too, while no Machine is bound."""

    def holds(one: MachineConfiguration) -> bool:
        rollout = one.status.rollout
        return _phase(one) == ("Complete", 1) and rollout is not None and rollout.updated == nodes

    return holds


def _phase(one: MachineConfiguration) -> tuple[str, int] | None:
    rollout = one.status.rollout
    return None if rollout is None else (rollout.phase, rollout.version)
