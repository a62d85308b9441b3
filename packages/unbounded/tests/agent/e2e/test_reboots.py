"""From `machine register` to the end on a host with a real systemd, by the commands of docs/upgrade.md and
docs/reset.md.

The host becomes a node over SSH, and gets another agent and another Kubernetes. Its node is rebooted while kubelet
hangs. Then the host itself is rebooted, from inside, and once more by a loss of power. It is reset, becomes a node
again, and has its first state when its Machine is gone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.agent.e2e.conftest import HostOf
from tests.agent.e2e.guided import VERSION, newer
from tests.agent.e2e.over_ssh import LATEST, joined
from tests.docs.command_pictures import HOST_PICTURES, NODE, check_pictures, make
from tests.docs.runner import DOCS, Shell, follow, unprinted
from tests.support.agent_release import AgentRelease, release_like
from tests.support.hosts import until
from tests.support.hosts.agent import COMMAND, AgentHost
from tests.support.hosts.mirror import ARCH, RUNC
from unbounded.agent.paths import DAEMON_UNIT
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(600, func_only=True)]
M: Final = NODE
CONFIG: Final = "/etc/unbounded/agent/config.json"
PSS_MIB: Final = 70
HANGS: Final = "lab-hangs.service"
BOUND_S: Final = 150.0  # a kubelet that hangs is killed long before this


async def test_life_of_a_host_over_ssh_from_join_to_reset(
    agent_host: HostOf, release: AgentRelease, tmp_path: Path
) -> None:
    better = release_like(release, tmp_path / VERSION, version=VERSION)
    async with agent_host(M, 13) as agent:
        shell, node = await joined(agent, release, tmp_path / "home")
        await _has_joined(agent, node)
        await _has_pictures(agent, shell)
        await _is_light(agent)
        guide = await _for_the_guides(agent, shell, better)
        said = await follow(DOCS / "upgrade.md", guide)
        node = await _is_upgraded(agent, said, but=node["metadata"]["uid"])
        await _hanging_kubelet_is_killed(agent)
        await _host_is_rebooted_from_inside(agent, "reboot-host")
        await _shutdown_hangs(agent)
        await _host_is_rebooted_from_inside(agent, "reboot-cut", _power_goes_in_the_shutdown)
        assert (await agent.plane.ready(M))["metadata"]["uid"] == node["metadata"]["uid"]
        assert await agent.slots() == ["kube2"]
        await _is_taken_back(agent, guide, node["metadata"]["uid"])


async def _for_the_guides(agent: AgentHost, shell: Shell, better: AgentRelease) -> Shell:
    """A user's who has the control plane's data. The agent takes releases over plain http, and after a short time."""
    (shell.folder / "data").symlink_to(agent.plane.data)
    agent.mirror.add_kubernetes("1.35.0")
    config = json.loads(agent.host.get(CONFIG))
    config["Upgrade"] = {"AllowHTTP": True, "HealthWindowSeconds": 3}
    agent.host.put(CONFIG, json.dumps(config).encode(), mode=0o600)
    await agent.host.run("systemctl", "restart", DAEMON_UNIT)
    image = {"registry.example.com/images/node:v1": agent.node_image}
    return Shell(shell.folder, shell.kubeconfig, newer(agent, better) | image)


async def _is_upgraded(agent: AgentHost, said: str, *, but: str) -> dict[str, Any]:
    """Check the promises of upgrade.md; return the new Node."""
    assert said.rstrip().endswith("v1.35.0")
    assert unprinted(DOCS / "upgrade.md", said) == []
    assert await agent.agent_version() == VERSION
    operation = await agent.plane.get(MACHINE_OPERATIONS, "upgrade-dc1")
    assert operation["status"]["phase"] == "Complete", operation["status"]
    assert await agent.slots() == ["kube2"]
    return await agent.plane.ready(M, but=but)


async def _has_joined(agent: AgentHost, node: dict[str, Any]) -> None:
    labels = node["metadata"]["labels"]
    assert (labels["tier"], labels["unbounded-cloud.io/machine"]) == ("edge", M)
    machine = await agent.plane.wait(
        MACHINES, M, lambda seen: "nodeRef" in seen["spec"].get("kubernetes", {}), within_s=30
    )
    said = {one["type"]: (one["status"], one["reason"]) for one in machine["status"]["conditions"]}
    assert said["SSHReachable"] == ("True", "Reachable")
    assert said["Provisioning"] == ("False", "Completed")
    assert said["Provisioned"] == ("True", "Provisioned")
    assert machine["spec"]["kubernetes"]["nodeRef"]["name"] == M
    assert machine["status"]["ssh"]["fingerprint"].startswith("SHA256:")
    asked = {one.path for one in agent.mirror.asked}
    assert {LATEST, f"/v{agent.version}/bin/linux/{ARCH}/kubelet", f"/v{RUNC}/runc.{ARCH}"} <= asked
    told = await agent.host.run("sh", "-c", "grep -rl BootstrapToken /var/lib/unbounded/install /tmp || true")
    assert told.stdout == "", "configuration and script are gone"


async def _has_pictures(agent: AgentHost, shell: Shell) -> None:
    """Check the pictures of `logs` and `ssh` in docs/commands.md."""

    async def has_reported() -> bool:
        return "reported" in await agent.host.journal(f"--unit={DAEMON_UNIT}")

    await until(has_reported, within_s=60)
    check_pictures({picture: await make(shell, picture) for picture in HOST_PICTURES})


async def _is_taken_back(agent: AgentHost, guide: Shell, uid: str) -> None:
    """Twice, by reset.md: its Machine stays, and joins again when that is allowed; then both go."""

    async def again() -> None:
        await agent.plane.ready(M, but=uid)
        assert await agent.slots() == ["kube1"]
        assert await agent.agent_version() != VERSION, "it is the release that machina brings"

    said = await follow(DOCS / "reset.md", guide, {"With the Machine": again})
    assert unprinted(DOCS / "reset.md", said) == []

    async def gone() -> bool:
        listed = await agent.host.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "unbounded-agent*")
        return not listed.stdout.strip() and not agent.host.exists(COMMAND)

    await until(gone, within_s=180)
    assert await agent.slots() == []
    assert not agent.host.exists("/usr/local/lib/unbounded-agent")
    assert not await agent.plane.get(MACHINES, M)
    reset = await agent.plane.get(MACHINE_OPERATIONS, f"{M}-reset-on-delete")
    assert reset["status"]["phase"] == "Complete", reset["status"]


async def _hanging_kubelet_is_killed(agent: AgentHost) -> None:
    before = await agent.inside("kube2", "cat", "/proc/sys/kernel/random/boot_id")
    await agent.inside("kube2", "systemctl", "kill", "--signal=STOP", "kubelet.service")
    began = time.monotonic()
    await agent.plane.operate("hangs", M, "NodeReboot")
    ended = await agent.plane.ended("hangs", within_s=BOUND_S)
    assert ended["status"]["phase"] == "Complete", ended["status"]
    assert await agent.inside("kube2", "cat", "/proc/sys/kernel/random/boot_id") not in ("", before)
    print(f"NodeReboot with a kubelet that hangs: {time.monotonic() - began:.1f} s", flush=True)


async def _host_is_rebooted_from_inside(
    agent: AgentHost, operation: str, meanwhile: Callable[[AgentHost], Awaitable[None]] | None = None
) -> None:
    before, began = await agent.host.boot_id(), time.monotonic()
    await agent.plane.operate(operation, M, "HostReboot")
    if meanwhile is not None:
        await meanwhile(agent)
    ended = await agent.plane.ended(operation, within_s=BOUND_S)
    print(f"HostReboot {operation}: {time.monotonic() - began:.1f} s", flush=True)
    status = ended["status"]
    assert status["phase"] == "Complete", status
    now = await agent.host.boot_id()
    assert now not in ("", before)
    assert [one["where"] for one in status["evidence"]] == [f"the host, boot id {now}"]
    assert status["execution"]["executor"] == f"unbounded-agent/{M}"
    await agent.plane.wait(MACHINES, M, lambda seen: seen["status"]["agent"]["hostBootID"] == now, within_s=90)


async def _shutdown_hangs(agent: AgentHost) -> None:
    """Until the power goes: systemd waits for a service that does not stop."""
    stops = ("--property=ExecStop=sleep 600", "--property=TimeoutStopSec=600")
    started = ("systemd-run", f"--unit={HANGS}", "--property=RemainAfterExit=yes", *stops)
    await agent.host.run(*started, "--", "true")


async def _power_goes_in_the_shutdown(agent: AgentHost) -> None:
    async def hangs() -> bool:
        return "Stopping " in await agent.host.journal(f"--unit={HANGS}")

    await until(hangs, within_s=BOUND_S)
    # by machina, once it has observed the operation; the host hangs for longer
    await agent.plane.wait(MACHINES, M, lambda seen: seen["status"]["phase"] == "Rebooting", within_s=60)
    agent.host.cut()
    await agent.host.up()


async def _is_light(agent: AgentHost) -> None:
    """Check the resources of an idle daemon."""
    pid = (await agent.host.run("systemctl", "show", "--value", "--property=MainPID", DAEMON_UNIT)).stdout.strip()
    rollup = (await agent.host.run("cat", f"/proc/{pid}/smaps_rollup")).stdout
    pss = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1024
    print(f"daemon: {pss:.1f} MiB (PSS)", flush=True)
    assert pss < PSS_MIB
