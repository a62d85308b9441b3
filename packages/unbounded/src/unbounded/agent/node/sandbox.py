"""The sandbox image of every Pod, and a test that a node can run one. Pure.

The image is an archive in the slot: from the node image, else from the artifact mirror. containerd imports it at each
start under a name that no registry can have, so that it is never pulled.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from typing import Any, Final

import msgspec

ARCHIVE: Final = "/usr/share/unbounded/sandbox.tar"
NAME: Final = "sandbox.invalid/unbounded/sandbox"  # RFC 2606: nothing resolves below .invalid
IMAGE: Final = f"{NAME}:node"
PROOF: Final = "unbounded-sandbox-proof"
RUN_S: Final = 120.0  # kubelet's own timeout for the runtime
REMOVE_S: Final = 20.0
MARGIN_S: Final = 10.0  # for crictl to report its timeout
_SOCKET: Final = "unix:///run/containerd/containerd.sock"
_CRICTL: Final = ("/usr/local/bin/crictl", "--runtime-endpoint", _SOCKET, "--timeout", "10s")
_ERROR: Final = re.compile(r'level=(?:error|fatal) msg="((?:[^"\\]|\\.)*)"')
_HOST: Final = 2  # NamespaceMode NODE of the CRI
_RUNTIME_DEFAULT: Final = 0  # SecurityProfile.ProfileType of the CRI


def pod_config(uid: str) -> bytes:
    """Return the config of the test sandbox: in the host's network, so that it needs no CNI configuration.

    It has the seccomp profile that kubelet sets for each sandbox: a runc without seccomp runs all others.
    """
    config = {
        "metadata": {"name": PROOF, "namespace": "unbounded", "uid": uid, "attempt": 0},
        "linux": {
            "cgroup_parent": "system.slice",
            "security_context": {
                "namespace_options": {"network": _HOST},
                "seccomp": {"profile_type": _RUNTIME_DEFAULT},
            },
        },
    }
    return msgspec.json.encode(config)


def run_command() -> tuple[str, ...]:
    """Return the command that runs a sandbox with the config on standard input; crictl prints its ID."""
    return (*_CRICTL, "runp", "--cancel-timeout", f"{RUN_S:.0f}s", "/dev/stdin")


def remove_command(sandbox_id: str) -> tuple[str, ...]:
    """Return the command that stops and removes a sandbox."""
    return (*_CRICTL, "rmp", "--force", sandbox_id)


def crictl_error(stderr: str) -> str:
    """Return the message of crictl, and of containerd in it, without the log format."""
    found = _ERROR.findall(stderr)
    return re.sub(r"\\(.)", r"\1", found[-1]) if found else " ".join(stderr.split())[-400:]


def archive_fault(content: bytes | None, arch: str) -> str:
    """Return why an archive is unusable as the sandbox image of a host; empty where it is usable.

    Args:
        content: None where there is no archive.
        arch: of the host, amd64 or arm64.
    """
    if content is None:
        return f"{ARCHIVE} is missing in the node image and at the artifact mirror (Downloads.Sandbox)"
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            found = sorted(set(_architectures(tar)))
    except (tarfile.TarError, msgspec.MsgspecError, KeyError, TypeError, AttributeError, EOFError) as error:
        return f"{ARCHIVE} is not an image archive as `skopeo copy … oci-archive:FILE` writes it: {error}"
    if arch not in found:
        return f"the image in {ARCHIVE} is for {', '.join(found) or 'no architecture'}, but this host is {arch}"
    return ""


def _architectures(tar: tarfile.TarFile) -> Iterator[str]:
    """Yield the architectures of the images in an OCI archive, or in one of `docker save`."""
    if "index.json" in tar.getnames():
        yield from _of_index(tar, _json(tar, "index.json"), depth=3)
        return
    for image in _json(tar, "manifest.json"):
        yield str(_json(tar, image["Config"])["architecture"])


def _of_index(tar: tarfile.TarFile, index: Any, *, depth: int) -> Iterator[str]:
    for described in index["manifests"] if depth else ():
        document = _blob(tar, described["digest"])
        if "manifests" in document:
            yield from _of_index(tar, document, depth=depth - 1)
        else:
            yield str(_blob(tar, document["config"]["digest"])["architecture"])


def _blob(tar: tarfile.TarFile, digest: str) -> Any:
    return _json(tar, f"blobs/{digest.replace(':', '/', 1)}")


def _json(tar: tarfile.TarFile, name: str) -> Any:
    file = tar.extractfile(name)
    if file is None:
        raise KeyError(name)
    return msgspec.json.decode(file.read())
