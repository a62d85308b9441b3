"""The environment of the tests' hosts: the mirror, the images, the stand-in for kubelet, the control plane."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.support.hosts import AgentTools
from tests.support.hosts.images import Images
from tests.support.hosts.kubelet_standin import read_yaml, seconds
from tests.support.hosts.mirror import ARCH, CONTAINERD, Dial, Mirror
from tests.support.hosts.plane import ControlPlane, is_ready
from unbounded.api.core import LEASES, NODES
from unbounded.api.machine import MACHINES
from unbounded.fetch.reference import Platform, Reference
from unbounded.fetch.registry import RegistryClient
from unbounded.fetch.web import Web

KUBECONFIG = """# of the tests
apiVersion: v1
kind: Config
clusters:
- name: it
  cluster:
    server: {server}
    certificate-authority-data: "{ca}"
users:
  - name: 'boot'
    user: {{"token": "{token}"}}
contexts:
- context:
    cluster: it
    user: boot
  name: here
current-context: here
"""


def test_the_stand_in_reads_the_yaml_of_configuration_files() -> None:
    config = read_yaml(KUBECONFIG.format(server="https://1.2.3.4:6443", ca="Zm9v", token="a.b"))
    assert config["clusters"] == [
        {"name": "it", "cluster": {"server": "https://1.2.3.4:6443", "certificate-authority-data": "Zm9v"}}
    ]
    assert config["users"] == [{"name": "boot", "user": {"token": "a.b"}}]
    assert config["contexts"] == [{"context": {"cluster": "it", "user": "boot"}, "name": "here"}]
    assert read_yaml("a: true\nb:\n- x\n- 'y: z'\nc: 12\nd:\n  e: ''\n") == {
        "a": True,
        "b": ["x", "y: z"],
        "c": 12,
        "d": {"e": ""},
    }
    assert (seconds("1m30s", 1.0), seconds("10s", 1.0), seconds(None, 7.0)) == (90.0, 10.0, 7.0)


@pytest.mark.slow
@pytest.mark.root
async def test_lab_mirror_serves_releases_and_fails_by_its_dials(mirror: Mirror) -> None:
    kubelet = f"{mirror.base}/v1.34.0/bin/linux/{ARCH}/kubelet"
    async with aiohttp.ClientSession() as web:
        async with web.get(kubelet) as answer:
            content = await answer.read()
        async with web.get(kubelet + ".sha256") as answer:
            assert (await answer.text()).split()[0] == hashlib.sha256(content).hexdigest()
        async with web.get(kubelet, headers={"Range": "bytes=100-"}) as answer:
            assert (answer.status, await answer.read()) == (206, content[100:])
        path = f"/v{CONTAINERD}/containerd-{CONTAINERD}-linux-{ARCH}.tar.gz"
        mirror.dials[path] = Dial(cut_after=1000, cuts=1)
        async with web.get(mirror.base + path) as answer:
            with pytest.raises(aiohttp.ClientError):
                await answer.read()
        async with web.get(mirror.base + path, headers={"Range": "bytes=1000-"}) as answer:
            assert (answer.status, len(await answer.read())) == (206, (answer.content_length or 0))
        mirror.dials[path] = Dial(status=503)
        async with web.get(mirror.base + path) as answer:
            assert answer.status == 503
        mirror.dials.clear()


@pytest.mark.slow
@pytest.mark.root
async def test_the_registry_has_the_image_of_a_node(hosts: AgentTools, images: Images, tmp_path: Path) -> None:
    reference = images.add("v2", {"etc/lab-release": b"2\n"})
    async with Web() as session:
        registry = RegistryClient(session, Reference.parse(reference))
        resolved = await registry.resolve(Platform("linux", "amd64"))
        below, above = resolved.image.layers
        assert below.size == hosts.node_layer.stat().st_size
        await registry.fetch(above, tmp_path / "above", limit=1 << 20)
    assert b"lab-release" in (tmp_path / "above").read_bytes()


@pytest.mark.slow
@pytest.mark.root
async def test_the_stand_in_joins_and_is_approved_once(mirror: Mirror, plane: ControlPlane, tmp_path: Path) -> None:
    await plane.apply(
        {
            "apiVersion": "unbounded-cloud.io/v1alpha3",
            "kind": "Machine",
            "metadata": {"name": "m1"},
            "spec": {"kubernetes": {"version": "v1.34.0"}},
        }
    )
    token = await plane.site_token()
    boot = tmp_path / "bootstrap-kubeconfig"
    boot.write_text(KUBECONFIG.format(server=plane.address, ca=plane.ca_base64, token=token))
    program = tmp_path / "kubelet"
    async with aiohttp.ClientSession() as web, web.get(f"{mirror.base}/v1.34.0/bin/linux/{ARCH}/kubelet") as answer:
        program.write_bytes(await answer.read())
    socket = await asyncio.start_unix_server(lambda _, writer: writer.close(), tmp_path / "containerd.sock")
    flags = {
        "bootstrap-kubeconfig": boot,
        "kubeconfig": tmp_path / "kubeconfig",
        "cert-dir": tmp_path / "pki",
        "hostname-override": "m1",
        "node-labels": "tier=edge,unbounded-cloud.io/machine=m1",
        "register-with-taints": "dedicated=lab:NoSchedule",
        "container-runtime-endpoint": f"unix://{tmp_path}/containerd.sock",
    }
    told = [sys.executable, str(program), *(f"--{key}={value}" for key, value in flags.items())]
    kubelet = await asyncio.create_subprocess_exec(*told)
    try:
        node = await plane.ready("m1", within_s=90)
        assert node["metadata"]["labels"]["tier"] == "edge"
        assert node["spec"]["taints"][0] == {"key": "dedicated", "value": "lab", "effect": "NoSchedule"}
        info = node["status"]["nodeInfo"]
        assert info["kubeletVersion"] == "v1.34.0"
        assert info["bootID"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        lease = await plane.wait(LEASES, "m1", bool, namespace="kube-node-lease", within_s=30)
        assert lease["spec"]["holderIdentity"] == "m1"
        machine = await plane.wait(MACHINES, "m1", lambda seen: "used" in seen["status"]["join"], within_s=30)
        used = machine["status"]["join"]["used"]
        assert [(use["purpose"], use["cause"]) for use in used] == [("kubelet", "Registration")]
        await plane.kubectl("delete", "node", "m1")
        await asyncio.sleep(1.5)
        assert not is_ready(await plane.get(NODES, "m1")), "the real one does not register it again either"
    finally:
        kubelet.terminate()
        assert await kubelet.wait() == 0
        socket.close()
    assert os.path.samefile(tmp_path / "pki/kubelet-client-current.pem", next((tmp_path / "pki").glob("*-20*")))
    assert json.loads((tmp_path / "kubeconfig").read_text())["users"][0]["user"].keys() == {
        "client-certificate",
        "client-key",
    }
