"""The controller's process if it cannot start, and the report of `unbounded up`."""

from __future__ import annotations

import asyncio
import io
import re
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from tests.support.memory_api import MemoryApi
from tests.support.waiting import eventually
from unbounded.api.core import CONFIG_MAPS, LEASES
from unbounded.api.machine import MACHINES
from unbounded.api.names import NAMESPACE
from unbounded.cli import provider_processes
from unbounded.cli.child import ProcessEnd
from unbounded.cli.deploy import components
from unbounded.cli.screen import PlainScreen
from unbounded.cli.servers import EpochFile
from unbounded.kube.cache import Cache
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import Backoff
from unbounded.kube.process import Runtime
from unbounded.machina.settings import ProvisioningSettings
from unbounded.machineops.controller import run
from unbounded.machineops.main import main
from unbounded.machineops.settings import add_arguments
from unbounded.machineops.settings import parse_settings as settings_of
from unbounded.operations.component_record import COMPONENTS, absent_in
from unbounded.operations.executor_selection import ExecutorHealth, Unavailability


def test_a_provider_that_is_not_there_is_named_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["controller", "--provider", "azurevm"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    told = "no provider 'azurevm' is installed (did you mean AzureVM?); installed: AzureVM, "
    assert line.startswith(f"machine-ops-controller: error: {told}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("provider", "told"),
    [
        ("Acme", "it cannot be served: no provider 'Acme' is installed; installed: AzureVM, "),
        ("AzureVM", r"its process has ended \(status 1: .*kubeconfig: No such file"),
    ],
)
async def test_unavailable_provider_is_reported_with_the_error_of_its_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, provider: str, told: str
) -> None:
    """Its package is gone by the time that it is started; its kubeconfig is not there."""
    monkeypatch.setattr(provider_processes, "installed", lambda: {provider: []})
    api, out, absences = MemoryApi(), io.StringIO(), ExecutorHealth()
    await components.publish(api, {})
    providers = provider_processes.ProviderProcesses(
        cast("HttpApi", api),
        tmp_path,
        PlainScreen(out),
        ProvisioningSettings(),
        absences=absences,
        next_epoch=EpochFile(tmp_path).next,
    )
    providers._may_log_in.set()
    heard: asyncio.Queue[Unavailability | None] = asyncio.Queue()
    with absences.subscribed(lambda _provider, absence: heard.put_nowait(absence)):
        tasks = [
            asyncio.create_task(work)
            for work in (providers._publish(), providers._run_provider(provider, Cache(api, MACHINES)))
        ]
        async with asyncio.timeout(30):
            starting, absent = await heard.get(), await heard.get()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert starting == Unavailability("its process was started, and is not ready yet", is_problem=False)
    assert absent is not None
    assert re.match(told, absent.text), absent
    assert absent.then.startswith("the next start is at 20")
    assert f"provider {provider}: {absent.text}; restarting in " in out.getvalue()


async def test_what_is_not_served_is_published_until_it_is(tmp_path: Path) -> None:
    api, absences = MemoryApi(), ExecutorHealth()
    await components.publish(api, {})
    providers = provider_processes.ProviderProcesses(
        cast("HttpApi", api),
        tmp_path,
        PlainScreen(io.StringIO()),
        ProvisioningSettings(),
        absences=absences,
        next_epoch=EpochFile(tmp_path).next,
    )
    publishing = asyncio.create_task(providers._publish())
    await asyncio.sleep(0)
    starting = Unavailability("its process was started", is_problem=False)
    for told in (Unavailability("gone", "`unbounded up` looks for it"), Unavailability("gone"), starting, None):
        absences.report("Other", starting)
        absences.report("Acme", told)
        expected = {"Other": starting} | ({"Acme": replace(told, text=told.whole, then="")} if told else {})

        async def published(now: dict[str, Unavailability] = expected) -> bool:
            there = await api.get(CONFIG_MAPS, COMPONENTS, namespace=NAMESPACE)
            return absent_in(there.data) == now

        await eventually(published)
    publishing.cancel()


async def test_what_keeps_failing_is_said_until_it_has_lasted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process that hangs at its first operation is there for a moment each time."""

    async def lived(*_: object, serves: Callable[[], None], **_others: object) -> ProcessEnd:
        serves()
        return ProcessEnd(-9, "a signal has stopped it", "")

    monkeypatch.setattr(provider_processes, "run_watched", lived)
    monkeypatch.setattr(provider_processes, "installed", lambda: {"Acme": []})
    monkeypatch.setattr(provider_processes, "BACKOFF", Backoff(0.0, 0.0))
    absences, screen = ExecutorHealth(), PlainScreen(io.StringIO())
    providers = provider_processes.ProviderProcesses(
        cast("HttpApi", MemoryApi()),
        tmp_path,
        screen,
        ProvisioningSettings(),
        absences=absences,
        next_epoch=EpochFile(tmp_path).next,
    )
    providers._may_log_in.set()
    heard: asyncio.Queue[Unavailability | None] = asyncio.Queue()
    with absences.subscribed(lambda _provider, absence: heard.put_nowait(absence)):
        keeping = asyncio.create_task(providers._run_provider("Acme", Cache(MemoryApi(), MACHINES)))
        async with asyncio.timeout(10):
            told = [await heard.get() for _ in range(9)]
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    how = "its process did not respond, as a signal has stopped it, and was stopped"
    served = [absence is None for absence in told]
    assert served == [False, True, False, False, True, False, False, False, False]
    assert [absence.text for absence in told[2:] if absence is not None] == [how] * 6
    assert [absence.is_problem for absence in told[5:] if absence is not None] == [True, False, False, True]


@pytest.mark.parametrize(
    ("flags", "namespace"), [((), NAMESPACE), (("--leader-elect-namespace", "default"), "default")]
)
async def test_the_lease_is_taken_in_the_namespace_that_is_told(flags: tuple[str, ...], namespace: str) -> None:
    parser = ArgumentParser()
    add_arguments(parser, {})
    settings, _process = settings_of(parser.parse_args(flags), {})
    api = MemoryApi()
    running = asyncio.create_task(run(Runtime(api, elects=True), settings, {}))

    async def leads() -> bool:
        return settings.lease in [one.metadata.name for one in (await api.list(LEASES, namespace=namespace)).items]

    await eventually(leads)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
