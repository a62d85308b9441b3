"""A `NetbootRequestHandler` in front of an in-memory API, with images on disk and a cluster whose facts are known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from tests.metalman.support.netboot_objects import replacing_status
from tests.support.memory_api import MemoryApi
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import ANNOTATION_REQUESTED_BY
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.api import Api
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock, utc_now
from unbounded.metalman.dhcp.model import Loader, address_octets
from unbounded.metalman.http.boot_service import NotReadyYet, ReportAnswer
from unbounded.metalman.media.tickets import TicketKey
from unbounded.metalman.netboot.boot_requests import KEY_BYTES, PrefixKey
from unbounded.metalman.netboot.model import BootImages, FactUnknown, MacLookup, NetbootImage
from unbounded.metalman.netboot.request_handler import NetbootDependencies, NetbootRequestHandler
from unbounded.metalman.netboot.template_context import TemplateContext
from unbounded.operations.caches import INDEX_MACHINE, by_machine

SERVER: Final = "10.0.0.1"
SERVE_URL: Final = f"http://{SERVER}:8880"
LOADERS: Final = {Loader.X64: "shimx64.efi", Loader.IPXE: "boot.ipxe", Loader.HTTP: "ipxe.efi"}
GRUB: Final = 'linux vmlinuz unbounded.serve_url={{.ServeURL}} "{{.Machine.Name}}"\ninitrd initrd\n'
NETBOOT_FILES: Final[Mapping[str, str]] = {
    "shimx64.efi": "the shim",
    "grubx64.efi": "the loader",
    "ipxe.efi": "iPXE",
    "boot.ipxe.tmpl": "#!ipxe\nchain {{.ServeURL}}/x\n",
    "vmlinuz": "the kernel",
    "initrd": "the installer",
    "grub/grub.cfg.tmpl": GRUB,
    "cloud-init/meta-data.tmpl": "instance-id: {{.Machine.Name}}\n",
    "cloud-init/vendor-data.tmpl": "#cloud-config\n# {{.AgentConfigJSON}} {{.ApiserverURL}}\n",
    "wrong.tmpl": "one\n{{.Machine.Nonsense}}\n",
    "metadata.yaml": "dhcpBootImageName: shimx64.efi\n",
    "disk.img.gz": "of the netboot image",
}


def put(root: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return root


@dataclass
class FixedImages:
    """The results of `of`, which tests change."""

    said: BootImages | NotReadyYet

    def of(self, machine: Machine) -> BootImages | NotReadyYet:
        return self.said


@dataclass
class FixedFacts:
    known: bool = True

    async def template_context(self, machine: Machine, serve_url: str, *, private: bool) -> TemplateContext:
        if not self.known:
            raise FactUnknown("address and certificates of the cluster are not known yet")
        return self.now(serve_url)

    @staticmethod
    def now(serve_url: str) -> TemplateContext:
        return TemplateContext(
            apiserver_url="https://api.example:6443",
            serve_url=serve_url,
            kubernetes_version="v1.34.0",
            cluster_dns="10.96.0.10",
            agent_config_json=f'{{"attest": {{"url": "{serve_url}"}}}}',
        )


@dataclass
class CountingAttestation:
    asked: list[tuple[str, bytes]] = field(default_factory=list)
    boots: list[tuple[str, str]] = field(default_factory=list)  # each boot with the name of its operation

    async def answer(
        self, machine: Machine, request: bytes, boot: str, operation: MachineOperation | None
    ) -> ReportAnswer:
        self.asked.append((machine.name, request))
        self.boots.append((boot, operation.name if operation else ""))
        return ReportAnswer(200, {"credentialBlob": ""})


@dataclass
class World:
    """A site and its surroundings.

    Args:
        macs: the MACs that the kernel knows behind addresses.
        told: Events, as (Machine, reason, text).
    """

    api: MemoryApi
    machines: Cache[Machine]
    operations: Cache[MachineOperation]
    site: NetbootRequestHandler
    images: FixedImages
    facts: FixedFacts
    attestation: CountingAttestation
    macs: dict[str, str]
    told: list[tuple[str, str, str]]

    async def machine(self, body: dict[str, Any]) -> Machine:
        """Apply a Machine; `status` in it is written, too."""
        made = await self.api.create(MACHINES, {key: value for key, value in body.items() if key != "status"})
        if "status" in body:
            made = await self.api.patch(MACHINES, made.name, {"status": body["status"]}, subresource="status")
        await self.caught_up()
        return made

    async def replace(
        self,
        machine: str = "m1",
        *,
        stage: str = "WaitingLoader",
        name: str = "replace",
        kind: str = "HostReplace",
        erase: str = "",
        by: str = "alice",
        parameters: dict[str, str] | None = None,
    ) -> str:
        """Have a HostReplace, or another kind, in a stage; gives its UID, which is the boot."""
        spec: dict[str, Any] = {"operationKind": kind, "machineRef": machine, "parameters": parameters or {}}
        metadata: dict[str, Any] = {"name": name}
        if erase:
            spec["parameters"] = {"disks" if kind == "HostErase" else "eraseDisks": erase}
            metadata["annotations"] = {ANNOTATION_REQUESTED_BY: by} if by else {}
        made = await self.api.create(MACHINE_OPERATIONS, {"metadata": metadata, "spec": spec})
        await self.stage(stage, machine=machine, name=name)
        return str(made.metadata.uid)

    async def stage(self, stage: str, *, machine: str = "m1", name: str = "replace", phase: str = "InProgress") -> None:
        uid = (await self.api.get(MACHINES, machine)).metadata.uid
        status = replacing_status(stage, machine=machine, machine_uid=uid) | {"phase": phase}
        await self.api.patch(MACHINE_OPERATIONS, name, {"status": status}, subresource="status")
        await self.caught_up()

    async def caught_up(self) -> None:
        """Wait until the caches have the API's state, and the site was notified."""
        async with asyncio.timeout(30):
            while True:
                machines, operations = await self.api.list(MACHINES), await self.api.list(MACHINE_OPERATIONS)
                if _equal(self.machines, machines.items) and _equal(self.operations, operations.items):
                    return
                await asyncio.sleep(0.001)

    async def status(self, machine: str = "m1") -> Machine:
        """The Machine, when all that was seen of it is written down."""
        await self.site.flush(machine)
        found = await self.api.get(MACHINES, machine)
        assert isinstance(found, Machine)
        return found

    def prefix(self, machine: str = "m1") -> str:
        url = self.site.url(machine)
        assert url is not None
        return url.rpartition("/")[2]


def _equal(cache: Cache[Any], there: tuple[Any, ...]) -> bool:
    return {each.name: each for each in cache.all()} == {each.name: each for each in there}


@asynccontextmanager
async def netboot_site(
    folder: Path,
    *,
    site: str | None = None,
    api: Api | None = None,
    now: WallClock = utc_now,
    files: Mapping[str, str | bytes] = NETBOOT_FILES,
    server: str = SERVER,
    neighbours: MacLookup | None = None,
    allow_profile_scripts: bool = False,
) -> AsyncIterator[World]:
    """A running site.

    Args:
        neighbours: replaces `World.macs`.
    """
    api = api or MemoryApi()
    netboot = put(folder / "netboot" / "disk", files)
    disk = put(folder / "host" / "disk", {"disk.img.gz": "of the host image", "vmlinuz": "not this one"})
    images = FixedImages(BootImages(NetbootImage(netboot, "sha256:1"), NetbootImage(disk, "sha256:2"), LOADERS))
    machines = Cache(api, MACHINES)
    operations = Cache(api, MACHINE_OPERATIONS, indexes={INDEX_MACHINE: by_machine})
    facts, attestation = FixedFacts(), CountingAttestation()
    macs: dict[str, str] = {}
    told: list[tuple[str, str, str]] = []
    parts = NetbootDependencies(
        api=api,
        machines=machines,
        operations=operations,
        images=images,
        facts=facts,
        attestation=attestation,
        key=PrefixKey(b"k" * KEY_BYTES),
        tickets=TicketKey(bytes(32)),
        server=address_octets(server),
        serve_url=f"http://{server}:8880",
        site=site,
        neighbours=neighbours or macs.get,
        now=now,
        allow_profile_scripts=allow_profile_scripts,
        announce=lambda about, _type, reason, text: told.append((about.name, reason, text)),
    )
    made = NetbootRequestHandler(parts)
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(each) for each in (machines.run(), operations.run(), made.run())]
        try:
            await machines.synced.wait()
            await operations.synced.wait()
            yield World(cast(MemoryApi, api), machines, operations, made, images, facts, attestation, macs, told)
        finally:
            for task in running:
                task.cancel()
