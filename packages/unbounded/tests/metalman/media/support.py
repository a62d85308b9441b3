"""Content for images of virtual media, small, and the bytes of a whole image."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from unbounded.metalman.media.image import FilePart, MediaContent, MediaImage, Part

CONFIG: Final = b"menuentry x { linux /vmlinuz a=b\n initrd /initrd }\n"


def stored(folder: Path, name: str, content: bytes) -> FilePart:
    (folder / name).write_bytes(content)
    return FilePart(folder / name, len(content))


def content(folder: Path, *, kernel: bytes = b"kernel" * 999) -> MediaContent:
    """Files whose sizes are no multiples of a sector."""
    return MediaContent(
        loader=stored(folder, "shim", b"shim" * 1001),
        second_loader=stored(folder, "grub", bytes(range(256)) * 77 + b"end"),
        files={
            "grub/grub.cfg": CONFIG,
            "vmlinuz": stored(folder, "vmlinuz", kernel),
            "initrd": stored(folder, "initrd", b"initrd" * 5000),
        },
    )


def taken(part: Part, start: int, stop: int) -> bytes:
    return (part if isinstance(part, bytes) else part.path.read_bytes())[start:stop]


def whole(image: MediaImage) -> bytes:
    return b"".join(taken(*each) for each in image.slices(0, image.size))
