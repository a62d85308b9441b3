"""`unbounded up --lab N --lab-cloud NAME`: the built-in providers, each in its own process, before a simulated cloud in
another one.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.cli.running import KUBECTL, PATH, Up, up
from tests.support.paths import ROOT
from unbounded.cli.settings import LAB_CLOUDS
from unbounded_lab.cloud.__main__ import OFFERS

pytestmark = [pytest.mark.slow, pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")]

NO_WAY_BACK = {"azure": "Creating", "oci": "Launching"}  # a stage in which there is no running instance


async def _unbounded(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "unbounded.cli.main", *arguments),
        cwd=ROOT,
        env={**os.environ, "PATH": PATH},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return out.decode()


async def _provider_ids(running: Up) -> dict[str, str]:
    machines = (await running.get("machines"))["items"]
    return {each["metadata"]["name"]: each["spec"]["providerID"] for each in machines}


def test_it_offers_what_the_simulator_has() -> None:
    assert tuple(OFFERS) == LAB_CLOUDS


@pytest.mark.parametrize("cloud", LAB_CLOUDS)
async def test_cloud_machine_is_replaced_while_others_reboot_and_switch_power(tmp_path: Path, cloud: str) -> None:
    data, one, two, three = tmp_path / "data", *(f"lab-{cloud}-0{number}" for number in (1, 2, 3))
    async with up(data, "--lab", "3", "--lab-cloud", cloud) as running:
        await running.says(f"machine {three}: new")
        before = await _provider_ids(running)
        await asyncio.gather(running.operate(two, "HostReboot"), _power(running, three))
        await running.says(rf"{one}-host-replace-\S+ is Complete")
        await running.says("Ctrl-C stops")
        after = await _provider_ids(running)
        assert [name for name in after if after[name] != before[name]] == ([one] if cloud == "oci" else [])
        assert await _on(running) == [one, two, three]
        await _try_next(running)
        await running.stops()
    if cloud == "oci":  # where keys are new ones, and a replacement has an id that the next cloud does not know
        async with up(data, "--lab", "2", "--lab-cloud", cloud) as running:
            await running.says(f"Machine {three} has no simulated host")
            assert (await _provider_ids(running))[one] == before[one]
            await running.says(r"operation \S+-host-replace-\S+: InProgress .* Launching ")
            await running.is_killed()


@pytest.mark.soak  # a call of a killed controller may arrive for as long as a call may take
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("cloud", "number"), [("azure", signal.SIGSTOP), ("oci", signal.SIGKILL)])
async def test_replacement_resumes_after_its_controller_is_killed_or_stopped(
    tmp_path: Path, cloud: str, number: signal.Signals
) -> None:
    async with up(tmp_path / "data", "--lab", "2", "--lab-cloud", cloud) as running:
        await running.says(rf"operation \S+-host-replace-\S+: InProgress .* {NO_WAY_BACK[cloud]} ")
        (pid,) = running.children("unbounded.machineops.main")
        os.kill(pid, number)
        told = {
            signal.SIGSTOP: "its process did not respond, as a signal has stopped it, and was stopped",
            signal.SIGKILL: r"its process has ended \(status -9\)",
        }
        await running.says(rf"{told[number]}; restarting in [01] s")
        await running.says(r"host-replace-\S+ is Complete", within_s=300)
        assert await _on(running) == [f"lab-{cloud}-01", f"lab-{cloud}-02"]


async def _power(running: Up, machine: str) -> None:
    await running.operate(machine, "HostPowerOff")
    await running.operate(machine, "HostPowerOn")


async def _on(running: Up) -> list[str]:
    """The names of all machines of the cloud that are on, by what really happened there."""
    control = (await running.says(r"control its faults: (\S+)")).group(1)
    async with ClientSession() as http, http.get(f"{control}/history") as answer:
        events: list[dict[str, Any]] = await answer.json()
    last = {
        each["identity"]: each
        for each in events
        if each["kind"] in ("VirtualMachine", "Instance") and each["what"] in ("on", "off", "deleted")
    }
    return sorted(each["name"] for each in last.values() if each["what"] == "on")


async def _try_next(running: Up) -> None:
    """The commands that are printed work as they are."""
    printed = re.findall(r"^  ((?:kubectl|unbounded) .*)$", running.printed, re.MULTILINE)
    commands = [shlex.split(line) for line in printed]
    assert [command[0] for command in commands] == ["kubectl", "unbounded", "unbounded", "kubectl"]
    for program, *arguments in commands:
        if program == "kubectl":
            await running.kubectl(*arguments[2:])
        else:
            assert "would create machineoperation" in await _unbounded("plan", *arguments)
