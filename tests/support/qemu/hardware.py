"""Hardware of a machine, and the command that runs it. Pure: nothing is started here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.support.qemu.tools import command, needed
from unbounded_lab.bmc.power import HostBootOverride


class Firmware(Enum):
    BIOS = "bios"  # SeaBIOS, and iPXE in the ROM of the network card
    UEFI = "uefi"  # OVMF with its own network stack; the card has no ROM
    SECURE = "secure"  # the same with Secure Boot, which trusts what Microsoft's key has signed
    ARM64 = "arm64"  # UEFI of a machine with 64-bit Arm processors; Secure Boot once it has keys

    @property
    def variables(self) -> str | None:
        """The file with the variables that it starts out with."""
        return {
            Firmware.BIOS: None,
            Firmware.UEFI: "usr/share/OVMF/OVMF_VARS_4M.fd",
            Firmware.SECURE: "usr/share/OVMF/OVMF_VARS_4M.ms.fd",
            Firmware.ARM64: "usr/share/AAVMF/AAVMF_VARS.fd",
        }[self]

    @property
    def store(self) -> str:
        """A file with a store of variables; that of ARM64's own file is made by the first start."""
        return "usr/share/AAVMF/AAVMF_VARS.ms.fd" if self is Firmware.ARM64 else "usr/share/OVMF/OVMF_VARS_4M.fd"

    @property
    def code(self) -> str:
        """The file with its program; BIOS is QEMU's own."""
        return {
            Firmware.BIOS: "",
            Firmware.UEFI: "usr/share/OVMF/OVMF_CODE_4M.fd",
            Firmware.SECURE: "usr/share/OVMF/OVMF_CODE_4M.secboot.fd",
            Firmware.ARM64: "usr/share/AAVMF/AAVMF_CODE.fd",
        }[self]

    @property
    def emulator(self) -> str:
        return "qemu-system-aarch64" if self is Firmware.ARM64 else "qemu-system-x86_64"

    @property
    def board(self) -> str:
        return {
            Firmware.BIOS: "q35,graphics=off",  # SeaBIOS then shows itself on the serial console
            Firmware.UEFI: "q35",
            Firmware.SECURE: "q35,smm=on",
            Firmware.ARM64: "virt,gic-version=3",
        }[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A machine with a network card or two, and a disk when there is a file for it (raw)."""

    mac: str
    onboard_index: int = 0  # number of the first card in the firmware's list of the board's devices; 0: it is not there
    second_mac: str = ""  # of another card, which it does not boot from
    firmware: Firmware = Firmware.UEFI
    disk: Path | None = None
    drive: Path | None = None  # an ISO image in its CD drive
    has_bmc_drive: bool = False  # its CD drive has the image that its BMC has inserted
    disk_serial: str = "disk0"
    second_disk: Path | None = None
    solid_state: bool = False  # its disks are on a SCSI controller, and report that they do not rotate
    tpm: bool = False
    memory_mib: int = 512
    cpus: int = 1
    site_keys: Path | None = None  # its firmware trusts the keys in this folder alone


@dataclass(frozen=True, slots=True)
class Wires:
    """The connections of one run to its environment."""

    tap: str  # the second card has the port with a b behind this name
    console: Path
    variables: Path  # the firmware's, which it keeps
    monitor: int  # a file descriptor, on which QEMU speaks QMP
    tpm: int | None = None  # another, of the software TPM


def qemu(hardware: Hardware, boot: HostBootOverride, wires: Wires) -> list[str]:
    """Return the command for a run that boots from the source in `boot`; a disk comes after the network, as on real
    boards.

    A reset ends the process, as the next boot may have another source.
    """
    return [
        command("setpriv"),
        *("--pdeathsig", "KILL", command(hardware.firmware.emulator)),
        *(
            "-machine",
            hardware.firmware.board,
            "-accel",
            "tcg",
            "-m",
            str(hardware.memory_mib),
            "-smp",
            str(hardware.cpus),
        ),
        *("-display", "none", "-vga", "none", "-nodefaults", "-boot", "strict=on", "-action", "reboot=shutdown"),
        *("-chardev", f"file,id=console,path={wires.console},append=on", "-serial", "chardev:console"),
        *("-chardev", f"socket,id=monitor,fd={wires.monitor}", "-mon", "chardev=monitor,mode=control"),
        *(("-cpu", "cortex-a72") if hardware.firmware is Firmware.ARM64 else ()),
        *("-device", "virtio-rng-pci"),
        *_firmware(hardware, boot, wires),
        *_network(hardware, boot, wires),
        *_disk(hardware, boot),
        *_drive(hardware, boot),
        *_tpm(wires),
    ]


def _firmware(hardware: Hardware, boot: HostBootOverride, wires: Wires) -> list[str]:
    if hardware.firmware is Firmware.BIOS:
        return []
    secure = hardware.firmware is Firmware.SECURE
    served = {"IPv6PXESupport": "n", "IPv4PXESupport": "n" if boot.source == "UefiHttp" else "y"}
    return [
        *(("-global", "driver=cfi.pflash01,property=secure,value=on") if secure else ()),
        *("-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={needed(hardware.firmware.code)}"),
        *("-drive", f"if=pflash,format=raw,unit=1,file={wires.variables}"),
        *(part for name, value in served.items() for part in _setting(name, value)),
    ]


def _setting(name: str, value: str) -> tuple[str, str]:
    return ("-fw_cfg", f"name=opt/org.tianocore/{name},string={value}")


def _network(hardware: Hardware, boot: HostBootOverride, wires: Wires) -> list[str]:
    card = f"virtio-net-pci,netdev=net0,mac={hardware.mac}"
    if hardware.firmware is not Firmware.BIOS:
        card += ",romfile="
    if boot.source in ("Pxe", "UefiHttp"):
        card += ",bootindex=1"
    first = ["-netdev", f"tap,id=net0,ifname={wires.tap},script=no,downscript=no", "-device", f"{card},id=card0"]
    if hardware.onboard_index:
        onboard = f"type=41,designation=Onboard LAN,kind=ethernet,instance={hardware.onboard_index},pcidev=card0"
        first += ["-smbios", onboard]
    if not hardware.second_mac:
        return first
    second = f"virtio-net-pci,netdev=net1,mac={hardware.second_mac},romfile="
    return [*first, "-netdev", f"tap,id=net1,ifname={wires.tap}b,script=no,downscript=no", "-device", second]


def _disk(hardware: Hardware, boot: HostBootOverride) -> list[str]:
    disks = ((hardware.disk, hardware.disk_serial), (hardware.second_disk, "second"))
    kind, sparse = "virtio-blk-pci", ""
    if hardware.solid_state:
        kind, sparse = "scsi-hd,rotation_rate=1", ",discard=unmap,detect-zeroes=unmap"
    return [
        *(("-device", "virtio-scsi-pci") if hardware.solid_state else ()),
        *(
            part
            for number, (disk, serial) in enumerate(disks)
            if disk is not None
            for part in (
                *("-drive", f"if=none,id=disk{number},format=raw,cache=unsafe{sparse},file={disk}"),
                *("-device", f"{kind},drive=disk{number},serial={serial},bootindex={2 + number}"),
            )
        ),
    ]


def _drive(hardware: Hardware, boot: HostBootOverride) -> list[str]:
    if hardware.drive is None:
        return []
    by_usb = hardware.firmware is Firmware.ARM64  # its board has no IDE
    drive = "usb-storage,drive=drive0" if by_usb else "ide-cd,drive=drive0"
    return [
        *("-drive", f"if=none,id=drive0,media=cdrom,format=raw,readonly=on,file={hardware.drive}"),
        *(("-device", "qemu-xhci") if by_usb else ()),
        *("-device", drive + (",bootindex=1" if boot.source == "Cd" else "")),
    ]


def _tpm(wires: Wires) -> list[str]:
    if wires.tpm is None:
        return []
    return [
        *("-chardev", f"socket,id=tpm,fd={wires.tpm}"),
        *("-tpmdev", "emulator,id=tpm0,chardev=tpm", "-device", "tpm-crb,tpmdev=tpm0"),
    ]
