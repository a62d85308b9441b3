"""Boot images in the virtual CD drives of BMCs: insert one for one boot, and eject it however the boot ends.

`Machine.status.redfish.mediaBoot` has the UID of the operation whose image may be in the drive. It is written before
the insertion, and removed after the ejection. So the image of an operation that ended without ejecting it, as its
BMC or its metalman did not answer, is known, and `MediaCleaner` ejects it.
"""

from __future__ import annotations

import asyncio
import socket
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

from unbounded.api.machine import MACHINES, Machine
from unbounded.kube.api import Api, NotFound
from unbounded.kube.cache import Cache
from unbounded.kube.clock import Backoff
from unbounded.kube.controller import Controller, WorkQueue
from unbounded.kube.logs import Log
from unbounded.kube.process import Runtime
from unbounded.kube.status_writer import StatusWriter
from unbounded.metalman.bmc_access import BmcAccess, redfish_of
from unbounded.metalman.boot_override import boots_by_media, media_boot
from unbounded.metalman.inventory_controller import is_ours
from unbounded.metalman.media.tickets import IMAGE_NAME, MediaUrls, machine_of, plain_address
from unbounded.metalman.redfish.bmc_interface import PasswordRejected, Unsupported
from unbounded.metalman.redfish.pool import BmcPool, PooledBmc
from unbounded.metalman.redfish.virtual_media import MediaDrive
from unbounded.metalman.replace_table import BOOTING_KINDS
from unbounded.operations import reasons
from unbounded.operations.executor_protocol import NotDone, Refusal

WORKERS: Final = 8
CALL_S: Final = 60.0  # from the beginning of an ejection by the cleaner to its last request
RETRY: Final = Backoff(base_s=5.0, max_s=300.0)
NO_SERVER: Final = (
    "this metalman does not serve virtual media: start it with --media-certificate and --media-key (of `unbounded up`: "
    "--pxe-media-certificate and --pxe-media-key), or set spec.pxe.bootMode to Network"
)

log = Log("metalman")


class BootMedia:
    """Boot images of one process's Machines.

    Args:
        machines: all Machines.
        urls: URLs of the images; None if this process serves none.
    """

    def __init__(self, api: Api, machines: Cache[Machine], urls: MediaUrls | None) -> None:
        self._api = api
        self._machines = machines
        self._urls = urls
        self._status = StatusWriter(api, MACHINES, fields=("redfish",), cache=machines)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by UID of the Machine

    def is_used(self, machine: str, boot: str) -> bool:
        """Return whether a boot is one from virtual media, as far as the cache knows."""
        found = self._machines.get(machine)
        return found is not None and (boots_by_media(found) or media_boot(found) == boot)

    def urls(self) -> MediaUrls:
        """Return the URLs of images.

        Raises:
            Refusal: this process serves none.
        """
        if self._urls is None:
            raise Refusal(reasons.UNSUPPORTED_OPERATION, NO_SERVER)
        return self._urls

    async def is_inserted(self, machine: Machine, boot: str, bmc: PooledBmc) -> bool:
        """Read the drive, and return whether it has the image of a boot.

        Raises:
            Unsupported: the BMC offers no CD drive.
        """
        drive = await bmc.media_drive()
        return media_boot(machine) == boot and await self._has_image(drive, machine, boot)

    async def insert(self, machine: Machine, boot: str, bmc: PooledBmc, before: float) -> None:
        """Insert the image of a boot, unless the drive has it; an image that is in the drive is ejected first.

        Raises:
            NotDone: the drive shows no image afterwards.
            Unsupported: the BMC offers no CD drive, or rejects the image.
        """
        urls = self.urls()
        async with self._locks[machine.metadata.uid]:
            drive = await bmc.media_drive()
            present = await self._api.get(MACHINES, machine.name)
            if media_boot(present) == boot and await self._has_image(drive, machine, boot):
                return
            if not drive.is_empty:
                await self._eject(bmc, before)
            if media_boot(present) != boot:
                await self._status.write(present, {"redfish": {"mediaBoot": boot}})
            address = await _bmc_address(machine, urls.host)
            url = urls.issue(machine.name, machine.metadata.uid, boot, address)
            drive = await bmc.insert_media(url, leave_by=before)
        if not drive.inserted:
            raise NotDone(reasons.NO_EFFECT, "the BMC accepted the boot image, but its CD drive is still empty")
        log.info("boot image inserted", machine=machine.name, boot=boot)

    async def eject(self, machine: Machine, boot: str, bmc: PooledBmc, before: float) -> None:
        """Eject the image of a boot, unless the drive shows another image; then remove the boot's record.

        Raises:
            NotDone: the drive still has it.
        """
        async with self._locks[machine.metadata.uid]:
            await self._eject_own(machine, boot, bmc, before)

    async def eject_left(self, name: str, access: BmcAccess, pool: BmcPool) -> None:
        """Eject the image of an operation that has ended, if there is one.

        Raises:
            Failure: the BMC or the API failed.
        """
        cached = self._machines.get(name)
        if cached is None:
            return
        async with self._locks[cached.metadata.uid]:
            with suppress(NotFound):
                machine = await self._api.get(MACHINES, name)
                if not is_left(machine):
                    return
                account = await access.of(machine)
                before = asyncio.get_running_loop().time() + CALL_S
                try:
                    await self._eject_own(machine, media_boot(machine), pool.bmc(account), before)
                except PasswordRejected:
                    await access.refused(machine, account)
                    raise
                finally:
                    pool.release_soon(account.url)
                log.info("boot image of an ended operation ejected", machine=name)

    async def _eject_own(self, machine: Machine, boot: str, bmc: PooledBmc, before: float) -> None:
        with suppress(Unsupported):  # a BMC without a drive has no image
            drive = await bmc.media_drive()
            if await self._is_own(drive, machine, boot):
                await self._eject(bmc, before)

        def change(raw: dict[str, Any]) -> Mapping[str, Any] | None:
            recorded = raw.get("status", {}).get("redfish", {}).get("mediaBoot")
            return {"redfish": {"mediaBoot": None}} if recorded == boot else None

        await self._status.update(machine.name, change, uid=machine.metadata.uid)

    async def _is_own(self, drive: MediaDrive, machine: Machine, boot: str) -> bool:
        """Return whether a drive has an image of ours; where its URL is hidden, by its name and the boot's record."""
        if drive.is_empty or drive.image:
            return not drive.is_empty and machine_of(drive.image) == machine.name
        if drive.name not in ("", IMAGE_NAME):
            return False
        return media_boot(await self._api.get(MACHINES, machine.name)) == boot

    async def _eject(self, bmc: PooledBmc, before: float) -> None:
        drive = await bmc.eject_media(leave_by=before)
        if drive.inserted:
            raise NotDone(reasons.NO_EFFECT, "the BMC accepted the ejection, but its CD drive still has an image")

    async def _has_image(self, drive: MediaDrive, machine: Machine, boot: str) -> bool:
        """Return whether a drive has the image of a boot whose record is there; some BMCs do not show its URL."""
        urls = self.urls()
        if not drive.inserted or not drive.image:
            return drive.inserted
        return urls.permits(drive.image, machine.metadata.uid, boot, await _bmc_address(machine, urls.host))


async def _bmc_address(machine: Machine, server: str) -> str:
    """Return the address of the BMC, of the family by which it reaches the server.

    Raises:
        NotDone: its name has none.
    """
    host = urlsplit(redfish_of(machine).url).hostname or ""
    with suppress(ValueError):
        return plain_address(host)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NotDone(reasons.NO_ANSWER, f"spec.pxe.redfish.url: {host} has no address: {error}") from error
    is_ipv6 = ":" in server
    best = sorted(found, key=lambda each: (each[0] is socket.AF_INET6) is not is_ipv6)
    return str(best[0][4][0])


def is_left(machine: Machine) -> bool:
    """Return whether the drive may have an image of an operation that has ended, and no other one replaces it."""
    active, boot = machine.status.active_operation, media_boot(machine)
    return bool(boot) and (active is None or (active.uid != boot and active.kind not in BOOTING_KINDS))


class MediaCleaner:
    """Ejector of the images that ended operations have left in the drives of a site.

    Args:
        site: None for all sites.
    """

    def __init__(
        self,
        runtime: Runtime,
        machines: Cache[Machine],
        media: BootMedia,
        access: BmcAccess,
        pool: BmcPool,
        *,
        site: str | None,
    ) -> None:
        self._machines = machines
        self._media, self._access, self._pool = media, access, pool
        self._site = site
        self._controller: Controller[str] = Controller(
            "boot media", self._clean, workers=WORKERS, queue=WorkQueue(failed=RETRY), metrics=runtime.metrics
        )

    async def run(self) -> None:
        """Work until cancelled."""
        with self._machines.subscribed(self._changed):
            await self._controller.run()

    def _changed(self, _old: Machine | None, new: Machine | None) -> None:
        if new is not None and is_left(new) and is_ours(new, self._site):
            self._controller.enqueue(new.name)

    async def _clean(self, name: str) -> float | None:
        machine = self._machines.get(name)
        if machine is None or not is_left(machine) or not is_ours(machine, self._site):
            return None
        await self._media.eject_left(name, self._access, self._pool)
        return None
