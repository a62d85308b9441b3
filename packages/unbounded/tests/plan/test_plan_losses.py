"""Losses of a replacement in a plan: the provider's own code calls a simulated Oracle cloud."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.machineops.oci.world import TIMES, NearCalls, NearOci
from tests.operations.faults import FAIR, Incarnation
from tests.plan.staging import Staged, plan_data, story
from unbounded.api.core import SECRETS
from unbounded.api.credential import MACHINE_OPERATION_CREDENTIALS
from unbounded.api.names import NAMESPACE
from unbounded.cli.plan import plan_lines
from unbounded.machineops import reasons
from unbounded.machineops.providers.oci.provider import OciProvider
from unbounded.plan import obstacles
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
        assert (
            "the losses of m1: its controller uses its own workload identity, which this command does not have"
            in planned.unchecked
        )

    told(unknown, monkeypatch)
