"""Real DHCP clients and relays against the server, in network namespaces."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.metalman.support.dhcp_lab import FAR_MAC, LEASES, NEAR_MAC, Lab, lab

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

CLIENTS = ("udhcpc", "dhclient", "dhcpcd")


@pytest.fixture(scope="module")
def network() -> Iterator[Lab]:
    with lab() as made:
        yield made


def needs(tool: str) -> str:
    found = shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    if found is None:
        pytest.skip(f"{tool} is not installed; scripts/net-tools gets it")
    return found


class Client:
    """Starts a client in a namespace; it hands its environment to a script of ours and leaves the system alone."""

    def __init__(self, network: Lab, role: str, folder: Path) -> None:
        self._network, self._role, self._folder = network, role, folder
        self._heard = folder / "heard"
        self._script = folder / "script"
        self._script.write_text(f"#!/bin/sh\nenv >>{self._heard}\n")
        self._script.chmod(0o755)

    async def lease(self, name: str) -> dict[str, str]:
        """Return the client's settings, by its own names."""
        await {"udhcpc": self.udhcpc, "dhclient": self.dhclient, "dhcpcd": self._dhcpcd}[name]()
        return self.learned()

    def learned(self) -> dict[str, str]:
        lines = self._heard.read_text().splitlines() if self._heard.exists() else []
        return dict(line.split("=", 1) for line in lines if "=" in line)

    async def udhcpc(self, *more: str) -> str:
        options = ("-f", "-q", "-n", "-t", "5", "-i", "eth0", "-O", "bootfile", "-s", str(self._script))
        return await self._network.run(self._role, needs("busybox"), "udhcpc", *options, *more)

    async def dhclient(self, *more: str) -> str:
        files = ("-lf", str(self._folder / "leases"), "-pf", str(self._folder / "pid"), "-cf", str(self._config()))
        options = ("-4", "-v", "-1", "-sf", str(self._script), *files, *more, "eth0")
        try:
            return await self._network.run(self._role, needs("dhclient"), *options)
        finally:  # with a lease, dhclient goes on in the background, and may not have written its pid file yet
            self._network.kill_processes(self._role)

    def _config(self) -> Path:
        config = self._folder / "dhclient.conf"
        config.write_text("timeout 20; request subnet-mask, routers, domain-name-servers, bootfile-name;\n")
        return config

    def remember(self, address: str) -> None:
        """Leave a lease that dhclient requests again after a reboot (INIT-REBOOT)."""
        (self._folder / "leases").write_text(
            f'lease {{ interface "eth0"; fixed-address {address}; option subnet-mask 255.255.255.0;\n'
            "option dhcp-server-identifier 10.66.0.1; renew 2 2037/01/01 00:00:00; rebind 2 2037/01/01 00:00:00;\n"
            "expire 2 2037/01/01 00:00:00; }\n"
        )

    async def _dhcpcd(self) -> str:
        own = "mkdir -p /var/lib/dhcpcd /run/dhcpcd; mount -t tmpfs x /var/lib/dhcpcd; mount -t tmpfs x /run/dhcpcd; "
        options = "-4 -1 -B -d -t 20 -f /dev/null -o bootfile_name --noarp eth0"
        try:
            return await self._network.run(
                self._role, "unshare", "-m", "sh", "-c", f"{own} exec {needs('dhcpcd')} -c {self._script} {options}"
            )
        finally:
            await self._network.run(self._role, "ip", "addr", "flush", "dev", "eth0")


def assert_leased(learned: dict[str, str], mac: str) -> None:
    address, mask, gateway, dns = LEASES[mac]
    assert address in (learned.get("ip"), learned.get("new_ip_address")), learned
    assert mask in (learned.get("subnet"), learned.get("new_subnet_mask"))
    assert gateway in (learned.get("router"), learned.get("new_routers"))
    assert dns[0] in (learned.get("dns"), learned.get("new_domain_name_servers"))
    assert "shimx64.efi" in (learned.get("boot_file"), learned.get("new_bootfile_name"))


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_client_on_the_segment_gets_its_lease(network: Lab, tmp_path: Path, name: str) -> None:
    async with network.server() as server:
        assert_leased(await Client(network, "near", tmp_path).lease(name), NEAR_MAC)
        assert (await server.counts())["answered"] >= 2


async def test_a_client_that_asks_for_broadcasts_gets_them(network: Lab, tmp_path: Path) -> None:
    async with network.server():
        client = Client(network, "near", tmp_path)
        await client.udhcpc("-B")
        assert_leased(client.learned(), NEAR_MAC)


@asynccontextmanager
async def relaying(network: Lab, relay: str) -> AsyncIterator[None]:
    command = {
        "dhcrelay": ("-4", "-d", "-q", "-a", "-i", "dn0", "-i", "up0", "10.66.0.1"),
        "dhcp-helper": ("-d", "-s", "10.66.0.1", "-i", "dn0", "-u", "root"),
    }[relay]
    async with network.process("relay", needs(relay), *command):
        await network.listening("relay", 67)
        yield


@pytest.mark.parametrize("mode", ["interface", "relay"])
@pytest.mark.parametrize(("relay", "name"), [*(("dhcrelay", name) for name in CLIENTS), ("dhcp-helper", "udhcpc")])
async def test_a_client_behind_a_relay_gets_its_lease(
    network: Lab, tmp_path: Path, mode: str, relay: str, name: str
) -> None:
    async with network.server(mode), relaying(network, relay):
        assert_leased(await Client(network, "far", tmp_path).lease(name), FAR_MAC)


async def test_dhclient_with_a_foreign_lease_gets_nak_and_its_own(network: Lab, tmp_path: Path) -> None:
    async with network.server():
        client = Client(network, "near", tmp_path)
        client.remember("10.66.0.77")
        said = await client.dhclient()
        assert "DHCPNAK" in said
        assert_leased(client.learned(), NEAR_MAC)


async def test_a_client_that_remembers_its_lease_keeps_it_without_an_offer(network: Lab, tmp_path: Path) -> None:
    async with network.server():
        client = Client(network, "near", tmp_path)
        client.remember("10.66.0.50")
        said = await client.dhclient()
        assert "DHCPDISCOVER" not in said
        assert_leased(client.learned(), NEAR_MAC)


async def test_a_released_lease_is_there_again(network: Lab, tmp_path: Path) -> None:
    async with network.server() as server:
        client = Client(network, "near", tmp_path)
        await client.dhclient()
        await network.run("near", "ip", "addr", "add", "10.66.0.50/24", "dev", "eth0")
        said = await client.dhclient("-r")
        await network.run("near", "ip", "addr", "flush", "dev", "eth0")
        assert "DHCPRELEASE" in said
        await client.udhcpc()
        assert_leased(client.learned(), NEAR_MAC)
        assert (await server.counts())["released"] == 1


async def test_another_server_on_the_segment_is_noticed(network: Lab, tmp_path: Path) -> None:
    other = {"mode": "interface", "interface": "up0", "address": "10.66.0.2", "leases": LEASES}
    async with network.server() as server, network.server_with("relay", other):
        finding = asyncio.create_task(server.next("finding"))
        await Client(network, "near", tmp_path).udhcpc("-B")
        assert await finding == [
            "ForeignDHCPServer",
            "m-01",
            "another DHCP server, 10.66.0.2, answers on this network",
        ]
