"""Small layers and images for tests, made by tarfile, gzip and zstandard."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from unbounded.fetch.manifest import DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST
from unbounded.fetch.reference import Digest


def entry(name: str, content: bytes | None = None, **attributes: Any) -> tuple[tarfile.TarInfo, bytes]:
    """Return a member: a file with content, else of the given `type`, else a directory."""
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
    info.size = len(content or b"")
    info.mode = 0o755 if content is None else 0o644
    for key, value in attributes.items():
        setattr(info, key, value)
    return info, content or b""


def symlink(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.SYMTYPE, linkname=target)


def hardlink(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.LNKTYPE, linkname=target)


def tar(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def files(contents: dict[str, bytes]) -> bytes:
    return tar(*(entry(name, content) for name, content in contents.items()))


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "tar": bytes,
    "tar+gzip": lambda content: gzip.compress(content, 1, mtime=0),
    "tar+zstd": lambda content: zstandard.ZstdCompressor().compress(content),
}


@dataclass(frozen=True)
class Built:
    """An image as a registry holds it."""

    manifest: bytes
    media_type: str
    blobs: dict[str, bytes]

    @property
    def digest(self) -> Digest:
        return Digest.of(self.manifest)


def image(layers: Iterable[bytes], *, compression: str = "tar+gzip", docker: bool = False) -> Built:
    """An image of these layers, which are tars."""
    packed = [COMPRESSIONS[compression](layer) for layer in layers]
    config = b'{"architecture":"amd64","os":"linux"}'
    prefix = "application/vnd.docker.image.rootfs.diff." if docker else "application/vnd.oci.image.layer.v1."
    blobs = {str(Digest.of(content)): content for content in (*packed, config)}
    media_type = DOCKER_MANIFEST if docker else OCI_MANIFEST
    config_type = "application/vnd.oci.image.config.v1+json"
    document = {
        "schemaVersion": 2,
        "mediaType": media_type,
        "config": {"mediaType": config_type, "digest": str(Digest.of(config)), "size": len(config)},
        "layers": [
            {"mediaType": prefix + compression, "digest": str(Digest.of(content)), "size": len(content)}
            for content in packed
        ],
    }
    return Built(msgspec.json.encode(document), media_type, blobs)


def from_layout(folder: Path) -> Built:
    """The one image of an OCI layout on disk."""
    (named,) = msgspec.json.decode((folder / "index.json").read_bytes())["manifests"]
    blobs = {f"sha256:{path.name}": path.read_bytes() for path in (folder / "blobs" / "sha256").iterdir()}
    return Built(blobs.pop(named["digest"]), named["mediaType"], blobs)


def with_layer(built: Built, layer: bytes) -> Built:
    """The same image with one more layer, a tar."""
    packed = gzip.compress(layer, 1, mtime=0)
    digest = str(Digest.of(packed))
    document = msgspec.json.decode(built.manifest)
    kind = "application/vnd.oci.image.layer.v1.tar+gzip"
    document["layers"].append({"mediaType": kind, "digest": digest, "size": len(packed)})
    return Built(msgspec.json.encode(document), built.media_type, {**built.blobs, digest: packed})


def index(images: dict[str, Built]) -> bytes:
    """An index of images by platform, `os/architecture[/variant]`."""
    entries = []
    for platform, built in images.items():
        named = dict(zip(("os", "architecture", "variant"), platform.split("/"), strict=False))
        size, digest = len(built.manifest), str(built.digest)
        entries.append({"mediaType": built.media_type, "digest": digest, "size": size, "platform": named})
    return msgspec.json.encode({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries})
