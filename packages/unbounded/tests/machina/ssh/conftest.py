"""OpenSSH servers that all tests of this folder share, and a client of its own for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import asyncssh
import pytest

from tests.support.ssh.sshd import Fleet, missing, sshd_fleet
from unbounded.machina.ssh.client import SshClient


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A host and a bastion. Who breaks one brings it back."""
    absent = missing()
    if absent is not None:
        pytest.skip(f"needs {absent}")
    with sshd_fleet(tmp_path_factory.mktemp("ssh") / "fleet", 1, bastion=True) as fleet:
        yield fleet


@pytest.fixture
async def ssh() -> AsyncIterator[SshClient]:
    client = SshClient()
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture(scope="session")
def ed25519() -> str:
    """A private key that no server knows."""
    return asyncssh.generate_private_key("ssh-ed25519").export_private_key().decode()
