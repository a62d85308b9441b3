"""Files that a person changed inside a slot, distinguished from those that a running node and the agent write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from unbounded.agent.layout import Layout
from unbounded.agent.model import Slot
from unbounded.agent.node import manual_changes
from unbounded.agent.node.manual_changes import changed_by_hand, node_modified

KUBE1 = Slot.KUBE1


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A host whose slot has files, which were recorded."""
    layout = Layout(tmp_path)
    layout.state.mkdir(parents=True)
    layout.etc.mkdir(parents=True)
    layout.applied(KUBE1).write_text("{}")
    for path in ("etc/motd", "etc/hosts", "etc/systemd/system/kubelet.service", "usr/local/bin/kubelet", "var/lib/x"):
        write(layout, path, "as built")
    link(layout, "etc/localtime", "/usr/share/zoneinfo/UTC")
    manual_changes.record(layout, KUBE1)
    return layout


def write(layout: Layout, path: str, content: str) -> None:
    file = layout.rootfs(KUBE1) / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


def link(layout: Layout, path: str, target: str) -> None:
    file = layout.rootfs(KUBE1) / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    file.symlink_to(target)


def test_what_was_changed_added_and_removed_is_listed(layout: Layout) -> None:
    assert changed_by_hand(layout, KUBE1) == ()
    write(layout, "etc/motd", "of a person")
    write(layout, "root/notes", "")
    write(layout, "usr/local/bin/tool", "")
    link(layout, "etc/localtime", "/usr/share/zoneinfo/Europe/Berlin")
    link(layout, "etc/systemd/system/multi-user.target.wants/tool.service", "../tool.service")
    (layout.rootfs(KUBE1) / "usr/local/bin/kubelet").chmod(0o700)
    (layout.rootfs(KUBE1) / "etc/hosts").unlink()
    assert changed_by_hand(layout, KUBE1) == (
        "/etc/hosts (removed)", "/etc/localtime (changed)", "/etc/motd (changed)",
        "/etc/systemd/system/multi-user.target.wants/tool.service (added)", "/root/notes (added)",
        "/usr/local/bin/kubelet (changed)", "/usr/local/bin/tool (added)",
    )  # fmt: skip


def test_an_edit_that_keeps_the_size_is_seen(layout: Layout) -> None:
    file = layout.rootfs(KUBE1) / "etc/motd"
    before = file.stat().st_mtime_ns
    write(layout, "etc/motd", "AS BUILT")
    os.utime(file, ns=(before + 1, before + 1))
    assert changed_by_hand(layout, KUBE1) == ("/etc/motd (changed)",)


@pytest.mark.parametrize(
    "path",
    [
        "etc/machine-id", "etc/resolv.conf", "etc/cni/net.d/10-calico.conflist", "opt/cni/bin/calico",
        "etc/cdi/nvidia.yaml", "etc/containerd/certs.d/x/hosts.toml", "etc/ssh/ssh_host_rsa_key",
        "root/.kube/cache/discovery/x.json", "var/lib/kubelet/config.json", "var/log/pods/x",
    ],
)  # fmt: skip
def test_what_a_running_node_writes_is_no_persons_doing(layout: Layout, path: str) -> None:
    write(layout, path, "by the node")
    assert changed_by_hand(layout, KUBE1) == ()


def test_links_to_the_drivers_libraries_are_the_agents(layout: Layout) -> None:
    link(layout, "usr/local/lib/libcuda.so.1", "/run/host-nvidia/0/libcuda.so.1")
    assert changed_by_hand(layout, KUBE1) == ()


def test_what_the_agent_writes_itself_is_recorded_again(layout: Layout) -> None:
    write(layout, "etc/systemd/system/kubelet.service", "with other flags")
    write(layout, "etc/profile.d/proxy.sh", "export http_proxy")
    (layout.rootfs(KUBE1) / "etc/motd").unlink()
    paths = ("/etc/systemd/system/kubelet.service", "/etc/profile.d/proxy.sh", "/etc/motd")
    manual_changes.record_again(layout, KUBE1, paths)
    assert changed_by_hand(layout, KUBE1) == ()


def test_a_later_start_does_not_record_a_persons_changes(layout: Layout) -> None:
    write(layout, "etc/motd", "of a person")
    manual_changes.record(layout, KUBE1)
    assert changed_by_hand(layout, KUBE1) == ("/etc/motd (changed)",)


def test_the_condition_names_the_first_files_and_counts_the_rest(layout: Layout) -> None:
    (says,) = node_modified(layout)
    assert (says.status, says.reason) == ("False", "Unchanged")
    for number in range(10):
        write(layout, f"root/{number}", "")
    write(layout, "root/odd\x1b[31m", "")
    (says,) = node_modified(layout)
    assert (says.status, says.reason) == ("True", "Modified")
    assert says.message.startswith(
        "11 files were changed by hand in kube1, and a recreation discards the changes: /root/0 ("
    )
    assert says.message.endswith(" and 3 more")
    assert "\x1b" not in says.message


def test_a_slot_without_a_record_says_nothing(layout: Layout) -> None:
    manual_changes.forget(layout, KUBE1)
    assert node_modified(layout) == ()
    layout.slot_files(KUBE1).write_text("{")
    assert node_modified(layout) == ()
