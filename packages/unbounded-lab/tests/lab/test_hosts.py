"""Hosts that boot: what they fetch and report, in which order, and how they fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.lab.boot_server import ADDRESS, UID, BootFake, booting, happens, is_asked
from unbounded_lab.bmc.power import HostPower
from unbounded_lab.hosts.installer import InstalledSystem, boot_parameters
from unbounded_lab.hosts.node import LabKubelet
from unbounded_lab.hosts.wire import ClusterApi, HostFailed

RECORDED: Final = Path(__file__).parents[4] / "tests" / "goldens" / "kubelet" / "exchanges.json"


async def test_a_host_installs_and_starts_from_its_disk() -> None:
    fake = BootFake(waits=1)
    async with booting(fake) as bmc:
        await happens(bmc, "joins", "m1")
        told = [(event.what, event.detail) for event in bmc.history() if event.what in ("boot", "installer", "started")]
        assert told == [("boot", "Cd"), ("installer", "installed"), ("boot", "Hdd"), ("started", "m1")]
        assert bmc.power() is HostPower.ON
        assert [disk.owner for disk in bmc.boards["1"].disks] == [UID, ""]
    assert fake.clients() == {ADDRESS}
    paths = [path for _, method, path in fake.seen if method == "POST"]
    assert paths == [
        *("progress", "hardware", "hardware", "progress", "progress", "pxe/disable"),
        *["cloudinit/log"] * 4,
    ]
    hardware = next(report for report in fake.reports if report["path"] == "hardware")
    assert [disk["state"] for disk in hardware["hardware"]["disks"]] == ["Blank", "Blank"]
    assert (hardware["final"], hardware["imageBytes"], len(hardware["hardware"]["nics"])) == (False, 100, 2)


async def test_an_inspected_host_switches_off() -> None:
    async with booting(BootFake(action={"action": "PowerOff"})) as bmc:
        await happens(bmc, "installer", "power off")
        await happens(bmc, "power", "Off")
        assert bmc.boards["1"].installed is None


@pytest.mark.parametrize(
    ("fake", "text"),
    [
        (BootFake(action={"error": "disk sda has data of others"}), "disk sda has data of others"),
        (BootFake(action={"action": "Erase"}), "a lab host cannot do Erase"),
        (BootFake(digest="0" * 64), "has the SHA-256"),
    ],
    ids=["refused", "unknown", "digest"],
)
async def test_a_failed_install_is_reported_and_the_host_stands_still(fake: BootFake, text: str) -> None:
    async with booting(fake) as bmc:
        await happens(bmc, "failed", text)
        assert bmc.power() is HostPower.ON
        assert bmc.boards["1"].installed is None
    report = next(one for one in fake.reports if one.get("failed"))
    assert text in report["message"]


async def test_a_host_that_is_switched_off_stops_at_once() -> None:
    fake = BootFake(waits=10_000)
    async with booting(fake) as bmc:
        await is_asked(fake, "hardware")
        bmc.bmc.systems[0].host.unplug(bmc.clock.now())
        assert bmc.power() is HostPower.OFF
        assert bmc.boards["1"].installed is None


def test_words_of_a_boot_without_a_card_of_the_host_are_no_address() -> None:
    found = boot_parameters(
        b"  linux /vmlinuz unbounded.serve_url=http://s/b unbounded.lease=02:00:00:00:00:01,127.0.0.2,m,g\n"
    )
    assert found.address(["02:00:00:00:00:01"]) == "127.0.0.2"
    with pytest.raises(HostFailed, match="no network card"):
        found.address(["02:00:00:00:00:02"])
    with pytest.raises(HostFailed, match=r"no kernel with unbounded\.serve_url"):
        boot_parameters(b"  linux /vmlinuz quiet\n")


def test_the_agents_configuration_is_read_from_vendor_data() -> None:
    vendor = (
        "#cloud-config\nwrite_files:\n- path: /etc/unbounded/agent/config.json\n  owner: root:root\n"
        '  content: |\n    {\n      "MachineName": "m1"\n    }\n- path: /etc/other\n  content: |\n    x\n'
    )
    system = InstalledSystem("m1", UID, ADDRESS, "http://s", "0" * 64, {"vendor-data": vendor})
    assert system.agent_config == {"MachineName": "m1"}
    assert InstalledSystem("m1", UID, ADDRESS, "http://s", "0" * 64).agent_config == {}


class NodeWrites(ClusterApi):
    """An API server that keeps the bodies written to the status of a Node, and accepts all."""

    def __init__(self) -> None:
        self.bodies: list[Mapping[str, Any]] = []
        self.more = asyncio.Event()

    async def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        if method == "PATCH" and path.endswith("/status") and body is not None:
            self.bodies.append(body)
            self.more.set()
        return 201 if method == "POST" else 200, {"metadata": {"uid": "u-1"}}


def ready_times(bodies: list[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the distinct times of heartbeat and transition in a row of Ready conditions with the same status."""
    conditions = [one for body in bodies for one in body["status"].get("conditions", []) if one["type"] == "Ready"]
    times = [(one["lastHeartbeatTime"], one["lastTransitionTime"]) for one in conditions if "lastTransitionTime" in one]
    return list(dict.fromkeys(times))


async def test_heartbeats_keep_the_time_of_the_transition_as_those_of_kubelet_do() -> None:
    api = NodeWrites()
    kubelet = LabKubelet("n1", "192.0.2.1", {}, "v1.34.0", 0.0, renew_s=0.3)
    kubelet.api = api
    await kubelet.start("")
    async with asyncio.timeout(20):
        while len(ready_times(api.bodies)) < 2:
            api.more.clear()
            await api.more.wait()
    await kubelet.stop()
    recorded = [one["response"] for one in json.loads(RECORDED.read_text()) if one["n"] in (26, 28)]
    for bodies in (api.bodies, recorded):
        times = ready_times(bodies)
        assert len({heartbeat for heartbeat, _ in times}) > 1
        assert len({transition for _, transition in times}) == 1
