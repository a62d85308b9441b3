"""A node image in a registry with a login, on a host: the Secret of its MachineConfiguration opens it.

Only root on the host can read the password. The registry is a mirror, too, whose login containerd reads from
hosts.toml.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Final

import bcrypt
import pytest
import yaml

from tests.agent.e2e.conftest import HostOf
from tests.support.agent_release import AgentRelease
from tests.support.hosts import AgentTools
from tests.support.hosts.agent import AgentHost
from tests.support.hosts.images import images_on
from tests.support.hosts.plane import ControlPlane
from tests.support.paths import ROOT
from tests.support.qemu import Segment

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(600, func_only=True)]
PASSWORD: Final = "calvin-and-hobbes"
SECRET: Final = "registry-logins"  # as the guide has it
SPAN: Final = 1 << 20  # bytes; programs and layers are larger
CERTS: Final = "/etc/containerd/certs.d"
FETCH: Final = ("/usr/local/bin/ctr", "content", "fetch-object", "--hosts-dir", CERTS, "docker.io/lab/node:v1")
FOLDERS: Final = ("etc", "home", "opt", "root", "run", "tmp", "var")


def _guided() -> list[dict[str, Any]]:
    """Return the role and the binding of the guide."""
    guide = (ROOT / "docs/node-settings.md").read_text()
    return list(yaml.safe_load_all(guide.split("```yaml\n")[2].partition("```")[0]))


def _secret(host: str, password: str) -> dict[str, Any]:
    auth = base64.b64encode(f"robot:{password}".encode()).decode()
    content = json.dumps({"auths": {host: {"auth": auth}}})
    meta = {"name": SECRET, "namespace": "unbounded-kube"}
    kind = "kubernetes.io/dockerconfigjson"
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": kind,
            "stringData": {".dockerconfigjson": content}}  # fmt: skip


def _configuration(image: str) -> dict[str, Any]:
    hosts = [{"url": f"http://{image.partition('/')[0]}"}]
    containerd = {"pullSecrets": [{"name": SECRET}], "registries": [{"name": "docker.io", "hosts": hosts}]}
    template = {"agent": {"image": image}, "containerd": containerd}
    meta = {"name": "closed"}
    return {"apiVersion": "unbounded-cloud.io/v1alpha3", "kind": "MachineConfiguration", "metadata": meta,
            "spec": {"template": template}}  # fmt: skip


def _machine(name: str) -> dict[str, Any]:
    spec = {"kubernetes": {"version": "v1.34.0"}, "configurationRef": {"name": "closed", "version": 1}}
    return {"apiVersion": "unbounded-cloud.io/v1alpha3", "kind": "Machine", "metadata": {"name": name}, "spec": spec}


async def _said(agent: AgentHost) -> str:
    """Return what others than root read: the journal, command lines, and the API without its Secrets."""
    shown = await agent.plane.kubectl("get", "machines,nodes,events,machineconfigurationversions", "-A", "-o", "json")
    lines = (await agent.host.run("ps", "-e", "-ww", "-o", "args")).stdout
    return shown + lines + await agent.host.journal() + agent.plane.log


def _files_with(root: Path, text: bytes) -> dict[str, int]:
    """Return the regular files of a host that hold a text, with their modes."""
    files = (path for folder in FOLDERS for path in (root / folder).rglob("*") if path.is_file())
    small = (path for path in files if not path.is_symlink() and path.stat().st_size < SPAN)
    return {str(path.relative_to(root)): path.stat().st_mode & 0o777 for path in small if text in path.read_bytes()}


async def test_a_private_image_becomes_a_node_and_the_password_stays_with_root(
    agent_host: HostOf, hosts: AgentTools, lan: Segment, plane: ControlPlane, release: AgentRelease, tmp_path: Path
) -> None:
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    with images_on(lan.address, hosts, tmp_path / "closed", htpasswd=f"robot:{hashed}\n") as closed:
        async with agent_host("private", 43) as agent:
            agent.image = f"{closed.host}/lab/node:v1"
            await plane.apply(*_guided(), _configuration(agent.node_image), _machine(agent.machine))
            await agent.configure()
            await agent.unpack(release)
            refused = await agent.start(check=False)
            assert f'containerd.pullSecrets[{SECRET}]: secrets "{SECRET}" not found' in refused.stderr
            await plane.apply(_secret(closed.host, "another"))
            refused = await agent.start(check=False)
            assert "does not let 'robot' read lab/node: check the pull secret" in refused.stderr
            await plane.apply(_secret(closed.host, PASSWORD))
            started = await agent.start()
            assert f"Node {agent.machine} exists" in started.stdout
            await plane.ready(agent.machine, within_s=60)
            assert "application/vnd.oci.image.manifest.v1+json" in await agent.inside("kube1", *FETCH)
            assert PASSWORD not in refused.stderr + started.stdout + started.stderr + await _said(agent)
            assert _files_with(agent.host.outside("/"), PASSWORD.encode()) == {
                "etc/unbounded/agent/pull-secrets.json": 0o600,
                "var/lib/machines/kube1/etc/kubernetes/credential-provider/response.json": 0o600,
            }
