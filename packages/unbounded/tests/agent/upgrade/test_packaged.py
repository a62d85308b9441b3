"""AgentUpgrade with the packaged agent on hosts with a real systemd, requested with kubectl."""

from __future__ import annotations

import asyncio
import io
import random
import tarfile
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.agent.upgrade.packaged import (
    CRASHES,
    CRASHES_SLOWLY,
    DEAF,
    HANGS,
    WINDOW_S,
    UpgradeHost,
    publish,
    publish_script,
)
from tests.join.signing import ANOTHER, KEY, PUBLIC_KEY, pem_of, signature
from tests.support.agent_release import AgentRelease, agent_release
from tests.support.hosts import AgentTools, booted
from tests.support.hosts.mirror import Mirror
from tests.support.hosts.plane import ControlPlane
from tests.support.qemu import Segment
from unbounded.api.machine import MACHINES
from unbounded.join.release_key import fingerprint

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(600)]
HOSTS = 3
CUTS = 17  # of each host


@pytest.fixture(scope="module")
def release(hosts: AgentTools) -> AgentRelease:
    return agent_release()


@pytest.fixture
async def agents(
    hosts: AgentTools,
    lan: Segment,
    disks: Path,
    plane: ControlPlane,
    mirror: Mirror,
    release: AgentRelease,
    request: pytest.FixtureRequest,
) -> AsyncIterator[list[UpgradeHost]]:
    """Hosts whose agents run; they share a control plane. The parameter is their health window, 0 for the default."""
    window_s = getattr(request, "param", WINDOW_S)
    async with AsyncExitStack() as stack:
        made = []
        for number in range(HOSTS):
            name = f"upgrade{number}-{random.randrange(10**6)}"
            up = await stack.enter_async_context(booted(hosts, lan, disks, name, f"10.88.0.{41 + number}"))
            made.append(UpgradeHost(up, plane, mirror, name))
        await asyncio.gather(*(one.install(release, window_s=window_s) for one in made))
        try:
            yield made
        except BaseException as error:
            for one in made:
                error.add_note(f"{one.machine}\n{await one.note()}")
            raise


def _ends(status: dict[str, Any]) -> tuple[str, str]:
    return status["phase"], status["reason"]


def _escaping() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        info = tarfile.TarInfo("unbounded-agent/../../../etc/escaped")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    return out.getvalue()


async def test_a_key_that_is_published_reaches_an_agent_that_joined_without(
    hosts: AgentTools,
    lan: Segment,
    disks: Path,
    plane: ControlPlane,
    mirror: Mirror,
    release: AgentRelease,
    tmp_path: Path,
) -> None:
    path = publish(mirror, release, tmp_path, "7.1.0")
    content = (tmp_path / "7.1.0" / "unbounded-agent-linux-amd64.tar.gz").read_bytes()
    name = f"keyed-{random.randrange(10**6)}"
    kept = "/etc/unbounded/agent/config.json"
    async with booted(hosts, lan, disks, name, "10.88.0.51") as up:
        agent = UpgradeHost(up, plane, mirror, name)
        await agent.install(release)
        assert "PublicKey" not in up.outside(kept).read_text()
        key = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"publicKey": pem_of(KEY)}}
        await plane.apply(key | {"metadata": {"name": "unbounded-releases", "namespace": "unbounded-kube"}})
        unsigned = await agent.upgraded(path)
        assert _ends(unsigned) == ("Failed", "UnusableRelease")
        assert "has no signature" in unsigned["message"]
        assert PUBLIC_KEY in up.outside(kept).read_text()
        await plane.kubectl("delete", "configmap", "unbounded-releases", "-n", "unbounded-kube")
        mirror.add(f"{path}.sig", signature(content, ANOTHER))
        wrong = await agent.upgraded(path)
        assert _ends(wrong) == ("Failed", "UnusableRelease")
        assert "by another key" in wrong["message"]
        mirror.add(f"{path}.sig", signature(content))
        assert (await agent.upgraded(path))["phase"] == "Complete"
        await agent.runs("7.1.0")
        machine = await plane.wait(MACHINES, name, _says_key, within_s=60)  # the new version reports it when it starts
        (said,) = (one for one in machine["status"]["conditions"] if one["type"] == "ReleaseKeyCurrent")
        assert fingerprint(PUBLIC_KEY) in said["message"]
        assert said["message"].endswith("the cluster publishes none, and the host keeps its own")


def _says_key(machine: dict[str, Any]) -> bool:
    return any(one["type"] == "ReleaseKeyCurrent" for one in machine.get("status", {}).get("conditions", ()))


@pytest.mark.soak  # the chain of tests/agent/e2e has upgrades there and back, and one of each kind that fails
async def test_every_upgrade_ends_with_an_agent_that_works(
    agents: list[UpgradeHost], mirror: Mirror, release: AgentRelease, tmp_path: Path
) -> None:
    paths = {
        "better": publish(mirror, release, tmp_path, "7.0.0"),
        "mute": publish_script(mirror, tmp_path, "8.0.1", daemon="exit 0", says="exit 3"),
        "crashes": publish_script(mirror, tmp_path, "8.0.2", daemon=CRASHES),
        "slow": publish_script(mirror, tmp_path, "8.0.3", daemon=CRASHES_SLOWLY),
        "hangs": publish_script(mirror, tmp_path, "8.0.4", daemon=HANGS),
        "deaf": publish(mirror, release, tmp_path, "8.0.5", on_daemon=DEAF),
    }
    mirror.add("/escaping.tar.gz", _escaping())
    mirror.add("/as-before.tar.gz", release.archive)
    one, two, three = agents
    await _at_once(
        _there_and_back(one, paths, release),
        _before_the_switch(two, paths, release),
        _taken_back(three, paths["deaf"], "cannot use the API server", release),
    )
    await _at_once(
        _taken_back(one, paths["slow"], "it was killed by SIGKILL", release),
        _taken_back(two, paths["hangs"], "it was not proven in time", release),
        _taken_back(three, paths["crashes"], "it ended with status 1; it wrote last: this release crashes", release),
    )
    refused = await three.upgraded(paths["crashes"])
    assert _ends(refused) == ("Failed", "FailedBefore")
    assert "retryFailedDigest" in refused["message"]
    again = await three.upgraded(paths["crashes"], retryFailedDigest="true")
    assert _ends(again) == ("Failed", "DaemonFailed")


async def _at_once(*stories: Awaitable[None]) -> None:
    await asyncio.gather(*stories)


async def _there_and_back(agent: UpgradeHost, paths: dict[str, str], release: AgentRelease) -> None:
    """Old, new, the new one once more, and old again."""
    better = (paths["better"], "7.0.0")
    for path, version in (better, better, ("/as-before.tar.gz", release.version)):
        status = await agent.upgraded(path)
        assert _ends(status) == ("Complete", "Succeeded"), status
        assert f"unbounded-agent {version} runs" in status["message"]
        assert {"the new version runs as the daemon", "the new version stayed healthy for its window"} <= {
            one["what"] for one in status["evidence"]
        }
        await agent.runs(version)
        await agent.said(version)


async def _before_the_switch(agent: UpgradeHost, paths: dict[str, str], release: AgentRelease) -> None:
    before = agent.selection
    for path, sha256, reason in (
        ("/nothing-here.tar.gz", "", "DownloadFailed"),
        (paths["better"], "ab" * 32, "DownloadFailed"),
        ("/escaping.tar.gz", "", "UnusableRelease"),
        (paths["mute"], "", "PreflightFailed"),
        (paths["mute"], "", "FailedBefore"),
    ):
        status = await agent.upgraded(path, sha256=sha256)
        assert _ends(status) == ("Failed", reason), status
    assert agent.selection == before
    assert not agent.host.exists("/etc/escaped")
    await agent.runs(release.version)


async def _taken_back(agent: UpgradeHost, path: str, words: str, release: AgentRelease) -> None:
    status = await agent.upgraded(path, within_s=180)
    assert _ends(status) == ("Failed", "DaemonFailed"), status
    assert words in status["message"]
    await agent.runs(release.version)


@pytest.mark.soak  # tests/agent/e2e has some for every run, of releases that work
@pytest.mark.timeout(3600)
async def test_power_that_is_cut_during_an_upgrade_leaves_an_agent_that_works(
    agents: list[UpgradeHost], mirror: Mirror, release: AgentRelease, tmp_path: Path
) -> None:
    """On each of the hosts, so many times, at random points; half of the releases are no good."""
    good = {"7.1.0": publish(mirror, release, tmp_path, "7.1.0")}
    good[release.version] = mirror.add("/as-before.tar.gz", release.archive).removeprefix(mirror.base)
    bad = publish_script(mirror, tmp_path, "8.1.0", daemon=CRASHES)
    await _at_once(*(_cut(agent, CUTS, good, bad, release) for agent in agents))


async def _cut(agent: UpgradeHost, cuts: int, good: dict[str, str], bad: str, release: AgentRelease) -> None:
    running = release.version
    for number in range(cuts):
        wanted = random.choice([*(version for version in good if version != running), "8.1.0"])
        name = await agent.ask(good.get(wanted, bad), retryFailedDigest="true")
        after_s = random.uniform(0.0, 12.0)
        await asyncio.sleep(after_s)
        agent.host.cut()
        await agent.host.up()
        status = (await agent.plane.ended(name, within_s=240))["status"]
        running = wanted if status["phase"] == "Complete" else running
        print(f"{agent.machine}: cut {number} after {after_s:.1f} s to {wanted}: {_ends(status)}")
        assert running != "8.1.0", status
        if status["phase"] == "Failed":  # a good one as well, when the host takes too long to be back
            assert status["reason"] == "DaemonFailed", status
        await agent.runs(running, within_s=60)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("agents", [0], indirect=True, ids=["window-of-90-s"])
async def test_the_defaults_keep_their_times(
    agents: list[UpgradeHost], mirror: Mirror, release: AgentRelease, tmp_path: Path
) -> None:
    better = publish(mirror, release, tmp_path, "7.2.0")
    crashes = publish_script(mirror, tmp_path, "8.2.0", daemon=CRASHES)
    hangs = publish_script(mirror, tmp_path, "8.2.1", daemon=HANGS)

    async def timed(agent: UpgradeHost, path: str) -> tuple[dict[str, Any], float]:
        begun = time.monotonic()
        return await agent.upgraded(path, within_s=400), time.monotonic() - begun

    (good, good_s), (crashed, crashed_s), (hung, hung_s) = await asyncio.gather(
        *(timed(agent, path) for agent, path in zip(agents, (better, crashes, hangs), strict=True))
    )
    assert _ends(good) == ("Complete", "Succeeded"), good
    assert _ends(crashed) == _ends(hung) == ("Failed", "DaemonFailed"), (crashed, hung)
    print(f"proven after {good_s:.0f} s, a crash loop taken back after {crashed_s:.0f} s, a hang after {hung_s:.0f} s")
    assert good_s >= 90
    assert crashed_s < 90
    assert hung_s < 240
