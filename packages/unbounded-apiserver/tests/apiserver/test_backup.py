"""Backup and restore: one consistent state, checked before it is used, and no client takes old for new afterwards."""

from __future__ import annotations

import asyncio
import gzip
import io
import os
import random
import shutil
import stat
import tarfile
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from tests.apiserver.support import MADE_HERE, Client, running
from tests.apiserver.test_database import ENTRIES, content, whole_file
from tests.apiserver.test_failing_disk import mounted, small_disk
from unbounded_apiserver.backup import BackupFailed, back_up
from unbounded_apiserver.data_dir import Damaged, DataInUse
from unbounded_apiserver.journal import Journal
from unbounded_apiserver.pki import CertificateAuthority
from unbounded_apiserver.restore import restore

PATH = "/api/v1/namespaces/default/configmaps"
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
Members = dict[str, bytes]


async def create(client: Client, name: str) -> int:
    return int((await client.create(PATH, {"metadata": {"name": name}}))["metadata"]["resourceVersion"])


async def names(client: Client) -> list[str]:
    return [item["metadata"]["name"] for item in (await client.get(f"{PATH}?{MADE_HERE}"))["items"]]


@pytest.mark.slow
async def test_a_backup_is_one_state_of_a_server_that_goes_on_writing(tmp_path: Path) -> None:
    made: list[str] = []
    enough = asyncio.Event()

    async def write(client: Client, writer: int) -> None:
        for number in range(1000):
            name = f"w{writer}-{number}"
            await create(client, name)
            made.append(name)
            if len(made) > 40:
                enough.set()

    async with running(tmp_path / "data") as (_, client):
        writers = [asyncio.create_task(write(client, writer)) for writer in range(4)]
        await asyncio.wait_for(enough.wait(), 30)
        before = set(made)
        manifest = await asyncio.to_thread(back_up, tmp_path / "data", tmp_path / "backup")
        for task in writers:
            task.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
    assert stat.S_IMODE(os.stat(tmp_path / "backup").st_mode) == 0o600
    assert sorted(os.listdir(tmp_path)) == ["backup", "data"]
    restore(tmp_path / "backup", tmp_path / "again")
    async with running(tmp_path / "again") as (server, client):
        there = await names(client)
        assert before <= set(there)
        for writer in range(4):  # and no hole: each writer waits for one write before it begins the next
            count = sum(name.startswith(f"w{writer}-") for name in there)
            assert {name for name in there if name.startswith(f"w{writer}-")} == {
                f"w{writer}-{n}" for n in range(count)
            }
        assert server.core.store.revision > manifest.revision


@pytest.mark.slow
async def test_kubeconfigs_and_tokens_that_were_handed_out_go_on_working(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as (server, client):
        account = "/api/v1/namespaces/default/serviceaccounts"
        await client.create(account, {"metadata": {"name": "robot"}})
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = (await client.create(f"{account}/robot/token", asked))["status"]["token"]
        kubeconfig = server.kubeconfig_path.read_bytes()
        await asyncio.to_thread(back_up, server.data_dir, tmp_path / "backup")
    shutil.rmtree(tmp_path / "data")
    restore(tmp_path / "backup", tmp_path / "data")
    async with running(tmp_path / "data") as (server, client):
        assert server.kubeconfig_path.read_bytes() == kubeconfig  # certificates, and the address
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        said = await client.create("/apis/authentication.k8s.io/v1/tokenreviews", review)
        assert said["status"]["user"]["username"] == "system:serviceaccount:default:robot"


@pytest.mark.slow
async def test_after_a_restore_no_revision_comes_again(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as (server, client):
        kept = await create(client, "kept")
        await asyncio.to_thread(back_up, server.data_dir, tmp_path / "backup")
        lost = await create(client, "lost")
        cached = await client.get(f"{PATH}/kept")
    restored = restore(tmp_path / "backup", tmp_path / "data", now=NOW)
    assert restored.aside is not None
    async with running(tmp_path / "data") as (_, client):
        assert int((await client.get(PATH))["metadata"]["resourceVersion"]) >= restored.revision
        for since in (1, kept, lost, restored.revision - 1):
            answer = await client.ask("GET", f"{PATH}?watch=1&resourceVersion={since}")
            assert '"code":410' in answer.text
            assert '"reason":"Expired"' in answer.text
        exact = await client.ask("GET", f"{PATH}?resourceVersion={lost}&resourceVersionMatch=Exact")
        assert exact.status == 410
        cached["metadata"]["resourceVersion"] = str(lost)
        conflict = await client.ask("PUT", f"{PATH}/kept", cached)
        assert conflict.status == 409
        new = await create(client, "new")
        assert new > restored.revision > lost
    again = restore(tmp_path / "backup", tmp_path / "elsewhere", now=NOW.replace(minute=1))
    assert again.aside is None
    assert again.revision > new  # although nothing there knew of it
    backwards = restore(tmp_path / "backup", tmp_path / "data", now=NOW.replace(year=2020))  # a clock that is wrong
    assert backwards.revision > new
    async with running(restored.aside) as (_, client):
        assert await names(client) == ["kept", "lost"]


def _packed(members: Members) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def _members(archive: Path) -> Members:
    with tarfile.open(archive) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]  # all are files


def _without(name: str) -> Callable[[Members], Members]:
    return lambda members: {key: value for key, value in members.items() if key != name}


def _with(name: str, data: bytes) -> Callable[[Members], Members]:
    return lambda members: {**members, name: data}


def _said_too(name: str) -> Callable[[Members], Members]:
    """A member that the manifest knows of."""

    def spoil(members: Members) -> Members:
        manifest = msgspec.json.decode(members["manifest.json"])
        manifest["files"][name] = {
            "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "size": 0,
        }
        return {**members, "manifest.json": msgspec.json.encode(manifest), name: b""}

    return spoil


def _newer(members: Members) -> Members:
    return {**members, "manifest.json": members["manifest.json"].replace(b'"layout":1', b'"layout":2')}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A backup of a small data directory."""
    data = tmp_path / "origin"
    data.mkdir()
    whole_file(data)
    CertificateAuthority(data)
    back_up(data, tmp_path / "backup")
    return tmp_path / "backup"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_without("pki/ca.key"), "it lacks pki/ca.key"),
        (_without("manifest.json"), "is not a backup of unbounded"),
        (_newer, "has layout 2; this version of unbounded reads up to 1"),
        (_with("state.db", b"other"), "state.db has a wrong digest"),
        (_with("more", b""), "contains 'more', which does not belong in a backup"),
        (_said_too("../../outside"), "'../../outside', which does not belong"),
        (_said_too("pki/../../outside"), "which does not belong"),
        (_said_too("/outside"), "which does not belong"),
        (_said_too("lock"), "which does not belong"),
        (lambda _: {}, "is not a backup"),
    ],
)
def test_what_is_no_backup_is_refused_and_changes_nothing(
    tmp_path: Path, archive: Path, spoil: Callable[[Members], Members], words: str
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    whole_file(data)
    archive.write_bytes(_packed(spoil(_members(archive))))
    with pytest.raises(BackupFailed, match=words) as refused:
        restore(archive, data)
    assert str(archive) in str(refused.value)
    assert sorted(path.name for path in data.iterdir()) == ["lock", "state.db"]
    assert content(data) == (17, ENTRIES)


def _means_the_same(changed: bytes, good: bytes) -> bool:
    """Return whether only bits of gzip without a meaning differ: the time, the name, and unused ones."""
    try:
        return gzip.decompress(changed) == gzip.decompress(good)
    except (OSError, EOFError, zlib.error):
        return False


@pytest.mark.slow
def test_a_backup_that_has_changed_is_refused(tmp_path: Path, archive: Path) -> None:
    good = archive.read_bytes()
    chance = random.Random(11)
    spoiled = [good[: len(good) // 2], gzip.compress(b"x" * 5000), b"", b"text"]
    for _ in range(60):
        flipped = bytearray(good)
        flipped[chance.randrange(len(good))] ^= 1 << chance.randrange(8)
        if not _means_the_same(bytes(flipped), good):
            spoiled.append(bytes(flipped))
    assert len(spoiled) > 50
    for bad in spoiled:
        archive.write_bytes(bad)
        with pytest.raises(BackupFailed):
            restore(archive, tmp_path / "data")
    with pytest.raises(BackupFailed, match="does not exist"):
        restore(tmp_path / "nowhere", tmp_path / "data")
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["lock"]


@pytest.mark.slow
def test_backup_replaces_another_only_with_force(tmp_path: Path, archive: Path) -> None:
    first = archive.read_bytes()
    with pytest.raises(BackupFailed, match="exists already; choose another name, or replace it with --force"):
        back_up(tmp_path / "origin", archive)
    assert archive.read_bytes() == first
    back_up(tmp_path / "origin", archive, force=True)
    restore(archive, tmp_path / "data")


def test_damaged_data_makes_no_backup(tmp_path: Path, archive: Path) -> None:
    first = archive.read_bytes()
    path = tmp_path / "origin" / "state.db"
    path.write_bytes(path.read_bytes().replace(b"KKKKKKKK", b"KKKKkKKK", 1))
    with pytest.raises(Damaged, match=f"{path} is damaged: revision"):
        back_up(tmp_path / "origin", archive, force=True)
    assert archive.read_bytes() == first
    with pytest.raises(BackupFailed, match="has no data"):
        back_up(tmp_path / "nowhere", tmp_path / "other")


def test_a_restore_is_refused_while_a_server_has_the_data(tmp_path: Path, archive: Path) -> None:
    journal = Journal(tmp_path / "data")
    with pytest.raises(DataInUse, match=f"in use by process {os.getpid()}"):
        restore(archive, tmp_path / "data")
    journal.close()


@pytest.mark.slow
def test_a_restore_that_is_cut_off_anywhere_is_done_or_not(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sync is a moment at which the power may go; who opens the directory next completes what was decided."""

    class PowerGone(BaseException):
        pass

    fsync = os.fsync
    left = 0

    def until(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise PowerGone
        fsync(descriptor)

    new_ca = (tmp_path / "origin" / "pki" / "ca.crt").read_bytes()
    ended = []
    for moment in range(1, 200):
        data = tmp_path / f"data-{moment}"
        data.mkdir()
        Journal(data).close()
        old_ca = CertificateAuthority(data).certificate
        left = moment
        monkeypatch.setattr(os, "fsync", until)
        try:
            restore(archive, data)
        except PowerGone:
            done = False
        else:
            done = True
        monkeypatch.setattr(os, "fsync", fsync)
        if any(data.glob(".restored-*")):
            with pytest.raises(BackupFailed, match="a restore was interrupted"):
                back_up(data, tmp_path / "mixed")
        revision, entries = content(data)
        assert (entries, revision > 10**9) in (([], False), (ENTRIES, True))
        assert (data / "pki" / "ca.crt").read_bytes() == (new_ca if entries else old_ca)
        assert bool(entries) or not done
        assert not any(path.name.startswith(".") for path in data.iterdir())
        ended.append(bool(entries))
        if done:
            break
    assert ended == sorted(ended)  # from one moment on it is decided
    assert ended.count(False) > 5
    assert ended.count(True) > 5


@pytest.mark.slow
@pytest.mark.root
async def test_data_on_a_read_only_disk_can_be_backed_up(tmp_path: Path) -> None:
    async with small_disk(tmp_path / "disk") as disk:
        async with running(disk / "data") as (_, client):
            await create(client, "kept")
            shutil.copytree(disk / "data", disk / "copy")  # as a process that was killed leaves it
        assert await mounted(disk, "remount", "ro")
        await asyncio.to_thread(back_up, disk / "copy", tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "data")
    async with running(tmp_path / "data") as (_, client):
        assert await names(client) == ["kept"]
