"""DHCP, TFTP and HTTP for one Machine, as a process of its own in front of an in-memory API: `python -m … FOLDER`.

It prints a line of JSON when it serves, for each Event, and for each change of the Machine's netboot status. It takes
the name of a stage on a line, which the Machine's HostReplace is brought into then.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from tests.metalman.support.dhcp_lab import LEASES, NEAR_MAC
from tests.metalman.support.netboot_objects import REDFISH, machine_body, replacing_status
from tests.metalman.support.netboot_site import (
    LOADERS,
    NETBOOT_FILES,
    CountingAttestation,
    FixedFacts,
    FixedImages,
    put,
)
from tests.support.memory_api import MemoryApi
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.cache import Cache
from unbounded.metalman.dhcp import server as dhcp
from unbounded.metalman.dhcp.model import address_octets
from unbounded.metalman.http import server as http
from unbounded.metalman.media.tickets import TicketKey
from unbounded.metalman.netboot.boot_requests import prefix_key
from unbounded.metalman.netboot.model import BootImages, NetbootImage
from unbounded.metalman.netboot.process import NeighbourTable
from unbounded.metalman.netboot.request_handler import NetbootDependencies, NetbootRequestHandler
from unbounded.metalman.tftp import server as tftp
from unbounded.operations.caches import INDEX_MACHINE, by_machine

SERVER = "10.66.0.1"


def say(what: str, value: object) -> None:
    print(json.dumps({what: value}), flush=True)


def changed(_old: Machine | None, new: Machine | None) -> None:
    if new is not None and new.status.netboot is not None:
        say("seen", msgspec.to_builtins(new.status.netboot))


async def prepared(api: MemoryApi) -> str:
    """Create a Machine with the near host's MAC, and an unclaimed HostReplace; return the UID of the Machine."""
    address, mask, gateway, _dns = LEASES[NEAR_MAC]
    lease = {"ipv4": address, "mac": NEAR_MAC, "subnetMask": mask, "gateway": gateway}
    machine = await api.create(MACHINES, machine_body(leases=[lease], pxe={"redfish": REDFISH}))
    spec = {"operationKind": "HostReplace", "machineRef": "m1"}
    await api.create(MACHINE_OPERATIONS, {"metadata": {"name": "replace"}, "spec": spec})
    return machine.metadata.uid


async def main(folder: Path) -> None:
    api = MemoryApi()
    uid = await prepared(api)
    root = put(folder, NETBOOT_FILES)
    image = NetbootImage(root, "sha256:1")
    machines = Cache(api, MACHINES)
    machines.subscribe(changed)
    parts = NetbootDependencies(
        api=api,
        machines=machines,
        operations=Cache(api, MACHINE_OPERATIONS, indexes={INDEX_MACHINE: by_machine}),
        images=FixedImages(BootImages(image, image, LOADERS)),
        facts=FixedFacts(),
        attestation=CountingAttestation(),
        key=await prefix_key(api),
        tickets=TicketKey(bytes(32)),
        server=address_octets(SERVER),
        serve_url=f"http://{SERVER}:8880",
        neighbours=NeighbourTable("sw0"),
        announce=lambda about, _type, reason, text: say("event", [about.name, reason, text]),
    )
    site = NetbootRequestHandler(parts)
    async with asyncio.TaskGroup() as group:
        for work in (machines.run(), parts.operations.run(), site.run()):
            group.create_task(work)
        await machines.synced.wait()
        await parts.operations.synced.wait()
        async with (
            dhcp.DhcpServer(
                dhcp.DhcpServerSettings(interface="sw0"), site.reservations, site.findings.report, site.reservations
            ).serving(),
            tftp.TftpServer(tftp.TftpServerSettings(SERVER), site).serving(),
            http.HttpServer(http.HttpServerSettings(SERVER, 8880), site, CollectorRegistry()).serving(),
        ):
            say("ready", True)
            await obeying(api, parts.operations, uid, site)


async def obeying(api: MemoryApi, operations: Cache[MachineOperation], uid: str, site: NetbootRequestHandler) -> None:
    """Bring the operation into stages until there is no more input."""
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while stage := (await lines.readline()).decode().strip():
        status: dict[str, Any] = replacing_status(stage, machine="m1", machine_uid=uid)
        await api.patch(MACHINE_OPERATIONS, "replace", {"status": status}, subresource="status")
        async with asyncio.timeout(60):
            while not _is_in(operations.get("replace"), stage):  # noqa: ASYNC110 - a cache has no event for it
                await asyncio.sleep(0.005)
        say("stage", [stage, [each.window.value for each in site.requests]])
    raise SystemExit


def _is_in(operation: MachineOperation | None, stage: str) -> bool:
    return operation is not None and [target.stage for target in operation.status.targets] == [stage]


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
