"""Writes outside of a deletion that the API server refuses: a wait of the Machine or the host, which ends by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from typing import Final

import pytest

from tests.containercloud.refusals import ANSWERS, HOLDERS, LIFE_WRITES, OBJECT_WRITES
from tests.containercloud.site import Site, site
from tests.containercloud.test_refusals import is_refused, message_of
from tests.containercloud.test_site import LONE, begun
from tests.explain.staging import ALIVE, why
from tests.support.virtual_time import run_virtual
from unbounded.api.container_cloud.cluster import CLUSTERS
from unbounded.api.container_cloud.host import BARE_METAL_HOST_PROFILES
from unbounded.explain.container_cloud_objects import OBJECTS as EXPLAINED
from unbounded.explain.links import Topic

MOST_S: Final = 300.0  # between two attempts
TARGET: Final = "Machine master-0.default"
OF_HOST: Final = {
    "finalizer of the host": "cannot add the finalizer of this host: ",
    "copy of the login": "cannot write Secret unbounded-kube/",
    "machine of the host": f"cannot create {TARGET}: ",
}
OF_MACHINE: Final = {
    "claim": "cannot claim BareMetalHost default/master-0: ",
    "finalizer of the machine": "cannot write annotation ",
    "ipam host": "cannot create IpamHost example-ns/example-control-plane: ",
    "addresses": "cannot allocate addresses of Subnet ",
    "target": "cannot change ",
    "install": "cannot create HostReplace cc-",
    "network": "cannot write the network configuration of IpamHost example-ns/example-control-plane: ",
    "layout": "cannot write the MachineProfile of BareMetalHostProfile default/default: ",
    "provider id": "cannot change Node master-0.default: ",
}
OF_CLUSTER: Final = {
    "budget": "cannot create MachineDisruptionBudget example-cluster.example-ns.",
    "configuration": "cannot create MachineConfiguration example-cluster.example-ns: ",
}
OF_STATUS: Final = {
    "status": "this Machine",
    "status of the host": "this host",
    "status of the cluster": "this Cluster",
}
OF_OBJECT: Final = {
    "Secret of BareMetalHostCredential": "write Secret default/spare",
    "erasure of BareMetalHostCredential": "erase the password of this BareMetalHostCredential",
    "layout of BareMetalHostProfile": "write the MachineProfile of this BareMetalHostProfile",
}
OBJECTS: Final = """
apiVersion: kaas.mirantis.com/v1alpha1
kind: BareMetalHostCredential
metadata: {name: spare, namespace: default}
spec: {username: admin, password: {value: secret}}
---
apiVersion: kaas.mirantis.com/v1alpha1
kind: MachinePool
metadata: {name: spare, namespace: example-ns, labels: {cluster.sigs.k8s.io/cluster-name: example-cluster}}
spec:
  replicas: 0
  machineSpec:
    providerSpec:
      value: {apiVersion: baremetal.k8s.io/v1alpha1, kind: BareMetalMachineProviderSpec}
"""
TOPICS: Final = {"MachinePool": Topic.POOL} | {kind.kind: topic for topic, kind in EXPLAINED.items()}
alive: Final = (*ALIVE, "unbounded-container-cloud")


def cases(writes: Iterable[str], first: str) -> list[tuple[str, str]]:
    """Return each write with one answer, and one of them with all."""
    return [(write, answer) for write in writes for answer in ANSWERS if write == first or answer == "denied"]


def is_retried(world: Site) -> None:
    """Assert that the refused write is repeated: seldom, and to the end."""
    tries = world.refusals.attempts
    assert 5 < len(tries) < 60  # by two controllers at most
    assert max(after - before for before, after in pairwise(tries)) < MOST_S + 60
    assert asyncio.get_running_loop().time() - tries[-1] < MOST_S + 60


def test_each_write_has_a_test() -> None:
    assert LIFE_WRITES.keys() == OF_HOST.keys() | OF_MACHINE.keys() | OF_CLUSTER.keys() | OF_STATUS.keys()


@pytest.mark.parametrize(("write", "answer"), cases(OF_MACHINE, "install"))
def test_a_refused_write_of_a_machine_is_a_wait_that_ends_by_itself(write: str, answer: str) -> None:
    async def scene() -> None:
        async with site(LONE) as world:
            world.refusals.begin(write, answer)
            await begun(world)
            text = ANSWERS[answer][2][:200]
            machine = await world.until_machine(partial(is_refused, text=text))
            execution = machine.status.execution
            assert execution is not None
            assert execution.waiting is not None
            assert execution.waiting.held_by == HOLDERS[answer]
            assert execution.waiting.until_event == "the write is accepted"
            assert message_of(machine).startswith(OF_MACHINE[write])
            assert machine.status.error_reason in ("CreateError", "UpdateError")
            assert machine.status.error_message == message_of(machine)
            (link, *_) = await why(world.api, machine.name, topic=Topic.CLAIM, namespace="example-ns", alive=alive)
            assert (link.code, link.held_by) == ("WriteRefused", HOLDERS[answer])
            assert text in link.what
            await asyncio.sleep(3600)
            still = await world.cc_machine()
            assert is_refused(still, text)
            is_retried(world)
            world.refusals.end()
            machine = await world.until_machine(
                lambda one: one.provider_status.status == "Ready" and not is_refused(one)
            )
            assert (machine.status.error_reason, machine.status.error_message) == (None, None)
            assert world.operated.count("HostReplace") == 1

    run_virtual(scene())


@pytest.mark.parametrize(("write", "answer"), cases(OF_HOST, "machine of the host"))
def test_a_refused_write_of_a_host_is_in_its_condition(write: str, answer: str) -> None:
    async def scene() -> None:
        async with site(LONE) as world:
            world.refusals.begin(write, answer)
            await begun(world)
            text = await world.reason("WriteRefused", "master-0")
            assert text.startswith(f"{HOLDERS[answer]} refuses a write: {OF_HOST[write]}")
            assert ANSWERS[answer][2] in text
            host = await world.read("master-0")
            if write != "finalizer of the host":  # before it, nothing else is written
                assert (host.status.operational_status, host.status.error_message) == ("error", text)
            (link, *_) = await why(world.api, "master-0", topic=Topic.HOST, namespace="default", alive=alive)
            assert link.code == "WriteRefused"
            assert ANSWERS[answer][2] in link.what
            assert link.fixes
            await asyncio.sleep(3600)
            is_retried(world)
            assert await world.reason("WriteRefused", "master-0") == text
            world.refusals.end()
            await world.until_word("Ready")
            host = await world.read("master-0")
            assert (host.status.operational_status, host.status.error_message) == ("OK", None)

    run_virtual(scene())


@pytest.mark.parametrize(("write", "answer"), cases(OF_CLUSTER, "configuration"))
def test_a_refused_write_of_a_cluster_is_in_its_condition(write: str, answer: str) -> None:
    async def scene() -> None:
        async with site(LONE) as world:
            world.refusals.begin(write, answer)
            await begun(world)
            await asyncio.sleep(3600)
            is_retried(world)
            cluster = await world.api.get(CLUSTERS, "example-cluster", namespace="example-ns")
            found = {one.type: one for one in cluster.provider_status.conditions}["Update"]
            assert (found.reason, found.ready, cluster.provider_status.ready) == ("WriteRefused", False, False)
            assert (found.message or "").startswith(f"{HOLDERS[answer]} refuses a write: {OF_CLUSTER[write]}")
            assert ANSWERS[answer][2] in (found.message or "")
            (link, *_) = await why(
                world.api, "example-cluster", topic=Topic.CLUSTER, namespace="example-ns", alive=alive
            )
            assert link.code == "WriteRefused"
            assert ANSWERS[answer][2] in link.what
            world.refusals.end()
            await world.until_word("Ready")
            await world.settle()
            cluster = await world.api.get(CLUSTERS, "example-cluster", namespace="example-ns")
            assert cluster.provider_status.ready

    run_virtual(scene())


@pytest.mark.parametrize(("write", "answer"), cases(OF_STATUS, "status"))
def test_a_refused_status_is_an_event(write: str, answer: str) -> None:
    async def scene() -> None:
        async with site(LONE) as world:
            world.refusals.begin(write, answer)
            await begun(world)
            await asyncio.sleep(3600)
            is_retried(world)
            events = [one for one in await world.events() if one.reason == "WriteRefused"]
            begin = f"{HOLDERS[answer]} refuses a write: cannot write the status of {OF_STATUS[write]}: "
            own = [one for one in events if (one.message or "").startswith(begin)]
            assert len(own) == 1, events
            assert (own[0].count or 0) > 5
            world.refusals.end()
            await world.until_word("Ready")
            assert world.operated.count("HostReplace") == 1

    run_virtual(scene())


@pytest.mark.parametrize(
    ("write", "answer"),
    [(write, answer) for write in OBJECT_WRITES for answer in ANSWERS if answer == "denied" or "Subnet" in write],
)
def test_a_refused_write_of_another_object_is_an_event(write: str, answer: str) -> None:
    async def scene() -> None:
        async with site(LONE) as world:
            kind = write.rpartition(" ")[2]
            world.refusals.begin(write, answer)
            await world.surroundings()
            await world.apply(OBJECTS)
            await asyncio.sleep(3600)
            is_retried(world)
            events = [one for one in await world.events() if one.reason == "WriteRefused"]
            (event,) = (one for one in events if one.involved_object.kind == kind)
            what = OF_OBJECT.get(write, f"write the status of this {kind}")
            assert (event.message or "").startswith(f"{HOLDERS[answer]} refuses a write: cannot {what}: ")
            assert ANSWERS[answer][2] in (event.message or "")
            assert (event.count or 0) > 5
            about = event.involved_object
            is_processed = partial(_is_processed, world, about.name, kind, about.namespace or "")
            assert not await is_processed()
            world.refusals.end()
            await asyncio.sleep(MOST_S + 60)
            assert await is_processed()

    run_virtual(scene())


async def _is_processed(world: Site, name: str, kind: str, namespace: str) -> bool:
    """Return whether `why` finds a status of an object; it prints the command that shows the Events of one without."""
    (link, *_) = await why(world.api, name, topic=TOPICS[kind], namespace=namespace, alive=alive)
    is_processed = link.code != "NotProcessed"
    describes = any(fix.command.startswith("kubectl describe ") for fix in link.fixes)
    assert is_processed or describes or kind == "MachinePool"
    return is_processed


def test_a_ready_machine_names_a_write_that_is_refused() -> None:
    async def scene() -> None:
        async with site(LONE) as world:
            await begun(world)
            await world.until_word("Ready")
            world.refusals.begin("drain", "denied")
            await world.change(maintenance=True)
            machine = await world.until_machine(is_refused)
            assert message_of(machine).startswith(f"cannot change maintenance of {TARGET}: ")
            assert machine.status.error_reason == "UpdateError"
            assert machine.provider_status.status != "Maintenance"
            world.refusals.end()
            await world.until_word("Maintenance")

    run_virtual(scene())


def test_a_refused_layout_is_forgotten_with_its_profile() -> None:
    async def scene() -> None:
        async with site(LONE) as world:
            world.refusals.begin("layout", "denied")
            await begun(world)
            await world.until_machine(is_refused)
            await world.api.delete(BARE_METAL_HOST_PROFILES, "default", namespace="default")
            await world.until_machine(lambda one: one.status.execution is not None and not is_refused(one))

    run_virtual(scene())


def test_another_answer_of_the_same_holder_is_no_change() -> None:
    """A server may name the version of an object in each answer."""

    async def scene() -> None:
        async with site(LONE) as world:
            world.refusals.begin("install", "denied", "unreachable")
            await begun(world)
            first = await world.until_machine(is_refused)
            await asyncio.sleep(3600)
            is_retried(world)
            assert (await world.cc_machine()).metadata.resource_version == first.metadata.resource_version

    run_virtual(scene())
