"""HostReplace through every misbehaviour that the lab knows: a host that is installed, or the right named reason."""

from __future__ import annotations

from typing import Final

import pytest

from tests.metalman.support.netboot_host import netboot_host, result
from tests.metalman.support.site import Cluster, metalman
from tests.metalman.support.swift_time import run_swiftly
from tests.metalman.test_operations_misbehaviours import TURNED
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.misbehaviours import MISBEHAVIOURS
from unbounded_lab.bmc.power import HostPower
from unbounded_lab.bmc.profiles import faults_for
from unbounded_lab.faults import changed

# The failures, with their reason.
NAMED: Final = {
    "accepts-and-does-nothing": "NoEffect",
    "boot-override-dropped": "DidNotNetboot",
    "boot-override-not-followed": "DidNotNetboot",
    "boot-override-refused": "DidNotNetboot",
    "connection-refused": "NoAnswer",
    "password-expired": "BMCRefused",
    "session-service-refuses": "CredentialsRefused",
    "stalls": "NoAnswer",
    "acts-late": "NoAnswer",
    "task-that-fails": "TaskFailed",
}


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["ideal", *(name for name in MISBEHAVIOURS if "event" not in name)])
def test_a_replacement_ends_well_or_says_why(profile: str) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(faults=changed(faults_for(profile), TURNED.get(profile, {}))) as bmc:
            machine, *_ = await cluster.add(bmc)
            async with metalman(cluster), netboot_host(cluster, machine) as host:
                operation = await cluster.ended(await cluster.ask("HostReplace", machine), within_s=7200.0)
            if profile in NAMED:
                assert result(operation) == ("Failed", NAMED[profile]), operation.status.message
                assert "network" not in host.sources
                return
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert host.sources[-2:] == ["network", "disk"]
            assert bmc.power(bmc.device_ids[0]) in (HostPower.ON, HostPower.POWERING_ON)
            offs = [event for event in bmc.history() if (event.what, event.detail) == ("power", "Off")]
            assert offs, "it is claimed that the host was seen off"

    run_swiftly(scene(), limit_s=4 * 3600.0)


def test_every_named_end_belongs_to_a_misbehaviour() -> None:
    assert NAMED.keys() <= MISBEHAVIOURS.keys()
