"""`metalman serve-pxe` as a process: replicas beside each other on one segment, with no more rights than they have."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.metalman.support.dhcp_lab import FAR_MAC, NEAR_MAC, Lab, lab
from tests.metalman.support.surrounding import around, play
from tests.support.waiting import eventually
from unbounded.api.machine import MACHINES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

ADDRESS: Final = "10.66.0.50"
LEASE: Final = {"mac": NEAR_MAC, "ipv4": ADDRESS, "subnetMask": "255.255.255.0", "gateway": "10.66.0.1"}
MACHINE: Final = {
    "apiVersion": MACHINES.api_version,
    "kind": "Machine",
    "metadata": {"name": "m1"},
    "spec": {"pxe": {"image": "127.0.0.1:1/nothing:v1", "dhcpLeases": [LEASE]}},
}
FILES: Final = {
    "disk/metadata.yaml": "dhcpBootImageName: shimx64.efi\n",
    "disk/shimx64.efi": "a loader",
    "disk/grub/grub.cfg.tmpl": "linux vmlinuz unbounded.serve_url={{ .ServeURL }}\n",
    "disk/vmlinuz": "a kernel",
    "disk/initrd": "an initrd",
    "disk/disk.img.gz": "a disk",
}
TAKES_OVER_S: Final = 20
HASTY: Final = {
    "METALMAN_LEADER_ELECT_LEASE_DURATION": "3s",
    "METALMAN_LEADER_ELECT_RENEW_DEADLINE": "2s",
    "METALMAN_LEADER_ELECT_RETRY_PERIOD": "300ms",
}


@pytest.fixture(scope="module")
def network() -> Iterator[Lab]:
    with lab() as made:
        yield made


@asynccontextmanager
async def cluster(network: Lab, folder: Path) -> AsyncIterator[dict[str, str]]:
    """The kubeconfigs of an API server in the servers' namespace, by who they are of."""
    command = (sys.executable, "-m", "tests.metalman.support.cluster_process", str(folder))
    async with network.process("server", *command) as process:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            ready = json.loads(await process.stdout.readline())["ready"]
        yield ready


@dataclass(frozen=True)
class Replica:
    """One metalman, and where it listens."""

    network: Lab
    process: asyncio.subprocess.Process
    http: int
    health: int

    async def get(self, port: int, path: str) -> tuple[int, str]:
        """Status and body; 0 while nothing listens."""
        code = (
            "import sys,urllib.request,urllib.error\n"
            "try: a = urllib.request.urlopen(sys.argv[1], timeout=5)\n"
            "except urllib.error.HTTPError as e: a = e\n"
            "except OSError: print(0); sys.exit()\n"
            "print(a.status); print(a.read().decode())"
        )
        said = await self.network.run("server", sys.executable, "-ISc", code, f"http://127.0.0.1:{port}{path}")
        status, _, body = said.partition("\n")
        return int(status), body

    async def ready(self) -> bool:
        return (await self.get(self.health, "/readyz"))[0] == 200

    async def metric(self, name: str) -> float:
        _, body = await self.get(self.health, "/metrics")
        return sum(float(value) for value in re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", body, re.MULTILINE))


def command(kubeconfig: str, folder: Path, number: int, **more: str) -> list[str]:
    given = {
        "kubeconfig": kubeconfig,
        "dhcp-interface": "sw0",
        "cache-dir": str(folder / f"cache-{number}"),
        "http-port": str(8880 + number),
        "tftp-port": str(6900 + number),
        "health-port": str(8080 + number),
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    flags = [f"--{name}={value}" for name, value in given.items()]
    return [sys.executable, "-m", "unbounded.metalman.main", "serve-pxe", *flags]


@asynccontextmanager
async def replica(network: Lab, kubeconfig: str, folder: Path, number: int, **more: str) -> AsyncIterator[Replica]:
    environ = ["env", *(f"{name}={value}" for name, value in HASTY.items())]
    async with network.process("server", *environ, *command(kubeconfig, folder, number, **more)) as process:
        yield Replica(network, process, 8880 + number, 8080 + number)


async def leased(network: Lab) -> dict[str, Any]:
    """Return the machine's DHCP lease."""
    asked = json.dumps({"interface": "eth0", "mac": NEAR_MAC, "until": "leased"})
    said = await network.run("near", sys.executable, "-m", "tests.metalman.support.pxe_machine", asked, within_s=60)
    assert said.startswith("{"), said
    step: dict[str, Any] = json.loads(said.splitlines()[0])
    return step


async def create(network: Lab, kubeconfig: str, body: dict[str, Any]) -> None:
    """Create an object as the administrator."""
    code = (
        "import asyncio, json, sys\n"
        "from pathlib import Path\n"
        "from unbounded.api.machine import MACHINES\n"
        "from unbounded.kube.client import HttpApi\n"
        "from unbounded.kube.config import from_kubeconfig\n"
        "async def main():\n"
        "    async with HttpApi(from_kubeconfig(Path(sys.argv[1]))) as api:\n"
        "        await api.create(MACHINES, json.loads(sys.argv[2]))\n"
        "asyncio.run(main())"
    )
    said = await network.run("server", sys.executable, "-c", code, kubeconfig, json.dumps(body))
    assert not said, said


async def test_only_the_leader_answers_dhcp_and_its_successor_takes_over(network: Lab, tmp_path: Path) -> None:
    async with cluster(network, tmp_path) as known:
        await create(network, known["admin"], MACHINE)
        async with (
            replica(network, known["metalman"], tmp_path, 1) as one,
            replica(network, known["metalman"], tmp_path, 2) as two,
        ):
            for each in (one, two):
                await eventually(each.ready, within_s=60)
                assert (await each.get(each.http, "/nothing"))[0] == 404

            async def leading() -> list[float]:
                now = [await each.metric("unbounded_leading") for each in (one, two)]
                return now if sum(now) else []

            leader, other = (one, two) if (await eventually(leading, within_s=TAKES_OVER_S))[0] else (two, one)
            assert sum(await leading()) == 1.0
            assert (await leased(network))["address"] == ADDRESS
            assert await leader.metric("unbounded_netboot_dhcp_packets_total") >= 2
            assert await other.metric("unbounded_netboot_dhcp_packets_total") == 0

            leader.process.send_signal(signal.SIGKILL)

            async def leads() -> bool:
                return await other.metric("unbounded_leading") == 1.0

            await eventually(leads, within_s=TAKES_OVER_S)
            assert (await leased(network))["address"] == ADDRESS
            assert await other.metric("unbounded_netboot_dhcp_packets_total") >= 2


ASK: Final = """
import sys, time, urllib.error, urllib.request
body = b"{}" if sys.argv[2] == "POST" else None
for _ in range(100):
    try: answer = urllib.request.urlopen(urllib.request.Request(sys.argv[1], data=body), timeout=5)
    except urllib.error.HTTPError as error: answer = error
    if answer.status != 503: break
    time.sleep(0.2)
print(answer.status)
print(answer.read().decode())
"""


async def ask(network: Lab, url: str, method: str = "GET") -> tuple[int, str]:
    """Send a request of the machine and return the answer; repeat it after a 503."""
    said = await network.run("near", sys.executable, "-ISc", ASK, url, method)
    status, _, body = said.partition("\n")
    assert status.isdigit(), said
    return int(status), body.rstrip("\n")


async def test_a_boot_that_began_at_one_replica_goes_on_at_another(network: Lab, tmp_path: Path) -> None:
    async with around(network, tmp_path, {"lab/host:v1": FILES}) as beside, cluster(network, tmp_path) as known:
        spec = {"pxe": {"image": beside.machine["spec"]["pxe"]["image"], "dhcpLeases": [LEASE]}}
        await create(network, known["admin"], MACHINE | {"spec": spec | {"operations": {"repaveCounter": 1}}})
        async with (
            replica(network, known["metalman"], tmp_path, 1) as one,
            replica(network, known["metalman"], tmp_path, 2) as two,
        ):
            for each in (one, two):
                await eventually(each.ready, within_s=60)
            assert (await leased(network))["address"] == ADDRESS
            status, config = await ask(network, f"http://10.66.0.1:{one.http}/grub/grub.cfg")
            assert status == 200
            url = config.partition("serve_url=")[2]
            assert url.startswith(f"http://10.66.0.1:{one.http}/boot/")
            other = url.replace(str(one.http), str(two.http))
            assert await ask(network, f"{other}/disk.img.gz") == (200, "a disk")
            assert (await ask(network, f"{other}/pxe/disable", "POST"))[0] == 200
            assert await ask(network, f"{url}/cloud-init/user-data") == (200, "#cloud-config")

            async def closed() -> bool:
                return (await ask(network, f"http://10.66.0.1:{one.http}/grub/grub.cfg"))[0] == 404

            await eventually(closed, within_s=60)


async def test_server_without_an_interface_installs_a_machine_behind_a_relay(network: Lab, tmp_path: Path) -> None:
    relay = shutil.which("dhcrelay", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if relay is None:
        pytest.skip("dhcrelay is not installed; scripts/net-tools gets it")
    await network.run("relay", "sysctl", "-qw", "net.ipv4.ip_forward=1")
    lease = {"mac": FAR_MAC, "ipv4": "10.67.0.50", "subnetMask": "255.255.255.0", "gateway": "10.67.0.1"}
    without = {"dhcp_interface": "", "bind_address": "10.66.0.1", "tftp_port": "69"}
    async with (
        around(network, tmp_path, {"lab/host:v1": FILES}, lease) as beside,
        cluster(network, tmp_path) as known,
        network.process("relay", relay, "-4", "-d", "-q", "-a", "-i", "dn0", "-i", "up0", "10.66.0.1"),
    ):
        spec = {"pxe": {"image": beside.machine["spec"]["pxe"]["image"], "dhcpLeases": [lease]}}
        await create(network, known["admin"], MACHINE | {"spec": spec | {"operations": {"repaveCounter": 1}}})
        async with replica(network, known["metalman"], tmp_path, 1, **without) as one:
            await eventually(one.ready, within_s=60)
            said: dict[str, Any] = {}
            async with asyncio.timeout(60):
                while "loader" not in said:  # its image is being pulled
                    said = await play(network, "far")
            assert list(said)[-1] == "cloud-init done", said
            assert said["leased"] == {"address": "10.67.0.50", "server": "10.66.0.1", "loader": "shimx64.efi"}
            chosen = {"status": "ok", "action": "Write", "disk": "/dev/disk/by-id/wwn-0xa1"}
            assert said["chosen"] == {"answer": chosen}
            assert (await play(network, "far"))["leased"]["loader"] == ""


REFUSED: Final = [
    ({"http_port": "8881"}, "HTTP cannot listen on 0.0.0.0 port 8881: the port is in use"),
    ({"dhcp_interface": "eth9"}, "error: --dhcp-interface: interface eth9 does not exist; available: "),
    ({"cache_dir": "{}/cache-1"}, "error: --cache-dir: {}/cache-1: another process uses this image store"),
]


async def test_what_it_cannot_have_ends_it_with_the_flag_to_change(network: Lab, tmp_path: Path) -> None:
    async with cluster(network, tmp_path) as known, replica(network, known["metalman"], tmp_path, 1) as one:
        await eventually(one.ready, within_s=60)
        for more, words in REFUSED:
            given = {name: value.format(tmp_path) for name, value in more.items()}
            said = await network.run("server", *command(known["metalman"], tmp_path, 2, **given), within_s=30)
            assert words.format(tmp_path) in said
            assert "Traceback" not in said
