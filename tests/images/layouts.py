"""OCI layouts of one image, as images/common/oci-layout writes them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from unbounded.agent.node.rootfs import unpack_image
from unbounded.fetch.reference import Digest


def architecture(layout: Path) -> str:
    """Return the architecture in the index; the image's configuration has to have the same."""
    (named,) = json.loads((layout / "index.json").read_text())["manifests"]
    config = json.loads(_blob(layout, _manifest(layout)["config"]["digest"]).read_bytes())
    assert config["architecture"] == named["platform"]["architecture"]
    return str(config["architecture"])


async def unpacked(layout: Path, root: Path) -> Path:
    """Unpack the image as the agent does into a new folder, and return it; each layer has to keep its digest."""
    layers = [Digest.parse(layer["digest"]) for layer in _manifest(layout)["layers"]]
    paths = [_blob(layout, str(digest)) for digest in layers]
    for digest, path in zip(layers, paths, strict=True):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == digest.hex
    root.mkdir()
    await unpack_image(paths, root, lambda _: None)
    return root


def _manifest(layout: Path) -> dict[str, Any]:
    (named,) = json.loads((layout / "index.json").read_text())["manifests"]
    manifest: dict[str, Any] = json.loads(_blob(layout, named["digest"]).read_bytes())
    return manifest


def _blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / digest.replace(":", "/")
