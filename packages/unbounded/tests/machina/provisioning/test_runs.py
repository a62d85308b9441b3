"""Runs of the install script, by this machine's own shells: their begin, their reports, and their traces."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
from dataclasses import replace

import pytest

from tests.machina.provisioning.local import (
    ATTEMPT,
    TOKEN,
    UID,
    Local,
    at_work,
    children,
    holders,
    install,
    processes_with,
    signalled,
    waits_for,
)
from tests.support.waiting import eventually
from unbounded.agent.operations.host_reboot import host_boot_id
from unbounded.agent.paths import HostPaths
from unbounded.machina.provisioning.model import Finished, HostRefuses, Interrupted, NoRun, RunInProgress, failure_text
from unbounded.machina.provisioning.remote import HostInstaller

OTHER = "f" * 16
SECRETS = ("config.json", "environment", "install.sh", "run.sh")


async def test_a_host_of_which_nothing_is_known(host: Local, installer: HostInstaller) -> None:
    assert await installer.observe(host, UID) == NoRun()
    assert not host.place.exists()


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "busybox", "zsh", "fish", "tcsh"])
async def test_a_run_that_works_leaves_how_it_ended(host: Local, installer: HostInstaller, shell: str) -> None:
    if shutil.which(shell) is None:
        if shell in {"sh", "bash", "dash"}:
            pytest.fail(f"there is no {shell}")
        return
    host.shell = shell
    if shell == "busybox":
        host.shell, host.before = "sh", (shutil.which("busybox") or shell,)
    nasty = "'\"$(id)`id`\\ \n!#;&|*?\té"
    told = host.folder / "told"
    script = f'printf %s "$AGENT_URL" > "{told}"; cat "$UNBOUNDED_AGENT_CONFIG_FILE"; exit 0'
    begun = install(script, AGENT_URL=nasty)
    assert await installer.begin(host, begun) == Finished(ATTEMPT, 0)
    assert told.read_bytes() == nasty.encode()
    assert {one.name for one in host.run_folder.iterdir()} == {"exit", "lock", "started"}
    assert await installer.observe(host, UID) == Finished(ATTEMPT, 0)
    before = len(host.sent)
    await installer.clear(host, UID)
    assert len(host.sent) == before  # there is nothing to take away
    await installer.clear(host, UID)
    assert await installer.observe(host, UID) == Finished(ATTEMPT, 0)


@pytest.mark.slow
async def test_what_lies_there_is_roots_alone_and_nothing_shows_the_token(host: Local, hasty: HostInstaller) -> None:
    go = host.folder / "go"
    await at_work(host, hasty, waits_for(go))
    for path in host.place.rglob("*"):
        assert not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO), path
    assert TOKEN in (host.run_folder / "config.json").read_text()
    assert not processes_with(TOKEN)
    assert not any(TOKEN in command for command in host.sent)
    go.touch()
    assert await hasty.follow(host, install(""), lambda _: None) == Finished(ATTEMPT, 0)
    held = [path for path in host.folder.rglob("*") if path.is_file() and TOKEN in path.read_text(errors="replace")]
    assert held == []


@pytest.mark.slow
async def test_one_that_is_at_work_is_followed_and_no_second_one_begun(host: Local, hasty: HostInstaller) -> None:
    go, twice = host.folder / "go", host.folder / "twice"
    await at_work(host, hasty, waits_for(go, "echo 'the end'; exit 3"))
    second = install(f"touch '{twice}'", attempt=OTHER)
    found = await hasty.begin(host, second)
    again = await hasty.begin(host, install(f"touch '{twice}'"))
    for one in (found, again):
        assert isinstance(one, RunInProgress)
        assert (one.attempt, one.progress) == (ATTEMPT, "waiting")
    told: list[str] = []

    def tell(words: str) -> None:
        told.append(words)
        go.touch()

    assert await hasty.follow(host, install(""), tell) == Finished(ATTEMPT, 3, "waiting\nwent on\nthe end")
    assert told[0] == "waiting"
    assert not twice.exists()
    assert await hasty.begin(host, install(f"touch '{twice}'")) == Finished(ATTEMPT, 3, "waiting\nwent on\nthe end")
    assert not twice.exists()  # of this name it has been
    installer = HostInstaller(settle_s=20)
    assert await installer.begin(host, second) == Finished(OTHER, 0)
    assert twice.exists()
    assert [one.name for one in (host.place / UID).iterdir() if one.name != "turn"] == [f"run-{OTHER}"]


@pytest.mark.slow
async def test_a_run_for_another_machine_is_waited_for(host: Local, hasty: HostInstaller) -> None:
    """Such as for one of the same name that was deleted: two installs at once would make one node."""
    go, begun = host.folder / "go", host.folder / "begun"
    await at_work(host, hasty, waits_for(go, "exit 3"))
    own = replace(install(f"touch '{begun}'", attempt=OTHER), uid="of-another")
    assert await hasty.observe(host, own.uid) == NoRun()
    found = await hasty.begin(host, own)
    assert isinstance(found, RunInProgress)
    assert (found.attempt, begun.exists()) == (ATTEMPT, False)
    whose = f"an installation for another Machine (UID {UID}) has been at work on this host for "
    assert found.progress.startswith(whose)
    told: list[str] = []

    def tell(words: str) -> None:
        told.append(words)
        go.touch()

    assert await hasty.follow(host, own, tell) == NoRun()
    assert all(one.startswith(whose) for one in told)
    assert not begun.exists()
    assert await HostInstaller(settle_s=20).begin(host, own) == Finished(OTHER, 0)
    assert begun.exists()
    assert await hasty.observe(host, UID) == Finished(ATTEMPT, 3, "waiting\nwent on")


@pytest.mark.slow
async def test_an_earlier_run_is_waited_for(host: Local, hasty: HostInstaller) -> None:
    go = host.folder / "go"
    await at_work(host, hasty, waits_for(go, "exit 4"))
    told: list[str] = []

    def tell(words: str) -> None:
        told.append(words)
        go.touch()

    assert await hasty.follow(host, install("", attempt=OTHER), tell) == Finished(ATTEMPT, 4, "waiting\nwent on")
    assert told[0] == "waiting"
    assert len(host.sent) == 2  # one command waits for its end
    assert await hasty.follow(host, install("", attempt=OTHER), tell) == Finished(ATTEMPT, 4, "waiting\nwent on")


@pytest.mark.slow
async def test_many_begin_at_once_and_one_runs(host: Local, hasty: HostInstaller) -> None:
    go, count = host.folder / "go", host.folder / "count"
    script = f"echo x >> '{count}'\n" + waits_for(go)
    attempts = [f"{number:016x}" for number in range(6)]
    found = await asyncio.gather(*(hasty.begin(host, install(script, attempt=one)) for one in attempts))
    names = {one.attempt for one in found if isinstance(one, RunInProgress)}
    assert len(found) == 6
    assert len(names) == 1
    go.touch()
    begun = install(script, attempt=names.pop())
    assert isinstance(await hasty.follow(host, begun, lambda _: None), Finished)
    assert count.read_text() == "x\n"


@pytest.mark.slow
async def test_install_log_is_truncated_to_its_end(host: Local, installer: HostInstaller) -> None:
    script = """
        head -c 300000 /dev/urandom
        head -c 700000 /dev/zero | tr '\\0' x
        echo
        for ((i = 0; i < 3000; i++)); do echo "line $i of many, with words to make it longer"; done
        printf 'bytes \\xff\\xfe and \\e[31mred\\e[0m\\r\\n'
        echo "token abcdef.0123456789abcdef" "https://me:pw@h/x?sig=1" >&2
        printf 'error: no end of line'
        exit 1
    """
    found = await installer.begin(host, install(script))
    if isinstance(found, RunInProgress):
        found = await installer.follow(host, install(""), lambda _: None)
    assert isinstance(found, Finished)
    assert found.status == 1
    lines = found.tail.splitlines()
    assert lines[-4] == "line 2999 of many, with words to make it longer"
    assert lines[-3] == "bytes \ufffd\ufffd and red"
    assert lines[-2:] == ["token [hidden] https://h/x", "error: no end of line"]
    assert lines[0].startswith("line ")  # whole
    assert 15_000 < len(found.tail.encode()) <= 16_384
    assert sum(path.stat().st_size for path in host.run_folder.iterdir()) < 1_200_000
    assert failure_text(found) == "the install script ended with status 1: error: no end of line"
    await installer.clear(host, UID)
    assert await installer.observe(host, UID) == Finished(ATTEMPT, 1)
    assert not [path for path in host.run_folder.iterdir() if path.name.startswith("log")]


@pytest.mark.slow
async def test_the_host_stops_what_does_not_end(host: Local) -> None:
    installer = HostInstaller(limit_s=1, settle_s=20)
    found = await installer.begin(host, install("echo first; echo then; sleep 1000"))
    assert found == Finished(ATTEMPT, 124, "first\nthen")
    assert failure_text(found) == "the install script exceeded its time limit and was stopped: then"


@pytest.mark.slow
async def test_output_held_open_by_a_daemon_does_not_delay_the_end(host: Local, installer: HostInstaller) -> None:
    """Such as a daemon that the script has started."""
    script = f"exec 8>&-; setsid sleep 300 & echo $! > '{host.folder}/daemon'; exit 0"
    try:
        found = await installer.begin(host, install(script))
        assert found == Finished(ATTEMPT, 0)
    finally:
        signalled(int((host.folder / "daemon").read_text()))


# Faults


@pytest.mark.slow
async def test_run_with_killed_wrapper_is_in_progress_while_its_script_runs(host: Local, hasty: HostInstaller) -> None:
    go = host.folder / "go"
    keeper = await at_work(host, hasty, waits_for(go))
    signalled(keeper)
    assert isinstance(await hasty.observe(host, UID), RunInProgress)
    assert isinstance(await hasty.begin(host, install("", attempt=OTHER)), RunInProgress)
    go.touch()
    assert await hasty.follow(host, install(""), lambda _: None) == Interrupted(
        ATTEMPT, "its process was killed before it ended"
    )
    assert not [name for name in SECRETS if (host.run_folder / name).exists()]
    assert await HostInstaller(settle_s=20).begin(host, install("")) == Finished(
        ATTEMPT, 0
    )  # the same request once more


@pytest.mark.slow
async def test_what_a_killed_run_has_left_behind_holds_nothing_up_for_ever(host: Local, hasty: HostInstaller) -> None:
    """Such as a daemon that has its lock open, long after it could have ended."""
    await at_work(host, hasty, waits_for(host.folder / "go"))
    boot, up, _ = (host.run_folder / "started").read_text().split()
    assert isinstance(await hasty.observe(host, UID), RunInProgress)
    (host.run_folder / "started").write_text(f"{boot} {int(up) - 2000} 1800\n")
    assert isinstance(await hasty.observe(host, UID), Interrupted)
    for process in reversed(holders(host)):
        signalled(process)


@pytest.mark.slow
async def test_one_that_was_killed_as_a_whole(host: Local, hasty: HostInstaller) -> None:
    keeper = await at_work(host, hasty, waits_for(host.folder / "go"))
    for process in reversed(children(keeper)):
        signalled(process)
    await eventually(lambda: not processes_with(str(host.run_folder)))
    assert TOKEN in (host.run_folder / "config.json").read_text()
    found = await hasty.observe(host, UID)
    assert found == Interrupted(ATTEMPT, "its process was killed before it ended")
    assert not [name for name in SECRETS if (host.run_folder / name).exists()]


async def test_one_whose_host_was_restarted(host: Local, hasty: HostInstaller) -> None:
    keeper = await at_work(host, hasty, waits_for(host.folder / "go"))
    for process in reversed(children(keeper)):
        signalled(process)
    await eventually(lambda: not processes_with(str(host.run_folder)))
    (host.run_folder / "started").write_text("0f5e7b10-9f5c-4c44-8a5e-2d8a9f5e7b10 12 34\n")
    assert await hasty.observe(host, UID) == Interrupted(ATTEMPT, "the host restarted before it ended")


@pytest.mark.slow
async def test_terminated_run_stops_its_script_and_is_interrupted(host: Local, hasty: HostInstaller) -> None:
    stopped = host.folder / "stopped"
    script = f"trap 'touch \"{stopped}\"; exit 5' TERM; {waits_for(host.folder / 'go')}"
    keeper = await at_work(host, hasty, script)
    signalled(keeper, signal.SIGTERM)
    found = await hasty.follow(host, install(""), lambda _: None)
    assert isinstance(found, Interrupted)
    assert stopped.exists()
    assert not [name for name in SECRETS if (host.run_folder / name).exists()]


@pytest.mark.slow
async def test_the_end_of_a_session_is_not_the_end_of_the_run(host: Local, hasty: HostInstaller) -> None:
    go = host.folder / "go"
    await at_work(host, hasty, waits_for(go))
    following = asyncio.create_task(hasty.follow(host, install(""), lambda _: None))
    await eventually(lambda: len(host.sent) > 1)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert isinstance(await hasty.observe(host, UID), RunInProgress)
    go.touch()
    assert await hasty.follow(host, install(""), lambda _: None) == Finished(ATTEMPT, 0)


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.0, 0.3, 0.9, 1.0], ids=["nothing", "first", "most", "but the last"])
async def test_an_upload_that_is_cut_off_starts_nothing_and_leaves_nothing(
    host: Local, installer: HostInstaller, part: float
) -> None:
    begun = install(f"touch '{host.folder}/ran'\n# {'x' * 3000}")
    host.upload = lambda sent: sent[: int(sent.find(b"whole\0") * part)]
    with pytest.raises(HostRefuses):
        await installer.begin(host, begun)
    assert [one.name for one in (host.place / UID).iterdir()] == []
    assert await installer.observe(host, UID) == NoRun()
    host.upload = lambda sent: sent
    assert await installer.begin(host, begun) == Finished(ATTEMPT, 0)


@pytest.mark.slow
async def test_what_an_upload_left_that_was_killed_goes_with_the_next(host: Local, installer: HostInstaller) -> None:
    """Also where the host has booted since, and another process has the number of the shell that was killed."""
    ours, boot = os.getpid(), host_boot_id(HostPaths())
    names = (f"new-4194399-{boot}", f"new-{ours}", f"new-{ours}-of-another-boot")
    left = [host.place / UID / name for name in names]
    coming = host.place / UID / f"new-{ours}-{boot}"
    coming.mkdir(parents=True)
    for one in left:
        one.mkdir()
        (one / "config.json").write_text(TOKEN)
    await installer.begin(host, install("exit 0"))
    assert not any(one.exists() for one in left)
    for one in left:
        one.mkdir()
    await HostInstaller().clear(host, UID)
    assert not any(one.exists() for one in left)
    assert coming.exists()


@pytest.mark.slow
async def test_clearing_leaves_alone_what_is_at_work(host: Local, hasty: HostInstaller) -> None:
    go = host.folder / "go"
    await at_work(host, hasty, waits_for(go))
    await hasty.clear(host, UID)
    assert (host.run_folder / "config.json").exists()
    go.touch()
    assert await hasty.follow(host, install(""), lambda _: None) == Finished(ATTEMPT, 0)
