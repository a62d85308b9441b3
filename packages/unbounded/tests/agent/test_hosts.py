"""The hosts of the other tests."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from tests.support.hosts import AgentTools, Host, HostFailed, booted
from tests.support.hosts.host import keep_awake
from tests.support.qemu import Segment

pytestmark = [pytest.mark.slow, pytest.mark.root]
NSPAWN = b"[Exec]\nPrivateUsers=no\nNotifyReady=yes\nResolvConf=off\nTimezone=off\n[Network]\nVirtualEthernet=no\n"


async def test_a_host_has_a_systemd_of_its_own_and_reaches_the_test(host: Host) -> None:
    assert (await host.run("systemctl", "is-system-running")).stdout.strip() == "running"
    assert (await host.run("cat", stdin=b"given")).stdout == "given"
    with pytest.raises(HostFailed, match="status 3"):
        await host.run("sh", "-c", "exit 3")
    host.put("/etc/lab/here", b"1")
    assert (await host.run("cat", "/etc/lab/here")).stdout == "1"
    with socket.create_server(("10.88.0.1", 0)) as door:
        door.settimeout(60)
        port = door.getsockname()[1]
        asked = asyncio.create_task(host.run("bash", "-c", f"echo hello >/dev/tcp/10.88.0.1/{port}"))
        visitor, address = await asyncio.to_thread(door.accept)
        assert (visitor.recv(100), address[0]) == (b"hello\n", host.address)
        await asked


async def test_who_is_kept_awake_keeps_its_exit_status() -> None:
    for _ in range(20):
        process = await asyncio.create_subprocess_exec("true")
        awake = asyncio.create_task(keep_awake(process, every_s=0))
        assert await process.wait() == 0
        await awake


async def test_reboot_and_power_cut_change_the_boot_id_and_keep_the_disk(host: Host) -> None:
    first, machine_id = await host.boot_id(), host.get("/etc/machine-id")
    await host.run("sh", "-c", "echo kept >/etc/kept && mkdir /var/lib/machines/slot")
    await host.reboot()
    second = await host.boot_id()
    host.cut()
    assert await host.boot_id() == ""
    host.put("/etc/while-off", b"x")
    await host.up()
    assert len({first, second, await host.boot_id()}) == 3
    assert (await host.run("cat", "/etc/kept", "/etc/while-off")).stdout == "kept\nx"
    assert host.get("/etc/machine-id") == machine_id
    assert host.exists("/var/lib/machines/slot")
    assert (await host.run("ping", "-c", "1", "-W", "5", "10.88.0.1")).ok


async def test_a_host_holds_nspawn_machines_that_boot_and_are_killed_with_it(hosts: AgentTools, host: Host) -> None:
    host.put("/etc/systemd/nspawn/kube1.nspawn", NSPAWN)
    await host.run("mkdir", "-p", "/var/lib/machines/kube1")
    layer = ["tar", "--zstd", "-xf", str(hosts.node_layer), "-C", str(host.outside("/var/lib/machines/kube1"))]
    unpacking = await asyncio.create_subprocess_exec(*layer)
    assert await unpacking.wait() == 0
    await host.run("machinectl", "start", "kube1")
    running = await host.run("systemctl", "--machine=kube1", "is-system-running", "--wait")
    assert running.stdout.strip() == "running"
    inside = await host.run("systemd-run", "-M", "kube1", "--quiet", "--wait", "--pipe", "python3", "-c", "print(6*7)")
    assert inside.stdout == "42\n"
    host.cut()
    assert "populated 0" in (host.cgroup.folder / "cgroup.events").read_text()
    await host.up()
    assert (await host.run("machinectl", "list", "--no-legend")).stdout == ""


async def test_nothing_of_a_host_is_left_behind(hosts: AgentTools, lan: Segment, disks: Path) -> None:
    async with booted(hosts, lan, disks, "gone", "10.88.0.12") as host:
        group, folder = host.cgroup.folder, host.folder
        assert group.exists()
    assert not group.exists()
    assert not folder.exists()
    assert str(folder) not in Path("/proc/self/mounts").read_text()
