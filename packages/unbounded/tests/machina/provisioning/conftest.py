"""This machine as a host, and what sets it up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machina.provisioning.local import Local, holders, signalled
from unbounded.machina.provisioning.remote import HostInstaller


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Local]:
    host = Local(tmp_path)
    yield host
    for process in holders(host):  # of a test that has failed
        signalled(process)


@pytest.fixture
def installer() -> HostInstaller:
    """One that waits for the end of what is short."""
    return HostInstaller(settle_s=20)


@pytest.fixture
def hasty() -> HostInstaller:
    return HostInstaller(settle_s=0)
