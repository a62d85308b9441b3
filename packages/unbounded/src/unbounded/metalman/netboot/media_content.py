"""Images of virtual media: the files of the netboot image that a host needs without a server, for one boot.

It is what the host would load over the network: the UEFI loader, the loader's configuration as it is rendered for the
Machine, the kernel and the installer. A signed image has one program in place of them, and the words of the boot lie
beside it. The disk image is not in it; the installer fetches it as after any network boot.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock
from unbounded.kube.logs import Log
from unbounded.metalman.boot_override import as_booted
from unbounded.metalman.http.boot_service import NotReadyYet, OnDisk, Rendered
from unbounded.metalman.media.image import FilePart, MediaContent, MediaImage, Part, media_image
from unbounded.metalman.media.tickets import PresentedTicket, TicketKey
from unbounded.metalman.netboot import image_paths
from unbounded.metalman.netboot.boot_files import BootFiles
from unbounded.metalman.netboot.boot_index import BootIndex
from unbounded.metalman.netboot.model import (
    UEFI_LOADERS,
    BootImages,
    BootImageSource,
    BootObservation,
    BootRequest,
    BootVisit,
    NetbootImage,
    no_uefi_loader,
)
from unbounded.metalman.replace_table import BOOTING_KINDS
from unbounded.operations.caches import INDEX_MACHINE

CONFIG: Final = "grub/grub.cfg"
OPEN_S: Final = 5.0  # from the insertion to the cache's knowledge of it
POLL_S: Final = 0.05
CACHED_IMAGES: Final = 256

log = Log("metalman.media")


class NoMediaContent(Exception):
    """A netboot image lacks what virtual media needs; the message names it."""


def media_content(
    files: image_paths.ImageFiles, served: BootImages, rendered: bytes, architecture: str
) -> MediaContent:
    """Return the content for a boot. Reads the folder of the image.

    Args:
        rendered: the template of `words_path`, for the Machine.
        architecture: that of the Machine.
    Raises:
        NoMediaContent: the image has no loader for UEFI, or no kernel.
    """
    uefi = UEFI_LOADERS[architecture]
    name = served.loaders.get(uefi.loader)
    loader = None if name is None else _part(files, served.netboot, name)
    if name is None or loader is None:
        raise NoMediaContent(f"the netboot image {no_uefi_loader(architecture)}")
    if words_path(files, served) == image_paths.STATEMENT:
        return MediaContent(loader, None, {}, rendered, uefi.machine_type)
    folder, _, own = name.rpartition("/")
    grub = f"grub{uefi.machine_type.lower()}.efi"  # which shim starts from its own folder
    second = None if own == grub else _part(files, served.netboot, f"{folder}/{grub}".lstrip("/"))
    kernels = {
        kernel: part for kernel in _kernels(served) if (part := _part(files, served.netboot, kernel)) is not None
    }
    if not kernels:
        raise NoMediaContent("the netboot image has no kernel in its first folder")
    return MediaContent(loader, second, {CONFIG: rendered, **kernels}, machine_type=uefi.machine_type)


def words_path(files: image_paths.ImageFiles, served: BootImages) -> str:
    """Return the template with the words of a boot: of a signed image, whose loader is its kernel, or GRUB's menu."""
    return image_paths.STATEMENT if image_paths.is_signed(files, served.netboot) else CONFIG


def _kernels(served: BootImages) -> list[str]:
    """Return the names of kernels and initrds in the first folder of the netboot image."""
    try:
        names = sorted(path.name for path in served.netboot.root.iterdir())
    except OSError as error:
        raise NoMediaContent(f"the netboot image cannot be read: {error.strerror}") from error
    return [
        name
        for name in names
        if image_paths.file_role(name, served.loaders) is image_paths.FileRole.KERNEL
        and not name.endswith(image_paths.TEMPLATE)
    ]


def _part(files: image_paths.ImageFiles, image: NetbootImage, path: str) -> Part | None:
    found = files.find(image, path)
    return FilePart(found.path, found.size) if isinstance(found, OnDisk) else None


class BootMediaSource:
    """Images of the boots of one site, for the server of virtual media.

    An image is made at its first request, and stays the same: a BMC reads it in many parts.
    """

    def __init__(
        self,
        machines: Cache[Machine],
        operations: Cache[MachineOperation],
        index: BootIndex,
        images: BootImageSource,
        files: BootFiles,
        library: image_paths.ImageFiles,
        key: TicketKey,
        *,
        note: Callable[[str, BootObservation], None],
        now: WallClock,
    ) -> None:
        self._machines, self._operations, self._index = machines, operations, index
        self._images, self._files, self._library = images, files, library
        self._key = key
        self._note = note
        self._now = now
        self._made: OrderedDict[tuple[str, str, str], MediaImage] = OrderedDict()
        self._making = asyncio.Lock()

    async def image(self, client: str, ticket: PresentedTicket) -> MediaImage | None:
        """Return the image that a client may read with a ticket; None if there is none, or the ticket is not valid."""
        machine = self._machines.get(ticket.machine)
        boot = None if machine is None else self._boot_of(machine, client, ticket)
        request = None if machine is None or boot is None else await self._opened(machine, boot)
        if machine is None or request is None:
            return None
        key = (machine.metadata.uid, request.boot, ticket.tag)
        async with self._making:
            if key not in self._made:
                try:
                    self._made[key] = await self._make(BootVisit(request, as_booted(machine, request.boot)))
                except (NoMediaContent, ValueError) as error:
                    self._report(request, str(error))
                    return None
            self._made.move_to_end(key)
            if len(self._made) > CACHED_IMAGES:
                self._made.popitem(last=False)
            return self._made[key]

    def _boot_of(self, machine: Machine, client: str, ticket: PresentedTicket) -> str | None:
        """Return the operation on a Machine that a ticket is for."""
        now, uid = self._now().timestamp(), machine.metadata.uid
        for operation in self._operations.by(INDEX_MACHINE, machine.name):
            boot = operation.metadata.uid
            is_boot = operation.spec.operation_kind in BOOTING_KINDS and not operation.terminal
            if is_boot and self._key.permits(ticket, uid=uid, boot=boot, client=client, now=now):
                return boot
        return None

    async def _opened(self, machine: Machine, boot: str) -> BootRequest | None:
        """Return the request of a boot whose image may be read; it may reach the cache after the BMC's request."""
        clock = asyncio.get_running_loop().time
        until = clock() + OPEN_S
        while True:
            request = self._index.request_of(machine.name)
            if request is not None and request.boot == boot and request.media_open:
                return request
            if clock() >= until:
                return None
            await asyncio.sleep(POLL_S)

    async def _make(self, visit: BootVisit) -> MediaImage:
        """Make the image of a boot.

        Raises:
            NoMediaContent, ValueError: that is not possible.
        """
        served, pxe = self._images.of(visit.machine), visit.machine.spec.pxe
        if isinstance(served, NotReadyYet):
            raise NoMediaContent(served.text)
        if pxe is None:
            raise NoMediaContent("the Machine has no spec.pxe any more")
        path = words_path(self._library, served)
        config = await self._files.file(visit, served, path, private=False)
        match config:
            case Rendered(content=content):
                made = await asyncio.to_thread(media_content, self._library, served, content, pxe.architecture)
                return media_image(made)
            case OnDisk():
                raise NoMediaContent(f"the netboot image has no template {path}{image_paths.TEMPLATE}")
            case _:
                raise NoMediaContent(f"{path} of the netboot image: {config.text}")

    def _report(self, request: BootRequest, why: str) -> None:
        """Report in the status of the boot why it has no image."""
        text = self._index.without_prefix(f"cannot make the boot image: {why}", request.machine)
        log.warning("cannot make a boot image", machine=request.machine, why=text)
        self._note(request.machine, BootObservation(boot=request.boot, message=text))
