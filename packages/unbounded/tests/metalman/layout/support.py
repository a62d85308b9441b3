"""Profiles and disks for tests of the compiler."""

from __future__ import annotations

import base64
from typing import Any, Final

import msgspec
import yaml

from tests.api.test_profile_rules import MIRROR
from unbounded.api.hardware import DiskFacts, DiskState
from unbounded.api.profile import MachineProfileSpec
from unbounded.metalman.layout.compiler import LayoutRequest, compile_layout
from unbounded.metalman.layout.disk_matching import DiskConsent
from unbounded.metalman.layout.model import DiskLayout, LayoutChoice, LayoutImage, LayoutRefused

GIB: Final = 1 << 30
PLAIN_IMAGE: Final = LayoutImage()
BLANK, OWN, FOREIGN = DiskState.BLANK, DiskState.OWN, DiskState.FOREIGN
SINGLE: Final = """
devices:
- device: {}
  partitions: [{name: efi, size: 100Mi, partflags: [esp]}, {name: root, size: 0}]
fileSystems:
- {fileSystem: vfat, partition: efi, mountPoint: /boot/efi}
- {fileSystem: ext4, partition: root, mountPoint: /}
"""


def disk(name: str, state: str = BLANK, gib: float = 16, **more: Any) -> DiskFacts:
    """Return a solid-state disk with the serial number S-NAME."""
    facts: dict[str, Any] = {
        "name": name,
        "state": state,
        "size_bytes": int(gib * GIB),
        "sector_bytes": 512,
        "rotational": False,
        "bus": "ata",
        "serial_number": f"S-{name}",
        "by_id": (f"ata-DISK_{name}", f"wwn-0x{name}"),
        "by_path": (f"pci-0-{name}",),
        "contents": "ext4 LABEL=data" if state == FOREIGN else None,
    }
    return DiskFacts(**facts | more)


def path(name: str) -> str:
    return f"/dev/disk/by-id/wwn-0x{name}"


def profile(text: str = MIRROR, **changes: Any) -> MachineProfileSpec:
    """Return a profile; `changes` replace at paths such as devices__0__device, and None removes."""
    written = yaml.safe_load(text)
    for where, value in changes.items():
        *parents, last = where.split("__")
        place: Any = written
        for parent in parents:
            place = place[int(parent)] if parent.isdigit() else place.setdefault(parent, {})
        key = int(last) if last.isdigit() else last
        if value is None:
            del place[key]
        else:
            place[key] = value
    return msgspec.convert(written, MachineProfileSpec)


def request(
    spec: MachineProfileSpec | None = None,
    *,
    allow_scripts: bool = False,
    image: LayoutImage = PLAIN_IMAGE,
    **consent: Any,
) -> LayoutRequest:
    known = DiskConsent(**{"machine": "m1", **consent})
    return LayoutRequest("mirror", spec or profile(), "uid-1", known, allow_scripts, image)


def layout(choice: LayoutChoice) -> DiskLayout:
    assert isinstance(choice, DiskLayout), choice
    return choice


def compiled(spec: MachineProfileSpec, *disks: DiskFacts, **consent: Any) -> DiskLayout:
    return layout(compile_layout(request(spec, **consent), disks))


def refusal(spec: MachineProfileSpec, *disks: DiskFacts, **consent: Any) -> str:
    choice = compile_layout(request(spec, **consent), disks)
    assert isinstance(choice, LayoutRefused), choice
    return choice.message


def lines(made: DiskLayout, verb: str) -> list[list[str]]:
    """Return the words of the lines with a verb, without it."""
    return [line.split()[1:] for line in made.lines if line.split()[0] == verb]


def file(made: DiskLayout, path: str) -> str:
    (content,) = (words[2] for words in lines(made, "file") if words[0] == path)
    return base64.b64decode(content).decode()
