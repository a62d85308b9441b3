"""Pinned images: a running boot keeps the images that it began with until it ends, even if their tags move.

This process remembers what it served. For a boot that another replica served, or this one before a restart, the status
of the Machine has the digest of the disk image. That image is served further if it is on this disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Final

from unbounded.api.failures import Failure
from unbounded.api.machine import Machine, NetbootMilestone
from unbounded.api.operation import OperationsStatus
from unbounded.fetch.failures import UnusableContent
from unbounded.fetch.reference import Digest
from unbounded.fetch.store import ImageStore
from unbounded.kube.controller import Controller
from unbounded.kube.logs import Log
from unbounded.kube.metrics import ControllerMetrics
from unbounded.metalman.http.ports import NotReadyYet
from unbounded.metalman.images.metadata import FOLDER, read_disk, read_netboot
from unbounded.metalman.netboot.model import BootImages, NetbootImage

SOON_S: Final = 1
_RUNNING: Final = frozenset(
    {
        NetbootMilestone.OFFERED,
        NetbootMilestone.LOADER_FETCHED,
        NetbootMilestone.KERNEL_FETCHED,
        NetbootMilestone.INSTALLER_STARTED,
        NetbootMilestone.IMAGE_WRITING,
    }
)

log = Log("metalman.images")


class PinnedImages:
    """Images of the running boots of one cache; `run` reads those that were served earlier."""

    def __init__(self, store: ImageStore, metrics: ControllerMetrics | None = None) -> None:
        self._store = store
        self._by_machine: dict[str, tuple[str, str, BootImages]] = {}  # {Machine: (its UID, boot, images)}
        self._read: dict[str, BootImages | None] = {}  # by digest of the disk image, for images that contain everything
        self._controller: Controller[str] = Controller("images of boots", self._read_image, workers=1, metrics=metrics)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._controller.run()

    def of(self, machine: Machine, now: BootImages | NotReadyYet) -> BootImages | NotReadyYet:
        """Return the images for a Machine: those that its running boot began with, else `now`."""
        boot, uid = running_boot(machine), machine.metadata.uid
        if not boot:
            self.forget(machine.name)
            return now
        began = self._by_machine.get(machine.name)
        if began is not None and began[:2] == (uid, boot) and began[2].is_on_disk:
            return began[2]
        earlier = self._earlier(machine, now)
        served = now if earlier is None else earlier
        if isinstance(served, BootImages):
            self._by_machine[machine.name] = (uid, boot, served)
        return served

    def forget(self, name: str) -> None:
        """Forget the boot of a Machine that has ended or was deleted."""
        self._by_machine.pop(name, None)

    def used(self, machines: Iterable[Machine]) -> set[Digest]:
        """Return the images of running boots."""
        under_way = {machine.name: machine for machine in machines if running_boot(machine)}
        self._by_machine = {
            name: began
            for name, began in self._by_machine.items()
            if name in under_way and began[:2] == (under_way[name].metadata.uid, running_boot(under_way[name]))
        }
        digests = {image.digest for _, _, one in self._by_machine.values() for image in (one.netboot, one.disk)}
        digests |= {_recorded_digest(machine) for machine in under_way.values()}
        self._read.clear()  # images that are still needed are read again
        return {Digest.parse(digest) for digest in digests if digest}

    def _earlier(self, machine: Machine, now: BootImages | NotReadyYet) -> BootImages | NotReadyYet | None:
        """Return the images that this boot got before this process knew it; None if they are the present ones."""
        recorded = _recorded_digest(machine)
        if not recorded or (isinstance(now, BootImages) and now.disk.digest == recorded):
            return None
        if (
            isinstance(now, BootImages) and now.netboot != now.disk
        ):  # the status has only the digest of the disk image, which is the larger one
            return None
        read = self._read.get(recorded)
        if recorded in self._read and (read is None or read.is_on_disk):
            return read
        if self._store.at(Digest.parse(recorded)) is None:
            return None
        self._controller.enqueue(recorded)
        return NotReadyYet(SOON_S, f"metalman is reading image {recorded}, with which this boot started")

    async def _read_image(self, recorded: str) -> None:
        root = self._store.at(Digest.parse(recorded))
        if root is None:
            self._read[recorded] = None
            return
        folder = root / FOLDER
        try:
            metadata = await asyncio.to_thread(read_netboot, folder)
            digest = await asyncio.to_thread(partial(read_disk, folder, alone=False))
        except (Failure, OSError) as error:
            log.warning("cannot read image of a boot", error=error, digest=recorded)
            self._read[recorded] = None
            return
        image = NetbootImage(folder, recorded)
        self._read[recorded] = BootImages(image, image, metadata.loaders, digest)


def _recorded_digest(machine: Machine) -> str:
    """Return the digest in the status; empty if there is no valid one."""
    digest = machine.status.netboot.image_digest if machine.status.netboot else None
    try:
        return str(Digest.parse(digest)) if digest else ""
    except UnusableContent:
        return ""


def running_boot(machine: Machine) -> str:
    """Return the boot that fetches files, if it is still the requested one; empty if there is none."""
    netboot, active = machine.status.netboot, machine.status.active_operation
    if netboot is None or netboot.milestone not in _RUNNING:
        return ""
    requested = (machine.spec.operations or OperationsStatus()).repave_counter
    reached = (machine.status.operations or OperationsStatus()).repave_counter
    desired = active.uid if active is not None else f"repave-{requested}" if requested > reached else ""
    return desired if netboot.boot == desired else ""
