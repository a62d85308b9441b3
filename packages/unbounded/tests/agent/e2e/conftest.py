"""The packaged agent on hosts, with a control plane, artifacts and images: what the whole chain needs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tests.support.agent_release import AgentRelease, agent_release
from tests.support.hosts import AgentTools, booted
from tests.support.hosts.agent import AgentHost
from tests.support.hosts.images import Images
from tests.support.hosts.mirror import Mirror
from tests.support.hosts.plane import ControlPlane
from tests.support.qemu import Segment

HostOf = Callable[[str, int], AbstractAsyncContextManager[AgentHost]]


@pytest.fixture(scope="session")
def release(hosts: AgentTools) -> AgentRelease:
    """The agent as it is released."""
    return agent_release()


@pytest.fixture
def agent_host(
    hosts: AgentTools, lan: Segment, disks: Path, plane: ControlPlane, mirror: Mirror, images: Images
) -> HostOf:
    """A host of a machine that is no node yet: `async with agent_host("m1", 11) as host`; 11 ends its address.

    What a test that failed left of it in the API is deleted first: the next run of it may join like the first.
    """

    @asynccontextmanager
    async def up(machine: str, number: int) -> AsyncIterator[AgentHost]:
        await plane.forget(machine)
        async with booted(hosts, lan, disks, f"host-{machine}", f"10.88.0.{number}") as host:
            agent = AgentHost(host, plane, mirror, images, machine)
            try:
                yield agent
            except BaseException as error:
                error.add_note(f"{machine}: {await agent.trouble()}")
                raise

    return up
