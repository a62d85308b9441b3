"""The process of the controller, where it cannot start."""

from __future__ import annotations

import asyncio
import io
import sys
from pathlib import Path
from typing import cast

import pytest

from tests.support.memory_api import MemoryApi
from unbounded.cli import beside, providing
from unbounded.cli.screen import PlainScreen
from unbounded.kube.client import HttpApi
from unbounded.machina.machines.settings import Settings
from unbounded.machineops.main import main


def test_a_provider_that_is_not_there_is_named_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["controller", "--provider", "Acme"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("machine-ops-controller: error: no provider 'Acme' is installed; there is: ")


@pytest.mark.parametrize(
    ("status", "why"), [(2, ": it cannot be served as it is, and its error output says why"), (1, "")]
)
async def test_who_ends_because_it_cannot_be_served_is_told_from_who_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int, why: str
) -> None:
    monkeypatch.setattr(beside, "command", lambda *_words: (sys.executable, "-Sc", f"raise SystemExit({status})"))
    said = asyncio.Event()

    class Watched(PlainScreen):
        def say(self, text: str) -> None:
            super().say(text)
            if "has ended" in text:
                said.set()

    out = io.StringIO()
    providers = providing.Providers(cast("HttpApi", MemoryApi()), tmp_path, Watched(out), Settings())
    providers._may_log_in.set()
    keeping = asyncio.create_task(providers._keep("Acme"))
    async with asyncio.timeout(10):
        await said.wait()
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    assert f"provider Acme: its process has ended (status {status}{why}); started again in " in out.getvalue()
