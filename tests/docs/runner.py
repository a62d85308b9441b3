"""Runner of the commands in documents: code blocks without a language are shell, and run unchanged.

Other code (```text, ```json) is not run. A test may prepare the circumstances of a block, by its heading, and replace
what differs in the tests: addresses, files, digests. It replaces no command. The test may start a command that does not
end (`unbounded up`), and stop it later. A command that CI cannot run is in a ```sh block. The page notes that below the
block, with the test that covers it.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.paths import PYTHONPATH, ROOT

DOCS: Final = ROOT / "docs"
LIMIT_S: Final = 300.0
STOPS_S: Final = 60.0
_FENCE: Final = "```"
_HERE: Final = re.compile(r"<<-?'?(\w+)'?")
_MORE: Final = "…"  # at the end of a line of output, or in place of lines
_VARIES: Final = re.compile(r"\b[0-9a-f]{16}\b|[0-9]+")
_PASSING: Final = re.compile(r"[0-9:]{8} \S+ (Pending|InProgress)\b")

Stage = Callable[[], Awaitable[None]]


RELEASE_URL: Final = "https://example.com/releases/unbounded-agent-linux-amd64.tar.gz"
NOT_RUN: Final = "sh"
_EXCUSE: Final = re.compile(r"^\(CI does not run this block.*?\)$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\]\(([^)#]+)[^)]*\)")


@dataclass(frozen=True)
class Block:
    """Args:
    heading: the last one above it.
    line: where its code begins.
    """

    heading: str
    line: int
    code: str


def blocks(document: Path, language: str = "") -> list[Block]:
    """The code of a document in this language; the empty one is shell that is run."""
    found: list[Block] = []
    heading, code, named, begins = "", None, "", 0
    for number, line in enumerate(document.read_text().splitlines(keepends=True), start=1):
        if line.startswith(_FENCE):
            if code is None:
                code, named, begins = "", line[len(_FENCE) :].strip(), number + 1
            else:
                if named == language:
                    found.append(Block(heading, begins, code))
                code = None
        elif code is not None:
            code += line
        elif line.startswith("#"):
            heading = line.lstrip("#").strip()
    assert code is None, f"{document.name}:{begins}: a block without an end"
    return found


def unexcused(document: Path) -> list[str]:
    """Return the places of blocks that do not run and have no note below with an existing test."""
    lines, found = document.read_text().splitlines(), []
    for block in blocks(document, NOT_RUN):
        end = block.line - 1 + block.code.count("\n") + 1
        paragraph = "\n".join(lines[end:]).strip().partition("\n\n")[0]
        excuse = _EXCUSE.match(paragraph)
        links = _LINK.findall(excuse[0]) if excuse else []
        if not any("tests/" in one and (document.parent / one).is_file() for one in links):
            found.append(f"{document.name}:{block.line}")
    return found


def unprinted(document: Path, printed: str) -> list[str]:
    """Return the lines of output in a document that its commands have not printed.

    Numbers and digests may differ. Lines of progress are left out: a wait shows the states that it happens to meet.
    """
    real = [_fixed(line) for line in printed.splitlines()]
    shown = [line for block in blocks(document, "text") for line in block.code.splitlines()]
    return [line for line in shown if not (_PASSING.match(line) or any(_is_shown_by(line, one) for one in real))]


def _is_shown_by(line: str, real: str) -> bool:
    return real.startswith(_fixed(line[:-1])) if line.endswith(_MORE) else real == _fixed(line)


def _fixed(line: str) -> str:
    return _VARIES.sub("0", line.rstrip())


def commands(code: str) -> list[str]:
    """Whole ones: with lines that a backslash, a loop or a here-document continues."""
    found: list[str] = []
    for line in code.splitlines(keepends=True):
        if found and _goes_on(found[-1]):
            found[-1] += line
        elif line.strip():
            found.append(line)
    return found


def _goes_on(command: str) -> bool:
    if command.endswith("\\\n"):
        return True
    if here := _HERE.search(command):
        return f"\n{here[1]}\n" not in command[here.end() :]
    words = command.split()
    return words.count("do") > words.count("done")


def plain(command: str) -> str:
    """On one line, and without the comment behind it."""
    return " ".join(re.sub(r"\s{2,}#.*", "", command.replace("\\\n", " ")).split())


def plugin_calls(code: str) -> list[str]:
    """Each call of the plugin in shell code: what follows `kubectl unbounded`, or `unbounded`, on one line."""
    joined = code.replace("\\\n", " ")
    calls = re.findall(r"(?:^|[;&|(`]|\bsudo (?:-E )?)\s*((?:kubectl )?unbounded [^\n;|`]*)", joined, re.MULTILINE)
    return [" ".join(re.sub(r"\s+[0-9]?>.*$", "", call).split()) for call in calls]


@dataclass
class Shell:
    """A user's: a folder, kubectl with the plugin, and a cluster.

    Args:
        folder: where commands run; also the home.
        changes: what is replaced in a command, in this order.
        more: variables of its environment beside the usual ones.
    """

    folder: Path
    kubeconfig: Path
    changes: Mapping[str, str]
    more: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    async def run(self, command: str, *, within_s: float = LIMIT_S) -> str:
        """Run a command that has to succeed, and return its output, stdout and stderr together."""
        command = self.changed(command)
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", command),
            cwd=self.folder,
            env={**user_environment(self.folder, self.kubeconfig), **self.more},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(within_s):
                out, _ = await process.communicate()
        except TimeoutError:
            raise AssertionError(f"no end in {within_s:g} s: {command}") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        text = out.decode(errors="replace")
        assert process.returncode == 0, f"{command}\nstatus {process.returncode}\n{text}"
        return text

    def changed(self, command: str) -> str:
        """As it is run."""
        for old, new in self.changes.items():
            command = command.replace(old, new)
        return command


def user_environment(home: Path, kubeconfig: Path) -> dict[str, str]:
    """Return the environment of a user's shell: the plugin and kubectl in the PATH, and a kubeconfig."""
    path = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{Path(sys.prefix) / 'tools' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    known = {"PATH": path, "HOME": str(home), "KUBECONFIG": str(kubeconfig), "PYTHONPATH": PYTHONPATH}
    return known | {"LC_ALL": "C.UTF-8"}


@asynccontextmanager
async def running(command: Sequence[str], folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that is stopped with Ctrl-C, which a terminal sends to it and to its children."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True
    )
    try:
        yield process
        os.killpg(process.pid, signal.SIGINT)
        await asyncio.wait_for(process.wait(), STOPS_S)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def printed_until(process: asyncio.subprocess.Process, words: str, *, within_s: float) -> str:
    """Return the output of a process up to these words."""
    assert process.stdout is not None
    said = ""
    try:
        async with asyncio.timeout(within_s):
            while words not in said:
                line = await process.stdout.readline()
                assert line, f"it ended: {said}"
                said += line.decode()
    except TimeoutError:
        raise AssertionError(f"not printed in {within_s:g} s: {words}\n{said}") from None
    return said


async def follow(
    document: Path,
    shell: Shell,
    stages: Mapping[str, Stage] | None = None,
    starts: Mapping[str, Stage] | None = None,
) -> str:
    """Run all commands of a document; return what they printed, each below itself.

    Args:
        stages: what is done before the first command below a heading.
        starts: starts of commands that do not end, and of comments that a person acts on, by the command as `plain`
            has it.
    """
    waiting, others = dict(stages or {}), dict(starts or {})
    said, met = "", set[str]()
    for block in blocks(document):
        if block.heading in waiting:
            await waiting.pop(block.heading)()
        for command in commands(block.code):
            met.add(plain(command))
            try:
                said += f"$ {command}{await _done(others.get(plain(command)), command, shell)}"
            except AssertionError as error:
                error.add_note(f"{document.name}:{block.line} ({block.heading}); before it:\n{said[-3000:]}")
                raise
    assert not waiting, f"{document.name} has no commands below {sorted(waiting)}"
    assert others.keys() <= met, f"{document.name} has no commands {sorted(others.keys() - met)}"
    return said


async def _done(start: Stage | None, command: str, shell: Shell) -> str:
    if start is None:
        return await shell.run(command)
    await start()
    return ""
