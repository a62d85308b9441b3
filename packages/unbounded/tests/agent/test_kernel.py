"""Kernel parameters of a MachineConfiguration, on a made-up host."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.made_up_host import made_up_host
from unbounded.agent.paths import HostPaths
from unbounded.agent.steps.kernel import BEFORE_CONFIGURED, CONFIGURED_SYSCTL, apply_configured
from unbounded.api.failures import Rejected


def put(paths: HostPaths, name: str, value: str) -> Path:
    path = paths.at(f"/proc/sys/{name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")
    return path


async def test_parameters_follow_the_configuration_and_get_back_what_was_found(tmp_path: Path) -> None:
    made = made_up_host(tmp_path)
    paths, file = made.host.paths, made.host.paths.at("/etc/sysctl.d/98-unbounded-node.conf")
    count, ports = put(paths, "vm/max_map_count", "65530"), put(paths, "net/ipv4/ip_local_port_range", "1\t2")
    filter_ = put(paths, "net/ipv4/conf/eth0.100/rp_filter", "1")
    apply_configured(paths, {})
    assert not file.exists()
    apply_configured(paths, {"vm.max_map_count": "7", "net/ipv4/conf/eth0.100/rp_filter": "2"})
    assert (count.read_text(), filter_.read_text()) == ("7\n", "2\n")
    assert "vm.max_map_count = 7\n" in file.read_text()
    apply_configured(paths, {"vm.max_map_count": "8", "net.ipv4.ip_local_port_range": "1 2"})
    assert (count.read_text(), filter_.read_text()) == ("8\n", "1\n")
    assert ports.read_text() == "1\t2\n", "the kernel's own spaces are no other value"
    await CONFIGURED_SYSCTL.remove(made.host)
    assert (count.read_text(), file.exists(), BEFORE_CONFIGURED.read(paths)) == ("65530\n", False, None)


def test_a_parameter_that_is_not_there_or_is_refused_is_named(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    with pytest.raises(Rejected, match=r"sysctl vm\.nope: this kernel has no such parameter"):
        apply_configured(paths, {"vm.nope": "1"})
    put(paths, "vm/folder/x", "1")
    with pytest.raises(Rejected, match=r"sysctl vm\.folder: this kernel has no such parameter \(Is a directory\)"):
        apply_configured(paths, {"vm.folder": "1"})
