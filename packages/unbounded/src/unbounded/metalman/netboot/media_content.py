"""Content of virtual media for a boot: the files of the netboot image that a host needs without a server.

It is what the host would load over the network: the UEFI loader, the loader's configuration as it is rendered for the
Machine, the kernel and the installer. The disk image is not in it; the installer fetches it as after any network boot.
"""

from __future__ import annotations

from typing import Final

from unbounded.metalman.dhcp.model import Loader
from unbounded.metalman.http.ports import OnDisk
from unbounded.metalman.media.image import FilePart, MediaContent, Part
from unbounded.metalman.netboot.files import TEMPLATE, FileRole, ImageFiles, file_role
from unbounded.metalman.netboot.model import BootImages, NetbootImage

CONFIG: Final = "grub/grub.cfg"
SECOND_LOADER: Final = "grubx64.efi"  # which shim starts from its own folder


class NoMediaContent(Exception):
    """A netboot image lacks what virtual media needs; the message names it."""


def media_content(files: ImageFiles, served: BootImages, config: bytes) -> MediaContent:
    """Return the content for a boot. Reads the folder of the image.

    Args:
        config: CONFIG as it is rendered for the Machine.
    Raises:
        NoMediaContent: the image has no loader for UEFI, or no kernel.
    """
    name = served.loaders.get(Loader.X64)
    loader = None if name is None else _part(files, served.netboot, name)
    if name is None or loader is None:
        raise NoMediaContent("the netboot image names no loader for x86-64 UEFI (dhcpBootImageName)")
    folder, _, own = name.rpartition("/")
    second = None if own == SECOND_LOADER else _part(files, served.netboot, f"{folder}/{SECOND_LOADER}".lstrip("/"))
    kernels = {
        kernel: part for kernel in _kernels(served) if (part := _part(files, served.netboot, kernel)) is not None
    }
    if not kernels:
        raise NoMediaContent("the netboot image has no kernel in its first folder")
    return MediaContent(loader, second, {CONFIG: config, **kernels})


def _kernels(served: BootImages) -> list[str]:
    """Return the names of kernels and initrds in the first folder of the netboot image."""
    try:
        names = sorted(path.name for path in served.netboot.root.iterdir())
    except OSError as error:
        raise NoMediaContent(f"the netboot image cannot be read: {error.strerror}") from error
    return [
        name for name in names if file_role(name, served.loaders) is FileRole.KERNEL and not name.endswith(TEMPLATE)
    ]


def _part(files: ImageFiles, image: NetbootImage, path: str) -> Part | None:
    found = files.find(image, path)
    return FilePart(found.path, found.size) if isinstance(found, OnDisk) else None
