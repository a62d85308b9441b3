"""Programs of the installer's initrd, run on this system with the libraries that they have there."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest
import zstandard

from tests.images.support import Host, busybox
from tests.support.qemu.tools import built

LOADER: Final = "lib64/ld-linux-x86-64.so.2"
LIBRARIES: Final = ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu")
TOOLS: Final = ("bin/tar", "sbin/sfdisk", "sbin/mke2fs", "sbin/mkfs.xfs", "sbin/mkfs.vfat", "sbin/mkswap")


def unpacked_initrd(folder: Path) -> Path:
    """Unpack the initrd of the image that `scripts/host-image` builds; without it the test is skipped."""
    image = built("host-debian12/disk")
    if image is None:
        pytest.skip("the image of Debian is not built; scripts/host-image does")
    folder.mkdir()
    packed = (image / "initrd").read_bytes()
    archive = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    subprocess.run([busybox(), "cpio", "-idm"], cwd=folder, input=archive, capture_output=True, check=True)
    return folder


def install_tools(host: Host, initrd: Path) -> None:
    """Let the installer on this host find those programs, and not busybox's or the system's."""
    libraries = ":".join(str(initrd / folder) for folder in LIBRARIES)
    for tool in TOOLS:
        place = host.command(Path(tool).name)
        place.unlink(missing_ok=True)
        place.write_text(f'#!/bin/sh\nexec {initrd / LOADER} --library-path {libraries} {initrd / tool} "$@"\n')
        place.chmod(0o755)
