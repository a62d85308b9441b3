"""`unbounded migrate` as its users run it: its words, its exit status, and what is left where it is killed."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.migrate.judging import copies_on, form
from tests.cli.migrate.world import fill, served
from tests.cli.running import LIMIT_S, Up, up
from tests.support.paths import ROOT
from tests.support.waiting import eventually
from unbounded.agent.cluster_access import fingerprint
from unbounded.api.core import NAMESPACES, NODES
from unbounded.api.machine import MACHINES
from unbounded.api.names import ANNOTATION_SUCCESSOR
from unbounded.cli.main import main as unbounded
from unbounded.kube.api import Api
from unbounded.kube.client import HttpApi

pytestmark = pytest.mark.slow

MANY: Final = 200
AT_ONCE: Final = 16


@asynccontextmanager
async def migrate(data: Path, to: Path | None, *flags: str) -> AsyncIterator[Up]:
    """The command, in a process of its own."""
    target = () if to is None else ("--to", str(to))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "unbounded.cli.main", "migrate", "--data", str(data), *target, *flags),
        cwd=ROOT,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
    )
    try:
        yield Up(process, data)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def ran(data: Path, to: Path | None, *flags: str) -> tuple[int, str]:
    """Its exit status, and what it printed."""
    async with migrate(data, to, *flags) as running:
        status = await running.ended(within_s=LIMIT_S)
    return status, running.printed


async def filled(data: Path, count: int) -> dict[str, Any]:
    async with served(data) as api:
        await fill(api, count)
        return await form(api)


async def agents_follow(api: HttpApi) -> None:
    """Report for the agents of the Machines there, once they have moved."""
    ca = (api.config.ca or b"").decode()
    used = {"status": {"agent": {"apiServer": api.config.server, "clusterCA": fingerprint(ca)}}}
    free = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> None:
        async with free:
            await api.patch(MACHINES, name, used, subresource="status")

    await asyncio.gather(*map(one, await copies_on(api)))


async def written(api: HttpApi, count: int) -> None:
    """Wait until so many writes more were made there."""

    async def revision() -> int:
        return int((await api.list(NAMESPACES)).resource_version)

    wanted = await revision() + count

    async def is_reached() -> bool:
        return await revision() >= wanted

    await eventually(is_reached, within_s=LIMIT_S)


async def successors(api: Api) -> dict[str, Any]:
    return {
        one.name: json.loads(one.metadata.annotations[ANNOTATION_SUCCESSOR]) for one in (await api.list(MACHINES)).items
    }


@pytest.mark.timeout(900)
async def test_migration_of_200_machines_survives_random_kills_without_loss(tmp_path: Path) -> None:
    drawn = random.Random(17)
    data, to = tmp_path / "data", tmp_path / "target" / "kubeconfig"
    before = await filled(data, MANY)
    async with served(tmp_path / "target") as target:
        for _ in range(3):
            left = len(before) - len(await form(target))
            async with migrate(data, to, "--yes") as running:
                await running.says("the source is frozen")
                await written(target, drawn.randint(0, left // 2))
                assert "may act now" not in running.printed, "it was to be killed before"
        copied = len(await form(target))
        async with migrate(data, to, "--take-back") as running:
            await written(target, drawn.randint(1, copied // 2))
            assert "the source may act again" not in running.printed, "it was to be killed before"
        status, said = await ran(data, to, "--take-back")
        assert status == 0, said
        assert await copies_on(target) == []
        async with served(data) as here:
            assert await form(here) == before
        async with migrate(data, to, "--yes") as running:
            await running.says("the target's control plane may act now", within_s=300)
            await running.says(f"{MANY} agents have not moved yet: m-000, m-001, .* and 195 more", within_s=120)
            assert await form(target) == before
            await agents_follow(target)
            await running.says("all agents have moved", within_s=120)
            assert await running.ended() == 0
        machines = {one.name: one.metadata.uid for one in (await target.list(MACHINES)).items}
        nodes = {one.metadata.name: one.metadata.uid for one in (await target.list(NODES)).items}
        async with served(data) as here:
            told = await successors(here)
        assert {name: (one["machineUid"], one["nodeUid"]) for name, one in told.items()} == {
            name: (uid, nodes[name]) for name, uid in machines.items()
        }
        status, said = await ran(data, to, "--take-back")
        assert (status, "cannot be reverted" in said) == (1, True)


async def test_up_says_where_its_machines_are_and_a_restore_is_refused(tmp_path: Path, capsys: Any) -> None:
    data, to, file = tmp_path / "data", tmp_path / "target" / "kubeconfig", tmp_path / "backup"
    await filled(data, 1)
    assert unbounded(["backup", str(file), "--data", str(data)]) == 0
    async with served(tmp_path / "target") as target:
        async with migrate(data, to, "--yes") as running:
            await running.says("may act now")
            await agents_follow(target)
            assert await running.ended() == 0
        async with up(data) as refused:
            assert await refused.ended() == 1
            assert (
                f"--data {data}: it was migrated to {target.config.server}, which manages its machines"
                in refused.printed
            )
    capsys.readouterr()
    assert unbounded(["restore", str(file), "--data", str(data)]) == 1
    assert "it was migrated to" in capsys.readouterr().err


async def test_migration_plan_works_beside_a_running_control_plane_without_changes(tmp_path: Path) -> None:
    data, to = tmp_path / "data", tmp_path / "target" / "kubeconfig"
    await filled(data, 1)
    async with served(tmp_path / "target") as target, up(data) as running:
        await running.says("Ctrl-C stops")
        status, said = await ran(data, to, "--plan")
        assert status == 0, said
        assert f"Migration of {data} to {target.config.server} (Kubernetes v1.32.0" in said
        assert "copied      1 Machine, 1 Node, " in said
        assert "4. Point of no return" in said
        status, said = await ran(data, to, "--yes")
        assert status == 1
        assert f"--data {data}: {data} is in use by process {running.process.pid}; stop it" in said
        assert await copies_on(target) == []


async def test_without_a_terminal_it_asks_for_yes(tmp_path: Path) -> None:
    data, to = tmp_path / "data", tmp_path / "target" / "kubeconfig"
    await filled(data, 1)
    async with served(tmp_path / "target") as target:
        status, said = await ran(data, to)
        assert (status, "With --yes the migration starts without a question" in said) == (1, True)
        assert await copies_on(target) == []


async def test_a_target_that_is_away_changes_nothing(tmp_path: Path) -> None:
    data, to = tmp_path / "data", tmp_path / "target" / "kubeconfig"
    await filled(data, 1)
    async with served(tmp_path / "target"):
        pass
    status, said = await ran(data, to, "--yes")
    assert status == 1
    assert f"nothing is lost: run the command again when {to} leads to a running API server" in said
    async with up(data) as running:
        await running.says("Ctrl-C stops")


async def test_a_target_that_is_gone_for_good_lets_the_source_go(tmp_path: Path) -> None:
    data, to = tmp_path / "data", tmp_path / "target" / "kubeconfig"
    await filled(data, 1)
    async with served(tmp_path / "target"), migrate(data, to, "--yes") as running:
        await running.says("the source is frozen")
    async with up(data) as refused:
        assert await refused.ended() == 1
        assert "is in progress: `unbounded migrate --to KUBECONFIG` finishes it" in refused.printed
    assert (await ran(data, None, "--take-back", "--without-target"))[0] == 0
    async with up(data) as running:
        await running.says("Ctrl-C stops")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "use either --to KUBECONFIG for the cluster"),
        (("--to", "x", "--plan", "--finish"), "--plan, --take-back and --finish exclude each other"),
        (("--without-target",), "--without-target requires --take-back"),
        (("--to", "x", "--api-server-endpoint", "http://a"), "is not an address of an API server"),
    ],
)
def test_flags_that_contradict_each_other(flags: tuple[str, ...], words: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        unbounded(["migrate", *flags])
    assert words in capsys.readouterr().err


def test_data_that_is_not_there(tmp_path: Path, capsys: Any) -> None:
    assert unbounded(["migrate", "--data", str(tmp_path / "no"), "--to", str(tmp_path / "nothing")]) == 1
    assert "nothing: No such file or directory" in capsys.readouterr().err
