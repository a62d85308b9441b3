"""Choice of a client's boot file by its options 60, 77, 93 and 175, and the DHCP options that carry the file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from unbounded.metalman.dhcp import packet as opt
from unbounded.metalman.dhcp.model import Loader, OfferedBoot, format_address
from unbounded.metalman.dhcp.packet import Packet

PXE_CLASS: Final = b"PXEClient"
HTTP_CLASS: Final = b"HTTPClient"
IPXE_USER_CLASS: Final = b"iPXE"
USE_THIS_FILE: Final = bytes((6, 1, 8, 255))  # PXE_DISCOVERY_CONTROL: no menu and no search for other boot servers
LONGEST_FILE: Final = 127
CACHED_FIRMWARES: Final = 64  # kinds of firmware; a site has few


@dataclass(frozen=True, slots=True)
class Firmware:
    """Client architecture (IANA, Processor Architecture Types) with its boot files and the way to name them."""

    name: str
    loaders: tuple[Loader, ...] = ()  # in order of preference
    by_url: bool = False


ARCHITECTURES: Final = {
    0: Firmware("x86 BIOS", (Loader.BIOS,)),
    6: Firmware("x86 UEFI"),
    7: Firmware("x64 UEFI", (Loader.X64,)),
    9: Firmware("x64 UEFI", (Loader.X64,)),  # EBC; firmware for x64 has sent it since RFC 4578
    10: Firmware("arm 32-bit UEFI"),
    11: Firmware("arm 64-bit UEFI", (Loader.ARM64,)),
    15: Firmware("x86 UEFI HTTP", by_url=True),
    16: Firmware("x64 UEFI HTTP", (Loader.HTTP, Loader.X64), by_url=True),
    18: Firmware("arm 32-bit UEFI HTTP", by_url=True),
    19: Firmware("arm 64-bit UEFI HTTP", (Loader.ARM64,), by_url=True),
}
UNKNOWN_FIRMWARE: Final = Firmware("untold", (Loader.X64,))
SCRIPT: Final = Firmware("iPXE", (Loader.IPXE,), by_url=True)


@dataclass(frozen=True, slots=True)
class BootFile:
    """The file of a client: a name for TFTP or a URL."""

    name: str


@dataclass(frozen=True, slots=True)
class NoBootFile:
    """No file of the image fits the client; `architecture` is the client's architecture as text."""

    architecture: str


def client_class(packet: Packet) -> bytes | None:
    """Return the vendor class (option 60) that a reply has to carry; PXE and HTTP boot ignore offers without it."""
    vendor_class = packet.options.get(opt.VENDOR_CLASS, b"")
    if vendor_class.startswith(PXE_CLASS):
        return PXE_CLASS
    return HTTP_CLASS if vendor_class.startswith(HTTP_CLASS) else None


def is_ipxe(packet: Packet) -> bool:
    """Return whether the client is iPXE; its user class comes with and without the length byte of RFC 3004."""
    user_class = packet.options.get(opt.USER_CLASS, b"")
    return opt.IPXE in packet.options or user_class in (IPXE_USER_CLASS, b"\x04" + IPXE_USER_CLASS)


def architectures(packet: Packet) -> tuple[int, ...]:
    """Return the client's numbers from option 93, else the number in its vendor class (`PXEClient:Arch:00007:…`)."""
    return _architectures(packet.options.get(opt.ARCHITECTURE, b""), packet.options.get(opt.VENDOR_CLASS, b""))


@lru_cache(CACHED_FIRMWARES)
def _architectures(listed: bytes, vendor: bytes) -> tuple[int, ...]:
    if listed:
        return tuple(int.from_bytes(listed[at : at + 2], "big") for at in range(0, len(listed) - 1, 2))
    words = vendor.split(b":")
    if len(words) > 2 and words[1] == b"Arch" and words[2].isdigit() and len(words[2]) <= 5:
        return (int(words[2]),)
    return ()


def boot_file(packet: Packet, boot: OfferedBoot) -> BootFile | NoBootFile:
    """Choose the boot file of a client.

    iPXE gets its script. If the image has no script, iPXE gets the firmware's file, which iPXE can start as well.
    """
    numbers = architectures(packet)
    firmwares = [ARCHITECTURES.get(number) or Firmware(f"number {number}") for number in numbers] or [UNKNOWN_FIRMWARE]
    if is_ipxe(packet):
        firmwares.insert(0, SCRIPT)
    for firmware in firmwares:
        for loader in firmware.loaders:
            file = boot.files.get(loader)
            if file:
                return BootFile(boot.url(file) if firmware.by_url else file)
    return NoBootFile(firmwares[-1].name)


def boot_options(packet: Packet, file: BootFile, server: bytes) -> dict[int, bytes]:
    """Return the options that name the boot file."""
    options: dict[int, bytes] = {}
    named = client_class(packet)
    if named:
        options[opt.VENDOR_CLASS] = named
    if named == PXE_CLASS:
        options[opt.VENDOR_OPTIONS] = USE_THIS_FILE
        if opt.MACHINE_ID in packet.options:  # PXE 2.1 requires the server to echo it
            options[opt.MACHINE_ID] = packet.options[opt.MACHINE_ID]
    options[opt.TFTP_SERVER] = format_address(server).encode()
    options[opt.BOOT_FILE] = file.name.encode()
    return options


def header_file(file: BootFile) -> bytes:
    """Return the file name for the packet's `file` field, which older boot ROMs read; empty if the name is too long."""
    name = file.name.encode()
    return name if len(name) <= LONGEST_FILE else b""
