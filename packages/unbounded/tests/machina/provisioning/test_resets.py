"""The way back over SSH: by the agent, or without one."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.machina.provisioning.local import UID, Local, at_work, install, processes_with, signalled, waits_for
from tests.support.waiting import eventually
from unbounded.machina.provisioning.model import ANOTHER_MACHINE, Finished, RunInProgress
from unbounded.machina.provisioning.remote import HostInstaller, command
from unbounded.machina.ssh.model import SshUncertain


@pytest.mark.slow
async def test_a_reset_by_the_agent(host: Local, installer: HostInstaller) -> None:
    await installer.begin(host, install("exit 0"))
    host.program(
        "unbounded-agent", 'echo "agent $*"; [ "$1" = version ] || echo reset > "$UNBOUNDED_INSTALL_DIR/../told"'
    )
    found = await installer.reset(host, "m1", UID, limit_s=60, report=lambda _: None)
    assert (found.status, found.tail) == (0, "")
    assert (host.folder / "told").read_text() == "reset\n"
    assert not host.place.exists()


async def test_a_reset_that_leaves_something_says_what(host: Local, hasty: HostInstaller) -> None:
    host.program("unbounded-agent", '[ "$1" = version ] || { echo "could not be removed: kube1: it is busy"; exit 1; }')
    told: list[str] = []
    found = await hasty.reset(host, "m1", UID, limit_s=60, report=told.append)
    assert (found.status, found.tail) == (1, "could not be removed: kube1: it is busy")


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True], ids=["kept", "its keeper killed"])
async def test_a_reset_stops_the_install_that_is_at_work(host: Local, hasty: HostInstaller, killed: bool) -> None:
    host.program("unbounded-agent", "exit 0")
    keeper = await at_work(host, hasty, waits_for(host.folder / "go"))
    if killed:
        signalled(keeper)
    assert (await hasty.reset(host, "m1", UID, limit_s=60, report=lambda _: None)).status == 0
    assert not processes_with(str(host.place))


@pytest.mark.slow
async def test_where_no_agent_runs_the_rest_is_taken_away(host: Local, installer: HostInstaller) -> None:
    root = host.folder / "root"
    (root / "etc/unbounded/agent").mkdir(parents=True)
    (root / "etc/unbounded/agent/config.json").write_text("{}")
    host.environ["UNBOUNDED_HOST_ROOT"] = str(root)
    host.program("unbounded-agent", "exit 1")
    host.program("systemctl", "exit 0")
    host.program("machinectl", "exit 1")
    assert (await installer.reset(host, "m1", UID, limit_s=60, report=lambda _: None)).status == 0
    assert not (root / "etc/unbounded").exists()


async def test_a_reset_whose_end_is_not_known(host: Local) -> None:
    installer = HostInstaller(settle_s=20)
    above = """
        [ "$1" = version ] && exit
        parent() { awk '/^PPid:/ {print $2}' /proc/$1/status; }
        limiter=$(parent $PPID)
        kill -KILL $(parent $limiter) $limiter $PPID
    """
    host.program("unbounded-agent", above)
    with pytest.raises(SshUncertain, match="killed"):
        await installer.reset(host, "m1", UID, limit_s=60, report=lambda _: None)


CONFIG = "config.json"
APPLIED = "kube2-applied-config.json"


def kept(host: Local, **files: str) -> Path:
    """Write an agent's notes about its Machine on this host, by file. Its `reset` would be noted in `told`."""
    etc = host.folder / "root/etc/unbounded/agent"
    etc.mkdir(parents=True)
    for name, machine in files.items():
        text = {"MachineName": machine, "Kubelet": {}} if name == "config" else {"goal": {"machine": machine}}
        (etc / {"config": CONFIG, "applied": APPLIED}[name]).write_text(json.dumps(text, indent=2))
    host.environ["UNBOUNDED_HOST_ROOT"] = str(host.folder / "root")
    host.program("unbounded-agent", f'[ "$1" = version ] || echo "$1" >> "{host.folder}/told"')
    return etc


@pytest.mark.slow
@pytest.mark.parametrize(
    "files",
    [{"config": "m2"}, {"applied": "m2"}, {"config": "m1", "applied": "m2"}],
    ids=["configuration", "slot", "slot of another one"],
)
@pytest.mark.parametrize("runs", [True, False], ids=["agent", "no agent"])
async def test_a_host_that_is_another_machine_stays_as_it_is(
    host: Local, installer: HostInstaller, files: dict[str, str], runs: bool
) -> None:
    etc = kept(host, **files)
    if not runs:
        host.program("unbounded-agent", "exit 1")
    await installer.begin(host, replace(install("exit 0"), uid="of-m2"))
    before = {one.name: one.read_text() for one in etc.iterdir()}
    found = await installer.reset(host, "m1", UID, limit_s=60, report=lambda _: None)
    assert (found.status, found.tail) == (ANOTHER_MACHINE, "this host is Machine m2")
    assert not (host.folder / "told").exists()
    assert {one.name: one.read_text() for one in etc.iterdir()} == before
    assert await installer.observe(host, "of-m2") == Finished(install("").attempt, 0)
    assert not list(host.place.glob("reset/*/log"))


@pytest.mark.slow
async def test_the_host_of_the_machine_itself_is_reset(host: Local, installer: HostInstaller) -> None:
    kept(host, config="m1", applied="m1")
    assert (await installer.reset(host, "m1", UID, limit_s=60, report=lambda _: None)).status == 0
    assert (host.folder / "told").read_text() == "reset\n"


@pytest.mark.slow
async def test_an_install_for_another_machine_is_not_stopped(host: Local, hasty: HostInstaller) -> None:
    kept(host, config="m1")
    go = host.folder / "go"
    await at_work(host, hasty, waits_for(go))
    found = await hasty.reset(host, "m1", "of-another-m1", limit_s=60, report=lambda _: None)
    assert found.status == 1
    assert UID in found.tail
    assert not (host.folder / "told").exists()
    go.touch()
    assert await hasty.follow(host, install(""), lambda _: None) == Finished(install("").attempt, 0)
    assert (await hasty.reset(host, "m1", "of-another-m1", limit_s=60, report=lambda _: None)).status == 0
    assert (host.folder / "told").read_text() == "reset\n"


@pytest.mark.slow
async def test_how_the_reset_for_another_machine_ended_does_not_count(host: Local, hasty: HostInstaller) -> None:
    kept(host)
    go, told = host.folder / "go", host.folder / "told"
    waits = f'while [ ! -e "{go}" ]; do sleep 0.05; done; exit 1'
    host.program(
        "unbounded-agent",
        f'[ "$1" = version ] && exit; echo "$RESET_MACHINE" >> "{told}"; [ "$RESET_MACHINE" = m1 ] || {{ {waits}; }}',
    )
    other = asyncio.create_task(hasty.reset(host, "m2", "of-m2", limit_s=60, report=lambda _: None))
    await eventually(told.exists)
    sent = len(host.sent)
    own = asyncio.create_task(hasty.reset(host, "m1", UID, limit_s=60, report=lambda _: None))
    await eventually(lambda: len(host.sent) > sent + 1)  # it follows the one that is at work
    go.touch()
    assert [(await other).status, (await own).status] == [1, 0]
    assert told.read_text() == "m2\nm1\n"


@pytest.mark.slow
async def test_a_reset_leaves_what_another_machine_has_begun_since(host: Local, hasty: HostInstaller) -> None:
    """An install that comes while the reset is at work is begun after it, and its folder stays."""
    kept(host)
    go, resetting = host.folder / "go", host.folder / "resetting"
    host.program(
        "unbounded-agent",
        f'[ "$1" = version ] || {{ touch "{resetting}"; while [ ! -e "{go}" ]; do sleep 0.05; done; }}',
    )
    reset = asyncio.create_task(hasty.reset(host, "m1", "of-m1", limit_s=60, report=lambda _: None))
    await eventually(resetting.exists)
    waits = await hasty.begin(host, install("exit 0"))
    assert isinstance(waits, RunInProgress)
    assert waits.progress.startswith("a reset has been at work on this host for ")
    go.touch()
    assert (await reset).status == 0
    go.unlink()
    await at_work(host, hasty, waits_for(go))
    await host.run(command("remove_runs.sh", "reset"), limit_s=60)
    assert isinstance(await hasty.observe(host, UID), RunInProgress)
    go.touch()
    assert await hasty.follow(host, install(""), lambda _: None) == Finished(install("").attempt, 0)
