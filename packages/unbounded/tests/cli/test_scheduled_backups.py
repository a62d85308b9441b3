"""Back-ups of `unbounded up`: made when they are due, restored, thinned out, and loud when they fail."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.apiserver.support import Client
from tests.apiserver.test_failing_disk import mounted
from tests.cli.deployed import running
from tests.cli.running import KUBECTL, up
from tests.cli.test_archive import run
from tests.support.waiting import eventually
from unbounded.api.core import CONFIG_MAPS
from unbounded.api.names import NAMESPACE
from unbounded.cli import child
from unbounded.cli.backup_commands import file_name, outdated, time_of, write
from unbounded.cli.backup_schedule import NAME, BackupMetrics, BackupSchedule
from unbounded.cli.settings import BackupSettings
from unbounded.kube.api import NotFound
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded_apiserver import backup
from unbounded_apiserver.backup import BackupFailed, verify
from unbounded_apiserver.restore import restore

IDENTITY = "0123abcd-4567-89ef-0123-456789abcdef"
OTHER = "fedc0000-4567-89ef-0123-456789abcdef"
NOW = datetime(2026, 11, 24, 12, 0, 0, tzinfo=UTC)
MAPS = "/api/v1/namespaces/default/configmaps"


# Names and retention


def test_names_hold_the_control_plane_and_the_time() -> None:
    name = file_name(IDENTITY, NOW)
    assert name == "unbounded-0123abcd-20261124T120000Z.backup"
    assert time_of(name, IDENTITY) == NOW
    assert time_of(name, OTHER) is None
    for other in ("unbounded-0123abcd-20269924T120000Z.backup", f"{name}.tmp", f".{name}", "notes.txt"):
        assert time_of(other, IDENTITY) is None


def test_only_what_is_outdated_of_this_control_plane_is_removed() -> None:
    ours = [file_name(IDENTITY, NOW + timedelta(hours=hour)) for hour in range(5)]
    others = [file_name(OTHER, NOW), "notes.txt", "unbounded-0123abcd-old.backup", "before-upgrade.backup"]
    assert outdated([*others, *ours], IDENTITY, 2) == [ours[2], ours[1], ours[0]]
    assert outdated([*others, *ours], IDENTITY, 9) == []


# One back-up


@pytest.mark.slow
async def test_what_was_backed_up_comes_back_on_another_machine(tmp_path: Path) -> None:
    folder = tmp_path / "share"
    folder.mkdir()
    async with running(tmp_path / "data") as (server, client):
        await client.create(MAPS, {"metadata": {"name": "kept"}, "data": {"a": "1"}})
        for hour in range(4):
            written = await asyncio.to_thread(
                write, server.data_dir, folder, IDENTITY, keep=2, elsewhere=False, now=NOW + timedelta(hours=hour)
            )
        assert written.same_disk
        assert written.removed == (file_name(IDENTITY, NOW + timedelta(hours=1)),)
    newest = folder / file_name(IDENTITY, NOW + timedelta(hours=3))
    assert sorted(os.listdir(folder)) == [file_name(IDENTITY, NOW + timedelta(hours=2)), newest.name]
    assert stat.S_IMODE(newest.stat().st_mode) == 0o600
    assert newest.stat().st_size == written.size
    assert [name for name in os.listdir(tmp_path / "data") if name.startswith(".unbounded")] == []
    shutil.rmtree(tmp_path / "data")
    restore(newest, tmp_path / "elsewhere")
    async with running(tmp_path / "elsewhere") as (_, client):
        assert (await client.get(f"{MAPS}/kept"))["data"] == {"a": "1"}


@pytest.mark.slow
async def test_damaged_new_backup_deletes_no_old_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "share"
    folder.mkdir()
    async with running(tmp_path / "data") as (server, _):
        data = server.data_dir
        await asyncio.to_thread(write, data, folder, IDENTITY, keep=1, elsewhere=False, now=NOW)
        pack = backup._pack

        def lies(archive: Path, staged: Path, manifest: backup.Manifest) -> None:
            pack(archive, staged, manifest)
            content = bytearray(archive.read_bytes())
            content[len(content) // 2] ^= 1
            archive.write_bytes(content)

        monkeypatch.setattr(backup, "_pack", lies)
        with pytest.raises(BackupFailed, match="is damaged"):
            await asyncio.to_thread(
                write, data, folder, IDENTITY, keep=1, elsewhere=False, now=NOW + timedelta(hours=1)
            )
    verify(folder / file_name(IDENTITY, NOW))


@pytest.mark.slow
async def test_a_share_that_is_not_mounted_any_more_is_not_filled(tmp_path: Path) -> None:
    folder = tmp_path / "share"
    folder.mkdir()
    if os.geteuid() != 0 or not await mounted(folder):
        pytest.skip("needs the right to mount")
    async with running(tmp_path / "data") as (server, _):
        written = await asyncio.to_thread(write, server.data_dir, folder, IDENTITY, keep=1, elsewhere=False, now=NOW)
        assert not written.same_disk
        await (await asyncio.create_subprocess_exec("umount", "--lazy", str(folder))).wait()
        with pytest.raises(BackupFailed, match="is the share still mounted"):
            await asyncio.to_thread(write, server.data_dir, folder, IDENTITY, keep=1, elsewhere=True, now=NOW)
    assert os.listdir(folder) == []


@pytest.mark.slow
async def test_what_is_cut_off_leaves_nothing_that_looks_like_a_back_up(tmp_path: Path) -> None:
    folder = tmp_path / "share"
    folder.mkdir()
    async with running(tmp_path / "data") as (server, client):
        for number in range(200):
            await client.create(MAPS, {"metadata": {"name": f"m{number}"}, "data": {"a": "x" * 20_000}})
        arguments = (str(server.data_dir), str(folder), IDENTITY, "--keep", "3")
        left = 0
        for delay_s in (0.3, 0.5, 0.7, 0.9, 1.2):
            process = await asyncio.create_subprocess_exec(
                *child.command("unbounded.cli.backup_commands", *arguments), stdout=asyncio.subprocess.DEVNULL
            )
            await asyncio.sleep(delay_s)
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
            await process.wait()
            for name in os.listdir(folder):
                if name.startswith("unbounded-"):
                    await asyncio.to_thread(verify, folder / name)
            left += any(name.startswith(".") for name in os.listdir(folder))
        await asyncio.to_thread(
            write, server.data_dir, folder, IDENTITY, keep=3, elsewhere=False, now=NOW + timedelta(days=400)
        )
    assert all(time_of(name, IDENTITY) is not None for name in os.listdir(folder)), "what was left is cleared away"


# The schedule


@dataclass
class World:
    """A server, and a schedule of its back-ups that is sped up."""

    data: Path
    client: Client
    api: HttpApi
    folder: Path
    registry: CollectorRegistry

    def count(self, result: str) -> float:
        return self.registry.get_sample_value("unbounded_backups_total", {"result": result}) or 0.0

    async def done(self, count: int, result: str = "success") -> bool:
        async def so() -> bool:
            return self.count(result) >= count

        return bool(await eventually(so, within_s=60))

    async def said(self) -> dict[str, str]:
        try:
            return dict((await self.api.get(CONFIG_MAPS, NAME, namespace=NAMESPACE)).data)
        except NotFound:
            return {}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    (tmp_path / "share").mkdir()
    async with (
        running(tmp_path / "data") as (server, client),
        HttpApi(from_kubeconfig(server.kubeconfig_path)) as api,
    ):
        yield World(server.data_dir, client, api, tmp_path / "share", CollectorRegistry())


@asynccontextmanager
async def scheduled(
    world: World, settings: BackupSettings, command: Callable[..., Sequence[str]] = child.command
) -> AsyncIterator[None]:
    world.registry = CollectorRegistry()
    schedule = BackupSchedule(settings, world.data, world.api, BackupMetrics(world.registry), command=command)
    task = asyncio.create_task(schedule.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


@pytest.mark.slow
async def test_back_ups_are_made_one_after_another_and_the_oldest_go(world: World) -> None:
    settings = BackupSettings(world.folder, every_s=1.1, keep=1)
    async with scheduled(world, settings):
        await world.done(3)
        said = await world.said()
    names = os.listdir(world.folder)
    cut_off = [name for name in names if not name.startswith("unbounded-")]  # the next one, at the end of the schedule
    assert len(cut_off) <= 1, names
    assert 1 <= len(names) - len(cut_off) <= 2, names
    assert said["folder"] == str(world.folder)
    assert said["lastFile"].endswith(".backup")
    assert "trouble" not in said
    last = world.registry.get_sample_value("unbounded_backup_last_success_timestamp_seconds")
    assert last is not None
    assert abs(last - datetime.now(UTC).timestamp()) < 60
    assert (world.registry.get_sample_value("unbounded_backup_size_bytes") or 0) > 1000


@pytest.mark.slow
async def test_a_restart_makes_none_before_it_is_due(world: World) -> None:
    async with scheduled(world, BackupSettings(world.folder)):
        await world.done(1)
        await eventually(world.said)
    async with scheduled(world, BackupSettings(world.folder)):
        last = "unbounded_backup_last_success_timestamp_seconds"
        await eventually(lambda: world.registry.get_sample_value(last))
        await asyncio.sleep(1.5)
        assert world.count("success") == 0
    assert len(os.listdir(world.folder)) == 1
    other = world.folder.with_name("other")
    other.mkdir()
    async with scheduled(world, BackupSettings(other)):
        await world.done(1)


@pytest.mark.slow
async def test_a_failure_is_said_until_a_back_up_succeeds(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.folder.rmdir()
    async with scheduled(world, BackupSettings(world.folder, again_s=0.5)):
        await world.done(2, "failure")
        said = await world.said()
        assert said["trouble"] == f"{world.folder} is not a directory"
        since = said["failingSince"]
        assert (await world.client.ask("GET", "/readyz")).status == 200
        levels = {record.levelname for record in caplog.records if record.message == "backup failed"}
        assert levels == {"ERROR"}
        await asyncio.sleep(1.1)
        await world.done(3, "failure")
        assert (await world.said())["failingSince"] == since
        world.folder.mkdir()
        await world.done(1)

        async def well() -> bool:
            return "trouble" not in await world.said()

        await eventually(well)
        assert (await world.said()).keys() == {"folder", "lastSuccess", "lastFile", "elsewhere"}


@pytest.mark.slow
async def test_one_that_hangs_is_ended_and_nothing_waits_for_it(world: World) -> None:
    def hangs(*_: str) -> Sequence[str]:
        return (sys.executable, "-c", "import time; time.sleep(600)")

    began = asyncio.get_running_loop().time()
    async with scheduled(world, BackupSettings(world.folder, again_s=0.2, limit_s=0.5), hangs):
        await world.done(2, "failure")

        async def told() -> bool:
            return "it was not complete after 0.5 s; a network share may hang" in (await world.said()).get(
                "trouble", ""
            )

        await eventually(told)
    assert asyncio.get_running_loop().time() - began < 30


@pytest.mark.slow
async def test_a_child_that_says_nothing_is_a_failure(world: World) -> None:
    settings = replace(BackupSettings(world.folder), again_s=0.2)
    async with scheduled(world, settings, lambda *_: (sys.executable, "-c", "import sys; sys.exit(3)")):
        await world.done(1, "failure")

        async def told() -> bool:
            return (await world.said()).get("trouble") == "its process ended with status 3"

        await eventually(told)


@pytest.mark.slow
@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
async def test_up_backs_itself_up_and_comes_back_from_it(tmp_path: Path) -> None:
    data, share = tmp_path / "data", tmp_path / "share"
    share.mkdir()
    async with up(data, "--backup-to", str(share)) as running_up:
        await running_up.says(r"backups     .*/share, every 60 min, the last 72")
        await running_up.says("Ctrl-C stops")
        await running_up.kubectl("create", "configmap", "kept", "--from-literal=a=1")

        async def made() -> list[str]:
            return [name for name in os.listdir(share) if name.endswith(".backup")]

        (name,) = await eventually(made)
        await running_up.says("backups are on the disk of the data, and are lost with it")
    shutil.rmtree(data)
    status, said = await run("restore", share / name, "--data", data)
    assert status == 0, said
    async with up(data) as running_up:
        await running_up.says("Ctrl-C stops")
        assert (await running_up.get("namespace", NAMESPACE))["metadata"]["name"] == NAMESPACE
