"""Removal from a host without an agent that could do it, and the files that stay."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from unbounded.join.agent_install import uninstall_script

MARKED = "# unbounded-agent, until reset: "
SURVEY = '{"format":1,"found":{"network":{"interfaces":["wg7"],"keys":["/etc/wireguard/server.pub"],"tables":[]}}}'
OWN = "# Written by unbounded-agent\n"
AGENT: Mapping[str, str] = {
    "etc/unbounded/agent/config.json": "{}",
    "etc/unbounded/agent/before/survey.json": SURVEY,
    "etc/unbounded/agent/before/docker.json": "{}",
    "etc/unbounded/agent/kube1-applied-config.json": "{}",
    "etc/unbounded/kube/nftables-clear.nft": OWN,
    "etc/systemd/nspawn/kube1.nspawn": "",
    "etc/systemd/system/systemd-nspawn@kube1.service.d/override.conf": "",
    "etc/systemd/system/unbounded-agent-daemon.service": "",
    "etc/systemd/system/unbounded-nftables.service": OWN,
    "etc/systemd/system/multi-user.target.wants/unbounded-agent-daemon.service": "",
    "etc/sysctl.d/99-kubernetes.conf": OWN,
    "etc/modules-load.d/unbounded-agent.conf": OWN,
    "etc/docker/daemon.json": '{\n  "iptables": false\n}\n',
    "etc/wireguard/server.priv": "",
    "sys/class/net/wg0/x": "",
    "sys/class/net/cbr0/x": "",
    "usr/local/bin/unbounded-agent": "",
    "usr/local/lib/unbounded-agent/blue/unbounded-agent": "",
    "var/lib/machines/kube1/etc/hostname": "",
    "var/lib/unbounded/agent/identity/key": "",
    "var/lib/unbounded/install.12.abc/agent.tar.gz": "",
}
OTHERS: Mapping[str, str] = {
    "etc/systemd/nspawn/mine.nspawn": "",
    "etc/systemd/system/mine.service": "",
    "etc/wireguard/server.pub": "",
    "sys/class/net/wg7/x": "",
    "sys/class/net/wgx/x": "",
    "sys/class/net/eth0/x": "",
    "usr/local/bin/mine": "",
    "var/lib/machines/mine/x": "",
    "proc/self/mountinfo": "",
}


class Host:
    """A folder in place of /; changes of the running system are recorded instead."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.asked = folder / "asked"
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.asked.touch()
        for tool in ("systemctl", "ip", "nft", "swapon", "umount"):
            self.tool(tool, "")
        self.tool("machinectl", "exit 1")  # no machine runs

    def tool(self, name: str, then: str) -> None:
        file = self.bin / name
        file.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.asked}\n{then}\n')
        file.chmod(0o755)

    def put(self, files: Mapping[str, str]) -> None:
        for path, text in files.items():
            file = self.root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def files(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()}

    def uninstall(self) -> subprocess.CompletedProcess[str]:
        environ = {"PATH": f"{self.bin}:/usr/bin:/bin", "UNBOUNDED_HOST_ROOT": str(self.root)}
        return subprocess.run(
            ["bash"], input=uninstall_script(), env=environ, capture_output=True, text=True, timeout=60, check=False
        )

    def calls(self) -> list[str]:
        return self.asked.read_text().splitlines()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.mark.slow
def test_what_the_agent_brought_goes_and_nothing_else(host: Host) -> None:
    host.put({**AGENT, **OTHERS, "etc/fstab": f"/dev/a / ext4\n{MARKED}/dev/b none swap sw 0 0\n"})
    ran = host.uninstall()
    assert (ran.returncode, ran.stderr) == (0, "")
    links = {path for path in host.files() if path.startswith("sys/")}  # which only the kernel takes away
    assert host.files() - links == {path for path in OTHERS if not path.startswith("sys/")} | {"etc/fstab"}
    assert (host.root / "etc/fstab").read_text() == "/dev/a / ext4\n/dev/b none swap sw 0 0\n"
    calls = host.calls()
    assert [call for call in calls if "link delete" in call] == ["ip link delete dev cbr0", "ip link delete dev wg0"]
    assert "systemctl unmask docker.socket docker.service" in calls
    assert "was there before, and stays: wg7" in ran.stdout
    assert host.uninstall().stdout == "there is no trace of an agent on this host\n"


# As nft 1.0.6 shows what kubelet 1.36 made, with a rule and a chain of the host's own beside it
RULESET = """table ip filter { # handle 5
	chain KUBE-FIREWALL { # handle 1
		ip saddr != 127.0.0.0/8 ip daddr 127.0.0.0/8   counter packets 0 bytes 0 drop # handle 6
	}

	chain OUTPUT { # handle 2
		type filter hook output priority filter; policy accept;
		counter packets 9447 bytes 2335371 jump KUBE-FIREWALL # handle 3
		tcp dport 9 drop comment "jump KUBE-FIREWALL" # handle 8
	}
}
table inet filter { # handle 6
	chain KUBE-MINE { # handle 1
	}
}
table ip6 nat { # handle 8
	chain KUBE-KUBELET-CANARY { # handle 1
	}
}
"""


@pytest.mark.slow
def test_packet_rules_of_kubernetes_go_and_the_hosts_own_stay(host: Host) -> None:
    host.put(AGENT)
    (host.root / "ruleset").write_text(RULESET)
    asked = f'case "$*" in "-a list ruleset") cat {host.root}/ruleset ;; "-f -") cat >{host.root}/removed ;; esac'
    host.tool("nft", asked)
    ran = host.uninstall()
    assert (ran.returncode, ran.stderr) == (0, "")
    assert (host.root / "removed").read_text().splitlines() == [
        "delete rule ip filter OUTPUT handle 3",
        "flush chain ip filter KUBE-FIREWALL",
        "flush chain ip6 nat KUBE-KUBELET-CANARY",
        "delete chain ip filter KUBE-FIREWALL",
        "delete chain ip6 nat KUBE-KUBELET-CANARY",
    ]


def test_a_host_without_an_agent_is_left_alone(host: Host) -> None:
    mine = {
        **OTHERS,
        "sys/class/net/wg0/x": "",
        "etc/sysctl.d/99-kubernetes.conf": "mine",
        "etc/docker/daemon.json": "{}",
    }
    host.put(mine)
    ran = host.uninstall()
    assert ran.returncode == 0
    assert host.files() == set(mine)
    assert host.calls() == []


def test_where_no_node_was_made_the_network_is_the_hosts_own(host: Host) -> None:
    """An installation that has not come so far has left files of its own at most."""
    host.put({**OTHERS, "sys/class/net/wg0/x": "", "usr/local/bin/unbounded-agent-install.sh": ""})
    assert host.uninstall().returncode == 0
    assert host.files() == {*OTHERS, "sys/class/net/wg0/x"}
    assert not [call for call in host.calls() if call.startswith("ip ")]


@pytest.mark.slow
def test_what_may_be_the_hosts_own_stays_and_is_named(host: Host) -> None:
    host.put(
        {**AGENT, "etc/sysctl.d/99-kubernetes.conf": "vm.overcommit_memory = 1\n", "etc/fstab": "", "etc/fstab.bak": ""}
    )
    host.put({"etc/docker/daemon.json": '{"iptables": false, "debug": true}'})
    ran = host.uninstall()
    assert ran.returncode == 0
    assert {"etc/sysctl.d/99-kubernetes.conf", "etc/fstab.bak", "etc/docker/daemon.json"} <= host.files()
    for name in ("99-kubernetes.conf", "fstab.bak", "daemon.json"):
        assert name in ran.stdout


@pytest.mark.slow
def test_tables_that_were_there_before_are_not_flushed(host: Host) -> None:
    """wg-quick uses the same numbers."""
    survey = '{"format":1,"found":{"network":{"tables":[{"family":"-4","number":51820}]}}}'
    host.put({**AGENT, "etc/unbounded/agent/before/survey.json": survey})
    rules = 'echo "9: from all lookup 51820"; echo "8: from all lookup 51821"'
    host.tool("ip", f'case "$*" in *"rule show") {rules};; *show*) echo r;; esac')
    assert host.uninstall().returncode == 0
    calls = host.calls()
    assert "ip -4 rule delete pref 8 table 51821" in calls
    assert "ip -4 route flush table 51821" in calls
    assert not [call for call in calls if ("flush" in call or "delete" in call) and call.endswith(" 51820")]


@pytest.mark.slow
def test_a_machine_that_does_not_stop_keeps_its_files_and_the_records(host: Host) -> None:
    host.put(AGENT)
    host.tool("machinectl", "")
    host.tool("sleep", "")
    ran = host.uninstall()
    assert ran.returncode == 1
    assert "could not be removed: machine kube1, which does not stop" in ran.stdout
    assert {"var/lib/machines/kube1/etc/hostname", "etc/unbounded/agent/before/survey.json"} <= host.files()


@pytest.mark.slow
def test_nothing_that_is_mounted_is_deleted(host: Host) -> None:
    inside = host.root / "var/lib/machines/kube1/mnt"
    host.put({**AGENT, "var/lib/machines/kube1/mnt/data": "dear", "proc/self/mountinfo": f"1 2 3:4 / {inside} rw\n"})
    ran = host.uninstall()
    assert ran.returncode == 1
    assert f"umount -- {inside}" in host.calls()
    assert "var/lib/machines/kube1/mnt/data" in host.files()
