"""Pictures of what commands print on a terminal.

Those of PICTURES are made beside `unbounded up --lab 2 --container-cloud`; those of HOST_PICTURES, with a host that
machina has made a node over SSH.
"""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import re
import struct
import termios
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tests.cli.test_terminal import terminal
from tests.docs.runner import DOCS, Shell, user_environment

FOLDER: Final = DOCS / "screenshots"
COLUMNS: Final = 120
LIMIT_S: Final = 60.0
_FONTS: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # of a server in the internet
_TEXT: Final = "{http://www.w3.org/2000/svg}text"
_CUT: Final = "…"  # at the end of a message that the terminal has no room for
_VARIES: Final = {  # what differs from run to run
    "UID": re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"),
    "HASH": re.compile(r"\b([0-9a-f]{16}|[0-9a-f]{12})\b"),
    "TIME": re.compile(r"\b\d{8}-\d{6}\b|\b\d{4}-\d\d-\d\dT[\d:]{8}(Z|\+0000)|\b\d\d:\d\d:\d\d\b"),
    "PID": re.compile(r"(?<=\[)\d+(?=\]: )|(?<=pid )\d+"),
    "VERSION": re.compile(r"(?<![\d.])\d+\.\d+\.\d+(?![\d.])"),
    "AGE": re.compile(r"\b(\d+[dhms])+\b"),
    "127.0.0.1:PORT": re.compile(r"\b127\.0\.0\.1:\d+"),
}


@dataclass(frozen=True)
class CommandPicture:
    """A command whose output is shown.

    Args:
        name: of the picture.
        shows: text that the output has.
        before: commands that prepare it, in the shell.
        status: exit status of the command.
        is_log: the order of its lines may differ, and it may print more of them.
    """

    name: str
    command: str
    shows: str
    before: str = ""
    status: int = 0
    is_log: bool = False


@dataclass(frozen=True)
class CompletionPicture:
    """Lines that a user has begun, with what bash offers for each.

    Args:
        name: of the picture.
        lines: each with a candidate that bash offers.
    """

    name: str
    lines: tuple[tuple[str, str], ...]


HOSTS: Final = """kubectl unbounded site init --name rack1
cat > hosts.csv <<'END'
site,host,ssh-username,ssh-private-key,node-label,agent-url,oci-image
rack1,192.0.2.21,admin,id_rack1,rack=1;pool=web,https://example.com/agent.tar.gz,registry.example.com/node:1
rack1,192.0.2.22,admin,,rack=1,https://example.com/agent.tar.gz,registry.example.com/node:1
END
ssh-keygen -q -t ed25519 -N '' -f id_rack1
"""
HOST: Final = "kubectl unbounded host adopt lab-02 --externally-provisioned"
CLAIMED: Final = "kubectl wait bmh lab-02 --for=jsonpath='{.status.provisioning.ID}'=lab-02 --timeout=60s"
PAUSED: Final = """kubectl unbounded machine pause lab-01 --reason 'new disk'
kubectl unbounded machine host-reboot lab-01 --wait=false
"""
PICTURES: Final = (
    CommandPicture("tree", "kubectl unbounded tree lab-02", "baremetalhost", before=f"{HOST}\n{CLAIMED}"),
    CommandPicture("events", "kubectl unbounded events lab-01", "machineoperation/lab-01-host-reboot"),
    CommandPicture("plan", "kubectl unbounded plan machine replace lab-01", "everything on its disk"),
    CommandPicture(
        "register", "kubectl unbounded register -f hosts.csv --dry-run server", "rack1-192.0.2.22", before=HOSTS
    ),
    CommandPicture("support", "kubectl unbounded support lab-01 -o lab-01.tar.gz", "lab-01.tar.gz"),
    CommandPicture(
        "ssh-unpinned",
        "kubectl unbounded ssh rack1-192.0.2.21",
        "is not pinned",
        before="kubectl unbounded register -f hosts.csv",
        status=1,
    ),
    CommandPicture("why", "kubectl unbounded why machine/lab-01", "machine resume lab-01", before=PAUSED),
)
NODE: Final = "dc1-worker-01"
HOST_PICTURES: Final = (
    CommandPicture("logs", f"kubectl unbounded logs {NODE} --part agent", "INFO    reported", is_log=True),
    CommandPicture("ssh", f"kubectl unbounded ssh {NODE} -- sudo unbounded-agent status", "kubelet active"),
)
COMPLETION: Final = CompletionPicture(
    "completion",
    (
        ("unbounded machine re", "replace"),
        ("unbounded why lab-0", "lab-02"),
        ("unbounded machine host-reboot lab-01 --", "--wait"),
    ),
)
BASHRC: Final = "source <(unbounded completion bash)\nPS1='$ '\n"
INPUTRC: Final = "set enable-bracketed-paste off\nset bell-style none\n"


async def make(shell: Shell, picture: CommandPicture) -> str:
    """Run the command of a picture; return the picture as SVG. Raises AssertionError if it prints something else."""
    if picture.before:
        await shell.run(picture.before)
    status, output = await _in_terminal(picture.command, shell.folder, user_environment(shell.folder, shell.kubeconfig))
    assert status == picture.status, f"{picture.command}\nstatus {status}\n{output}"
    assert picture.shows in output, f"{picture.command}\n{picture.shows!r} is missing\n{output}"
    return drawn((Text(picture.command, "bold"), output))


async def make_completion(shell: Shell, picture: CompletionPicture) -> str:
    """Begin lines in an interactive bash; return the picture as SVG. Raises AssertionError if bash offers others."""
    folder, parts = shell.folder, []
    (folder / "bashrc").write_text(BASHRC)
    (folder / "inputrc").write_text(INPUTRC)
    environment = user_environment(folder, shell.kubeconfig) | {"INPUTRC": str(folder / "inputrc")}
    bash = ("bash", "--noprofile", "--rcfile", str(folder / "bashrc"), "-i")
    async with terminal(*bash, columns=COLUMNS, environ=environment) as screen:
        for begun, offered in picture.lines:
            await screen.shows(r"\$ $")
            screen.type(f"{begun}\t\t")
            line = rf"\$ {re.escape(begun)}\S*"
            found = await screen.shows(rf"{line}\r\n([^$]+){line}$")
            assert offered in found[1].split(), found[1]
            parts.append((Text.assemble((begun, "bold"), (" Tab Tab", "dim italic")), found[1].replace("\r\n", "\n")))
            screen.type("\x03")
    return drawn(*parts)


def check_pictures(made: Mapping[CommandPicture | CompletionPicture, str]) -> None:
    """Raise AssertionError for pictures whose commands print something else now; `make screenshots` writes them."""
    changes: dict[str, list[str]] = {}
    for picture, svg in made.items():
        path = FOLDER / f"{picture.name}.svg"
        if "UNBOUNDED_SCREENSHOTS" in os.environ:
            path.write_text(svg)
        is_log = isinstance(picture, CommandPicture) and picture.is_log
        if found := (missing_entries if is_log else outdated)(path.read_text(), svg):
            changes[picture.name] = found
    assert changes == {}, "`make screenshots` makes them anew"


def outdated(shown: str, printed: str) -> list[str]:
    """Return the lines of a picture that another one does not have alike; what differs from run to run may differ."""
    lines = zip_longest(_lines(shown), _lines(printed), fillvalue="")
    return [f"{old!r} is now {new!r}" for old, new in lines if not _is_same(old, new)]


def missing_entries(shown: str, printed: str) -> list[str]:
    """Return the entries of a picture of a log that another one lacks; each begins with a time, and may be wrapped."""
    return sorted(_entries(shown) - _entries(printed))


def _entries(svg: str) -> set[str]:
    head, *entries = " ".join(_lines(svg)).split(" TIME host-")
    return {head, *entries}


def _lines(svg: str) -> list[str]:
    """Return the lines of a picture, with one space between words."""
    found: dict[str, str] = {}
    for text in ElementTree.fromstring(svg).iter(_TEXT):
        if text.get("clip-path"):
            y = text.attrib["y"]
            found[y] = f"{found.get(y, '')} {text.text}"
    return [_fixed(" ".join(line.split())) for line in found.values()]


def _fixed(line: str) -> str:
    for name, varying in _VARIES.items():
        line = varying.sub(name, line)
    return line


def _is_same(one: str, other: str) -> bool:
    if not (one.endswith(_CUT) and other.endswith(_CUT)):
        return one == other
    short, long = sorted((one[:-1].rstrip(), other[:-1].rstrip()), key=len)
    return long.startswith(short)


async def _in_terminal(command: str, folder: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a command in a terminal of its own; return its exit status and what the terminal received."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    try:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", command),
            cwd=folder,
            env={**environment, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        )
    finally:
        os.close(theirs)
    try:
        async with asyncio.timeout(LIMIT_S):
            output = await asyncio.to_thread(_received, ours)
            return await process.wait(), output
    finally:
        os.close(ours)
        with suppress(ProcessLookupError):
            process.kill()


def _received(terminal: int) -> str:
    """Return all that a terminal receives until no process has it open."""
    parts = []
    with suppress(OSError):  # EIO: the last process has closed it
        while part := os.read(terminal, 65536):
            parts.append(part)
    return b"".join(parts).decode(errors="replace").replace("\r\n", "\n")


def drawn(*parts: tuple[Text, str]) -> str:
    """Draw lines that a user has typed, each with the output after it."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for typed, output in parts:
        console.print(Text.assemble(("$ ", "bold green"), typed))
        console.print(Text.from_ansi(output.rstrip()))
    svg = console.export_svg(title="", theme=MONOKAI, unique_id="terminal")
    return _FONTS.sub("", svg)
