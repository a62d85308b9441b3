"""Output of commands on a terminal: no wider than it is, and in colours unless the user disables them."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

import pytest

from tests.cli.test_terminal import CONTROL, terminal
from unbounded.api.machine import MACHINES
from unbounded.cli.plugin.output import table
from unbounded.cli.terminal_text import PLAIN, Style
from unbounded.kube.client import HttpApi

NUMBERS = count(1)
PLUGIN = (sys.executable, "-m", "unbounded.cli.plugin.main")
SSH = {"host": "192.0.2.50", "username": "u", "privateKeyRef": {"name": "k", "namespace": "unbounded-kube"}}
WORDS = "the install script ended with status 1: " + "a word " * 20


@pytest.fixture
async def failed(up_api: HttpApi) -> str:
    """A Machine with a long message."""
    name = f"too-wide-{next(NUMBERS)}"
    said = {"type": "Provisioning", "status": "False", "reason": "Failed", "message": WORDS}
    said |= {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    reach = said | {"type": "SSHReachable", "status": "True", "reason": "Reachable", "message": ""}
    await up_api.create(MACHINES, {"metadata": {"name": name}, "spec": {"ssh": SSH, "kubernetes": {}}})
    await up_api.patch(MACHINES, name, {"status": {"conditions": [said, reach]}}, subresource="status")
    return name


async def _written(*command: str, columns: int) -> str:
    async with terminal(*command, columns=columns) as screen:
        assert await screen.process.wait() == 0
        await screen.shows("try: ")
        return screen.written


@pytest.mark.slow
@pytest.mark.parametrize("columns", [50, 130])
async def test_why_fills_the_terminal_and_goes_no_further(beside: Path, failed: str, columns: int) -> None:
    written = await _written(*PLUGIN, "why", failed, "--kubeconfig", str(beside), columns=columns)
    lines = CONTROL.sub("", written).replace("\r", "").splitlines()
    words = [line for line in lines if "a word" in line]
    assert max(map(len, words)) <= columns
    assert len(words[0]) > columns - 10
    assert f"\x1b[1mmachine/{failed}\x1b[0m \x1b[1;31mFailed\x1b[0m:" in written


@pytest.mark.slow
async def test_no_color_disables_colours(beside: Path, failed: str) -> None:
    why = ("why", failed, "--kubeconfig", str(beside))
    for command in ((*PLUGIN, *why, "--no-color"), ("env", "NO_COLOR=1", *PLUGIN, *why)):
        assert "\x1b" not in await _written(*command, columns=80)


def test_a_table_is_cut_at_its_message_and_has_phases_in_colours() -> None:
    heads, rows = ["NAME", "PHASE", "MESSAGE"], [["Failed", "Failed", "x" * 40], ["b", "Ready", "\x1b[31mred"]]
    assert list(table(heads, rows, Style(columns=30, colour=True))) == [
        "NAME     PHASE    MESSAGE",
        f"Failed   \x1b[1;31mFailed\x1b[0m   {'x' * 11}…",
        "b        \x1b[32mReady\x1b[0m    \\x1b[31mred",
    ]
    assert list(table(heads, rows, Style(columns=25))) == list(table(heads, rows, PLAIN))
    assert list(table(heads, rows, PLAIN))[1] == f"Failed   Failed   {'x' * 40}"
    assert all("x" * 40 in line for line in list(table(["NAME", "PHASE", "IMAGE"], rows[:1], Style(columns=30)))[1:])


def test_a_terminal_that_is_hardly_there_has_lines_that_can_be_read() -> None:
    assert Style(columns=3).wrapped("  one two three four five six seven eight nine ten") == [
        "  one two three four five six seven",
        "    eight nine ten",
    ]
    assert PLAIN.wrapped("  word " * 50) == ["  word " * 50]
