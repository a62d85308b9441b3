"""A machine of libvirt behind the Redfish emulator of sushy-tools: two programs of others between our client and QEMU.

libvirtd has its files in fixed places of the system. So it runs in namespaces of its own, where these places are empty
and no other process of the host is. All that runs there ends with the emulator.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.qemu.tools import built, command, needed

CODE: Final = "usr/share/OVMF/OVMF_CODE_4M.fd"
VARIABLES: Final = "usr/share/OVMF/OVMF_VARS_4M.fd"
DOMAIN: Final = """<domain type='qemu'>
<name>node0</name><uuid>{identity}</uuid><memory unit='MiB'>768</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type><loader readonly='yes' type='pflash'>{code}</loader>
<nvram template='{variables}'>{folder}/variables.fd</nvram><boot dev='hd'/></os>
<features><acpi/></features>
<devices><emulator>{emulator}</emulator><serial type='file'><source path='{folder}/console'/></serial>
<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng></devices>
</domain>
"""
# The places of libvirtd, empty; its users, which only its packages make; and its machine and storage.
START: Final = r"""
set -eu
tree=$1 folder=$2
shift 2
mkdir -p /usr/share/libvirt
mount --bind "$tree/usr/share/libvirt" /usr/share/libvirt
for place in /run/libvirt /var/lib/libvirt /etc/libvirt /var/log/libvirt /var/cache/libvirt; do
    mkdir -p $place
    mount -t tmpfs none $place
done
{ cat /etc/passwd; echo libvirt-qemu:x:64055:64055::/:/bin/false; } >"$folder/passwd"
{ cat /etc/group; echo kvm:x:64056:; echo libvirt-qemu:x:64055:; } >"$folder/group"
mount --bind "$folder/passwd" /etc/passwd
mount --bind "$folder/group" /etc/group
printf '%s\n' 'security_driver = "none"' 'user = "root"' 'group = "root"' 'stdio_handler = "file"' 'namespaces = []' \
    'cgroup_controllers = []' 'remember_owner = 0' >/etc/libvirt/qemu.conf
echo 'auth_unix_rw = "none"' >/etc/libvirt/libvirtd.conf
libvirtd >"$folder/libvirtd.log" 2>&1 &
for try in $(seq 150); do
    ! virsh -q -c qemu:///system version >/dev/null 2>&1 || break
    sleep 0.2
done
mkdir "$folder/pool"
virsh -q -c qemu:///system define "$folder/domain.xml"
virsh -q -c qemu:///system pool-create-as default dir --target "$folder/pool"
exec "$@"
"""


@dataclass(frozen=True)
class LibvirtDriver:
    """The environment that the emulator drives its one machine in.

    Args:
        command: stands in front of the emulator's own.
        settings: those of the emulator.
        console: the output of the machine's serial port.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    settings: Mapping[str, Any]
    console: Path

    def shown(self) -> str:
        """Return the console so far."""
        return self.console.read_text(errors="replace") if self.console.exists() else ""


def libvirt_driver(folder: Path, identity: str) -> LibvirtDriver:
    """Prepare a machine with that UUID; skip the test without libvirt, or where it cannot run."""
    tree = built("libvirt")
    if tree is None or not (tree / "usr/sbin/libvirtd").exists():
        pytest.skip("libvirt is not there; scripts/libvirt-tools gets it")
    modules = tree / "usr/lib/python3/dist-packages"
    if not list(modules.glob(f"libvirtmod.{sys.implementation.cache_tag}-*")):
        pytest.skip("the module of libvirt is for another Python than this one")
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    code, variables = needed(CODE), needed(VARIABLES)
    emulator = command("qemu-system-x86_64")
    values = {"code": code, "variables": variables, "folder": folder, "emulator": emulator, "identity": identity}
    (folder / "domain.xml").write_text(DOMAIN.format(**values))
    libraries = sorted({str(path.parent) for path in tree.rglob("*.so*") if not path.name.startswith("libc.so")})
    parts = tree / "usr/lib/x86_64-linux-gnu/libvirt"
    return LibvirtDriver(
        command=(
            *("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"),
            *("sh", "-c", START, "sh", str(tree), str(folder)),
        ),
        environment={
            "PATH": f"{tree}/usr/sbin:{tree}/usr/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(modules),
            "LD_LIBRARY_PATH": ":".join(libraries),
            "LIBVIRT_DRIVER_DIR": str(parts / "connection-driver"),
            "LIBVIRT_STORAGE_BACKEND_DIR": str(parts / "storage-backend"),
            "LIBVIRT_STORAGE_FILE_DIR": str(parts / "storage-file"),
            "LIBVIRT_LOCK_MANAGER_PLUGIN_DIR": str(parts / "lock-driver"),
        },
        settings={
            "FAKE_DRIVER": False,
            "LIBVIRT_URI": "qemu:///system",
            "VMEDIA_VERIFY_SSL": True,
            "BOOT_LOADER_MAP": {"UEFI": {"x86_64": str(code)}, "Legacy": {"x86_64": None}},
            "SECURE_BOOT_DISABLED_NVRAM": str(variables),
        },
        console=folder / "console",
    )
