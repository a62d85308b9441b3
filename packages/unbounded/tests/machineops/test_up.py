"""Providers beside `unbounded up`, from outside."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli.plugin.conftest import Cli
from tests.cli.running import KUBECTL, Up, up
from tests.machineops.test_process import controller, record
from unbounded.api.names import NAMESPACE
from unbounded.kube.process_epoch import ProcessEpoch, parse_epoch
from unbounded.machineops.settings import Settings

pytestmark = [pytest.mark.slow, pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")]


CONTROLLER = "unbounded.machineops.main"
SITE = {"labels": {"unbounded-cloud.io/site": "lab"}}


async def _apply(running: Up, folder: Path) -> None:
    credential = {"siteName": "lab", "provider": "LocalProcess", "auth": {"mode": "WorkloadIdentity"}}
    annotations = {"annotations": {"unbounded-cloud.io/provider": "LocalProcess"}}
    await running.apply(
        {"kind": "MachineOperationCredential", "metadata": {"name": "local"}, "spec": credential},
        {
            "kind": "Machine",
            "metadata": {"name": "m1"} | annotations | SITE,
            "spec": {"providerID": f"process://{folder}/m1"},
        },
    )


@pytest.fixture
async def instance(tmp_path: Path, example: dict[str, str]) -> AsyncIterator[Path]:
    """A process that is the instance of a Machine; the folder that it is in."""
    make = (sys.executable, "-m", "unbounded_process_provider.machines")
    for word in ("make", "remove"):
        process = await asyncio.create_subprocess_exec(*make, word, f"{tmp_path}/vms/m1", env=example)
        assert await process.wait() == 0
        if word == "make":
            yield tmp_path / "vms"


@pytest.fixture
def within(example: dict[str, str]) -> tuple[str, ...]:
    """Return the wrapper that runs a command with the sample provider installed."""
    return ("env", f"PYTHONPATH={example['PYTHONPATH']}")


async def test_provider_process_starts_with_its_first_machine_and_restarts(
    tmp_path: Path, within: tuple[str, ...], instance: Path
) -> None:
    async with up(tmp_path / "data", within=within) as running:
        await running.says("Ctrl-C stops")
        assert running.children() == []
        await _apply(running, instance)
        await running.says("provider LocalProcess: its process has been started")
        await running.operate("m1", "HostReboot", "one")
        (pid,) = running.children(CONTROLLER)
        os.kill(pid, signal.SIGKILL)
        await running.says(r"provider LocalProcess: its process has ended \(status -9\); restarting in [01] s")
        await running.operate("m1", "HostReboot", "two")
        assert record(instance, "m1")["boots"] == 3
        one, two = [(await running.get("mop", name))["status"]["execution"]["incarnation"] for name in ("one", "two")]
        assert ProcessEpoch(parse_epoch(two.partition("_")[0])).has_ended(one)
        await running.stops()


async def test_why_nobody_serves_a_provider_is_said_by_what_waits_for_it(
    tmp_path: Path, within: tuple[str, ...]
) -> None:
    spec = {"provider": "localprocess", "providerID": "process:///m2"}
    async with up(tmp_path / "data", within=within) as running:
        await running.says("Ctrl-C stops")
        await running.apply(
            {"kind": "Machine", "metadata": {"name": "m2"} | SITE, "spec": spec},
            {
                "kind": "MachineOperation",
                "metadata": {"name": "op"},
                "spec": {"machineRef": "m2", "operationKind": "HostReboot"},
            },
        )
        meant = r"no provider 'localprocess' is installed \(did you mean LocalProcess\?\)"
        await running.says(f"Machine m2: {meant}")
        await running.says(f"operation op: Pending .* does not serve: {meant}")
        status = (await running.get("mop", "op"))["status"]
        (said,) = status["conditions"]
        assert (status["phase"], status["reason"], said["reason"]) == ("Pending", *["ProviderNotServed"] * 2)
        cli = Cli(tmp_path / "data" / "kubeconfig")
        answer = await cli("why", "operation/op")
        assert "(did you mean LocalProcess?)" in answer.out
        await _serves_elsewhere(running, "localprocess")
        await running.says("operation op: Pending .* machine-ops-controller/lab/localprocess has not claimed it")
        assert "another machine-ops-controller" not in running.printed
        assert "or it is deployed separately (Lease unbounded-kube/" in " ".join(
            (await cli("why", "operation/op")).out.split()
        )
        await running.is_killed()


async def _serves_elsewhere(running: Up, provider: str) -> None:
    """Another controller leads, of a provider that is not installed here."""
    name = Settings(provider=provider).lease
    lease = {
        "kind": "Lease",
        "apiVersion": "coordination.k8s.io/v1",
        "metadata": {"name": name, "namespace": NAMESPACE},
    }
    for second in range(2):
        renewed = f"2030-01-01T00:00:0{second}.000000Z"
        await running.apply({**lease, "spec": {"holderIdentity": "elsewhere", "renewTime": renewed}})


SLOW = """
import time
from pathlib import Path
from unbounded_process_provider.provider import LocalProcess

class Slow(LocalProcess):
    name = "Slow"

while not Path(__file__).with_name("may-start").exists():  # as slow as the SDK of a cloud on a busy machine
    time.sleep(0.1)
PROVIDER = Slow()
"""


def _install_slow(folder: Path) -> None:
    """Have a provider whose import ends once the file `may-start` is beside it."""
    (folder / "slow_provider.py").write_text(SLOW)
    metadata = folder / "slow_provider-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-provider\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[unbounded.providers]\nSlow = slow_provider:PROVIDER\n")


async def test_while_the_process_of_a_provider_starts_that_is_what_operations_say(
    tmp_path: Path, example: dict[str, str], instance: Path
) -> None:
    _install_slow(tmp_path)
    within = ("env", f"PYTHONPATH={tmp_path}{os.pathsep}{example['PYTHONPATH']}")
    credential = {"siteName": "lab", "provider": "Slow", "auth": {"mode": "WorkloadIdentity"}}
    spec = {"provider": "Slow", "providerID": f"process://{instance}/m1"}
    async with up(tmp_path / "data", within=within) as running:
        await running.says("Ctrl-C stops")
        await running.apply(
            {"kind": "MachineOperationCredential", "metadata": {"name": "slow"}, "spec": credential},
            {"kind": "Machine", "metadata": {"name": "m1"} | SITE, "spec": spec},
        )
        reboot = {"machineRef": "m1", "operationKind": "HostReboot"}
        await running.apply({"kind": "MachineOperation", "metadata": {"name": "op"}, "spec": reboot})
        await running.says(
            "operation op: Pending .* machine-ops-controller/lab/Slow is starting: its process was started"
        )
        (tmp_path / "may-start").touch()
        await running.says("operation op: Complete")
        assert "has not claimed it" not in running.printed
        await running.stops()


async def test_a_provider_does_not_outlive_what_has_started_it(
    tmp_path: Path, within: tuple[str, ...], instance: Path
) -> None:
    async with up(tmp_path / "data", within=within) as running:
        await running.says("Ctrl-C stops")
        await _apply(running, instance)
        await running.operate("m1", "HostReboot")
        (pid,) = running.children(CONTROLLER)
        os.kill(pid, signal.SIGSTOP)
        await running.is_killed()


async def test_another_controller_for_the_same_machines_does_nothing_twice(
    tmp_path: Path, example: dict[str, str], within: tuple[str, ...], instance: Path
) -> None:
    """It leads by a Lease, of which the one of `unbounded up` has none."""
    data = tmp_path / "data"
    async with up(data, within=within) as running:
        await running.says("Ctrl-C stops")
        await _apply(running, instance)
        await running.says("provider LocalProcess: its process has been started; no other")
        other = data / "providers" / "other"
        await asyncio.to_thread(shutil.copy, data / "providers" / "kubeconfig", other)
        async with controller(other, example, "--provider", "LocalProcess"):
            await running.says("warning: .* holds Lease unbounded-kube/machine-ops-controller-.*: another machine-ops-")
            for number in range(1, 4):
                await running.operate("m1", "HostReboot", f"reboot-{number}")
                assert record(instance, "m1")["boots"] == 1 + number
