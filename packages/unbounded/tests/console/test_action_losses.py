"""The plan of a replacement in the console has the losses that the command line prints, and the same unknowns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

import pytest
from moto import mock_aws

from tests.machineops.ec2 import REGION, EC2Subject
from tests.plan.staging import LAB, Staged
from tests.support.virtual_time import run_virtual
from unbounded.api.core import SECRETS
from unbounded.api.credential import MACHINE_OPERATION_CREDENTIALS
from unbounded.api.names import NAMESPACE
from unbounded.cli.plan import plan_lines
from unbounded.console.actions import ConsoleAction, PlannedAction, plan_action
from unbounded.kube.clock import utc_now
from unbounded.plan import obstacles

pytestmark = pytest.mark.slow
PRINTED_ALONE: Final = ("plan hash:", "  -o wide", "nothing was changed")
AUTH: Final = {"mode": "ExternalPlugin", "secretRef": {"namespace": NAMESPACE, "name": "ec2"}}


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    with mock_aws():
        yield


async def _staged(provider_id: str, auth: dict[str, Any]) -> Staged:
    staged = Staged()
    await staged.machine("m1", provider="EC2", providerID=provider_id, kubernetes={})
    await staged.alive("machine-ops-controller-lab-ec2", "machine-ops-controller")
    spec = {"siteName": LAB["unbounded-cloud.io/site"], "provider": "EC2", "auth": auth}
    await staged.api.create(MACHINE_OPERATION_CREDENTIALS, {"metadata": {"name": "ec2"}, "spec": spec})
    await staged.api.create(SECRETS, {"metadata": {"name": "ec2"}, "data": {"key": "eA=="}}, namespace=NAMESPACE)
    return staged


async def _both(staged: Staged) -> tuple[PlannedAction, list[str]]:
    """Return the plan in the console, and the lines of the command beside the operation's name, stages and hash."""
    printed = "\n".join(plan_lines(await staged.plan("machine", "replace", "m1"))).splitlines()
    planned = await plan_action(cast("Any", staged.api), ConsoleAction.REPLACE, "m1", utc_now())
    assert planned.command.endswith("machine replace m1")
    return planned, [one for one in printed[1:] if not one.startswith(PRINTED_ALONE)]


def test_losses_of_an_instance_are_those_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = EC2Subject()
    monkeypatch.setattr(obstacles, "_loaded", lambda _: cloud.provider)
    (made,) = cloud.client.run_instances(ImageId=cloud.image, InstanceType="c5d.large", MinCount=1, MaxCount=1)[
        "Instances"
    ]
    name = made["InstanceId"]
    volume = cloud.client.create_volume(AvailabilityZone=made["Placement"]["AvailabilityZone"], Size=8)["VolumeId"]
    cloud.client.attach_volume(InstanceId=name, VolumeId=volume, Device="/dev/sdf")
    shown = cloud.client.describe_instances(InstanceIds=[name])["Reservations"][0]["Instances"][0]

    async def run() -> None:
        planned, printed = await _both(await _staged(f"aws:///{REGION}/{name}", AUTH))
        assert [one.strip() for one in planned.lines if one.startswith("     loses")] == [
            f"loses networkInterface.association: public IP {shown['PublicIpAddress']}",
            "loses instanceStorage: what is on its instance store, 50 GB of c5d.large",
            f"loses blockDeviceMapping: the attachments of volumes: {volume} at /dev/sdf",
        ]
        assert "\n".join(planned.lines).splitlines()[1:] == printed
        assert "the losses of" not in "\n".join(printed)
        assert not planned.is_refused
        assert planned.consent == "m1"

    run_virtual(run())


@pytest.mark.parametrize(
    ("auth", "hidden", "why"),
    [
        ({"mode": "WorkloadIdentity"}, "", "its controller logs in with its own workload identity, which no other"),
        (AUTH, "secrets", f"you have no permission to read Secret {NAMESPACE}/ec2 (spec.auth.secretRef of "),
    ],
)
def test_unknown_losses_are_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, auth: dict[str, Any], hidden: str, why: str
) -> None:
    cloud = EC2Subject()
    monkeypatch.setattr(obstacles, "_loaded", lambda _: cloud.provider)
    name = cloud.client.run_instances(ImageId=cloud.image, InstanceType="c5d.large", MinCount=1, MaxCount=1)[
        "Instances"
    ][0]["InstanceId"]

    async def run() -> None:
        staged = await _staged(f"aws:///{REGION}/{name}", auth)
        staged.api.hides = hidden
        planned, printed = await _both(staged)
        unknown = [one for one in planned.lines if "the losses of m1" in one]
        assert len(unknown) == 1
        assert unknown[0].startswith(f"  not checked: the losses of m1: the cloud was not called: {why}")
        assert "\n".join(planned.lines).splitlines()[1:] == printed
        assert not planned.is_refused

    run_virtual(run())
