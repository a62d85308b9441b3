"""A real host before start and after reset: the same, but for packages and logs."""

from __future__ import annotations

import re

import pytest

from tests.agent.e2e.conftest import HostOf
from tests.support.agent_release import AgentRelease
from tests.support.hosts import Host, until
from tests.support.hosts.agent import COMMAND, UNPACKED, AgentHost
from tests.support.hosts.snapshot import difference, snapshot
from unbounded.agent.node import containerd
from unbounded.api.machine import MACHINES

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(300, func_only=True)]

SLEEPS = "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
FSTAB = "# of the distribution\n/dev/nosuch none swap sw,noauto,nofail 0 0\n/dev/other /srv/swap ext4 noauto 0 0\n"
PREPARE = """
systemctl daemon-reload
systemctl enable --now docker.service
ip link add wg7 type bridge
ip rule add pref 77 from 10.1.2.3 table 51820
ip route add 10.77.0.0/16 dev lo table 51899
nft add table inet firewall
nft add chain inet firewall input '{ type filter hook input priority 0 ; }'
nft add rule inet firewall input tcp dport 9 drop
nft -f - <<'RULES'
table ip mangle {
  chain PREROUTING { type filter hook prerouting priority mangle; tcp dport 9 counter drop; }
  chain mine { }
}
RULES
"""
LEAVE = """
ip link add wg0 type bridge
ip link add geneve0 type bridge
ip link add cbr0 type bridge
ip rule add pref 90 from 10.4.4.0/24 table 51830
ip rule add pref 90 from 10.4.5.0/24 table 51830
ip -6 rule add pref 91 table 51831
ip route add 10.78.0.0/16 dev lo table 51830
mkdir -p /etc/wireguard
echo secret >/etc/wireguard/server.priv
echo public >/etc/wireguard/server.pub
nft add table inet unbounded
nft add table ip kube-proxy
nft -f - <<'RULES'
table ip filter {
  chain KUBE-KUBELET-CANARY { }
  chain KUBE-FIREWALL { ip saddr != 127.0.0.0/8 ip daddr 127.0.0.0/8 counter drop; }
  chain INPUT { type filter hook input priority filter; counter jump KUBE-FIREWALL; }
  chain OUTPUT { type filter hook output priority filter; counter jump KUBE-FIREWALL; }
}
table ip mangle {
  chain KUBE-IPTABLES-HINT { }
  chain KUBE-MARK-DROP { meta mark set 0x8000 counter goto KUBE-IPTABLES-HINT; }
  chain PREROUTING { ip daddr 10.96.0.0/12 counter jump KUBE-MARK-DROP; }
}
table ip6 nat {
  chain KUBE-KUBELET-CANARY { }
}
RULES
"""


async def in_shell(host: Host, script: str) -> None:
    await host.run("sh", "-euc", script)


async def test_a_host_after_reset_is_the_host_before_start(agent_host: HostOf, release: AgentRelease) -> None:
    """First by an operation, then, after the operation has armed another join, by the command."""
    async with agent_host("taken-back", 71) as agent:
        await _has_settings_of_its_own(agent.host)
        await agent.configure()
        await agent.unpack(release)
        before = await snapshot(agent.host)
        await _becomes_a_node(agent, before)
        await in_shell(agent.host, LEAVE)
        await _runs_a_container(agent)
        await _is_reset_by_an_operation(agent)
        assert difference(before, await snapshot(agent.host)) == {}

        await agent.start()
        await in_shell(agent.host, LEAVE)
        told = await agent.host.run(COMMAND, "reset", timeout_s=120)
        assert "existed before start, and stays: wg7" in told.stdout
        assert "logs of the agent and its machines stay in the journal" in told.stdout
        assert difference(before, await snapshot(agent.host)) == {}
        again = await agent.host.run(f"{UNPACKED}/unbounded-agent/unbounded-agent", "reset")
        assert "could not" not in again.stdout
        assert difference(before, await snapshot(agent.host)) == {}


async def _has_settings_of_its_own(host: Host) -> None:
    """Add tunnels, rules, parameters and a docker, which no reset may change."""
    host.put("/usr/lib/systemd/system/docker.service", SLEEPS.encode())
    host.put("/etc/docker/daemon.json", b'{"debug": true,\n\t"iptables": true}', mode=0o640)
    host.put("/etc/fstab", FSTAB.encode())
    host.put("/etc/sysctl.d/99-kubernetes.conf", b"# somebody's\nvm.panic_on_oom = 0\n", mode=0o600)
    await in_shell(host, PREPARE)


async def _becomes_a_node(agent: AgentHost, before: dict[str, list[str]]) -> None:
    host = agent.host
    await agent.start()
    await agent.plane.ready(agent.machine, within_s=180)
    docker = await host.run("systemctl", "is-active", "docker.service", check=False)
    assert docker.stdout.strip() == "inactive"
    assert "tcp dport 9 drop" in (await host.run("nft", "list", "ruleset")).stdout
    changed = difference(before, await snapshot(host))
    assert {"files", "unit files", "parameters", "machines"} <= changed.keys()
    assert "no changes were necessary" in (await agent.start()).stdout


async def _runs_a_container(agent: AgentHost) -> None:
    """Have containerd run one, with a shim, mounts and a namespace of its own."""
    ctr = ("/usr/local/bin/ctr", "--namespace", "k8s.io")
    await agent.inside("kube1", *ctr, "run", "--detach", "--seccomp", "--cpu-shares", "0", containerd.IMAGE, "a-pod")
    assert re.search(r"a-pod +\d+ +RUNNING", await agent.inside("kube1", *ctr, "task", "list"))


async def _is_reset_by_an_operation(agent: AgentHost) -> None:
    await agent.plane.operate("reset-it", agent.machine, "AgentReset")
    operation = await agent.plane.ended("reset-it", within_s=120)
    assert operation["status"]["phase"] == "Complete", operation["status"]
    assert "removed from the host" in operation["status"]["message"]
    machine = await agent.plane.get(MACHINES, agent.machine)
    assert ("AgentBootstrapped", "Reset") in [(one["type"], one["reason"]) for one in machine["status"]["conditions"]]
    await until(lambda: _is_gone(agent), within_s=90)
    await agent.plane.wait(MACHINES, agent.machine, lambda seen: not seen["status"].get("activeOperation"), within_s=60)


async def _is_gone(agent: AgentHost) -> bool:
    """systemd has forgotten the units of the agent."""
    said = await agent.host.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "unbounded-agent*")
    return not said.stdout.strip()
