"""Debian's docker-registry with the images of nodes: their root file system, as OCI images."""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.fetch.layers import files
from tests.support.hosts.tools import AgentTools
from tests.support.qemu.tools import command

REPOSITORY: Final = "lab/node"
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_ZSTD: Final = "application/vnd.oci.image.layer.v1.tar+zstd"
_TAR: Final = "application/vnd.oci.image.layer.v1.tar"
_START_S: Final = 20.0
_SETTINGS: Final = """version: 0.1
log: {{level: warn}}
storage: {{filesystem: {{rootdirectory: {root}}}}}
http: {{addr: "{address}"}}
"""
_CLOSED: Final = "auth: {{htpasswd: {{realm: lab, path: {path}}}}}\n"


class Images:
    """The storage of a registry, written as the registry itself would: pushing 48 MB takes longer than this.

    Args:
        host: address:port, as references begin.
    """

    def __init__(self, root: Path, host: str, tools: AgentTools) -> None:
        self.host = host
        self._root = root / "docker" / "registry" / "v2"
        self._tools = tools
        with tools.node_layer.open("rb") as file:
            self._base = hashlib.file_digest(file, "sha256").hexdigest()
        self._blob(self._base).symlink_to(tools.node_layer)

    def add(self, tag: str, contents: Mapping[str, bytes] | None = None, *, hosts: bool = True) -> str:
        """A node's image under this tag, with more files in it than usual; its reference.

        The base is the root file system of test hosts, and Debian's has no /etc/hosts.
        """
        contents = {"etc/hosts": b"127.0.0.1\tlocalhost\n", **(contents or {})} if hosts else contents
        layers = [{"mediaType": _ZSTD, "digest": self._base, "size": self._tools.node_layer.stat().st_size}]
        diffs = [self._tools.node_diff_id]
        if contents:
            layer = files(dict(contents))
            digest = self._keep(layer)
            layers.append({"mediaType": _TAR, "digest": digest, "size": len(layer)})
            diffs.append(digest)
        rootfs = {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in diffs]}
        config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs}).encode()
        self._name(tag, self._manifest(config, layers))
        return f"{self.host}/{REPOSITORY}:{tag}"

    def add_layout(self, tag: str, layout: Path) -> str:
        """The image in an OCI layout under this tag; its reference."""
        (named,) = json.loads((layout / "index.json").read_text())["manifests"]
        blobs = layout / "blobs" / "sha256"
        for path in blobs.iterdir():
            self._blob(path.name).symlink_to(path)
            self._link(f"_layers/sha256/{path.name}", path.name)
        self._name(tag, named["digest"].removeprefix("sha256:"))
        return f"{self.host}/{REPOSITORY}:{tag}"

    def _manifest(self, config: bytes, layers: list[dict[str, Any]]) -> str:
        described = [{"mediaType": _CONFIG, "digest": self._keep(config), "size": len(config)}, *layers]
        for part in described:
            self._link(f"_layers/sha256/{part['digest']}", part["digest"])
            part["digest"] = f"sha256:{part['digest']}"
        body = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": described[0], "layers": described[1:]}
        return self._keep(json.dumps(body).encode())

    def _name(self, tag: str, digest: str) -> None:
        for place in (f"revisions/sha256/{digest}", f"tags/{tag}/current", f"tags/{tag}/index/sha256/{digest}"):
            self._link(f"_manifests/{place}", digest)

    def _keep(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        self._blob(digest).write_bytes(content)
        return digest

    def _blob(self, digest: str) -> Path:
        folder = self._root / "blobs" / "sha256" / digest[:2] / digest
        folder.mkdir(parents=True, exist_ok=True)
        return folder / "data"

    def _link(self, place: str, digest: str) -> None:
        folder = self._root / "repositories" / REPOSITORY / place
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "link").write_text(f"sha256:{digest}")


@contextmanager
def images_on(address: str, tools: AgentTools, folder: Path, *, htpasswd: str = "") -> Iterator[Images]:
    """A registry on this address of the network that the caller is in, with the image `lab/node:v1`.

    Args:
        htpasswd: whom alone it serves; empty for everybody.
    """
    folder.mkdir(parents=True)
    with socket.create_server((address, 0)) as door:
        port = door.getsockname()[1]
    settings = folder / "config.yml"
    closed = _CLOSED.format(path=folder / "htpasswd") if htpasswd else ""
    (folder / "htpasswd").write_text(htpasswd)
    settings.write_text(_SETTINGS.format(root=folder / "storage", address=f"{address}:{port}") + closed)
    images = Images(folder / "storage", f"{address}:{port}", tools)
    images.add("v1")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([command("docker-registry"), "serve", str(settings)], stdout=log, stderr=log)
    try:
        _answers(address, port, folder / "log")
        yield images
    finally:
        process.kill()
        process.wait()


def _answers(address: str, port: int, log: Path) -> None:
    limit = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection((address, port), 1).close()
        except OSError:
            assert time.monotonic() < limit, log.read_text()
            time.sleep(0.02)
        else:
            return
