"""containerd in a slot: its unit and configuration. Pure; paths are those inside the machine."""

from __future__ import annotations

from typing import Final

from unbounded.agent.node import sandbox
from unbounded.agent.node.slot_file import SlotFile

UNIT: Final = "containerd.service"
BINARY: Final = "/usr/local/bin/containerd"
RUNC: Final = "/usr/local/sbin/runc"
CNI: Final = "/opt/cni/bin"
CONFIG: Final = "/etc/containerd/config.toml"
NVIDIA: Final = "/etc/containerd/conf.d/99-nvidia-runtime.toml"
_CTR: Final = "/usr/local/bin/ctr --namespace k8s.io"

SERVICE: Final = f"""\
[Unit]
Description=containerd
Documentation=https://containerd.io
After=network.target local-fs.target
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={BINARY} --config {CONFIG}
ExecStartPost=-{_CTR} images import --base-name {sandbox.NAME} --index-name {sandbox.IMAGE} {sandbox.ARCHIVE}
ExecStartPost=-{_CTR} images label {sandbox.IMAGE} io.cri-containerd.pinned=pinned
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
  sandbox_image = "{sandbox.IMAGE}"
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
