"""docs/commands.md: every command, run unchanged on `unbounded up`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import KUBECTL
from tests.docs.runner import DOCS, follow, unprinted
from tests.e2e.plane import plane

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300, func_only=True),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]


async def test_daily_commands(tmp_path: Path) -> None:
    async with plane(tmp_path / "data", "--lab", "2", "--container-cloud") as it:
        await it.running.says(r"operation lab-01-host-reboot-\S+: Complete")
        said = await follow(DOCS / "commands.md", it.shell)
    for words in (
        "└─ machineoperation/lab-01-host-reboot-",
        "├─ baremetalhost.metal3.io/lab-02 -n default",
        "machineoperation/lab-01-host-reboot-",
        "machine.unbounded-cloud.io/rack1-192.0.2.21 created\n",
        "machine.unbounded-cloud.io/rack1-192.0.2.21 unchanged\n",
    ):
        assert words in said, said
    assert unprinted(DOCS / "commands.md", said) == []
