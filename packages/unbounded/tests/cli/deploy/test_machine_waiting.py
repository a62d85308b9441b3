"""Waiting for a Machine and for a Deployment in virtual time: always with a report, and never for another object."""

from __future__ import annotations

import asyncio
import io
import random
from argparse import Namespace
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from tests.explain.staging import MACHINA, beat
from tests.support.faulty_api import FaultyApi
from tests.support.virtual_time import run_virtual
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.cli.deploy.apply import wait_rolled_out
from unbounded.cli.deploy.register import wait_machine
from unbounded.cli.deploy.server_side_apply import DEPLOYMENTS
from unbounded.cli.plugin.command import FAILED, TIMED_OUT, CliError, CliInvocation, CommandSession
from unbounded.cli.plugin.output import TextPrinter
from unbounded.kube.api import Forbidden
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import rfc3339, utc_now

NOW = "2030-01-01T00:00:00Z"
SPEC = {
    "ssh": {"host": "192.0.2.10", "username": "admin", "privateKeyRef": {"name": "k", "namespace": "unbounded-kube"}},
    "kubernetes": {},
}


class Closed(FaultyApi):
    """An API that refuses every list and watch."""

    async def list(self, kind: Kind[Any], **_options: Any) -> Any:
        raise Forbidden(f"{kind.plural} may not be listed", code=403, reason="Forbidden")

    async def watch(self, kind: Kind[Any], **_options: Any) -> AsyncIterator[Any]:
        raise Forbidden(f"{kind.plural} may not be watched", code=403, reason="Forbidden")
        yield


class World:
    """An API with one Machine on it, and who waits for it."""

    def __init__(self, api: FaultyApi | None = None) -> None:
        self.api = api or FaultyApi(random.Random(1), rate=0.0)
        self.out, self.err = io.StringIO(), io.StringIO()
        told = CliInvocation(Namespace(output=""), {}, self.out, self.err, io.StringIO(), colour=False, terminal=False)
        self.session = CommandSession(told, cast("HttpApi", self.api), TextPrinter(self.out, self.err))

    async def waits(self, *, timeout_s: float | None = None, spec: dict[str, Any] | None = None) -> asyncio.Task[int]:
        made: Machine = await self.api.create(MACHINES, {"metadata": {"name": "m"}, "spec": spec or {}})
        task = asyncio.create_task(wait_machine(self.session, made, timeout_s=timeout_s))
        await asyncio.sleep(1)
        return task

    async def is_in(self, phase: str, message: str = "") -> None:
        status = {"status": {"phase": phase, "message": message}}
        await self.api.patch(MACHINES, "m", status, subresource="status")


def test_each_change_is_a_line_until_it_is_ready() -> None:
    async def scenario() -> None:
        world = World()
        waiting = await world.waits()
        await world.is_in("Joining", "kubelet has to register")
        await asyncio.sleep(60)
        await world.is_in("Ready")
        assert await waiting == 0
        said = world.out.getvalue()
        assert "m: not observed yet" in said
        assert said.count("m: Joining · kubelet has to register") == 1
        assert said.endswith("machine/m is Ready\n")
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a watch is left open"

    run_virtual(scenario())


def test_wait_on_a_failed_machine_reports_the_why_command() -> None:
    async def scenario() -> None:
        waiting = await (world := World()).waits()
        await world.is_in("Failed", "no space left")
        with pytest.raises(CliError, match="machine/m is Failed: no space left") as failed:
            await waiting
        assert (failed.value.status, "why machine/m" in failed.value.next_step) == (FAILED, True)

    run_virtual(scenario())


@pytest.mark.parametrize(
    ("reason", "does", "helps"),
    [
        ("DiskFull", "minutes after a failure; a change of the Machine or its Secrets causes a retry", "df -h"),
        (
            "CredentialsRefused",
            "it sends nothing to the host before they change",
            "ssh-copy-id -i KEY.pub admin@192.0.2.10",
        ),
        ("TokenUnusable", "it sends nothing to the host before they change", "kubectl unbounded site init"),
    ],
)
def test_what_follows_is_what_machina_really_does(reason: str, does: str, helps: str) -> None:
    """Seen: "machina tries again by itself" of a key that it does not offer again."""

    async def scenario() -> None:
        waiting = await (world := World()).waits(spec=SPEC)
        said = {"type": "Provisioning", "status": "False", "reason": reason, "message": "no", "lastTransitionTime": NOW}
        await world.api.patch(MACHINES, "m", {"status": {"conditions": [said]}}, subresource="status")
        await world.is_in("Failed", "no")
        with pytest.raises(CliError, match="machine/m is Failed: no") as failed:
            await waiting
        lines = failed.value.next_step.splitlines()
        assert (
            "blocked by: machina is not running: Lease unbounded-kube/unbounded-operations does not exist" in lines[0]
        )
        await beat(cast("Any", world.api), MACHINA, renewed=rfc3339(utc_now(), micro=True))
        again = asyncio.create_task(wait_machine(world.session, await world.api.get(MACHINES, "m"), timeout_s=None))
        with pytest.raises(CliError) as failed:
            await again
        assert lines[0] not in failed.value.next_step
        assert does in failed.value.next_step.splitlines()[0]
        assert helps in failed.value.next_step.splitlines()[1]

    run_virtual(scenario())


def test_a_right_to_watch_that_is_missing_ends_it() -> None:
    async def scenario() -> None:
        waiting = await World(Closed(random.Random(1), rate=0.0)).waits()
        with pytest.raises(Forbidden):
            async with asyncio.timeout(60):
                await waiting

    run_virtual(scenario())


@pytest.mark.slow
def test_an_api_that_is_away_is_said_to_be_and_outlasted() -> None:
    async def scenario() -> None:
        waiting = await (world := World()).waits()
        world.api.rate = 1.0
        await world.is_in("Joining", "unseen")  # the watch breaks with it
        await asyncio.sleep(600)
        assert world.out.getvalue().count("waiting for the API server") == 1
        world.api.rate = 0.0
        await asyncio.sleep(120)
        assert "the API server answers again" in world.out.getvalue()
        await world.is_in("Ready")
        assert await waiting == 0

    run_virtual(scenario())


@pytest.mark.parametrize("leaves", ["limit", "ctrl-c"])
def test_it_goes_on_when_it_is_left(leaves: str) -> None:
    async def scenario() -> None:
        world = World()
        waiting = await world.waits(timeout_s=5.0 if leaves == "limit" else None)
        if leaves == "limit":
            with pytest.raises(CliError, match=r"machine/m is not Ready within 5 s$") as late:
                await waiting
            assert (late.value.status, "why machine/m" in late.value.next_step) == (TIMED_OUT, True)
        else:
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert "machine/m continues\n  `kubectl unbounded why machine/m` explains it" in world.err.getvalue()
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a watch is left open"

    run_virtual(scenario())


def test_one_of_the_same_name_that_is_made_anew_is_another_one() -> None:
    async def scenario() -> None:
        waiting = await (world := World()).waits()
        await world.api.delete(MACHINES, "m")
        await world.api.create(MACHINES, {"metadata": {"name": "m"}, "spec": {}})
        await world.is_in("Ready")
        with pytest.raises(CliError, match="machine/m was deleted"):
            await waiting

    run_virtual(scenario())


def test_a_deployment_that_may_not_be_watched_ends_the_wait_for_it() -> None:
    async def scenario() -> None:
        api = Closed(random.Random(1), rate=0.0)
        with pytest.raises(Forbidden):
            await wait_rolled_out(api, "d", "unbounded-kube", within_s=300, report=lambda _text: None)

    run_virtual(scenario())


def test_rollout_wait_reports_an_unreachable_api_server() -> None:
    async def scenario() -> None:
        api, said = FaultyApi(random.Random(1), rate=1.0), list[str]()
        await api.create(DEPLOYMENTS, {"metadata": {"name": "d"}, "spec": {}}, namespace="unbounded-kube")
        found = await wait_rolled_out(api, "d", "unbounded-kube", within_s=120, report=said.append)
        assert (found.done, found.text) == (False, "it has not been read yet")
        assert [text.startswith("waiting for the API server: ") for text in said] == [True]

    run_virtual(scenario())
