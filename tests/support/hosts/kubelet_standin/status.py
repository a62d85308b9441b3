"""The status of the Node, as kubelet reports it."""

from __future__ import annotations

import os
import platform
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .given import VERSION

PORT = 10250
FEATURES = ("ExtendWebSocketsToKubelet", "InPlacePodVerticalScalingInitContainers")  # of kubelet 1.36
_PRESSURES = {
    "MemoryPressure": ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
}


def architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def stamp(*, micro: bool = False) -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S{'.%f' if micro else ''}}Z"


def runtime_answers(path: str) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(1.0)
            door.connect(path)
    except OSError:
        return False
    return True


class Status:
    """The reported status; `since` changes when the Node becomes Ready or not Ready."""

    def __init__(self, name: str, pods: int) -> None:
        self._name, self._pods = name, pods
        self._since = {name: stamp() for name in (*_PRESSURES, "Ready")}
        self._ready = False

    def report(self, problems: list[str]) -> dict[str, Any]:
        """Args: problems: why the Node is not Ready."""
        if self._ready is bool(problems):
            self._ready, self._since["Ready"] = not problems, stamp()
        ready = ("KubeletReady", "the stand-in is up")
        text = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
        told = {**_PRESSURES, "Ready": ("KubeletNotReady", text) if problems else ready}
        amounts = _amounts(self._pods)
        return {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [
                {
                    "type": kind,
                    "status": "True" if kind == "Ready" and not problems else "False",
                    "lastHeartbeatTime": stamp(),
                    "lastTransitionTime": self._since[kind],
                    "reason": reason,
                    "message": message,
                }
                for kind, (reason, message) in told.items()
            ],
            "addresses": [{"type": "Hostname", "address": self._name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": PORT}},
            "nodeInfo": _info(),
            "declaredFeatures": list(FEATURES),
        }


def _amounts(pods: int) -> dict[str, str]:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1024
    return {"cpu": str(os.cpu_count() or 1), "ephemeral-storage": "0", "memory": f"{memory}Ki", "pods": str(pods)}


def _info() -> dict[str, str]:
    machine = Path("/etc/machine-id").read_text().strip()
    return {
        "kubeletVersion": f"v{VERSION}",
        "kubeProxyVersion": f"v{VERSION}",
        "bootID": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "machineID": machine,
        "systemUUID": machine,
        "kernelVersion": platform.release(),
        "osImage": "kubelet-standin",
        "containerRuntimeVersion": "containerd://unknown",
        "operatingSystem": "linux",
        "architecture": architecture(),
    }
