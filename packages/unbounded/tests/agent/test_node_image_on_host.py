"""Our node images as the machine of a slot, on a host with a real systemd: each boots, containerd imports the sandbox
image that it holds, and a Pod sandbox runs. The images have no Python, so kubelet is a shell that stays up."""

from __future__ import annotations

import hashlib
import json
from typing import Final

import pytest

from tests.agent.slots import TOKEN, goal_of, nodes_of
from tests.support.hosts import Host
from tests.support.hosts.images import Images
from tests.support.hosts.mirror import ARCH, Mirror
from tests.support.qemu.tools import built
from unbounded.agent.model import Slot

KUBELET: Final = b"#!/bin/sh\nsystemd-notify --ready\nexec sleep infinity\n"
VERSION: Final = "1.34.7"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
]


@pytest.mark.parametrize("distribution", [pytest.param("debian12"), pytest.param("ubuntu2404", marks=pytest.mark.soak)])
async def test_slot_of_the_project_image_boots_with_its_own_sandbox(
    distribution: str, host: Host, mirror: Mirror, images: Images
) -> None:
    paths = built(f"node-{distribution}/oci")
    if paths is None:
        pytest.skip(f"the image is not built; `scripts/node-image {distribution}` builds it, as root")
    mirror.add_kubernetes(VERSION)
    mirror.add(f"/v{VERSION}/bin/linux/{ARCH}/kubelet", KUBELET)
    nodes, wanted = nodes_of(host), goal_of(mirror, images.add_layout(distribution, paths), VERSION)
    mirror.asked.clear()
    await nodes.build(Slot.KUBE1, wanted, TOKEN, lambda _: None)
    assert not any("sandbox" in asked.path for asked in mirror.asked)
    applied = nodes.applied(Slot.KUBE1)
    assert applied is not None
    (named,) = json.loads((paths / "index.json").read_text())["manifests"]
    assert applied.image_digest == named["digest"]

    await nodes.start(Slot.KUBE1)
    assert await nodes.sandbox_problem(Slot.KUBE1) == ""
    inside = ("systemd-run", "-M", "kube1", "-q", "--pipe", "--wait")
    assert (await host.run(*inside, "systemctl", "list-units", "--failed", "--plain", "--no-legend")).stdout == ""
    for argv in (("iptables", "--version"), ("conntrack", "--version"), ("ethtool", "--version"), ("socat", "-V")):
        assert (await host.run(*inside, *argv)).ok
    content = host.outside(f"/var/lib/machines/{Slot.KUBE1}/usr/share/unbounded/sandbox.tar").read_bytes()
    assert hashlib.sha256(content).hexdigest() in (paths.parent / f"sandbox-{ARCH}.tar.sha256").read_text()
