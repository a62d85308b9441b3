"""Hosts beside the one that boots, in network namespaces: with its MAC, its address, its headers. Needs root."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.metalman.support.dhcp_lab import NEAR_MAC, Lab, ip, lab
from tests.support.paths import PYTHONPATH, ROOT, environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]

SERVER, HOST, THIEF = "10.66.0.1", "10.66.0.50", "10.66.0.2"
THIEF_MAC = "66:66:00:00:00:01"
URL = f"http://{SERVER}:8880"
FILES = ("shimx64.efi", "grub/grub.cfg", "vmlinuz", "initrd", "disk.img.gz", "cloud-init/user-data", "metadata.yaml")
SECRETS = ("token", "password", "BEGIN", "secret")


@pytest.fixture
def network() -> Iterator[Lab]:
    """The near host has its address already; the relay of the drawing is the thief here."""
    with lab() as made:
        ip(f"-n {made.ns('near')} addr add {HOST}/24 dev eth0")
        ip(f"-n {made.ns('relay')} link set up0 down")
        ip(f"-n {made.ns('relay')} link set up0 address {THIEF_MAC}")
        ip(f"-n {made.ns('relay')} link set up0 up")
        yield made


class Metalman:
    """The servers' process: its input, and its output."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._said: list[tuple[str, Any]] = []

    @property
    def events(self) -> list[str]:
        return [value[1] for what, value in self._said if what == "event"]

    @property
    def milestones(self) -> list[str]:
        return [value.get("milestone", "") for what, value in self._said if what == "seen"]

    async def until(self, what: str, value: Any = None) -> Any:
        """Read on to the next thing of that kind."""
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            async for line in self._process.stdout:
                told = json.loads(line)
                self._said += told.items()
                if what in told and value in (None, told[what]):
                    return told[what]
        raise AssertionError(f"the servers ended and did not say: {what}")

    async def milestone(self, wanted: str) -> dict[str, Any]:
        while True:
            seen: dict[str, Any] = await self.until("seen")
            if seen.get("milestone") == wanted:
                return seen

    async def stage(self, name: str) -> list[str]:
        """Bring the operation into a stage; the windows that are open then."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name}\n".encode())
        stage, windows = await self.until("stage")
        assert stage == name
        return list(windows)


@asynccontextmanager
async def metalman(network: Lab, folder: Path) -> AsyncIterator[Metalman]:
    process = await asyncio.create_subprocess_exec(
        *("ip", "netns", "exec", network.ns("server"), sys.executable, "-m"),
        *("tests.metalman.support.netboot_process", str(folder)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=ROOT,
        env=environment(),
    )
    try:
        made = Metalman(process)
        await made.until("ready")
        yield made
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(60):
            await process.communicate()


async def get(network: Lab, role: str, path: str, *more: str) -> tuple[int, str]:
    """Status and body of a GET, or of what `more` makes of it."""
    said = await network.run(role, "curl", "-s", "-m", "30", "-w", "\n%{http_code}", *more, f"{URL}/{path}")
    body, _, code = said.rpartition("\n")
    return int(code), body


async def post(network: Lab, role: str, path: str, body: object = None, *more: str) -> int:
    return (await get(network, role, path, "-d", json.dumps(body or {"stage": "x"}), *more))[0]


async def tftp(network: Lab, role: str, name: str, *, within_s: int = 5) -> str:
    return await network.run(role, "curl", "-s", "-m", str(within_s), f"tftp://{SERVER}//{name}")


async def forged(network: Lab, machine_id: str, giaddr: str) -> None:
    """A datagram of the client behind the router, with the MAC of the host and the address of a relay."""
    module = "tests.metalman.support.dhcp_ask"
    env = ("env", f"PYTHONPATH={PYTHONPATH}")
    said = await network.run("far", *env, sys.executable, "-m", module, "eth0", NEAR_MAC, machine_id, SERVER, giaddr)
    assert said == ""


async def offered(network: Lab, role: str, device: str, mac: str, machine_id: str = "of-the-host") -> str:
    module = "tests.metalman.support.dhcp_ask"
    env = ("env", f"PYTHONPATH={PYTHONPATH}")
    return (await network.run(role, *env, sys.executable, "-m", module, device, mac, machine_id)).strip()


def become(network: Lab, mac: str | None = None, *addresses: str) -> None:
    """Give the thief a MAC and addresses beside its own."""
    thief = network.ns("relay")
    if mac is not None:
        ip(f"-n {thief} link set up0 down")
        ip(f"-n {thief} link set up0 address {mac}")
        ip(f"-n {thief} link set up0 up")
    ip(f"-n {thief} addr flush dev up0")
    for address in addresses:
        ip(f"-n {thief} addr add {address}/24 dev up0")
        ip(f"-n {network.ns('server')} neigh flush to {address}")


async def prefix_of(network: Lab, role: str = "near") -> str:
    """Return the prefix in the loader's configuration."""
    code, config = await get(network, role, "grub/grub.cfg")
    assert code == 200, config
    return config.partition("serve_url=")[2].split()[0].rpartition("/")[2]


async def test_outside_a_boot_nobody_gets_anything_and_nothing_changes(network: Lab, tmp_path: Path) -> None:
    async with metalman(network, tmp_path) as servers:
        assert await servers.stage("WaitingImage") == []
        assert await offered(network, "near", "eth0", NEAR_MAC) == "none"
        for role in ("near", "relay"):
            for name in FILES:
                assert (await get(network, role, name))[0] == 404
                assert await tftp(network, role, name) == ""
            for path in ("pxe/disable", "progress", "cloudinit/log", "attest"):
                assert await post(network, role, f"boot/{'a' * 32}/{path}") == 404
                assert await post(network, role, path) == 405  # without a prefix, names are of files
        assert await servers.stage("WaitingImage") == []
        assert servers.milestones == servers.events == []


async def test_a_stranger_gets_nothing_of_a_boot_whatever_headers_it_sends(network: Lab, tmp_path: Path) -> None:
    async with metalman(network, tmp_path) as servers:
        assert await servers.stage("WaitingLoader") == ["installing"]
        prefix = await prefix_of(network)
        for header in ("X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"):
            value = f"for={HOST}" if header == "Forwarded" else HOST
            for name in FILES:
                assert (await get(network, "relay", name, "-H", f"{header}: {value}"))[0] == 404
        assert await offered(network, "relay", "up0", THIEF_MAC) == "silence"
        assert await tftp(network, "relay", "grub/grub.cfg") == ""
        guess = f"{prefix[:-1]}{'a' if prefix[-1] != 'a' else 'b'}"
        assert await post(network, "relay", f"boot/{guess}/pxe/disable") == 404
        assert await post(network, "relay", f"boot/{guess}/progress", {"stage": "x", "failed": True}) == 404

        # The boot continues undisturbed.
        assert await tftp(network, "near", "shimx64.efi", within_s=30) == "the shim"
        assert (await get(network, "near", "vmlinuz"))[0] == 200
        assert await post(network, "near", f"boot/{prefix}/progress", {"stage": "Starting"}) == 200
        assert await post(network, "near", f"boot/{prefix}/pxe/disable") == 200
        assert (await servers.milestone("ImageWritten"))["milestone"] == "ImageWritten"
        assert servers.events == []


async def test_nothing_of_a_boot_is_secret_but_its_prefix(network: Lab, tmp_path: Path) -> None:
    async with metalman(network, tmp_path) as servers:
        await servers.stage("WaitingLoader")
        prefix = await prefix_of(network)
        told = [(await get(network, "near", name))[1] for name in FILES]
        told += [
            (await get(network, "near", f"boot/{prefix}/{name}"))[1] for name in (*FILES, "cloud-init/vendor-data")
        ]
        assert '"attest"' in told[-1]
        assert not [word for word in SECRETS if word in "".join(told)]


async def test_a_thief_of_the_address_alone_ends_the_boot(network: Lab, tmp_path: Path) -> None:
    async with metalman(network, tmp_path) as servers:
        await servers.stage("WaitingLoader")
        assert await tftp(network, "near", "shimx64.efi", within_s=30) == "the shim"
        ip(f"-n {network.ns('near')} addr flush dev eth0")
        become(network, None, HOST)
        assert (await get(network, "relay", "grub/grub.cfg"))[0] == 409
        seen = await servers.milestone("Contested")
        assert THIEF_MAC in seen["message"]
        assert servers.events == ["BootContested"]
        assert (await get(network, "relay", "grub/grub.cfg"))[0] == 404
        assert await offered(network, "near", "eth0", NEAR_MAC) == "none"


async def test_the_kernel_tells_who_is_behind_an_address(network: Lab) -> None:
    code = "import sys; from unbounded.metalman.netboot.process import NeighbourTable as T; "
    code += "print(*map(T('sw0'), sys.argv[1:]))"
    await network.run("near", "curl", "-s", "-m", "5", f"http://{SERVER}:1/")  # it is refused, which takes an answer
    told = await network.run(
        "server", "env", f"PYTHONPATH={PYTHONPATH}", sys.executable, "-c", code, HOST, "10.66.0.77"
    )
    assert told.split() == [NEAR_MAC, "None"]


async def test_stolen_mac_and_address_are_detected_at_the_next_host_request(network: Lab, tmp_path: Path) -> None:
    async with metalman(network, tmp_path) as servers:
        await servers.stage("WaitingLoader")
        ip(f"-n {network.ns('near')} link set eth0 down")  # one MAC on two ports of a switch is heard on the last one
        become(network, NEAR_MAC, HOST)
        assert await offered(network, "relay", "up0", NEAR_MAC, "of-the-thief") == "shimx64.efi"
        prefix = await prefix_of(network, "relay")
        become(network, THIEF_MAC, THIEF)
        ip(f"-n {network.ns('near')} link set eth0 up")
        assert await offered(network, "near", "eth0", NEAR_MAC) == "none"
        seen = await servers.milestone("Contested")
        assert "machine IDs" in seen["message"]
        assert servers.events == ["BootContested"]
        for path in ("pxe/disable", "progress", "cloudinit/log", "attest"):
            assert await post(network, "relay", f"boot/{prefix}/{path}", {"stage": "x"}) == 404


@pytest.mark.parametrize("giaddr", ["10.67.0.1", "10.66.0.2", "203.0.113.1", "0.0.0.0"])
async def test_forged_datagrams_from_another_subnet_end_no_boot(network: Lab, tmp_path: Path, giaddr: str) -> None:
    """Two of them ended any boot: nothing but the Machine's MAC had to be known."""
    for namespace, command in (
        ("far", "addr add 10.67.0.60/24 dev eth0"),
        ("far", "route add default via 10.67.0.1"),
    ):
        ip(f"-n {network.ns(namespace)} {command}")
    await network.run("relay", "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
    async with metalman(network, tmp_path) as servers:
        await servers.stage("WaitingLoader")
        for machine_id in ("one", "another"):
            await forged(network, machine_id, giaddr)
        assert await offered(network, "near", "eth0", NEAR_MAC) == "shimx64.efi"
        assert await tftp(network, "near", "shimx64.efi", within_s=30) == "the shim"
        assert (await get(network, "near", "vmlinuz"))[0] == 200
        assert servers.events == []
        assert "Contested" not in servers.milestones


async def test_a_stolen_prefix_ends_the_boot_and_changes_nothing(network: Lab, tmp_path: Path) -> None:
    async with metalman(network, tmp_path) as servers:
        await servers.stage("WaitingLoader")
        prefix = await prefix_of(network)
        assert await post(network, "near", f"boot/{prefix}/progress", {"stage": "Writing", "percent": 5}) == 200
        await servers.milestone("ImageWriting")
        become(network, None, THIEF)
        assert await post(network, "relay", f"boot/{prefix}/progress", {"stage": "x", "failed": True}) == 409
        seen = await servers.milestone("Contested")
        assert THIEF in seen["message"]
        assert seen["percent"] == 5
        assert "Failed" not in servers.milestones
        assert await post(network, "near", f"boot/{prefix}/pxe/disable") == 404
