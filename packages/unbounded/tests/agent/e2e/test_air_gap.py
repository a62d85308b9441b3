"""A host that reaches only the mirror, the registry and the API server becomes a node.

Its other packets are recorded, and there must be none: no lookup of a name, no default registry.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from tests.agent.e2e.conftest import HostOf
from tests.support.agent_release import AgentRelease
from tests.support.hosts.agent import CONFIG, STARTS, UNPACKED, AgentHost
from tests.support.hosts.mirror import Dial
from unbounded.api.core import NODES
from unbounded.api.machine import MACHINES

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(600, func_only=True)]
SERVER: Final = "192.0.2.53"  # a DNS server's address without a host (RFC 5737)
PROBE: Final = {"192.0.2.1 . 7"}
RULES: Final = """
table inet lab {{
  set strays {{ type ipv4_addr . inet_service; flags dynamic; }}
  chain output {{
    type filter hook output priority 0; policy accept;
    oif lo accept
    ip daddr {address} tcp dport {{ {ports} }} accept
    meta l4proto {{ tcp, udp }} ct state new add @strays {{ ip daddr . th dport }} drop
  }}
}}
"""


async def _closed(agent: AgentHost) -> None:
    """Let the host reach the three servers alone, and note where else it sends anything."""
    servers = [urlsplit(one) for one in (agent.mirror.base, agent.plane.address, f"http://{agent.images.host}")]
    assert len({one.hostname for one in servers}) == 1
    rules = RULES.format(address=servers[0].hostname, ports=", ".join(str(one.port) for one in servers))
    await agent.host.run("ip", "route", "replace", "default", "via", str(servers[0].hostname))
    agent.host.put("/etc/resolv.conf", f"nameserver {SERVER}\n".encode())
    await agent.host.run("nft", "--file", "/dev/stdin", stdin=rules.encode())
    probe = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 7))"
    await agent.host.run("python3", "-c", probe, check=False)
    assert await _strays(agent) == PROBE, "it is not noted"


async def _strays(agent: AgentHost) -> set[str]:
    """Return the other targets of its packets, the probe among them."""
    listed = (await agent.host.run("nft", "list", "set", "inet", "lab", "strays")).stdout
    return set(re.findall(r"[0-9.]+ \. \d+", listed))


async def _preflight(agent: AgentHost) -> dict[str, list[dict[str, str]]]:
    """Return the findings of the preflight, by severity."""
    argv = (f"{UNPACKED}/unbounded-agent/unbounded-agent", "preflight", "--config", CONFIG, "--output", "json")
    told = json.loads((await agent.host.run(*argv, check=False)).stdout)
    return {
        severity: [one for one in told["checks"] if one["severity"] == severity] for severity in ("error", "warning")
    }


async def _is_told_what_the_mirror_lacks(agent: AgentHost) -> None:
    lacking = {agent.mirror.path_of(part) for part in ("sandbox", "crictl", "cni-plugins")}
    agent.mirror.dials = {path: Dial(status=404) for path in lacking}
    try:
        found = await _preflight(agent)
    finally:
        agent.mirror.dials = {}
    targets = {one["target"].partition(" ")[0] for one in found["error"] if "it does not exist: 404" in one["message"]}
    assert targets == {"crictl", "cni"}
    (sandbox,) = (one["message"] for one in found["warning"] if one["target"].startswith("sandbox"))
    assert sandbox == (
        "it does not exist: 404 (Downloads.Sandbox); the node image must contain /usr/share/unbounded/sandbox.tar"
    )


async def _became_a_node(agent: AgentHost, release: AgentRelease) -> dict[str, Any]:
    await _closed(agent)
    await agent.configure()
    await agent.unpack(release)
    await _is_told_what_the_mirror_lacks(agent)
    started = await agent.start()
    assert "; a Pod sandbox ran in kube1" in started.stdout
    return await agent.plane.ready(agent.machine, within_s=60)


async def test_air_gapped_host_joins_with_requests_to_the_mirror_only(
    agent_host: HostOf, release: AgentRelease
) -> None:
    async with agent_host("closed", 41) as agent:
        await _became_a_node(agent, release)
        assert await _strays(agent) == PROBE


@pytest.mark.soak
async def test_a_host_that_reaches_the_mirror_alone_is_made_anew_and_rebooted(
    agent_host: HostOf, release: AgentRelease
) -> None:
    """Without the sandbox image at the mirror it names the missing file, and with it continues."""
    async with agent_host("closed2", 42) as agent:
        await _closed(agent)
        await agent.configure()
        await agent.unpack(release)
        agent.mirror.dials = {agent.mirror.path_of("sandbox"): Dial(status=404)}
        try:
            refused = await agent.host.run(*STARTS, check=False, timeout_s=180)
        finally:
            agent.mirror.dials = {}
        assert not refused.ok
        assert "/usr/share/unbounded/sandbox.tar is missing in the node image, and at the mirror" in refused.stderr
        started = await agent.start()
        assert "; a Pod sandbox ran in kube1" in started.stdout
        node = await agent.plane.ready(agent.machine, within_s=60)

        agent.mirror.add_kubernetes("1.35.0")
        newer = json.dumps({"spec": {"kubernetes": {"version": "v1.35.0"}}})
        await agent.plane.kubectl("patch", MACHINES.plural, agent.machine, "--type=merge", "--patch", newer)
        await agent.plane.kubectl("delete", "node", agent.machine)
        anew = await agent.plane.ready(agent.machine, but=node["metadata"]["uid"], within_s=240)
        assert anew["status"]["nodeInfo"]["kubeletVersion"] == "v1.35.0"
        machine = await agent.plane.wait(MACHINES, agent.machine, _updated, within_s=60)
        said = {one["type"]: one["message"] for one in machine["status"]["conditions"]}
        assert "a Pod sandbox ran in it" in said["NodeUpdated"]

        await agent.plane.operate("closed2-reboot", agent.machine, "NodeReboot")
        assert (await agent.plane.ended("closed2-reboot"))["status"]["phase"] == "Complete"
        assert (await agent.plane.get(NODES, agent.machine))["metadata"]["uid"] == anew["metadata"]["uid"]
        assert await _strays(agent) == PROBE


def _updated(machine: dict[str, Any]) -> bool:
    found = machine.get("status", {}).get("conditions", ())
    return any((one["type"], one["status"]) == ("NodeUpdated", "True") for one in found)
