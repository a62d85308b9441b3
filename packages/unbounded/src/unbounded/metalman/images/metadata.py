"""Parser of an image's `disk/metadata.yaml`, with a check that the named files exist.

dhcpBootImageName   the boot file of x86-64 UEFI, DHCP option 67
bootFiles           more of them: bios, arm64, http, ipxe
diskImageSHA256     SHA-256 of the disk image beside it, as it is served, in hexadecimal digits

Paths are relative to `disk/`; a file whose name ends in .tmpl there is rendered. Other keys are ignored.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import yaml

from unbounded.fetch.failures import UnusableContent
from unbounded.metalman.dhcp.model import Loader
from unbounded.metalman.netboot.image_paths import STATEMENT, TEMPLATE, normalized_path

DEEPEST: Final = 32  # levels of collections


def load_foreign(content: bytes) -> Any:
    """Return the value of a YAML text.

    Raises:
        ValueError: it is no YAML, or nests more than 32 levels.
    """
    try:
        deep = _is_deep(content)
        body = None if deep else yaml.load(content, Loader=yaml.CSafeLoader)  # C implementation of the safe loader
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an impossible date, for example
        raise ValueError(f"not YAML: {' '.join(str(error).split())[:300]}") from error
    if deep:
        raise ValueError(f"nested more than {DEEPEST} deep")
    return body


def _is_deep(content: bytes) -> bool:
    """Return whether collections nest too deeply: 30 KB of brackets end the process in libyaml."""
    depth = 0
    for event in yaml.parse(content, Loader=yaml.CSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            return True
    return False


FOLDER: Final = "disk"  # folder in an image, and `only` of the store
FILE: Final = "metadata.yaml"
BOOT_IMAGE: Final = "dhcpBootImageName"
BOOT_FILES: Final = "bootFiles"
DISK_DIGEST: Final = "diskImageSHA256"
DISK_IMAGES: Final = ("disk.img.zst", "disk.img.gz")
LARGEST_BYTES: Final = 64 << 10
_LOADERS: Final = {loader.value: loader for loader in Loader if loader is not Loader.X64}
_DIGEST: Final = re.compile(r"(?:sha256:)?([0-9a-f]{64})")
_CHUNK: Final = 1 << 20


@dataclass(frozen=True)
class Metadata:
    """Content of a `metadata.yaml`.

    Args:
        loaders: paths below `disk/`.
        disk_sha256: hexadecimal digits; empty if the file has none.
        is_signed: the loader is a signed program, which takes its boot from the template `STATEMENT` beside it.
    """

    loaders: Mapping[Loader, str] = field(default_factory=dict)
    disk_sha256: str = ""
    is_signed: bool = False


def parse_metadata(content: bytes) -> Metadata:
    """Parse the content of a `metadata.yaml`.

    Raises:
        UnusableContent: the content is invalid; the message names the key and the valid form.
    """
    if len(content) > LARGEST_BYTES:
        raise UnusableContent(f"{FILE}: {len(content)} bytes; the limit is {LARGEST_BYTES}")
    try:
        body = load_foreign(content)
    except ValueError as error:
        raise UnusableContent(f"{FILE}: {error}") from error
    if body is None:
        body = {}
    if not isinstance(body, dict):
        raise UnusableContent(f"{FILE}: must be a mapping, such as {BOOT_IMAGE}: shimx64.efi")
    loaders = {Loader.X64: _path(body[BOOT_IMAGE], BOOT_IMAGE)} if body.get(BOOT_IMAGE) is not None else {}
    return Metadata(loaders | _boot_files(body.get(BOOT_FILES)), _digest(body.get(DISK_DIGEST)))


def _boot_files(given: Any) -> dict[Loader, str]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise UnusableContent(f"{FILE}: {BOOT_FILES}: must map some of {', '.join(_LOADERS)} to paths")
    unknown = [repr(key) for key in given if key not in _LOADERS]
    if unknown:
        raise UnusableContent(
            f"{FILE}: {BOOT_FILES} has unknown keys {', '.join(unknown)}; known keys: {', '.join(_LOADERS)}"
        )
    return {_LOADERS[key]: _path(value, f"{BOOT_FILES}.{key}") for key, value in given.items() if value is not None}


def _path(value: Any, key: str) -> str:
    found = normalized_path(value) if isinstance(value, str) else None
    if found is None:
        raise UnusableContent(f"{FILE}: {key}: {ascii(value)[:100]} is not a path of a file below disk/")
    return found


def _digest(value: Any) -> str:
    if value is None:
        return ""
    found = _DIGEST.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise UnusableContent(f"{FILE}: {DISK_DIGEST}: must be 64 hexadecimal digits in lower case, in quotes")
    return found[1]


def read_netboot(root: Path) -> Metadata:
    """Read the metadata of a netboot image. Blocks.

    Args:
        root: the image's directory `disk`.
    Raises:
        UnusableContent: the image has no metadata, or the metadata names a missing file.
    """
    path = root / FILE
    if not path.is_file():
        raise UnusableContent(f"disk/{FILE} is missing; it names the boot files, as in {BOOT_IMAGE}: shimx64.efi")
    metadata = parse_metadata(_content(path))
    if not metadata.loaders:
        raise UnusableContent(f"{FILE}: {BOOT_IMAGE} is missing, and {BOOT_FILES} names no file either")
    for loader, name in metadata.loaders.items():
        if not _is_file(root, name) and not _is_file(root, name + TEMPLATE):
            key = BOOT_IMAGE if loader is Loader.X64 else f"{BOOT_FILES}.{loader.value}"
            raise UnusableContent(f"{FILE}: {key}: the image has no disk/{name}")
    return replace(metadata, is_signed=_is_file(root, STATEMENT + TEMPLATE))


def read_disk(root: Path, *, alone: bool) -> str:
    """Return the SHA-256 of the disk image in hexadecimal; empty if the image has no disk image.

    Blocks for as long as reading the disk image takes.

    Args:
        root: the image's directory `disk`.
        alone: the image serves only as a disk image.
    Raises:
        UnusableContent: a required disk image is missing, or its metadata is invalid.
    """
    image = next((name for name in DISK_IMAGES if _is_file(root, name)), None)
    if image is None:
        if alone:
            raise UnusableContent(f"it has neither {' nor '.join(f'disk/{name}' for name in DISK_IMAGES)}")
        return ""
    digest = parse_metadata(_content(root / FILE)).disk_sha256 if _is_file(root, FILE) else ""
    return digest or _sum(root / image)


def _sum(path: Path) -> str:
    """Compute the digest of a file. The pull verified the layer, so the file is what was pushed."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(LARGEST_BYTES + 1)


def _is_file(root: Path, name: str) -> bool:
    """Return whether a path leads to a file of this image; symbolic links in images do not lead out of them."""
    return (root / name).is_file()
