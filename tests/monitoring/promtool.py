"""Prometheus's promtool."""

from __future__ import annotations

import shutil
import subprocess
from typing import Final

import pytest

from tests.cli.running import PATH

PROMTOOL: Final = shutil.which("promtool", path=PATH)

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="scripts/metrics-tools gets promtool")


def promtool(*arguments: str, given: str | None = None) -> str:
    assert PROMTOOL is not None
    ran = subprocess.run([PROMTOOL, *arguments], input=given, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr
