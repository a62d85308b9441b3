"""Each supported line of containerd, on a host with a real systemd.

containerd reads the agent's configuration, imports the sandbox image, runs a sandbox, and reports the image as pinned,
so that kubelet's image garbage collection keeps it. containerd itself answers for the CRI.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
import pytest

from tests.agent.slots import TOKEN, goal_of, nodes_of
from tests.support.hosts import AgentTools, Host
from tests.support.hosts.images import Images
from tests.support.hosts.mirror import ARCH, CONTAINERD, Mirror
from unbounded.agent.model import Slot
from unbounded.agent.node import containerd

pytestmark = [pytest.mark.slow, pytest.mark.root]
INSIDE: Final = ("systemd-run", "-M", "kube1", "-q", "--pipe", "--wait")
_LIST: Final = (  # an empty request in a frame of gRPC
    "printf '\\0\\0\\0\\0\\0' | curl --silent --fail --http2-prior-knowledge --max-time 20 --data-binary @- "
    "--header 'content-type: application/grpc' --header 'te: trailers' "
    "--unix-socket /proc/{leader}/root/run/containerd/containerd.sock "
    "http://localhost/runtime.v1.ImageService/ListImages | od -An -v -tx1"
)


@dataclass(frozen=True)
class Image:
    """An image as the CRI lists it."""

    tags: frozenset[str]
    pinned: bool


@pytest.mark.parametrize(
    ("major", "pins"),
    [
        pytest.param("1.6", False, id="1.6"),  # which has no such field: docs/agent.md
        pytest.param("1.7", True, id="1.7"),
        pytest.param("2.", True, id="2"),
    ],
)
async def test_the_sandbox_image_of_each_containerd_is_imported_runs_and_is_pinned(
    host: Host, hosts: AgentTools, mirror: Mirror, images: Images, major: str, pins: bool
) -> None:
    version = CONTAINERD
    if not CONTAINERD.startswith(major):
        version, archive = hosts.later_containerd(major)
        mirror.add(f"/v{version}/containerd-{version}-linux-{ARCH}.tar.gz", archive, checksum=".sha256sum")
    nodes = nodes_of(host)
    goal = msgspec.structs.replace(goal_of(mirror, f"{images.host}/lab/node:v1"), containerd_version=version)
    await nodes.build(Slot.KUBE1, goal, TOKEN, lambda _: None)
    await nodes.start(Slot.KUBE1)
    said = await host.run(*INSIDE, "/usr/local/bin/ctr", "version")
    assert said.stdout.count(f"Version:  {version}") == 2, said.stdout  # of client and server
    assert await nodes.sandbox_problem(Slot.KUBE1) == ""

    listed = await _images(host)
    assert [one for one in listed if containerd.IMAGE in one.tags] == [
        Image(frozenset({containerd.IMAGE, f"{containerd.NAME}:latest"}), pinned=pins)
    ]
    dumped = await host.run(*INSIDE, "/usr/local/bin/containerd", "config", "dump")
    named = "sandbox_image = " if major.startswith("1.") else "sandbox = "
    (line,) = [line.strip() for line in dumped.stdout.splitlines() if line.strip().startswith(named)]
    assert containerd.IMAGE in line
    journal = await host.run(*INSIDE, "journalctl", "--unit", "containerd.service", "--no-pager")
    for words in (
        "unknown key",
        "Ignoring unknown",
        "invalid plugin config",
        "failed to load plugin io.containerd.grpc.v1.cri",
    ):
        assert words not in journal.stdout


async def _images(host: Host) -> list[Image]:
    leader = (await host.run("machinectl", "show", "kube1", "--property=Leader", "--value")).stdout.strip()
    said = await host.run("sh", "-c", _LIST.format(leader=leader))
    frame = bytes.fromhex(said.stdout)
    assert frame[0] == 0, "a compressed answer"
    found = []
    for number, content in fields(frame[5:]):
        assert number == 1
        assert isinstance(content, bytes)
        about = fields(content)
        tags = frozenset(value.decode() for number, value in about if number == 2 and isinstance(value, bytes))
        found.append(Image(tags, pinned=(8, 1) in about))
    return found


def fields(message: bytes) -> list[tuple[int, int | bytes]]:
    """Return a protobuf message's fields, of varints and of bytes."""
    found: list[tuple[int, int | bytes]] = []
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        value = varint()
        assert key & 7 in (0, 2), "a wire type that Image does not have"
        if key & 7 == 2:
            found.append((key >> 3, message[at : at + value]))
            at += value
        else:
            found.append((key >> 3, value))
    return found
