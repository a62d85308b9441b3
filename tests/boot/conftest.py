from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.qemu import Segment, needed, segment
from tests.support.qemu.tools import command


@pytest.fixture
def net() -> Iterator[Segment]:
    """A segment that the test lives in; without what it takes the test is skipped."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    if not Path("/dev/net/tun").exists():
        pytest.skip("there is no /dev/net/tun here")
    command("qemu-system-x86_64")
    needed("usr/share/OVMF/OVMF_CODE_4M.fd")
    with segment() as made:
        yield made
