"""A host that reaches artifacts and image through a real proxy alone (tinyproxy), and the artifacts over TLS of a
private authority: a slot is built, and what is wrong is named before anything is built."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.agent.slots import TOKEN, goal_of, nodes_of
from tests.support.forward_proxy import forward_proxy
from tests.support.hosts import Host
from tests.support.hosts.images import Images
from tests.support.hosts.mirror import Mirror
from tests.support.qemu import Segment
from unbounded.agent.model import NodeGoal, Slot
from unbounded.api.configuration import NodeSettings
from unbounded.api.failures import Rejected, Transient
from unbounded.join.agent_config import ArtifactSource, Downloads

pytestmark = [pytest.mark.slow, pytest.mark.root]


def goal(mirror: Mirror, images: Images, proxy: str, ca: str | None) -> NodeGoal:
    """A node from the mirror over TLS and the registry, both through a proxy."""
    source = ArtifactSource(base_url=mirror.base_tls)
    names = ("kubernetes", "containerd", "runc", "cni", "crictl", "sandbox")
    settings = msgspec.convert({"proxy": {"http": proxy, "https": proxy}, "caBundle": ca}, NodeSettings)
    return msgspec.structs.replace(
        goal_of(mirror, f"{images.host}/lab/node:v1"),
        downloads=Downloads(**dict.fromkeys(names, source)),
        settings=settings,
    )


async def test_slot_is_built_through_a_proxy_from_a_private_ca_mirror(
    host: Host, mirror: Mirror, images: Images, lan: Segment, tmp_path: Path
) -> None:
    nodes, told = nodes_of(host), list[str]()
    ca = mirror.ca.cert_pem.bytes().decode()
    (tmp_path / "none").touch()
    mirror_host = mirror.base_tls.removeprefix("https://")
    with forward_proxy(
        tmp_path / "strict", "FilterDefaultDeny Yes", f'Filter "{tmp_path}/none"', address=lan.address
    ) as proxy:
        rejected = rf"the proxy {proxy.url}/? rejected the request: 403 Filtered"  # also of the mirror's binaries
        for image, words in (
            ("registry.invalid/node:v1", rejected),
            (
                f"{images.host}/lab/node:v1",
                rf"\(403 through the proxy {proxy.url}/?, unless the proxy rejects it\)|{rejected}",
            ),
        ):
            wanted = msgspec.structs.replace(goal(mirror, images, proxy.url, ca), image=image)
            with pytest.raises(Rejected, match=words):
                await nodes.build(Slot.KUBE1, wanted, TOKEN, told.append)
    with forward_proxy(tmp_path / "open", address=lan.address) as proxy:
        with pytest.raises(Rejected, match=rf"the certificate of {mirror_host} is not trusted .*CA bundle"):
            await nodes.build(Slot.KUBE1, goal(mirror, images, proxy.url, None), TOKEN, told.append)
        assert (await nodes.observe(Slot.KUBE1)).applied is None
        wanted = goal(mirror, images, proxy.url, ca)
        await nodes.build(Slot.KUBE1, wanted, TOKEN, told.append)
        seen = proxy.asked
    assert f"CONNECT {mirror_host} HTTP/1.1" in seen
    assert any(one.startswith(f"GET http://{images.host}/v2/lab/node/") for one in seen)
    applied = nodes.applied(Slot.KUBE1)
    assert applied is not None
    assert applied.goal == wanted
    with pytest.raises(Transient, match=rf"cannot reach the proxy {proxy.url}/?: "):
        await nodes.build(Slot.KUBE2, msgspec.structs.replace(wanted, cni_version="1.9.9"), TOKEN, told.append)
