"""A host that wants to keep machina busy, or to fill its memory, by what it prints."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from tests.machina.provisioning.local import install
from unbounded.machina.provisioning.model import Finished, HostRefuses, progress_text, redacted
from unbounded.machina.provisioning.remote import TAIL_BYTES, HostInstaller, parse_answer, refusal_of
from unbounded.machina.ssh.model import SshCommandResult

LONG = 1 << 18  # what takes quadratic time takes half an hour with it
AGAIN = (
    "a.",
    "a",
    "a://",
    "a://@",
    "a://? ",
    "a+b://c/d",
    "eyJ-",
    "eyJa.",
    "eyJa.-",
    "eyJa.a.a ",
    "eyJ.",
    "bearer ",
    "authorization: ",
    "-----BEGIN A-----",
    "-----BEGIN ",
    "-----END A-----",
    "abcdef.",
    "\x1b[0",
    "\x1b]",
    "\r",
    "sudo: ",
    "sudo: \n",
    "unknown command ",
    "not allowed to ",
    "é",
    "'",
)


@pytest.mark.parametrize("again", range(len(AGAIN)))
def test_what_repeats_itself_is_read_in_a_moment(again: int) -> None:
    text = (AGAIN[again] * LONG)[:LONG]
    began = time.process_time()
    redacted(text)
    refusal_of(1, text.encode(), b"")
    parse_answer(b"unbounded-install: finished ab 1\n" + text.encode())
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    "again",
    [" ", "' ", "\\", "'\\'", "\n", "a=", "(", "'' "],
    ids=["space", "quote", "escape", "both", "line", "word", "bracket", "strings"],
)
@pytest.mark.parametrize("begin", ["", "progress  what='", "step started  step='"], ids=["log", "progress", "step"])
def test_a_line_that_does_not_end_is_read_in_a_moment(begin: str, again: str) -> None:
    said = f"11:00:00 INFO {begin}{again * LONG}\nx"
    assert len(progress_text(said).encode()) <= 300
    parse_answer(b"unbounded-install: running ab 12\n" + said.encode())


class Floods:
    """A host that ends each follow with these lines."""

    def __init__(self, *lines: bytes, forever: bytes = b"") -> None:
        self.lines = lines
        self.forever = forever
        self.taken = 0

    async def run(self, command: str, *, stdin: bytes = b"", limit_s: float, keep: int = 65536) -> SshCommandResult:
        raise NotImplementedError

    async def follow(self, command: str, *, limit_s: float, silence_s: float) -> AsyncIterator[bytes]:
        for line in self.lines:
            yield line
        while self.forever:
            self.taken += 1
            assert self.taken < 100_000, "nobody hangs up"
            yield self.forever


@pytest.mark.parametrize("line", [b"x" * 4096, b"y", b"unbounded-install: none"], ids=["long", "short", "answers"])
async def test_an_answer_that_does_not_end_is_refused(line: bytes) -> None:
    host = Floods(b"unbounded-install: finished ab 1", forever=line)
    endless = HostInstaller().follow(host, install(""), lambda _: None)
    with pytest.raises(HostRefuses, match="is too long"):
        await endless


async def test_the_longest_answer_of_ours_is_taken() -> None:
    tail = [b"\n", *[b"y" * 99] * (TAIL_BYTES // 100)]
    found = await HostInstaller().follow(
        Floods(b"Welcome!", b"+one", b"unbounded-install: finished ab 1", *tail), install(""), lambda _: None
    )
    assert isinstance(found, Finished)
    assert found.tail.count("y" * 99) == TAIL_BYTES // 100


@pytest.mark.parametrize("number", ["9" * 5000, "٣", "1_0"], ids=["huge", "arabic", "python"])
def test_a_number_that_is_none_of_ours_is_not_understood(number: str) -> None:
    assert parse_answer(f"unbounded-install: finished ab {number}\n".encode()) is None
    assert parse_answer(f"unbounded-install: running ab {number}\n".encode()) is None


def test_why_a_run_was_interrupted_is_said_in_a_line() -> None:
    found = parse_answer(b"unbounded-install: interrupted ab " + b"\x1bz" * 9999)
    assert found is not None
    assert len(repr(found)) < 400
