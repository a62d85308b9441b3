"""A child process with the HTTP server and the boots of one metalman: `python -m benchmarks.hardware_site KUBECONFIG
FOLDER`. FOLDER has the files that its hosts boot.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry

from benchmarks import children
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.cache import Cache
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.process_tuning import raise_gc_threshold
from unbounded.metalman.dhcp.model import Loader, address_octets
from unbounded.metalman.http.boot_service import ReportAnswer
from unbounded.metalman.http.server import HttpServer, HttpServerSettings
from unbounded.metalman.media.tickets import TicketKey
from unbounded.metalman.netboot.boot_requests import prefix_key
from unbounded.metalman.netboot.model import BootImages, FactUnknown, NetbootImage
from unbounded.metalman.netboot.request_handler import NetbootDependencies, NetbootRequestHandler
from unbounded.metalman.netboot.template_context import TemplateContext
from unbounded.operations.caches import INDEX_MACHINE, by_machine

SERVER = "127.0.0.1"
HOSTS_OF_ONE_ADDRESS = 1000


class Images:
    """One folder with the boot files of every Machine."""

    def __init__(self, folder: Path) -> None:
        image = NetbootImage(folder, "sha256:1")
        self._images = BootImages(image, image, {Loader.X64: "shimx64.efi"})

    def of(self, machine: Machine) -> BootImages:  # all have the same
        return self._images


class Nothing:
    """What a boot of an inspection never asks for."""

    async def template_context(self, machine: Machine, serve_url: str, *, private: bool) -> TemplateContext:
        raise FactUnknown("an inspection needs no template")

    async def answer(
        self, machine: Machine, request: bytes, boot: str, operation: MachineOperation | None
    ) -> ReportAnswer:
        return ReportAnswer(404, {})


async def main(kubeconfig: Path, folder: Path) -> None:
    raise_gc_threshold()
    async with HttpApi(from_kubeconfig(kubeconfig)) as api, asyncio.TaskGroup() as tasks:
        machines = Cache(api, MACHINES)
        operations = Cache(api, MACHINE_OPERATIONS, indexes={INDEX_MACHINE: by_machine})
        site = NetbootRequestHandler(
            NetbootDependencies(
                api=api,
                machines=machines,
                operations=operations,
                images=Images(folder),
                facts=Nothing(),
                attestation=Nothing(),
                key=await prefix_key(api),
                tickets=TicketKey(bytes(32)),
                server=address_octets(SERVER),
                serve_url=f"http://{SERVER}",
            )
        )
        settings = HttpServerSettings(SERVER, 0, most_connections_of_one=HOSTS_OF_ONE_ADDRESS,
                                      most_transfers_of_one=HOSTS_OF_ONE_ADDRESS)  # fmt: skip
        running = [tasks.create_task(work) for work in (machines.run(), operations.run(), site.run())]
        await machines.synced.wait()
        await operations.synced.wait()
        server = HttpServer(settings, site, CollectorRegistry())
        async with server.serving():
            await children.serve({"port": server.port})
        for task in running:
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
