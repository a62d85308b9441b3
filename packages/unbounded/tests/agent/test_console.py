"""The end of long commands: signals, failures, and progress for people and for logs."""

from __future__ import annotations

import asyncio
import errno
import io
import logging
import os
import signal
from collections.abc import Iterator

import pytest

from unbounded.agent import INTERRUPTED
from unbounded.agent.console import FAILED, NoImage, PreflightFailed, ProgressOutput, run_to_end
from unbounded.api.failures import Rejected
from unbounded.fetch.failures import NotPublished
from unbounded.kube.logs import FIELDS
from unbounded.machina.provisioning.model import cause_of


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_lets_the_command_clean_up(by: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    cleaned: list[str] = []

    async def main() -> int:
        os.kill(os.getpid(), by)
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append("up")
        return 0

    assert run_to_end(main) == INTERRUPTED
    assert cleaned == ["up"]
    assert f"interrupted by {by.name}" in capsys.readouterr().err


def test_failure_is_printed_and_sets_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> int:
        raise Rejected("MachineName: is missing")

    assert run_to_end(main) == FAILED
    assert capsys.readouterr().err == "error: MachineName: is missing\n"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NotPublished("there is no kubelet v1.99.0"), "ArtifactNotFound"),
        (OSError(errno.ENOSPC, "No space left on device"), "DiskFull"),
        (PreflightFailed("the preflight checks failed"), "PreflightFailed"),
        (NoImage("the image of the node"), "ImageMissing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_cause_of_a_failure_is_printed_for_machina(
    capsys: pytest.CaptureFixture[str], error: Exception, reason: str
) -> None:
    async def main() -> int:
        raise Rejected("the start failed") from error

    assert run_to_end(main) == FAILED
    said = capsys.readouterr().err
    assert said == f"unbounded-cause: {reason}\nerror: the start failed\n"
    assert cause_of(said) == reason


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def ticks(*times: float) -> Iterator[float]:
    yield from times


def test_terminal_progress_is_rate_limited_per_item() -> None:
    stream, times = Terminal(), ticks(0.0, 0.1, 0.2, 1.0)
    progress = ProgressOutput(stream, clock=lambda: next(times))
    for words in ("slot: runc: 1 %", "slot: runc: 2 %", "slot: cni: 7 %", "slot: runc: 90 %"):
        progress(words)
    assert stream.getvalue() == "  slot: runc: 1 %\n  slot: cni: 7 %\n  slot: runc: 90 %\n"


def test_without_a_terminal_progress_is_logged_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    times = ticks(0.0, 5.0, 11.0)
    progress = ProgressOutput(io.StringIO(), clock=lambda: next(times))
    with caplog.at_level(logging.INFO):
        for words in ("runc: 1 %", "runc: 50 %", "runc: 90 %"):
            progress(words)
    assert [getattr(record, FIELDS)["what"] for record in caplog.records] == ["runc: 1 %", "runc: 90 %"]
