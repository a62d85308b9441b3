"""Files to boot from the network: the loaders of Debian, its kernel, and a RAM disk that reports how it was booted."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from tests.support.qemu.cpio import initrd
from tests.support.qemu.tools import found, needed

MODULES: Final = (
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci",
    "net/core/failover",
    "drivers/net/net_failover",
    "drivers/net/virtio_net",
    "drivers/block/virtio_blk",
    "drivers/input/evdev",
    "drivers/acpi/button",
)
"""In the order in which they need each other; what the kernel has built in is left out."""

ARRIVED: Final = """#!/bin/busybox sh
/bin/busybox --install -s /bin; export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
argument() { for each in $(cat /proc/cmdline); do case $each in $1=*) echo "${each#*=}"; return;; esac; done; }
wait_for_button() {
  button=$(grep -A 5 'Power Button' /proc/bus/input/devices | grep -o 'event[0-9]*' | head -n 1)
  echo "guest: waits for $button"; head -c 24 /dev/input/$button >/dev/null; echo "guest: button"; poweroff -f
}
for module in $(cat /modules); do insmod /lib/$module.ko || echo "guest: no $module"; done
for try in $(seq 50); do [ -e /sys/class/net/eth0 ] && break; sleep 0.1; done
firmware=bios; [ -d /sys/firmware/efi ] && firmware=uefi
tpm=none; [ -e /dev/tpm0 ] && tpm=$(cat /sys/class/tpm/tpm0/tpm_version_major)
disk=none; [ -e /sys/block/vda ] && disk=$(cat /sys/block/vda/serial)
echo "guest: firmware=$firmware tpm=$tpm disk=$disk"
ip link set eth0 up
udhcpc -q -n -t 10 -T 1 -i eth0 -s /bin/leased >/dev/null 2>&1
"""
"""The start of an init: drivers, what the machine is, and its address."""

REPORT: Final = """
wget -q -O /tmp/fetched "$(argument report)" && echo "guest: fetched $(cat /tmp/fetched)"
case $(argument then) in
  reset) echo "guest: resets"; reboot -f ;;
  wait) wait_for_button ;;
  *) echo "guest: powers off"; poweroff -f ;;
esac
"""

LEASED: Final = """#!/bin/busybox sh
[ "$1" = bound ] || exit 0
ip addr add $ip/${mask:-24} dev $interface
echo "guest: lease $ip" >/dev/console
"""


@cache
def kernel() -> bytes:
    return needed("boot/vmlinuz-*-cloud-*").read_bytes()


def ram_disk(goes_on: str = REPORT, more: Mapping[str, bytes] | None = None) -> bytes:
    """Return about 1.5 MB: busybox, drivers of QEMU's devices, and an init that runs a script when it has an address.

    That of REPORT reads the arguments of `command_line` from the kernel's command line.

    Args:
        more: further files, by their paths without the first slash.
    """
    release = needed("boot/vmlinuz-*-cloud-*").name.removeprefix("vmlinuz-")
    modules = {path: found(f"lib/modules/{release}/kernel/{path}.ko") for path in MODULES}
    there = {Path(path).name: file for path, file in modules.items() if file is not None}
    return initrd(
        {
            "init": (ARRIVED + goes_on).encode(),
            "bin/busybox": needed("bin/busybox").read_bytes(),
            "bin/leased": LEASED.encode(),
            "modules": " ".join(there).encode(),
            **{f"lib/{name}.ko": file.read_bytes() for name, file in there.items()},
            **{f"{folder}/.keep": b"" for folder in ("proc", "sys", "dev", "tmp")},
            **(more or {}),
        }
    )


def command_line(*, report: str, then: str) -> str:
    """Return the kernel's arguments: the target of the report, and the end (`off`, `reset`, or `wait` for the power
    button).
    """
    return f"console=ttyS0 quiet panic=1 report={report} then={then}"


def grub_config(arguments: str) -> bytes:
    return f"set timeout=0\nmenuentry guest {{\n linux /vmlinuz {arguments}\n initrd /initrd.gz\n}}\n".encode()


def ipxe_script(url: str, arguments: str) -> bytes:
    """EFI wants the name of the RAM disk in the kernel's arguments, too."""
    return f"#!ipxe\nkernel {url}/vmlinuz initrd=initrd.gz {arguments}\ninitrd {url}/initrd.gz\nboot\n".encode()


def boot_files(url: str, arguments: str) -> dict[str, bytes]:
    """Everything by its name, as an image has it; `url` is the folder of all for those who load by HTTP."""
    return {
        "shimx64.efi": needed("usr/lib/shim/shimx64.efi.signed").read_bytes(),
        "grubx64.efi": needed("usr/lib/grub/x86_64-efi-signed/grubnetx64.efi.signed").read_bytes(),
        "grub/grub.cfg": grub_config(arguments),
        "undionly.kpxe": needed("usr/lib/ipxe/undionly.kpxe").read_bytes(),
        "ipxe.efi": needed("boot/ipxe.efi").read_bytes(),
        "boot.ipxe": ipxe_script(url, arguments),
        "vmlinuz": kernel(),
        "initrd.gz": ram_disk(),
    }
