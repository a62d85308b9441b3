"""The report of a test that its time limit has ended, in a test runner of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

TOP: Final = Path(__file__).parents[1]
TEST: Final = """
import asyncio
import pytest

async def answers():
    await asyncio.sleep(3)

def serve():
    asyncio.run(answers())

@pytest.mark.timeout(1)
async def test_waits():
    await asyncio.to_thread(serve)
"""


@pytest.mark.slow
def test_the_report_of_a_timeout_names_the_waiting_coroutines(tmp_path: Path) -> None:
    (tmp_path / "test_waits.py").write_text(TEST)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.support.timeouts"]\n')
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", str(tmp_path)]
    said = subprocess.run(command, cwd=TOP, capture_output=True, text=True, timeout=60, check=False).stdout
    assert "Waiting coroutines" in said
    assert "in test_waits" in said
    assert "test_waits.py:6 in answers" in said
