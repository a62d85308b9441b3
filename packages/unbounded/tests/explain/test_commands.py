"""`why` and `plan` as a user types them, against a server; the commands in an explanation are typed, too."""

from __future__ import annotations

import contextlib
import json
import shlex

import pytest

from tests.cli.plugin.conftest import Cli
from unbounded.api.core import LEASES, NAMESPACES, SECRETS
from unbounded.api.machine import MACHINES
from unbounded.api.names import ANNOTATION_PAUSED, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.kube.api import AlreadyExists, NotFound
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import rfc3339, utc_now

REDFISH = {
    "url": "https://bmc.example.com",
    "username": "admin",
    "passwordRef": {"name": "bmc", "namespace": NAMESPACE, "key": "password"},
}


@pytest.fixture
async def paused(api: HttpApi) -> str:
    """A Machine that is paused, and an operation on it of the same name."""
    with contextlib.suppress(AlreadyExists):
        await api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    metadata = {
        "name": "rack-1",
        "labels": {"unbounded-cloud.io/site": "rack"},
        "annotations": {ANNOTATION_PAUSED: "new disk"},
    }
    await api.create(MACHINES, {"metadata": metadata, "spec": {"pxe": {"image": "i", "redfish": REDFISH}}})
    spec = {"operationKind": "HostReboot", "machineRef": "rack-1"}
    await api.create(MACHINE_OPERATIONS, {"metadata": {"name": "rack-1"}, "spec": spec})
    return "rack-1"


@pytest.mark.slow
async def test_an_answer_on_a_server_and_the_command_that_it_gives(cli: Cli, api: HttpApi, paused: str) -> None:
    asked = await cli("why", paused)
    assert asked.status == 2
    assert asked.err.splitlines() == [
        "error: both a Machine and an operation have the name rack-1",
        "  kubectl unbounded why machine/rack-1, or kubectl unbounded why operation/rack-1",
    ]
    answered = await cli("why", f"operation/{paused}", "-o", "json")
    assert (answered.status, answered.err) == (0, "")
    links = json.loads(answered.out)["links"]
    assert [link["about"] for link in links] == ["operation/rack-1", "machine/rack-1"]
    command = shlex.split(links[1]["fixes"][0]["command"])
    done = await cli(*command[2:])
    assert (done.status, done.out) == (0, "machine.unbounded-cloud.io/rack-1 resumed\n")
    text = (await cli("why", f"operation/{paused}")).out
    assert "because metalman/rack is not running: Lease unbounded-kube/metalman-rack does not exist" in text
    assert (await cli("why", "nothing")).status == 1

    planned = await cli("plan", "machine", "power-off", "rack-1", "--now", "--operation-name", "off", "-o", "json")
    assert (planned.status, planned.err) == (0, "")
    (change,) = json.loads(planned.out)["changes"]
    assert change["server"] == ""
    assert change["operation"]["targets"][0]["held"][0]["heldBy"] == "rack-1"
    assert [one["name"] for one in change["operation"]["stages"]][:2] == ["Starting", "WaitingOff"]
    with pytest.raises(NotFound):
        await api.get(MACHINE_OPERATIONS, "off")
    assert (await cli("plan", "-o", "name", "machine", "pause", "rack-1")).out == "machine.unbounded-cloud.io/rack-1\n"

    await api.delete(MACHINE_OPERATIONS, "rack-1")
    lease = {"holderIdentity": "p1", "renewTime": rfc3339(utc_now(), micro=True)}
    await api.create(LEASES, {"metadata": {"name": "metalman-rack"}, "spec": lease}, namespace=NAMESPACE)
    planned = await cli("plan", "machine", "power-off", "rack-1")
    assert (planned.status, "end as Failed/CredentialsMissing" in planned.out) == (1, True)
    await api.create(SECRETS, {"metadata": {"name": "bmc"}, "data": {"password": "eA=="}}, namespace=NAMESPACE)
    planned = await cli("plan", "machine", "power-off", "rack-1")
    assert (planned.status, "Failed" in planned.out) == (0, False)


@pytest.mark.slow
async def test_what_cannot_be_planned(cli: Cli) -> None:
    asked = await cli("plan", "why", "rack-1")
    assert asked.status == 2
    assert "--plan does not support why rack-1" in asked.err
    assert "machine host-reboot" in asked.err
