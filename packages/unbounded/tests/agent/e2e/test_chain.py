"""A host becomes a node, and stays one, by the commands of docs/agent.md in their order.

Between them the operations run that the guide only mentions. The test checks the promises on the host and in the
cluster.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import pytest

from tests.agent.e2e.conftest import HostOf
from tests.agent.e2e.guided import VERSION, HostShell, host_shell, newer
from tests.agent.e2e.in_force import NAME, OWN, are_in_force, configuration
from tests.agent.upgrade.making import tarball
from tests.agent.upgrade.packaged import CRASHES, HANGS, publish_script
from tests.docs.runner import DOCS, Stage, follow
from tests.support.agent_release import AgentRelease, release_like
from tests.support.hosts import until
from tests.support.hosts.agent import COMMAND, CONFIG, AgentHost
from unbounded.agent.paths import DAEMON_UNIT
from unbounded.api.core import LEASES, NODES
from unbounded.api.machine import MACHINES

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(600, func_only=True)]
GUIDE: Final = DOCS / "agent.md"
M: Final = "worker-01"
TOKEN: Final = "abcdef.0123456789abcdef"
START: Final = "unbounded-agent start --config agent.json"
T = TypeVar("T")


async def test_a_host_becomes_a_node_and_stays_one_as_its_guide_says(
    agent_host: HostOf, release: AgentRelease, tmp_path: Path
) -> None:
    async with agent_host(M, 11) as agent:
        before = await _survey(agent)
        await _has_what_the_guide_takes_for_granted(agent, release)
        better = release_like(release, tmp_path / VERSION, version=VERSION)
        tolerant = {
            f"{one} --config agent.json": f"{one} --config agent.json --ignore-preflight-errors cgroups"
            for one in ("start", "preflight")
        }
        shell = host_shell(agent, tmp_path / "home", newer(agent, better) | tolerant)
        said = await _timed("the guide", follow(GUIDE, shell, Chain(agent, release, shell, tmp_path).stages()))
        for promised in (f"unbounded-agent {release.version}", "kube1", f"Node {M}"):
            assert promised in said, promised
        await _is_reset(agent, before)


async def _has_what_the_guide_takes_for_granted(agent: AgentHost, release: AgentRelease) -> None:
    """Releases in root's home, and a configuration; its token is made by the guide."""
    await agent.configure()
    config = json.loads(agent.host.get(CONFIG))
    config["Kubelet"]["Auth"]["BootstrapToken"] = TOKEN
    agent.host.put("/root/agent.json", json.dumps(config).encode(), mode=0o600)
    for file in (release.archive, release.file):
        shutil.copy(file, agent.host.outside(f"/root/{file.name}"))


@dataclass
class Chain:
    """The steps between the guide's commands."""

    agent: AgentHost
    release: AgentRelease
    shell: HostShell
    folder: Path
    node: dict[str, Any] = field(default_factory=dict)
    boots: tuple[str, str, str] = ("", "", "")

    def stages(self) -> dict[str, Stage]:
        return {
            "Operations": self.started,
            "Upgrade": self.rebooted,
            "Remove the node: `reset`": self.upgraded,
        }

    async def started(self) -> None:
        self.node = await self.agent.plane.ready(M, within_s=180)
        await _timed("start again", _is_a_node(self.agent, self.node, self.release, self.shell))
        await self.agent.inside("kube1", "touch", "/etc/still-here")
        self.boots = await _boots_and_lease(self.agent)

    async def rebooted(self) -> None:
        await _has_rebooted_its_node(self.agent, self.node, self.boots)
        await _timed("recreation", _is_made_anew(self.agent, self.node))

    async def upgraded(self) -> None:
        agent = self.agent
        await _timed("AgentUpgrade", _is_upgraded(agent))
        await _timed("AgentUpgrades that are refused", _refuses_upgrades(agent, self.folder))
        await _timed("AgentUpgrades that fail", _survives_bad_releases(agent, self.folder))


async def _timed(what: str, doing: Awaitable[T]) -> T:
    began = time.monotonic()
    done = await doing
    print(f"{what}: {time.monotonic() - began:.1f} s", flush=True)
    return done


async def _is_a_node(agent: AgentHost, node: dict[str, Any], release: AgentRelease, shell: HostShell) -> None:
    labels = node["metadata"]["labels"]
    assert (labels["tier"], labels["unbounded-cloud.io/machine"]) == ("edge", M)
    assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.34.0"
    assert await agent.slots() == ["kube1"]
    assert await agent.agent_version() == release.version
    boot = await agent.host.boot_id()
    known = {"version": release.version, "hostBootID": boot, "stage": "Running"}
    seen = await agent.plane.wait(MACHINES, M, lambda seen: _said(seen) == known, within_s=20)
    host = seen["status"]["agent"]["host"]
    assert host["hardware"]["cpus"] == int(await shell.run("nproc"))
    assert str(host["hardware"]["memoryBytes"] // 1024) in await shell.run("grep MemTotal /proc/meminfo")
    kept = agent.host.get("/etc/unbounded/agent/config.json").decode()
    assert TOKEN.partition(".")[2] not in kept, "the token has done its work"
    assert (agent.host.outside("/etc/unbounded/agent/config.json").stat().st_mode & 0o777) == 0o600
    assert "no changes were necessary" in await shell.run(START)
    assert (await agent.plane.get(NODES, M))["metadata"]["uid"] == node["metadata"]["uid"]


def _said(machine: dict[str, Any]) -> dict[str, Any]:
    told = machine.get("status", {}).get("agent", {})
    return {key: told.get(key) for key in ("version", "hostBootID", "stage")}


async def _boots_and_lease(agent: AgentHost) -> tuple[str, str, str]:
    """Of the node, of the host, and when kubelet has renewed its Lease."""
    lease = await agent.plane.get(LEASES, M, namespace="kube-node-lease")
    return await _boot_of(agent, "kube1"), await agent.host.boot_id(), lease["spec"]["renewTime"]


async def _has_rebooted_its_node(agent: AgentHost, node: dict[str, Any], before: tuple[str, str, str]) -> None:
    ended = await agent.plane.ended(f"reboot-{M}", within_s=1)
    assert ended["status"]["phase"] == "Complete", ended["status"]
    assert len(ended["status"]["evidence"]) >= 2, ended["status"]
    await agent.plane.wait(
        LEASES, M, lambda seen: seen["spec"]["renewTime"] > before[2], namespace="kube-node-lease", within_s=30
    )
    boot, host_boot, _renewed = await _boots_and_lease(agent)
    assert boot not in ("", before[0])
    assert host_boot == before[1]
    assert await agent.inside("kube1", "cat", "/etc/still-here") == "", "the root file system is the same"
    assert (await agent.plane.ready(M))["metadata"]["uid"] == node["metadata"]["uid"]


async def _is_made_anew(agent: AgentHost, node: dict[str, Any]) -> None:
    agent.mirror.add_kubernetes("1.35.0")
    image = agent.images.add("own", OWN)
    direct = (urlsplit(one).hostname or "" for one in (agent.mirror.base, f"//{agent.images.host}"))
    await agent.plane.apply(configuration(image, *direct))
    spec = {"kubernetes": {"version": "v1.35.0", "nodeLabels": {"tier": "core"}}, "configurationRef": {"name": NAME}}
    patch = json.dumps({"spec": spec})
    await agent.plane.kubectl("patch", "machine", M, "--type=merge", "-p", patch)
    await agent.plane.wait(
        MACHINES, M, lambda seen: _condition(seen, "RepavePending").get("status") == "True", within_s=20
    )
    await agent.plane.wait(NODES, M, lambda seen: seen["metadata"]["labels"].get("tier") == "core", within_s=90)
    assert await agent.slots() == ["kube1"], "labels need no new node"
    await agent.plane.kubectl("delete", "node", M)
    fresh = await agent.plane.ready(M, but=node["metadata"]["uid"])
    assert fresh["status"]["nodeInfo"]["kubeletVersion"] == "v1.35.0"
    assert fresh["metadata"]["labels"]["tier"] == "core"
    await are_in_force(agent, "kube2", fresh)
    machine = await agent.plane.wait(
        MACHINES,
        M,
        lambda seen: (
            _condition(seen, "NodeUpdated").get("status") == "True"
            and _condition(seen, "RepavePending").get("status") == "False"
            and not seen["status"].get("activeOperation")
        ),
        within_s=180,
    )
    assert _condition(machine, "NodeUpdated")["reason"] == "Succeeded"
    assert await agent.slots() == ["kube2"]
    assert not agent.host.exists("/var/lib/machines/kube1"), "only the proven slot stays"


async def _is_upgraded(agent: AgentHost) -> None:
    """Check the upgrade to the guide's version."""
    ended = await agent.plane.ended(f"upgrade-{M}", within_s=180)
    assert ended["status"]["phase"] == "Complete", ended["status"]
    assert f"unbounded-agent {VERSION} runs" in ended["status"]["message"]
    assert await agent.agent_version() == VERSION
    await agent.plane.wait(MACHINES, M, lambda seen: _said(seen)["version"] == VERSION, within_s=90)
    current, good = await _links(agent)
    assert current == good, "it is proven"
    assert await agent.slots() == ["kube2"], "the node has not noticed"


async def _refuses_upgrades(agent: AgentHost, folder: Path) -> None:
    links = await _links(agent)
    escaping = tarball(folder / "escaping.tar.gz", ("unbounded-agent/../../../etc/escaped", b"x", 0o755))
    cases: dict[str, tuple[dict[str, str], str]] = {
        "no-url": ({}, "InvalidParameters"),
        "missing": ({"downloadURL": f"{agent.mirror.base}/nothing-here.tar.gz"}, "DownloadFailed"),
        "escapes": ({"downloadURL": agent.mirror.add("/escaping.tar.gz", escaping)}, "UnusableRelease"),
    }
    for name, (parameters, _reason) in cases.items():
        await agent.plane.operate(name, M, "AgentUpgrade", **parameters)
    for name, (_parameters, reason) in cases.items():
        ended = await agent.plane.ended(name, within_s=90)
        assert (ended["status"]["phase"], ended["status"]["reason"]) == ("Failed", reason), (name, ended["status"])
    assert await _links(agent) == links
    assert await agent.agent_version() == VERSION
    assert not agent.host.exists("/etc/escaped")


async def _survives_bad_releases(agent: AgentHost, folder: Path) -> None:
    links = await _links(agent)
    paths = {
        "lies": publish_script(agent.mirror, folder, "8.0.0", says="exit 1", daemon="exit 0"),
        "crashes": publish_script(agent.mirror, folder, "8.0.1", daemon=CRASHES),
        "hangs": publish_script(agent.mirror, folder, "8.0.2", daemon=HANGS),
    }
    for name, path in paths.items():
        await agent.plane.operate(name, M, "AgentUpgrade", downloadURL=agent.mirror.base + path)
        ended = await agent.plane.ended(name, within_s=120)
        reason = "PreflightFailed" if name == "lies" else "DaemonFailed"
        assert (ended["status"]["phase"], ended["status"]["reason"]) == ("Failed", reason), (name, ended["status"])
        assert await _links(agent) == links, name
        assert await agent.agent_version() == VERSION
        assert await agent.daemon_active()
    await agent.plane.operate("again", M, "AgentUpgrade", downloadURL=agent.mirror.base + paths["crashes"])
    refused = await agent.plane.ended("again", within_s=90)
    assert (refused["status"]["phase"], refused["status"]["reason"]) == ("Failed", "FailedBefore")
    assert "retryFailedDigest" in refused["status"]["message"], refused["status"]
    await agent.plane.ready(M, within_s=90)


async def _is_reset(agent: AgentHost, before: dict[str, str]) -> None:
    """Check the last step of the guide."""

    async def gone() -> bool:
        return (await _unit(agent, DAEMON_UNIT)).get("LoadState") == "not-found" and not agent.host.exists(COMMAND)

    await until(gone, within_s=90)
    assert await agent.slots() == []
    for place in (
        "/var/lib/machines/kube1",
        "/var/lib/machines/kube2",
        "/etc/unbounded",
        "/usr/local/bin",
        "/usr/local/lib/unbounded-agent",
    ):
        left = agent.host.outside(place)
        assert not left.exists() or not list(left.iterdir()), place
    assert await _survey(agent) == before


async def _survey(agent: AgentHost) -> dict[str, str]:
    """Return what start may change on a host, and reset has to restore."""
    commands = {
        "links": "ip -br link | awk '{print $1}'",
        "rules": "ip rule",
        "tables": "nft list tables",
        "units": "systemctl list-unit-files --no-legend --no-pager | grep -v transient",
        "etc": "find /etc -xdev ! -path '/etc/lab*' ! -name '*.timestamp' ! -path /etc | sort",
        "mounts": "findmnt -rno TARGET | grep -v ^/run/credentials | sort",
        "net": "sysctl -a 2>/dev/null | grep -E 'ip_forward|rp_filter|src_valid_mark' | grep -v host0",
    }
    told = " ; ".join(f"echo == {name}; {line}" for name, line in commands.items())
    text = (await agent.host.run("sh", "-c", told)).stdout
    parts = (part.partition("\n") for part in text.split("== ")[1:])
    return {name: content for name, _, content in parts}


async def _unit(agent: AgentHost, unit: str) -> dict[str, str]:
    said = (await agent.host.run("systemctl", "show", unit)).stdout
    return dict(line.split("=", 1) for line in said.splitlines() if "=" in line)


async def _links(agent: AgentHost) -> list[str]:
    """Return the targets of the links current and last-good."""
    names = (f"{COMMAND}-current", f"{COMMAND}-last-good")
    return [(await agent.host.run("readlink", "-f", name)).stdout.strip() for name in names]


async def _boot_of(agent: AgentHost, slot: str) -> str:
    return await agent.inside(slot, "cat", "/proc/sys/kernel/random/boot_id")


def _condition(machine: dict[str, Any], kind: str) -> dict[str, str]:
    found = machine.get("status", {}).get("conditions") or []
    return next((each for each in found if each["type"] == kind), {})
