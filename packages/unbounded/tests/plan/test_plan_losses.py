"""Losses of a replacement in a plan: the provider's own code calls a simulated Oracle cloud."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Callable
from typing import Any, Final, cast

import pytest

from tests.machineops.oci.world import TIMES, NearCalls, NearOci
from tests.operations.faults import FAIR, Incarnation
from tests.plan.staging import LAB, Staged, plan_data, story
from unbounded.api.core import SECRETS
from unbounded.api.credential import MACHINE_OPERATION_CREDENTIALS
from unbounded.api.machine import MACHINES
from unbounded.api.names import NAMESPACE
from unbounded.cli.plan import plan_lines
from unbounded.machineops import reasons
from unbounded.machineops.provider import Budget, Job, Keep, Login, Next, Transient
from unbounded.machineops.providers.oci.provider import OciProvider
from unbounded.plan import obstacles
from unbounded.plan.changes import WHOLE, PlanScope, changes_of
from unbounded.plan.intent import Intent
from unbounded.plan.model import OperationForecast
from unbounded_lab.cloud.oci.seeding import Disks

FIELDS = ["vnic.privateIp", "vnic.publicIp"]


async def _plan(
    staged: Staged, monkeypatch: pytest.MonkeyPatch, *parameters: str, mode: str = "ExternalPlugin", **wanted: Any
) -> tuple[OperationForecast, str]:
    async with NearOci(times=TIMES) as cloud:
        life = Incarnation("plan", random.Random(1), FAIR)
        monkeypatch.setattr(
            obstacles, "_loaded", lambda _: OciProvider(calls=lambda login: NearCalls(login, cloud, life))
        )
        instance = cloud.add_instance("worker", **wanted)
        await staged.machine("m1", provider="OCIInstance", providerID=f"oci://{instance.id}", kubernetes={})
        await staged.alive("machine-ops-controller-lab-ociinstance", "machine-ops-controller")
        auth = {"mode": mode, "secretRef": {"namespace": NAMESPACE, "name": "oci"}}
        spec = {"siteName": "lab", "provider": "OCIInstance", "auth": auth}
        await staged.api.create(MACHINE_OPERATION_CREDENTIALS, {"metadata": {"name": "oci"}, "spec": spec})
        data = {name: base64.b64encode(value.encode()).decode() for name, value in cloud.secret_data.items()}
        await staged.api.create(SECRETS, {"metadata": {"name": "oci"}, "data": data}, namespace=NAMESPACE)
        given = [word for each in parameters for word in ("--param", each)]
        command = ("machine", "operation", "create", "op", "--kind", "HostReplace", "--machine", "m1", *given)
        changes = await staged.plan(*command)
    assert plan_data(changes)
    assert changes[0].operation is not None
    return changes[0].operation, "\n".join(plan_lines(changes))


def told(test: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    @story
    async def run(staged: Staged) -> None:
        await test(staged, monkeypatch)

    run()


@pytest.mark.slow
def test_each_loss_is_shown_with_its_field(monkeypatch: pytest.MonkeyPatch) -> None:
    async def shown(staged: Staged, patch: pytest.MonkeyPatch) -> None:
        planned, text = await _plan(staged, patch)
        (target,) = planned.targets
        assert [one.field for one in target.losses] == FIELDS
        assert target.obstacles == ()
        assert "     loses vnic.privateIp: private IP 10.0.0.2\n" in text
        assert planned.unchecked == ()

    told(shown, monkeypatch)


def test_what_is_not_accepted_is_in_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(staged: Staged, patch: pytest.MonkeyPatch) -> None:
        planned, text = await _plan(staged, patch, "keep=strict", "accept=vnic.publicIp")
        (target,) = planned.targets
        assert [one.reason for one in target.obstacles] == [reasons.WOULD_BE_LOST]
        assert target.fails_at_once
        assert 'to accept, set accept: "vnic.privateIp,vnic.publicIp"' in text

    told(refused, monkeypatch)


def test_what_the_cloud_has_against_it_is_in_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(staged: Staged, patch: pytest.MonkeyPatch) -> None:
        planned, _ = await _plan(staged, patch, data_volumes=Disks(count=1))
        assert "detach them first" in planned.targets[0].obstacles[0].what

    told(refused, monkeypatch)


def test_plan_reports_a_login_that_only_the_controller_has(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(staged: Staged, patch: pytest.MonkeyPatch) -> None:
        planned, _ = await _plan(staged, patch, mode="WorkloadIdentity")
        assert planned.targets[0].losses == ()
        assert obstacles.CLOUD_UNCHECKED in planned.unchecked
        assert (
            "the losses of m1: the cloud was not called: its controller logs in with its own workload identity, which "
            "no other process has" in planned.unchecked
        )

    told(unknown, monkeypatch)


SERVED: Final = PlanScope(reads_secrets=False, calls_clouds=False)
CREATES: Final = {"apiVersion": "unbounded-cloud.io/v1alpha3", "kind": "MachineOperation", "metadata": {"name": "op"}}
HANGING: Final = 45.0


class _Session:
    """A login of a provider by others."""

    def __init__(self, fault: Exception | None) -> None:
        self._fault = fault

    async def look_replace(self, job: Job, keep: Keep) -> Next:
        if self._fault is not None:
            raise self._fault
        await asyncio.sleep(HANGING)
        raise AssertionError("nothing has ended it")

    async def close(self) -> None:
        return


class _Faulty(OciProvider):
    """A provider whose calls fail, or hang without a fault."""

    def __init__(self, fault: Exception | None = None) -> None:
        super().__init__(calls=lambda login: pytest.fail("it has sessions of its own"))
        self._fault = fault

    def connect(self, login: Login, budget: Budget) -> Any:
        return _Session(self._fault)


async def _fleet(staged: Staged, count: int) -> None:
    for number in range(count):
        instance = f"oci://ocid1.instance.oc1.eu-frankfurt-1.{number:060}"
        await staged.machine(f"m{number:02}", provider="OCIInstance", providerID=instance, kubernetes={})
    await staged.alive("machine-ops-controller-lab-ociinstance", "machine-ops-controller")
    auth = {"mode": "ExternalPlugin", "secretRef": {"namespace": NAMESPACE, "name": "oci"}}
    spec = {"siteName": "lab", "provider": "OCIInstance", "auth": auth}
    await staged.api.create(MACHINE_OPERATION_CREDENTIALS, {"metadata": {"name": "oci"}, "spec": spec})
    data = dict.fromkeys(OciProvider.secret_keys, "eA==")
    await staged.api.create(SECRETS, {"metadata": {"name": "oci"}, "data": data}, namespace=NAMESPACE)
    staged.api.closed = True


async def _unknown(staged: Staged, machine: dict[str, Any], scope: PlanScope = WHOLE) -> list[str]:
    """Return the lines on unknown losses."""
    spec = {"operationKind": "HostReplace", **machine}
    (change,) = await changes_of(cast("Any", staged.api), Intent(creates=({**CREATES, "spec": spec},)), scope)
    assert change.operation is not None
    assert not any(one.losses for one in change.operation.targets)
    return [one for one in change.operation.unchecked if one.startswith("the losses of")]


@story
async def test_a_plan_that_calls_no_cloud_says_that_losses_are_unknown(staged: Staged) -> None:
    await _fleet(staged, 1)
    why = "the losses of m00: the cloud was not called: this server loads no providers"
    assert await _unknown(staged, {"machineRef": "m00"}, SERVED) == [why]


def test_a_cloud_without_an_answer_delays_a_plan_for_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(staged: Staged, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(obstacles, "_loaded", lambda _: _Faulty())
        await _fleet(staged, 1)
        began = asyncio.get_running_loop().time()
        assert await _unknown(staged, {"machineRef": "m00"}) == [
            "the losses of m00: OCIInstance did not answer within 30 s"
        ]
        assert asyncio.get_running_loop().time() - began == pytest.approx(30, abs=1)

    told(hangs, monkeypatch)


def test_an_error_in_a_provider_by_others_ends_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(staged: Staged, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(obstacles, "_loaded", lambda _: _Faulty(KeyError("secret")))
        await _fleet(staged, 1)
        assert await _unknown(staged, {"machineRef": "m00"}) == [
            "the losses of m00: provider OCIInstance failed (KeyError)"
        ]

    told(fails, monkeypatch)


def test_losses_of_further_machines_are_not_left_out_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    async def many(staged: Staged, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(obstacles, "_loaded", lambda _: _Faulty(Transient("no route to the cloud")))
        await _fleet(staged, 25)
        selector = {"matchLabels": LAB | {"unbounded-cloud.io/provider": "OCIInstance"}}
        for number in range(25):
            labels = {"metadata": {"labels": selector["matchLabels"]}}
            staged.api.closed = False
            await staged.api.patch(MACHINES, f"m{number:02}", labels)
        staged.api.closed = True
        assert await _unknown(staged, {"machineSelector": selector}) == [
            "the losses of m00, m01, m02 and 17 more: no route to the cloud",
            "the losses of m20, m21, m22 and 2 more: the cloud was not called: a plan calls it for the first 20 "
            "Machines",
        ]

    told(many, monkeypatch)
