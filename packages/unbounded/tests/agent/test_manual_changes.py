"""Files that a person changed inside a slot, distinguished from those that a running node and the agent write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from unbounded.agent.model import Slot
from unbounded.agent.node import manual_changes
from unbounded.agent.node.manual_changes import changed_by_hand, node_modified
from unbounded.agent.paths import HostPaths

KUBE1 = Slot.KUBE1


@pytest.fixture
def paths(tmp_path: Path) -> HostPaths:
    """A host whose slot has files, which were recorded."""
    paths = HostPaths(tmp_path)
    paths.state.mkdir(parents=True)
    paths.etc.mkdir(parents=True)
    paths.applied(KUBE1).write_text("{}")
    for path in ("etc/motd", "etc/hosts", "etc/systemd/system/kubelet.service", "usr/local/bin/kubelet", "var/lib/x"):
        write(paths, path, "as built")
    link(paths, "etc/localtime", "/usr/share/zoneinfo/UTC")
    manual_changes.record(paths, KUBE1)
    return paths


def write(paths: HostPaths, path: str, content: str) -> None:
    file = paths.rootfs(KUBE1) / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


def link(paths: HostPaths, path: str, target: str) -> None:
    file = paths.rootfs(KUBE1) / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    file.symlink_to(target)


def test_what_was_changed_added_and_removed_is_listed(paths: HostPaths) -> None:
    assert changed_by_hand(paths, KUBE1) == ()
    write(paths, "etc/motd", "of a person")
    write(paths, "root/notes", "")
    write(paths, "usr/local/bin/tool", "")
    link(paths, "etc/localtime", "/usr/share/zoneinfo/Europe/Berlin")
    link(paths, "etc/systemd/system/multi-user.target.wants/tool.service", "../tool.service")
    (paths.rootfs(KUBE1) / "usr/local/bin/kubelet").chmod(0o700)
    (paths.rootfs(KUBE1) / "etc/hosts").unlink()
    assert changed_by_hand(paths, KUBE1) == (
        "/etc/hosts (removed)", "/etc/localtime (changed)", "/etc/motd (changed)",
        "/etc/systemd/system/multi-user.target.wants/tool.service (added)", "/root/notes (added)",
        "/usr/local/bin/kubelet (changed)", "/usr/local/bin/tool (added)",
    )  # fmt: skip


def test_an_edit_that_keeps_the_size_is_seen(paths: HostPaths) -> None:
    file = paths.rootfs(KUBE1) / "etc/motd"
    before = file.stat().st_mtime_ns
    write(paths, "etc/motd", "AS BUILT")
    os.utime(file, ns=(before + 1, before + 1))
    assert changed_by_hand(paths, KUBE1) == ("/etc/motd (changed)",)


@pytest.mark.parametrize(
    "path",
    [
        "etc/machine-id", "etc/resolv.conf", "etc/cni/net.d/10-calico.conflist", "opt/cni/bin/calico",
        "etc/cdi/nvidia.yaml", "etc/containerd/certs.d/x/hosts.toml", "etc/ssh/ssh_host_rsa_key",
        "root/.kube/cache/discovery/x.json", "var/lib/kubelet/config.json", "var/log/pods/x",
    ],
)  # fmt: skip
def test_what_a_running_node_writes_is_no_persons_doing(paths: HostPaths, path: str) -> None:
    write(paths, path, "by the node")
    assert changed_by_hand(paths, KUBE1) == ()


def test_links_to_the_drivers_libraries_are_the_agents(paths: HostPaths) -> None:
    link(paths, "usr/local/lib/libcuda.so.1", "/run/host-nvidia/0/libcuda.so.1")
    assert changed_by_hand(paths, KUBE1) == ()


def test_what_the_agent_writes_itself_is_recorded_again(paths: HostPaths) -> None:
    write(paths, "etc/systemd/system/kubelet.service", "with other flags")
    write(paths, "etc/profile.d/proxy.sh", "export http_proxy")
    (paths.rootfs(KUBE1) / "etc/motd").unlink()
    written = ("/etc/systemd/system/kubelet.service", "/etc/profile.d/proxy.sh", "/etc/motd")
    manual_changes.record_again(paths, KUBE1, written)
    assert changed_by_hand(paths, KUBE1) == ()


def test_a_later_start_does_not_record_a_persons_changes(paths: HostPaths) -> None:
    write(paths, "etc/motd", "of a person")
    manual_changes.record(paths, KUBE1)
    assert changed_by_hand(paths, KUBE1) == ("/etc/motd (changed)",)


def test_the_condition_names_the_first_files_and_counts_the_rest(paths: HostPaths) -> None:
    (says,) = node_modified(paths)
    assert (says.status, says.reason) == ("False", "Unchanged")
    for number in range(10):
        write(paths, f"root/{number}", "")
    write(paths, "root/odd\x1b[31m", "")
    (says,) = node_modified(paths)
    assert (says.status, says.reason) == ("True", "Modified")
    assert says.message.startswith(
        "11 files were changed by hand in kube1, and a recreation discards the changes: /root/0 ("
    )
    assert says.message.endswith(" and 3 more")
    assert "\x1b" not in says.message


def test_a_slot_without_a_record_says_nothing(paths: HostPaths) -> None:
    manual_changes.forget(paths, KUBE1)
    assert node_modified(paths) == ()
    paths.slot_files(KUBE1).write_text("{")
    assert node_modified(paths) == ()
