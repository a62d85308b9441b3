"""Providers beside `unbounded up`, from outside."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.apiserver.support import eventually
from tests.cli.running import KUBECTL, Up, up
from tests.machineops.test_process import controller, record

pytestmark = [pytest.mark.slow, pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")]


def _processes(data: Path) -> list[int]:
    """The pids of providers of this `unbounded up`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if "unbounded.machineops.main" in command and str(data) in command:
                found.append(int(entry.name))
    return found


async def _apply(running: Up, folder: Path, tmp_path: Path) -> None:
    site = {"labels": {"unbounded-cloud.io/site": "lab"}}
    api = {"apiVersion": "unbounded-cloud.io/v1alpha3"}
    credential = {"siteName": "lab", "provider": "LocalProcess", "auth": {"mode": "WorkloadIdentity"}}
    items = [
        api | {"kind": "MachineOperationCredential", "metadata": {"name": "local"}, "spec": credential},
        api
        | {
            "kind": "Machine",
            "metadata": {"name": "m1", "annotations": {"unbounded-cloud.io/provider": "LocalProcess"}} | site,
            "spec": {"providerID": f"process://{folder}/m1"},
        },
        api
        | {
            "kind": "Machine",
            "metadata": {"name": "m2"} | site,
            "spec": {"provider": "Acme", "providerID": "acme://m2"},
        },
    ]
    file = tmp_path / "objects.json"
    await asyncio.to_thread(file.write_text, json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    await running.kubectl("apply", "-f", str(file))


async def _operate(running: Up, tmp_path: Path, name: str, kind: str) -> None:
    body = {
        "apiVersion": "unbounded-cloud.io/v1alpha3",
        "kind": "MachineOperation",
        "metadata": {"name": name},
        "spec": {"machineRef": "m1", "operationKind": kind},
    }
    file = tmp_path / f"{name}.json"
    await asyncio.to_thread(file.write_text, json.dumps(body))
    await running.kubectl("apply", "-f", str(file))
    await running.says(f"operation {name}: Complete")


@pytest.fixture
async def instance(tmp_path: Path, example: dict[str, str]) -> AsyncIterator[Path]:
    """A process that is the instance of a Machine; the folder that it is in."""
    make = (sys.executable, "-m", "unbounded_process_provider.machines")
    for word in ("make", "remove"):
        process = await asyncio.create_subprocess_exec(*make, word, f"{tmp_path}/vms/m1", env=example)
        assert await process.wait() == 0
        if word == "make":
            yield tmp_path / "vms"


async def _gone(data: Path) -> bool:
    return not _processes(data)


async def test_a_provider_is_started_with_its_first_machine_and_again_when_it_dies(
    tmp_path: Path, example: dict[str, str], instance: Path
) -> None:
    data = tmp_path / "data"
    async with up(data, within=("env", f"PYTHONPATH={example['PYTHONPATH']}")) as running:
        await running.says("Ctrl-C stops")
        assert _processes(data) == []
        await _apply(running, instance, tmp_path)
        await running.says("provider LocalProcess: its process has been started")
        await running.says("Machine m2: its provider Acme is not installed beside unbounded")
        await _operate(running, tmp_path, "one", "HostReboot")
        (pid,) = _processes(data)
        os.kill(pid, signal.SIGKILL)
        await running.says(r"provider LocalProcess: its process has ended \(status -9\); started again in [01] s")
        await _operate(running, tmp_path, "two", "HostReboot")
        assert record(instance, "m1")["boots"] == 3
        running.signal(signal.SIGINT)
        assert await running.ended() == 0
        assert _processes(data) == []


async def test_a_provider_does_not_outlive_what_has_started_it(
    tmp_path: Path, example: dict[str, str], instance: Path
) -> None:
    data = tmp_path / "data"
    async with up(data, within=("env", f"PYTHONPATH={example['PYTHONPATH']}")) as running:
        await running.says("Ctrl-C stops")
        await _apply(running, instance, tmp_path)
        await _operate(running, tmp_path, "one", "HostReboot")
        assert len(_processes(data)) == 1
        running.signal(signal.SIGKILL)
        await running.ended()
    await eventually(lambda: _gone(data), within_s=15)


async def test_another_controller_for_the_same_machines_does_nothing_twice(
    tmp_path: Path, example: dict[str, str], instance: Path
) -> None:
    """It leads by a Lease, of which the one of `unbounded up` has none."""
    data = tmp_path / "data"
    async with up(data, within=("env", f"PYTHONPATH={example['PYTHONPATH']}")) as running:
        await running.says("Ctrl-C stops")
        await _apply(running, instance, tmp_path)
        await running.says("provider LocalProcess: its process has been started; no other")
        other = data / "providers" / "other"
        await asyncio.to_thread(shutil.copy, data / "providers" / "kubeconfig", other)
        async with controller(other, example, "--provider", "LocalProcess"):
            await running.says("warning: .* holds Lease unbounded-kube/machine-ops-controller-.*: another machine-ops-")
            for number in range(1, 4):
                await _operate(running, tmp_path, f"reboot-{number}", "HostReboot")
                assert record(instance, "m1")["boots"] == 1 + number
