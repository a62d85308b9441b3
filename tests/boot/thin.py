"""The smallest image that can be installed: real loaders and a real kernel, and a RAM disk where an OS would be.

With `joining`, the installed system also runs the agent as it is released, as far as it gets without systemd.
"""

from __future__ import annotations

import gzip
import os
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.fetch.layers import Built, files, image
from tests.support.agent_release import AgentRelease, system_libraries
from tests.support.qemu.fat import fat_disk
from tests.support.qemu.payload import boot_files, grub_config, ipxe_script, kernel, ram_disk
from tests.support.qemu.tools import built, command, needed

METADATA: Final = b"""dhcpBootImageName: shimx64.efi
bootFiles:
  bios: undionly.kpxe
  http: ipxe.efi
  ipxe: boot.ipxe
"""
INSTALLED_ARGUMENTS: Final = "console=ttyS0 quiet panic=1 no_timer_check"
"""The kernel's check of its timer fails in an emulated processor that gets too little time."""
ARGUMENTS: Final = f"{INSTALLED_ARGUMENTS} serve={{{{ .ServeURL }}}}"
DISK_BYTES: Final = 128 << 20
LEFT_AT_MIB: Final = 48
"""Where the installer leaves what the installed system is to find, as a tar; behind the image."""

TELL: Final = """
tell() { wget -q -O /tmp/answer --header 'Content-Type: application/json' --post-data "$2" "$serve/$1" \\
  && echo "guest: told $1" || echo "guest: $1 was not taken"; }
"""
INSTALL: Final = (
    TELL
    + """
serve=$(argument serve)
tell progress '{"stage": "Starting", "message": "the thin installer runs"}'
mkdir /left; echo "$serve" >/left/serve
HARDWARE
for file in LEAVES; do wget -q -O /left/$file "$serve/$file" || echo "guest: $file did not come"; done
wget -q -O - "$serve/disk.img.gz" | gzip -dc | dd of=/dev/vda bs=1M conv=fsync 2>/dev/null
tar -C /left -cf - . | dd of=/dev/vda bs=1M seek=LEFT_AT_MIB conv=fsync 2>/dev/null
tell progress '{"stage": "Written", "percent": 100, "message": "all is on vda"}'
tell pxe/disable '{}'
reboot -f
""".replace("LEFT_AT_MIB", str(LEFT_AT_MIB))
)
REPORTS: Final = """
tell hardware 'REPORT'
until wget -q -O /left/network-config "$serve/cloud-init/network-config"; do sleep 1; done
"""
FOUND: Final = """
mkdir /left; dd if=/dev/vda bs=1M skip=LEFT_AT_MIB count=80 2>/dev/null | tar -C /left -xf -
serve=$(cat /left/serve)
echo "guest: runs from its disk"
""".replace("LEFT_AT_MIB", str(LEFT_AT_MIB))
SAYS_BEGIN: Final = """
event='"origin": "cloudinit", "description": "", "timestamp": 1.0'
tell cloudinit/log '{"name": "init-local", "event_type": "start", '"$event"'}'
"""
SAYS_END: Final = """
tell cloudinit/log '{"name": "modules-final", "event_type": "finish", "result": "SUCCESS", '"$event"'}'
"""
STANDS_IN: Final = ("systemctl", "machinectl", "nft", "ip")
"""What a host has and this one has not: here programs that say yes to everything and print nothing."""
PCRS: Final = (*range(8), 11, 12)
JOINS: Final = f"""
mkdir -p /etc/cloud /usr/local/bin /var/lib /run
cat /proc/sys/kernel/random/uuid | tr -d - >/etc/machine-id
for each in {" ".join(STANDS_IN)}; do
  rm -f /bin/$each; printf '#!/bin/busybox sh\\nexit 0\\n' >/bin/$each; chmod 755 /bin/$each
done
cp /left/unbounded-agent /usr/local/bin/; chmod 755 /usr/local/bin/unbounded-agent
for each in {" ".join(map(str, PCRS))}; do
  echo "guest: pcr $each is $(cat /sys/class/tpm/tpm0/pcr-sha256/$each)"
done
echo "guest: the agent starts"
/usr/local/bin/unbounded-agent start --config /left/agent.json --ignore-preflight-errors all 2>&1 | sed 's/^/agent: /'
echo "guest: the agent's start has ended"
"""
LOOKS_AFTER: Final = """
/usr/local/bin/unbounded-agent daemon 2>&1 | sed 's/^/daemon: /' &
"""
INSTALLED: Final = TELL + FOUND + SAYS_BEGIN + SAYS_END + "wait_for_button\n"
JOINING: Final = TELL + FOUND + SAYS_BEGIN + JOINS + LOOKS_AFTER + SAYS_END + "wait_for_button\n"


def thin_image() -> Built:
    """About 40 MB, as a registry holds it."""
    return _image(INSTALL.replace("LEAVES", ""), installed_disk(INSTALLED), {})


def other_loader() -> bytes:
    """GRUB with one changed letter, which its signature does not cover: a firmware without Secure Boot starts it."""
    return _loader().replace(b"cannot be run in DOS mode", b"cannot be run in DOS Mode", 1)


def _loader() -> bytes:
    return needed("usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed").read_bytes()


def joining_image(
    agent: AgentRelease, *, loader: bytes | None = None, credential: bytes = b"", report: str = ""
) -> Built:
    """The same with the agent: the installer leaves it, and the configuration that is rendered for the Machine.

    Args:
        loader: of the installed system; None for GRUB.
        credential: `root.cred` of an installed system whose kernel is an EFI program, as in signed images.
        report: of the machine's hardware, in JSON: the installer then waits for the network configuration.
    """
    more = {"agent.json.tmpl": b"{{ .AgentConfigJSON }}", "unbounded-agent": agent.file.read_bytes()}
    libraries = system_libraries(agent)
    disk = unified_disk(JOINING, libraries, credential) if credential else installed_disk(JOINING, libraries, loader)
    reports = REPORTS.replace("REPORT", report) if report else ""
    return _image(INSTALL.replace("LEAVES", "agent.json unbounded-agent"), disk, more, reports)


def _image(install: str, disk: bytes, more: Mapping[str, bytes], reports: str = "") -> Built:
    boot = boot_files("{{ .ServeURL }}", ARGUMENTS)
    loaders = {name: boot[name] for name in ("shimx64.efi", "grubx64.efi", "undionly.kpxe", "ipxe.efi", "vmlinuz")}
    content = {
        **loaders,
        "initrd.gz": ram_disk(install.replace("HARDWARE", reports)),
        "metadata.yaml": METADATA,
        "grub/grub.cfg.tmpl": grub_config(ARGUMENTS),
        "boot.ipxe.tmpl": ipxe_script("{{ .ServeURL }}", ARGUMENTS),
        "disk.img.gz": gzip.compress(disk, compresslevel=1, mtime=0),
        **more,
    }
    return image([files({f"disk/{name}": body for name, body in content.items()})])


def installed_disk(script: str, more: Mapping[str, bytes] | None = None, loader: bytes | None = None) -> bytes:
    """Firmware takes GRUB from it, and GRUB the kernel; `more` is for the file system of the RAM disk."""
    return fat_disk(
        {
            "EFI/BOOT/BOOTX64.EFI": loader or _loader(),
            "EFI/DEBIAN/GRUB.CFG": grub_config(INSTALLED_ARGUMENTS),
            "VMLINUZ": kernel(),
            "INITRD.GZ": ram_disk(script, more),
        }
    )


def unified_disk(script: str, more: Mapping[str, bytes], credential: bytes) -> bytes:
    """Firmware takes one program from it: systemd's stub with kernel and RAM disk; `root.cred` lies beside it."""
    program = "BOOTX64.EFI"
    parts = {".cmdline": INSTALLED_ARGUMENTS.encode(), ".linux": kernel(), ".initrd": ram_disk(script, more)}
    with tempfile.TemporaryDirectory() as folder:
        disk, beside = Path(folder, "disk"), Path(folder, f"{program}.extra.d")
        disk.write_bytes(fat_disk({f"EFI/BOOT/{program}": with_sections(signed_program(), parts)}))
        beside.mkdir()
        (beside / "root.cred").write_bytes(credential)
        copy = (command("mcopy"), "-s", "-i", str(disk), str(beside), "::/EFI/BOOT/")
        subprocess.run(copy, check=True, env=os.environ | {"MTOOLS_SKIP_CHECK": "1"})
        return disk.read_bytes()


def signed_program() -> bytes:
    """Return a program of the signed image, which has systemd's stub."""
    image = built("host-debian12-signed")
    if image is None:
        pytest.skip("the image is not built; scripts/host-image signed does")
    return (image / "disk" / "installer.efi").read_bytes()


def with_sections(program: bytes, contents: Mapping[str, bytes]) -> bytes:
    """Return an EFI program without its signature, and with other contents of its last sections, in their order."""
    made, page = bytearray(program), 4096
    (at,) = struct.unpack_from("<I", made, 0x3C)
    count, optional_bytes = struct.unpack_from("<6xH12xH", made, at)
    optional, table = at + 24, at + 24 + optional_bytes
    names = {made[each : each + 8].rstrip(b"\0").decode(): each for each in range(table, table + 40 * count, 40)}
    first = names[next(iter(contents))]
    address, _, start = struct.unpack_from("<III", made, first + 12)
    del made[start:]
    for name, content in contents.items():
        raw = content.ljust(-(-len(content) // 512) * 512, b"\0")
        made += bytes(-len(made) % 512)
        struct.pack_into("<IIII", made, names[name] + 8, len(content), address, len(raw), len(made))
        made += raw
        address += -(-len(content) // page) * page
    struct.pack_into("<I", made, optional + 56, address)  # SizeOfImage
    struct.pack_into("<II", made, optional + 112 + 4 * 8, 0, 0)  # the certificates
    return bytes(made)
