"""kubelet's health, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from unbounded.agent.node import kubelet
from unbounded.agent.node.kubelet import kubelet_problem, last_error_line


@asynccontextmanager
async def answering(answer: bytes, *, after_s: float = 0.0) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server with this answer: its port, and its requests."""
    asked: list[bytes] = []

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        await asyncio.sleep(after_s)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], asked


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", ""),
        (
            b"HTTP/1.0 500 Internal Server Error\r\n\r\nunhealthy\n",
            "kubelet reports that it is not healthy: 500 unhealthy",
        ),
        (b"SSH-2.0-OpenSSH\r\n", "kubelet does not answer health checks: the answer is not HTTP"),
        (b"", "kubelet does not answer health checks: the answer is not HTTP"),
        (b"HTTP/1.1 fine\r\n\r\n", "kubelet does not answer health checks: invalid literal"),
    ],
    ids=["well", "unwell", "foreign", "nothing", "garbage"],
)
async def test_kubelet_is_well_when_it_says_so(answer: bytes, trouble: str) -> None:
    async with answering(answer) as (port, asked):
        told = await kubelet_problem(port)
        assert asked == [b"GET /healthz HTTP/1.0\r\n"]
    assert told.startswith(trouble)
    assert bool(told) is bool(trouble)


async def test_a_kubelet_that_is_not_there_is_not_well() -> None:
    async with answering(b"") as (port, _):
        pass
    assert (await kubelet_problem(port)).startswith("kubelet does not answer health checks: ")


async def test_a_kubelet_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubelet, "ANSWER_S", 0.05)
    async with answering(b"", after_s=1) as (port, _):
        assert await kubelet_problem(port) == "kubelet does not answer health checks within 0.05 s"


LOCKED = "cannot set feature gate SidecarContainers to false, feature is locked to true"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (f"Started kubelet.service\npanic: {LOCKED}\ngoroutine 1 [running]:\nmain.main()\n", f"panic: {LOCKED}"),
        (f'E1124 20:37:14.556016   22936 run.go:72] "command failed" err="{LOCKED}"\n', f'err="{LOCKED}"'),
        (
            "??? F1124 20:37:14.556016 1 x.go:7] first\nF1124 20:37:15.0 1 x.go:7] second",
            "F1124 20:37:15.0 1 x.go:7] second",
        ),
        ("E1124 20:37:14.556016 1 kubelet.go:2661] Skipping pod synchronization\nSDF1124 x", ""),
    ],
    ids=["panic", "klog", "fatal", "runs"],
)
def test_the_words_with_which_kubelet_ended(lines: str, words: str) -> None:
    """Lines as kubelet 1.36.3 wrote them, for a gate that is locked and for a file that it cannot read."""
    assert last_error_line(lines) == words
