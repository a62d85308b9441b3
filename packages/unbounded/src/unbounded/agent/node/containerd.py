"""containerd in a slot: its unit and configuration, the sandbox image of every Pod, and a test that a Pod sandbox runs.

Pure; paths are those inside the machine. The sandbox image is an archive in the slot: from the node image, else from
the artifact mirror. containerd imports it at each start under a name that no registry can have, so that it is never
pulled.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from unbounded.agent.node.slot_files import SlotFile

UNIT: Final = "containerd.service"
BINARY: Final = "/usr/local/bin/containerd"
RUNC: Final = "/usr/local/sbin/runc"
CNI: Final = "/opt/cni/bin"
CONFIG: Final = "/etc/containerd/config.toml"
NVIDIA: Final = "/etc/containerd/conf.d/99-nvidia-runtime.toml"
_CTR: Final = "/usr/local/bin/ctr --namespace k8s.io"

ARCHIVE: Final = "/usr/share/unbounded/sandbox.tar"
NAME: Final = "sandbox.invalid/unbounded/sandbox"  # RFC 2606: nothing resolves below .invalid
IMAGE: Final = f"{NAME}:node"

SERVICE: Final = f"""\
[Unit]
Description=containerd
Documentation=https://containerd.io
After=network.target local-fs.target
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={BINARY} --config {CONFIG}
ExecStartPost=-{_CTR} images import --base-name {NAME} --index-name {IMAGE} {ARCHIVE}
ExecStartPost=-{_CTR} images label {IMAGE} io.cri-containerd.pinned=pinned
Delegate=yes
KillMode=process
Restart=always
RestartSec=1
RestartSteps=10
RestartMaxDelaySec=60
TimeoutStartSec=60
TimeoutStopSec=15
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
"""

_CRI: Final = 'plugins."io.containerd.grpc.v1.cri"'  # version 2 is read by containerd 1.x and 2.x
CONFIGURATION: Final = f"""\
version = 2
imports = ["/etc/containerd/conf.d/*.toml"]

[metrics]
  address = "127.0.0.1:10257"

[{_CRI}]
  sandbox_image = "{IMAGE}"
  [{_CRI}.cni]
    bin_dir = "{CNI}"
    conf_dir = "/etc/cni/net.d"
  [{_CRI}.containerd]
    default_runtime_name = "runc"
    [{_CRI}.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [{_CRI}.containerd.runtimes.runc.options]
        BinaryName = "{RUNC}"
        NoNewKeyring = true
        SystemdCgroup = true
  [{_CRI}.registry]
    config_path = "/etc/containerd/certs.d"
    [{_CRI}.registry.headers]
      X-Meta-Source-Client = ["unbounded-kube/kubelet"]
"""

NVIDIA_CONFIGURATION: Final = f"""\
version = 2

[{_CRI}]
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  [{_CRI}.containerd]
    default_runtime_name = "nvidia"
    [{_CRI}.containerd.runtimes.nvidia]
      runtime_type = "io.containerd.runc.v2"
      [{_CRI}.containerd.runtimes.nvidia.options]
        BinaryName = "/usr/bin/nvidia-container-runtime"
        SystemdCgroup = true
"""


def files(*, nvidia: bool) -> tuple[SlotFile, ...]:
    """Return containerd's files.

    Args:
        nvidia: the host has an NVIDIA GPU, and the image the container runtime for it.
    """
    return (
        SlotFile(f"/etc/systemd/system/{UNIT}", SERVICE.encode()),
        SlotFile(CONFIG, CONFIGURATION.encode()),
        *((SlotFile(NVIDIA, NVIDIA_CONFIGURATION.encode()),) if nvidia else ()),
    )


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
