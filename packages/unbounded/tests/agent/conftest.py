"""Hosts for tests of the agent. See tests/support/hosts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.hosts import AgentTools, Host, agent_tools, booted, fast_disk
from tests.support.hosts.images import Images, images_on
from tests.support.hosts.mirror import Mirror, mirror_on
from tests.support.hosts.plane import ControlPlane, control_plane
from tests.support.qemu import Segment, segment


@pytest.fixture(scope="session")
def hosts() -> AgentTools:
    """The tools that hosts are made from; without them the test is skipped."""
    return agent_tools()


@pytest.fixture(scope="module")
def lan(hosts: AgentTools) -> Iterator[Segment]:
    """A segment for the tests of a module, with all that they start; hosts are on its bridge."""
    with segment() as made:
        yield made


@pytest.fixture(scope="module")
def disks(hosts: AgentTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The place of the hosts' disks."""
    with fast_disk(tmp_path_factory.mktemp("hosts") / "disks") as folder:
        yield folder


@pytest.fixture
async def host(hosts: AgentTools, lan: Segment, disks: Path) -> AsyncIterator[Host]:
    """A host of its own for a test: h1, 10.88.0.11."""
    async with booted(hosts, lan, disks, "h1", "10.88.0.11") as up:
        yield up


@pytest.fixture(scope="module")
def mirror(hosts: AgentTools, lan: Segment) -> Iterator[Mirror]:
    """The artifacts of nodes, on the segment; with Kubernetes 1.34.0."""
    with mirror_on(lan.address, hosts) as running:
        running.add_kubernetes("1.34.0")
        yield running


@pytest.fixture(scope="module")
def images(hosts: AgentTools, lan: Segment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    """A registry on the segment, with the root file system of nodes as `lab/node:v1`."""
    with images_on(lan.address, hosts, tmp_path_factory.mktemp("registry") / "it") as running:
        yield running


@pytest.fixture(scope="module")
def plane(lan: Segment, mirror: Mirror, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane on the segment, for hosts that have the mirror and no way to the internet."""
    data = tmp_path_factory.mktemp("plane") / "data"
    with control_plane(data, lan.address, "--artifact-mirror", mirror.base) as running:
        yield running
