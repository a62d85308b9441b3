"""Fleets of BMCs in processes of their own, and the control interface that reaches into them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import aiohttp
import pytest
import yaml

from tests.support.waiting import eventually
from unbounded.api.names import LABEL_SITE
from unbounded_lab.bmc import HostPower, LabBmc
from unbounded_lab.bmc.fleet import Fleet, FleetBmc, FleetFailed, bmc_names, start_fleet

SYSTEM = "/redfish/v1/Systems/1"
RESET = f"{SYSTEM}/Actions/ComputerSystem.Reset"


async def ask(bmc: FleetBmc, method: str, path: str, body: object = None) -> int:
    """One call over TLS that is pinned to the fingerprint of the roll."""
    pin = aiohttp.Fingerprint(bytes.fromhex(bmc.fingerprint.replace(":", "")))
    headers = {"authorization": aiohttp.encode_basic_auth(bmc.username, bmc.password)}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.request(method, bmc.url + path, json=body, ssl=pin) as answer,
    ):
        return answer.status


def alive(pid: int) -> bool:
    """Return whether a process runs; a dead one that is not collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def all_gone(pids: Iterable[int]) -> None:
    await eventually(lambda: not any(map(alive, pids)), within_s=60.0, state=lambda: "the end of all processes")


def test_names_have_as_many_digits_as_the_last_one_needs() -> None:
    assert bmc_names(2) == ["lab-01", "lab-02"]
    assert bmc_names(100)[:1] + bmc_names(100)[-1:] == ["lab-001", "lab-100"]


@pytest.mark.slow
async def test_a_fleet_is_shared_by_processes_and_keeps_its_order() -> None:
    async with start_fleet(5, processes=2, profile="ideal,system-of-another-name") as fleet:
        assert [bmc.name for bmc in fleet] == ["lab-01", "lab-02", "lab-03", "lab-04", "lab-05"]
        assert len(fleet) == 5
        assert len(set(fleet.pids)) == 2
        assert len({bmc.fingerprint for bmc in fleet} | {bmc.password for bmc in fleet}) == 10
        assert [bmc.device_ids[0] for bmc in fleet] == ["1", "System.Embedded.1"] * 2 + ["1"]
        assert [await ask(bmc, "GET", "/redfish/v1/Systems") for bmc in fleet] == [200] * 5
        pids = fleet.pids
    await all_gone(pids)


@pytest.mark.slow
async def test_fleet_bmc_exposes_host_truth_faults_and_profiles() -> None:
    async with start_fleet(2, shutdown_s=0.0, boot_s=0.0, power=HostPower.OFF) as fleet:
        bmc, other = fleet
        assert await bmc.power() is HostPower.OFF
        assert await ask(bmc, "POST", RESET, {"ResetType": "On"}) == 204
        assert (await bmc.power(), await other.power()) == (HostPower.ON, HostPower.OFF)
        assert [event.detail for event in await bmc.history()] == ["On", "PoweringOn", "Hdd", "On"]
        await bmc.set_faults(deaf_resets=1)
        assert await ask(bmc, "POST", RESET, {"ResetType": "ForceOff"}) == 204
        truth = await bmc.truth()
        assert (truth["systems"]["1"]["power"], truth["faults"], truth["requests"]) == ("On", {"deaf_resets": 1}, 2)
        await bmc.set_profile("no-session-service")
        assert await ask(bmc, "GET", "/redfish/v1/SessionService") == 404
        with pytest.raises(ValueError, match="unknown fault: nonsense"):
            await bmc.set_faults(nonsense=1)
        with pytest.raises(ValueError, match="unknown profile: nonsense"):
            await bmc.set_profile("nonsense")


@pytest.mark.slow
async def test_a_bmc_without_mains_is_gone_and_comes_back_to_itself() -> None:
    async with start_fleet(1, shutdown_s=0.0, boot_s=0.0) as fleet:
        bmc = fleet[0]
        await bmc.set_faults(power_restore="LastState", restart_s=0.0)
        await bmc.unplug()
        assert await bmc.power() is HostPower.OFF
        with pytest.raises(aiohttp.ClientConnectorError):
            await ask(bmc, "GET", SYSTEM)
        await bmc.plug()
        assert await ask(bmc, "GET", SYSTEM) == 200
        assert await bmc.power() is HostPower.ON


@pytest.mark.slow
async def test_the_same_seed_gives_the_same_bmcs_again() -> None:
    async def identities(seed: int) -> list[tuple[str, str]]:
        async with start_fleet(2, seed=seed) as fleet:
            return [(bmc.password, bmc.fingerprint) for bmc in fleet]

    assert await identities(1) == await identities(1)
    assert await identities(1) != await identities(2)


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["ideal", "connection-refused"])
async def test_a_port_that_is_taken_is_said(profile: str) -> None:
    async with LabBmc(profile=profile) as holder:
        port = int(holder.url.rpartition(":")[2])
        with pytest.raises(FleetFailed, match="ddress already in use"):
            async with start_fleet(1, port_base=port):
                pass


@pytest.mark.slow
async def test_a_fleet_comes_back_on_its_ports_at_once() -> None:
    async with start_fleet(2) as fleet:
        port = int(fleet[0].url.rpartition(":")[2])
    for _ in range(2):
        async with start_fleet(1, port_base=port) as fleet:
            assert fleet[0].url.endswith(f":{port}")
            assert await ask(fleet[0], "GET", SYSTEM) == 200


async def test_a_profile_that_does_not_exist_is_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="unknown profile: nonsense"):
        async with start_fleet(1, profile="nonsense"):
            pass


PARENT = """
import asyncio
from unbounded_lab.bmc.fleet import start_fleet
async def main():
    async with start_fleet(2, processes=2) as fleet:
        print(*fleet.pids, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_fleet_ends_when_its_parent_is_killed() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    async with asyncio.timeout(30):
        pids = [int(pid) for pid in (await parent.stdout.readline()).split()]
    assert len(pids) == 2
    assert all(map(alive, pids))
    parent.kill()
    await parent.wait()
    await all_gone(pids)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_the_command_shows_its_bmcs_and_ends_when_asked(tmp_path: Path, number: signal.Signals) -> None:
    manifests = tmp_path / "lab.yaml"
    arguments = ("--count", "2", "--profile", "ideal,slow", "--manifests", manifests, "--control")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "unbounded_lab.bmc", *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(30):
        output = (await process.stdout.readuntil(b"Ctrl-C")).decode()
        heads, first, second, *_ = (line.split() for line in output.splitlines())
        assert heads == ["NAME", "URL", "USERNAME", "PASSWORD", "SYSTEMS", "PROFILE", "CONTROL"]
        assert (first[0], first[5], second[0], second[5]) == ("sim-01", "ideal", "sim-02", "slow")
        async with aiohttp.ClientSession() as http, http.get(first[6]) as answer:
            assert (await answer.json())["url"] == first[1]
        secret, machine, *others = yaml.safe_load_all(manifests.read_text())
        assert [each["kind"] for each in (secret, machine, *others)] == ["Secret", "Machine", "Secret", "Machine"]
        assert machine["metadata"] == {"name": "sim-01", "labels": {LABEL_SITE: "sim"}}
        os.kill(process.pid, number)
        assert await process.wait() == 0


@pytest.mark.slow
async def test_a_thousand_bmcs_start_in_a_few_seconds() -> None:
    started = time.monotonic()
    async with start_fleet(1_000, processes=2) as fleet:
        up_s = time.monotonic() - started
        assert len({bmc.url for bmc in fleet}) == 1_000
        assert await ends_answer(fleet)
    assert up_s < 30.0, "it takes 2 s on a machine of two cores with nothing else to do"


async def ends_answer(fleet: Fleet) -> bool:
    return [await ask(bmc, "GET", SYSTEM) for bmc in (fleet[0], fleet[-1])] == [200, 200]
