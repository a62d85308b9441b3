"""The node image of Debian 12 as the machine of a slot, on a host with a real systemd: it boots, containerd imports the
sandbox image that it holds, and a Pod sandbox runs. The image has no Python, so kubelet is a shell that stays up."""

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

LAYOUT: Final = built("node-debian12/oci")
KUBELET: Final = b"#!/bin/sh\nsystemd-notify --ready\nexec sleep infinity\n"
VERSION: Final = "1.34.7"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(LAYOUT is None, reason="the image is not built; scripts/node-image builds it, as root"),
]


async def test_a_slot_of_our_own_image_boots_and_runs_the_sandbox_that_it_holds(
    host: Host, mirror: Mirror, images: Images
) -> None:
    assert LAYOUT is not None
    mirror.add_kubernetes(VERSION)
    mirror.add(f"/v{VERSION}/bin/linux/{ARCH}/kubelet", KUBELET)
    nodes, wanted = nodes_of(host), goal_of(mirror, images.add_layout("debian12", LAYOUT), VERSION)
    mirror.asked.clear()
    await nodes.build(Slot.KUBE1, wanted, TOKEN, lambda _: None)
    assert not any("sandbox" in asked.path for asked in mirror.asked)
    applied = nodes.applied(Slot.KUBE1)
    assert applied is not None
    (named,) = json.loads((LAYOUT / "index.json").read_text())["manifests"]
    assert applied.image_digest == named["digest"]

    await nodes.start(Slot.KUBE1)
    assert await nodes.sandbox_trouble(Slot.KUBE1) == ""
    inside = ("systemd-run", "-M", "kube1", "-q", "--pipe", "--wait")
    assert (await host.run(*inside, "systemctl", "list-units", "--failed", "--plain", "--no-legend")).stdout == ""
    for argv in (("iptables", "--version"), ("conntrack", "--version"), ("ethtool", "--version"), ("socat", "-V")):
        assert (await host.run(*inside, *argv)).ok
    content = host.outside(f"/var/lib/machines/{Slot.KUBE1}/usr/share/unbounded/sandbox.tar").read_bytes()
    assert hashlib.sha256(content).hexdigest() in (LAYOUT.parent / f"sandbox-{ARCH}.tar.sha256").read_text()
