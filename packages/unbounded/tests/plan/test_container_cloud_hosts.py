"""Plans of hosts and logins against what the controllers then do, in virtual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import pytest

from tests.containercloud.stock import Stock, exists, secret_data, story
from tests.plan.test_container_cloud import DryRuns
from tests.support.memory_api import MemoryApi
from unbounded.api.container_cloud.host import BARE_METAL_HOST_CREDENTIALS, BARE_METAL_HOSTS
from unbounded.api.core import SECRETS
from unbounded.api.machine import MACHINES
from unbounded.kube.api import Forbidden
from unbounded.plan.changes import WHOLE, PlanScope, plan_deletions, plan_manifests
from unbounded.plan.model import Plan

SERVED: Final = PlanScope(reads_secrets=False, calls_clouds=False)
ADDRESS: Final = "redfish://192.0.2.1/redfish/v1/Systems/a"


def host(name: str = "a", namespace: str = "default", *, annotations: Mapping[str, str] = {}, **spec: Any) -> Any:
    full = {"bmc": {"address": ADDRESS, "credentialsName": "bmc"}, "bootMACAddress": "02:00:00:00:00:01"} | spec
    meta = {"name": name, "namespace": namespace, "annotations": dict(annotations)}
    return {"apiVersion": BARE_METAL_HOSTS.api_version, "kind": "BareMetalHost", "metadata": meta, "spec": full}


async def planned(world: Stock, *bodies: Any, scope: PlanScope = WHOLE) -> Sequence[str]:
    """The effects of an applied object."""
    plan = await plan_manifests(cast("Any", DryRuns(world.api)), list(bodies), scope)
    return plan.changes[0].effects


async def deletion(world: Stock, *bodies: Any) -> Plan:
    return await plan_deletions(cast("Any", DryRuns(world.api)), list(bodies))


@story
async def test_a_new_host_is_registered_inspected_and_claimed_as_planned(world: Stock) -> None:
    await world.secret()
    await world.cluster(namespace="default")
    await world.claimant("m1", "default")
    steps = await planned(world, host(online=False, bmc={"address": ADDRESS, "credentialsName": "bmc"}))
    assert steps == (
        "hands user admin and the password of Secret bmc to metalman",
        "creates Machine a.default with the BMC at https://192.0.2.1, boot mode Network",
        "metalman reads its BMC, then the inventory of its hardware",
        "HostPowerOff switches the host off, if it is on",
        "it is available to Machines",
        "Machine default/m1 claims it",
    )
    assert not await exists(world.api.get(MACHINES, "a.default")), "a plan writes nothing"
    await world.api.create(BARE_METAL_HOSTS, {**host(online=False), "status": {}}, namespace="default")
    used = await world.until(lambda one: one.spec.consumer_ref is not None)
    assert used.spec.consumer_ref is not None
    assert used.spec.consumer_ref.name == "m1"
    redfish = (await world.machine("a.default")).spec.pxe
    assert redfish is not None
    assert redfish.redfish is not None
    assert redfish.redfish.url == "https://192.0.2.1"


@pytest.mark.parametrize(
    ("change", "wait"),
    [
        ({"bmc": {"address": "ipmi://192.0.2.1", "credentialsName": "bmc"}}, "(AddressInvalid): bmc.address: ipmi://"),
        ({"bmc": {"address": ADDRESS, "credentialsName": "none"}}, "(CredentialsMissing): bmc.credentialsName: Secret"),
        ({"bmc": None}, "(NoBMC): spec.bmc is absent"),
        ({"bootMode": "legacy"}, "(BootModeNotServed): bootMode: legacy is not served"),
        ({"bootMACAddress": "02:00:00:00:00:09"}, "(DuplicateHost): BareMetalHost default/other has the same boot"),
        (
            {"annotations": {"baremetalhost.metal3.io/paused": ""}},
            "(Paused): annotation baremetalhost.metal3.io/paused",
        ),
        ({"annotations": {"unbounded-cloud.io/machine": "none"}, "bmc": None}, "(MachineMissing): annotation"),
    ],
)
@story
async def test_a_host_that_would_wait_names_the_cause(world: Stock, change: dict[str, Any], wait: str) -> None:
    await world.secret()
    await world.host("other", bootMACAddress="02:00:00:00:00:09")
    body = host(**change)
    if body["spec"]["bmc"] is None:
        del body["spec"]["bmc"]
    steps = await planned(world, body)
    assert steps[-1].startswith(f"it would wait {wait}")


@story
async def test_the_power_of_a_host_is_switched_as_planned(world: Stock) -> None:
    await world.secret()
    await world.host("a", bootMACAddress="02:00:00:00:00:01")
    world.power["a.default"] = "On"
    await world.state("available")
    await world.settle()
    same = await planned(world, host())
    assert same == ("nothing changes: it is available",)
    plan = await plan_manifests(cast("Any", DryRuns(world.api)), [host(online=False)])
    (change,) = plan.changes
    assert change.effects == ("HostPowerOff switches the host off",)
    assert change.operation is not None
    assert (change.operation.kind, [one.machine for one in change.operation.targets]) == (
        "HostPowerOff",
        ["a.default"],
    )
    await world.edit(online=False)
    await world.settle()
    assert world.operated == ["HostPowerOff"]


@story
async def test_another_login_is_rotated_as_planned(world: Stock) -> None:
    await world.secret()
    await world.host("a", bootMACAddress="02:00:00:00:00:01")
    await world.state("available")
    await world.settle()
    await world.secret("other", **secret_data("n3w", "root"))
    body = host(bmc={"address": ADDRESS, "credentialsName": "other"})
    assert await planned(world, body) == (
        "changes Machine a.default: spec.pxe.redfish.username",
        "rotates the login of the BMC: hands user root and the password of Secret other to metalman",
    )
    served = await planned(world, body, scope=SERVED)
    assert served == ("nothing changes: it is available", "not checked: the login of its BMC")
    await world.edit(bmc={"credentialsName": "other"})
    await world.settle()
    copy = await world.api.get(SECRETS, "bmc-a.default", namespace="unbounded-kube")
    assert copy.value("password") == b"n3w"


@story
async def test_a_login_that_may_not_be_read_is_named(world: Stock) -> None:
    await world.secret()
    await world.host("a", bootMACAddress="02:00:00:00:00:01")
    await world.state("available")

    class NoSecrets(DryRuns):
        async def get(self, kind: Any, *given: Any, **more: Any) -> Any:
            if kind.plural == "secrets":
                raise Forbidden("secrets is forbidden")
            return await super().get(kind, *given, **more)

    plan = await plan_manifests(cast("Any", NoSecrets(world.api)), [host()])
    (change,) = plan.changes
    assert change.effects == ("nothing changes: it is available", "not checked: the login of its BMC")
    assert [(one.resource, one.code) for one in change.unread] == [("secrets", "Forbidden")]


@story
async def test_a_host_is_deleted_as_planned_once_nothing_uses_it(world: Stock) -> None:
    await world.secret()
    await world.cluster(namespace="default")
    await world.host("a", bootMACAddress="02:00:00:00:00:01")
    await world.state("available")
    await world.settle()
    (change,) = (await deletion(world, host())).changes
    assert change.what == "delete baremetalhost.metal3.io/a"
    assert change.effects == (
        "deletes Machine a.default, with its history",
        "deletes metalman's copy of the login",
        "the host is gone then",
    )
    await world.claimant("m1", "default")
    await world.until(lambda one: one.spec.consumer_ref is not None)
    (held,) = (await deletion(world, host())).changes
    assert held.effects[-1] == ("it would wait (Deleting): the host is being deleted; waits for Machine default/m1")
    (absent,) = (await deletion(world, host("none"))).changes
    assert "none" in absent.server
    await MemoryApi.delete(world.api, BARE_METAL_HOSTS, "a", namespace="default")
    await world.settle()
    assert (await world.read("a")).metadata.deletion_timestamp is not None, "its Machine has it"


@story
async def test_a_credential_names_its_secret_and_the_hosts_that_it_rotates(world: Stock) -> None:
    annotations = {"kaas.mirantis.com/baremetalhost-credentials-name": "cred"}
    body: Any = {
        "apiVersion": BARE_METAL_HOST_CREDENTIALS.api_version,
        "kind": "BareMetalHostCredential",
        "metadata": {"name": "cred", "namespace": "default"},
        "spec": {"username": "admin", "password": {"value": "first"}},
    }
    assert await planned(world, body) == (
        "stores username and password in Secret default/cred",
        "erases the password here, also in the annotation of kubectl",
        "no BareMetalHost names it",
    )
    await world.api.create(BARE_METAL_HOST_CREDENTIALS, body, namespace="default")
    await world.host("a", annotations=annotations, bmc={"address": ADDRESS})
    await world.state("available")
    body["spec"]["password"]["value"] = "second"
    first = await plan_manifests(cast("Any", DryRuns(world.api)), [body])
    assert first.changes[0].effects == (
        "stores password in Secret default/cred",
        "erases the password here, also in the annotation of kubectl",
        "BareMetalHost default/a: the login of its BMC is rotated: metalman gets the new one",
    )
    body["spec"]["password"]["value"] = "third"
    second = await plan_manifests(cast("Any", DryRuns(world.api)), [body])
    assert first.hash == second.hash, "a hash that is printed tells nothing of a password"
    assert await planned(world, body, scope=SERVED) == (
        "not checked: Secret default/cred",
        "BareMetalHosts that name it: a",
    )
