"""From a URL to a slot: over real HTTP, with real programs that print their version or do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.agent.upgrade.making import digest_of, host_with, release_tarball, tarball, version_in_use
from tests.agent.upgrade.test_units import RecordingUnits
from tests.join.signing import ANOTHER, PUBLIC_KEY, signature
from tests.support.scripted_http import Exchange, ScriptedServer, scripted_server
from unbounded.agent.host import HostCommands
from unbounded.agent.upgrade import staging
from unbounded.agent.upgrade.health import UpgradeContext
from unbounded.agent.upgrade.releases import Colour
from unbounded.agent.upgrade.staging import ReleaseRequest, TarballLimits, stage, verify
from unbounded.agent.upgrade.trial import FailedRelease, TrialProgress
from unbounded.operations.executor_protocol import Refusal


@pytest.fixture
def ground(tmp_path: Path) -> UpgradeContext:
    paths = host_with(tmp_path / "host", "1")
    return UpgradeContext.of(paths, RecordingUnits(), paths.command)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ScriptedServer]:
    """A server of the folder `www`; /moved redirects to it, and /circle to itself."""

    async def answer(exchange: Exchange) -> None:
        path = exchange.target.partition("?")[0]
        if path == "/circle":
            await exchange.answer(302, b"", Location=exchange.target)
        elif path.startswith("/moved/"):
            await exchange.answer(302, b"", Location=path.removeprefix("/moved"))
        elif (file := tmp_path / "www" / path.lstrip("/")).is_file():
            await exchange.answer(200, file.read_bytes())
        else:
            await exchange.answer(404, b"")

    (tmp_path / "www").mkdir()
    async with scripted_server(answer) as running:
        yield running


def _wish(server: ScriptedServer, name: str = "a.tar.gz") -> ReleaseRequest:
    return ReleaseRequest(url=f"{server.url}/{name}", operation="up", uid="u1", plain=True, window_s=7)


def _tell(_done: int, _total: int | None) -> None:
    pass


def _nothing_changed(ground: UpgradeContext) -> None:
    assert version_in_use(ground.paths) == "1"
    assert [path.name for path in ground.paths.releases.iterdir()] == ["blue"]
    assert list(ground.paths.cache.iterdir()) == []
    assert ground.store.read() is None


async def test_a_release_is_staged_and_says_its_version(
    tmp_path: Path, ground: UpgradeContext, server: ScriptedServer
) -> None:
    archive = release_tarball(tmp_path / "www" / "a.tar.gz", "2")
    trial = await stage(ground, replace(_wish(server), sha256=digest_of(archive)), _tell)
    assert (trial.progress, trial.release, trial.former) == (TrialProgress.STAGED, Colour.GREEN, Colour.BLUE)
    assert ground.store.read() == trial
    verified = await verify(ground, HostCommands(), trial)
    assert (verified.version, verified.progress) == ("2", TrialProgress.VERIFIED)
    assert verified.sha256 == digest_of(archive)
    assert ground.releases.about(Colour.GREEN).version == "2"
    assert version_in_use(ground.paths) == "1"
    assert list(ground.paths.cache.iterdir()) == []


async def test_a_redirect_is_followed(tmp_path: Path, ground: UpgradeContext, server: ScriptedServer) -> None:
    release_tarball(tmp_path / "www" / "a.tar.gz", "2")
    trial = await stage(ground, _wish(server, "moved/a.tar.gz"), _tell)
    assert trial.sha256 == digest_of(tmp_path / "www" / "a.tar.gz")
    assert (await verify(ground, HostCommands(), trial)).version == "2"


async def test_redirects_in_a_circle_end(ground: UpgradeContext, server: ScriptedServer) -> None:
    with pytest.raises(Refusal, match="10 redirects") as refused:
        await stage(ground, _wish(server, "circle"), _tell)
    assert refused.value.reason == "DownloadFailed"
    _nothing_changed(ground)


async def test_what_is_not_there_is_a_failed_download(ground: UpgradeContext, server: ScriptedServer) -> None:
    with pytest.raises(Refusal, match="404") as refused:
        await stage(ground, _wish(server, "a.tar.gz?signature=hidden"), _tell)
    assert refused.value.reason == "DownloadFailed"
    assert "hidden" not in str(refused.value)
    _nothing_changed(ground)


async def test_with_a_key_a_release_has_to_be_signed_by_it(
    tmp_path: Path, ground: UpgradeContext, server: ScriptedServer
) -> None:
    archive = release_tarball(tmp_path / "www" / "a.tar.gz", "2")
    wish, beside = replace(_wish(server), public_key=PUBLIC_KEY), tmp_path / "www" / "a.tar.gz.sig"
    content = archive.read_bytes()
    for wrong in (None, signature(content, ANOTHER), signature(b"other"), b"", b"x" * 5000):
        if wrong is not None:
            beside.write_bytes(wrong)
        with pytest.raises(Refusal, match=r"signature.*Upgrade\.PublicKey in the agent's configuration") as refused:
            await stage(ground, wish, _tell)
        assert refused.value.reason == "UnusableRelease"
        _nothing_changed(ground)
    beside.write_bytes(signature(content))
    trial = await stage(ground, wish, _tell)
    assert trial.sha256 == digest_of(archive)
    assert list(ground.paths.cache.iterdir()) == []


async def test_plain_http_is_refused_even_nearby_unless_it_is_allowed(
    ground: UpgradeContext, server: ScriptedServer
) -> None:
    with pytest.raises(Refusal, match="plain http") as refused:
        await stage(ground, replace(_wish(server), plain=False), _tell)
    assert refused.value.reason == "DownloadFailed"
    assert server.exchanges == []


async def test_another_digest_is_a_failed_download(
    tmp_path: Path, ground: UpgradeContext, server: ScriptedServer
) -> None:
    release_tarball(tmp_path / "www" / "a.tar.gz", "2")
    with pytest.raises(Refusal) as refused:
        await stage(ground, replace(_wish(server), sha256="ab" * 32), _tell)
    assert refused.value.reason == "DownloadFailed"
    _nothing_changed(ground)


async def test_an_archive_that_is_too_large_is_a_failed_download(
    tmp_path: Path, ground: UpgradeContext, server: ScriptedServer
) -> None:
    release_tarball(tmp_path / "www" / "a.tar.gz", "2")
    with pytest.raises(Refusal, match="exceed the limit of 100") as refused:
        await stage(ground, _wish(server), _tell, limits=TarballLimits(archive=100))
    assert refused.value.reason == "DownloadFailed"
    _nothing_changed(ground)


async def test_what_is_no_release_is_unusable(tmp_path: Path, ground: UpgradeContext, server: ScriptedServer) -> None:
    tarball(tmp_path / "www" / "a.tar.gz", ("unbounded-agent/../../up", b"x", 0o755))
    with pytest.raises(Refusal, match="leads out of the tree") as refused:
        await stage(ground, _wish(server), _tell)
    assert refused.value.reason == "UnusableRelease"
    _nothing_changed(ground)


@pytest.mark.parametrize("known", [True, False], ids=["named", "found-out"])
async def test_a_digest_that_failed_here_is_refused(
    tmp_path: Path, ground: UpgradeContext, server: ScriptedServer, known: bool
) -> None:
    archive = release_tarball(tmp_path / "www" / "a.tar.gz", "2")
    ground.store.add_failed(digest_of(archive), FailedRelease(version="2", cause="it hung"))
    wish = replace(_wish(server), sha256=digest_of(archive) if known else "")
    with pytest.raises(Refusal, match="it hung") as refused:
        await stage(ground, wish, _tell)
    assert refused.value.reason == "FailedBefore"
    assert len(server.exchanges) == (0 if known else 1), "what is known to be bad is not fetched"
    assert (await stage(ground, replace(wish, retry_failed=True), _tell)).progress is TrialProgress.STAGED


PROGRAMS = {
    "exits": ("echo broken pipe >&2; exit 4", "status 4: broken pipe"),
    "says-nothing": ("exit 0", "printed ''"),
    "is-another": ("echo GNU bash, version 5", "is not a version"),
    "hangs": ("sleep 60", "not complete within 1 s"),
}


@pytest.mark.parametrize("how", list(PROGRAMS))
async def test_a_release_that_does_not_say_its_version_is_removed_and_remembered(
    tmp_path: Path, ground: UpgradeContext, server: ScriptedServer, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, words = PROGRAMS[how]
    monkeypatch.setattr(staging, "VERSION_LIMIT_S", 1.0)
    archive = release_tarball(tmp_path / "www" / "a.tar.gz", "2", text=text)
    trial = await stage(ground, _wish(server), _tell)
    with pytest.raises(Refusal, match=words) as refused:
        await verify(ground, HostCommands(), trial)
    assert refused.value.reason == "PreflightFailed"
    assert digest_of(archive) in ground.store.failed()
    _nothing_changed(ground)


async def test_failed_digests_of_a_later_agent_do_not_hide_the_failure(
    tmp_path: Path, ground: UpgradeContext, server: ScriptedServer
) -> None:
    ground.paths.etc.mkdir(parents=True)
    ground.paths.failed_digests.write_text('{"format": 9}')
    release_tarball(tmp_path / "www" / "a.tar.gz", "2", text="exit 4")
    trial = await stage(ground, _wish(server), _tell)
    with pytest.raises(Refusal, match="status 4") as refused:
        await verify(ground, HostCommands(), trial)
    assert refused.value.reason == "PreflightFailed"
    assert ground.paths.failed_digests.read_text() == '{"format": 9}'
    _nothing_changed(ground)


async def test_what_cannot_be_executed_at_all_is_a_failed_preflight(
    tmp_path: Path, ground: UpgradeContext, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_BUSY_S", 0.0)
    tarball(tmp_path / "www" / "a.tar.gz", ("unbounded-agent", b"\x7fELF is not all of it", 0o755))
    trial = await stage(ground, _wish(server), _tell)
    with pytest.raises(Refusal, match="Exec format error") as refused:
        await verify(ground, HostCommands(), trial)
    assert refused.value.reason == "PreflightFailed"
    _nothing_changed(ground)


async def test_cancelled_staging_leaves_no_files(tmp_path: Path, ground: UpgradeContext) -> None:
    asked = asyncio.Event()

    async def silent(exchange: Exchange) -> None:
        asked.set()
        await exchange.left()

    async with scripted_server(silent) as server:
        staging_task = asyncio.create_task(stage(ground, _wish(server), _tell))
        await asked.wait()
        staging_task.cancel()
        await asyncio.wait({staging_task})
    assert staging_task.cancelled()
    _nothing_changed(ground)


@pytest.mark.parametrize(
    ("done", "total", "words"),
    [(0, None, "0 MiB"), (12 << 20, 40 << 20, "12 of 40 MiB"), (5 << 20, None, "5 MiB")],
    ids=["nothing", "known", "unknown"],
)
def test_staging_progress_is_shown_in_mib(done: int, total: int | None, words: str) -> None:
    shown: Callable[[int, int | None], str] = staging.shown_progress
    assert shown(done, total) == words
