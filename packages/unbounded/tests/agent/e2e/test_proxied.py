"""A host that reaches only the API server and a proxy becomes a node: over SSH, and by `machine manual-bootstrap`.

Its mirror is served over https, and only its MachineConfiguration has the authority.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from tests.agent.e2e.conftest import HostOf
from tests.agent.e2e.over_ssh import LATEST, SITE, begun, lenient, settled
from tests.docs.runner import Shell
from tests.support.agent_release import AgentRelease
from tests.support.forward_proxy import ForwardProxy, forward_proxy
from tests.support.hosts.agent import AgentHost
from tests.support.hosts.mirror import CNI, CONTAINERD, RUNC, Mirror
from tests.support.hosts.plane import ControlPlane, control_plane
from tests.support.qemu import Segment
from tests.support.qemu.segment import ip

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(600, func_only=True)]
READY_S: Final = 240.0
PLANE: Final = "10.88.0.2"
SCRIPT: Final = "/root/bootstrap.sh"
RULES: Final = """
table inet lab {{
  set strays {{ type ipv4_addr . inet_service; flags dynamic; }}
  chain output {{
    type filter hook output priority 0; policy accept;
    oif lo accept
    ct state established,related accept
    ip daddr . tcp dport {{ {ways} }} accept
    meta l4proto {{ tcp, udp }} ct state new add @strays {{ ip daddr . th dport }} drop
  }}
}}
"""


@pytest.fixture(scope="module")
def plane(lan: Segment, mirror: Mirror, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane whose hosts download everything, their agent too, from the mirror over https. It has an address
    of its own: what is at the API server's is reached without a proxy."""
    ip(f"addr add {PLANE}/{lan.length} dev {lan.bridge}")
    data = tmp_path_factory.mktemp("plane") / "data"
    with control_plane(data, PLANE, "--artifact-mirror", mirror.base_tls) as running:
        yield running


@pytest.fixture
def proxy(lan: Segment, tmp_path: Path) -> Iterator[ForwardProxy]:
    with forward_proxy(tmp_path / "proxy", address=lan.address) as running:
        yield running


def _configuration(proxy: ForwardProxy, mirror: Mirror) -> dict[str, Any]:
    template = {"proxy": {"http": proxy.url, "https": proxy.url}, "caBundle": mirror.ca.cert_pem.bytes().decode()}
    selector = {"matchLabels": {"unbounded-cloud.io/site": SITE}}
    return {
        "apiVersion": "unbounded-cloud.io/v1alpha3",
        "kind": "MachineConfiguration",
        "metadata": {"name": "proxied"},
        "spec": {"machineSelector": selector, "template": template},
    }


async def _closed(agent: AgentHost, proxy: ForwardProxy) -> None:
    """Let the host reach the API server and the proxy alone, and note where else it sends anything."""
    ways = [urlsplit(one) for one in (agent.plane.address, proxy.url)]
    rules = RULES.format(ways=", ".join(f"{one.hostname} . {one.port}" for one in ways))
    await agent.host.run("nft", "--file", "/dev/stdin", stdin=rules.encode())


async def _went_by(agent: AgentHost, proxy: ForwardProxy) -> None:
    """The host came by the proxy to the mirror, for its agent too, and to the registry; and nowhere else."""
    mirror, registry = urlsplit(agent.mirror.base_tls), agent.images.host
    asked = proxy.asked
    assert f"CONNECT {mirror.hostname}:{mirror.port} HTTP/1.1" in asked
    assert any(one.startswith(f"GET http://{registry}/v2/lab/node/") for one in asked)
    assert any(one.path == LATEST for one in agent.mirror.asked)
    strays = (await agent.host.run("nft", "list", "set", "inet", "lab", "strays")).stdout
    assert not re.findall(r"[0-9.]+ \. \d+", strays), strays


async def test_over_ssh(
    agent_host: HostOf, release: AgentRelease, mirror: Mirror, proxy: ForwardProxy, tmp_path: Path
) -> None:
    async with agent_host(f"{SITE}-ssh", 44) as agent:
        await agent.plane.apply(_configuration(proxy, mirror))
        await _closed(agent, proxy)
        mirror.asked.clear()
        await begun(agent, release, tmp_path / "home")
        await settled(agent, within_s=READY_S)
        await _went_by(agent, proxy)


@pytest.mark.soak
async def test_by_the_script_that_a_person_runs(
    agent_host: HostOf, release: AgentRelease, mirror: Mirror, proxy: ForwardProxy, tmp_path: Path
) -> None:
    async with agent_host(f"{SITE}-script", 45) as agent:
        await agent.plane.apply(_configuration(proxy, mirror))
        await _closed(agent, proxy)
        mirror.asked.clear()
        mirror.add(LATEST, lenient(release, tmp_path / "lenient"))
        (tmp_path / "home").mkdir()
        shell = Shell(tmp_path / "home", agent.plane.kubeconfig, {})
        await shell.run(f"kubectl unbounded site init --name {SITE}")
        versions = f"--containerd-version {CONTAINERD} --runc-version {RUNC} --cni-version {CNI}"
        what = f"--kubernetes-version v{agent.version} --oci-image {agent.node_image} {versions}"
        await shell.run(f"kubectl unbounded machine manual-bootstrap {agent.machine} --site {SITE} {what} > script")
        script = (tmp_path / "home" / "script").read_text()
        assert json.dumps(proxy.url) in script
        await agent.host.write(SCRIPT, script.encode(), mode=0o600)
        await agent.host.run("bash", SCRIPT, timeout_s=READY_S)
        await agent.plane.ready(agent.machine, within_s=60)
        await _went_by(agent, proxy)
