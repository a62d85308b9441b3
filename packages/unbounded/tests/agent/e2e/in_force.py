"""Settings of a MachineConfiguration, and their effect, read from the kernel, systemd and processes."""

from __future__ import annotations

from typing import Any, Final

from tests.support.hosts.agent import AgentHost

NAME: Final = "chain"
PODS: Final = "42"
PARAMETER: Final = ("net.ipv4.tcp_keepalive_time", "601")
# of an image; the configuration overrides it
OWN: Final = {"etc/sysctl.d/99-own.conf": b"net.ipv4.tcp_keepalive_time = 77\n"}
_PROXY: Final = "http://192.0.2.9:3128"  # no proxy: all requests are direct


def configuration(image: str, *direct: str) -> dict[str, Any]:
    """Return a MachineConfiguration. Args: direct: what is reached without its proxy."""
    template = {
        "agent": {"image": image},
        "kubelet": {"maxPods": int(PODS)},
        "sysctl": dict([PARAMETER]),
        "proxy": {"http": _PROXY, "https": _PROXY, "noProxy": list(direct)},
    }
    return {
        "apiVersion": "unbounded-cloud.io/v1alpha3",
        "kind": "MachineConfiguration",
        "metadata": {"name": NAME},
        "spec": {"template": template},
    }


async def are_in_force(agent: AgentHost, slot: str, node: dict[str, Any]) -> None:
    """Check it. Args: node: the Node that kubelet in this slot has registered."""
    assert node["status"]["allocatable"]["pods"] == PODS
    name, value = PARAMETER
    assert await agent.inside(slot, "cat", f"/proc/sys/{name.replace('.', '/')}") == f"{value}\n"
    for unit in ("containerd.service", "kubelet.service"):
        variables = await agent.inside(
            slot, "sh", "-c", f"tr '\\0' '\\n' </proc/$(systemctl show --property=MainPID --value {unit})/environ"
        )
        assert f"HTTPS_PROXY={_PROXY}\n" in variables, unit
