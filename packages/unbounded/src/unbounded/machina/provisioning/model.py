"""Types and messages of a run of the install script on a host, and the redaction of the host's output.

Redaction removes secrets and control sequences of a terminal. The root user of a host controls this input, and all
other tasks wait while it is redacted. So no pattern may backtrack over the same characters: each consumes what it has
matched, or starts only at the start of a run of its characters. RE2 would guarantee that by itself, but it needs a
second for a text with ten thousand matches.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from unbounded.api.conditions import ON_HOST, ConditionReason
from unbounded.api.failures import Rejected
from unbounded.kube.logs import SecretStr
from unbounded.machina.ssh.model import Shell

ANOTHER_MACHINE: Final = 65  # status of a reset that changed nothing, as the host is another Machine
CAUSE: Final = "unbounded-cause: "  # prefix of a line that only cause_of reads
STOPPED_STATUS: Final = 124  # status of a run that the host stopped, as timeout(1) returns it
_LINE_BYTES: Final = 300
_LOG: Final = re.compile(r"\d\d:\d\d:\d\d (?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<rest>.*)")
_PROGRESS_LINES: Final = (  # lines of the agent's log, with single spaces, and their form in a condition
    (re.compile(r"progress what=(?P<what>.*)"), "{}"),
    (re.compile(r"step started step=(?P<what>'[^']*'|\S+).*"), "{}"),
    (re.compile(r"step completed step=(?P<what>'[^']*'|\S+).*"), "{}: done"),
)
_QUOTED: Final = re.compile(
    r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
)  # one string; no other Python literal of a host is evaluated
_RULE: Final = re.compile(r"^(?:error|fatal)\b[:\s]", re.IGNORECASE)
HIDDEN: Final = "[hidden]"
_SHORTEST: Final = 6  # of a redacted secret; a shorter one occurs within many words
_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_]?)")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_PATTERNS: Final = (
    (re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?(?:-----END \1-----|\Z)", re.DOTALL), HIDDEN),
    (re.compile(r"\A[A-Za-z0-9+/=\s]*-----END [A-Z0-9 ]+-----"), HIDDEN),  # its beginning was cut off
    (re.compile(r"(?<![a-z0-9])[a-z0-9]{6}\.[a-z0-9]{16}(?![a-z0-9])"), HIDDEN),  # a bootstrap token
    # A token of a service account. The lookahead requires the dots, once for each run of its characters.
    (re.compile(r"(?<![\w-])(?=[\w-]+\.[\w-]+\.)([\w-]*?)\beyJ[\w-]+\.[\w-]+\.[\w-]*", re.ASCII), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)(\b(?:authorization: *)?(?:bearer|basic) +)[\w.~+/=-]{6,}"), rf"\1{HIDDEN}"),
    (re.compile(r"://[^\s/@?#\"']*@"), "://"),  # user of a URL
    (re.compile(r"(://[^\s?#\"']*)(?:[?#][^\s\"']*)?"), r"\1"),  # query of a URL; a URL without one is consumed, too
)


@dataclass(frozen=True)
class Install:
    """Upload of a run.

    Args:
        uid: the Machine's durable UID; names the folder on the host.
        attempt: names the run in the folder.
        config: the agent's JSON.
        script: bash.
        environment: AGENT_VERSION, AGENT_BASE_URL, AGENT_URL, AGENT_DEBUG, AGENT_PREFLIGHT.
        hidden: secrets to redact from all output, besides text that looks like a secret.
    """

    uid: str
    attempt: str
    config: SecretStr
    script: str
    environment: Mapping[str, str] = field(default_factory=dict)
    hidden: tuple[SecretStr, ...] = ()


@dataclass(frozen=True)
class NoRun:
    """The host has no run of this Machine, neither a running nor an ended one."""


@dataclass(frozen=True)
class RunInProgress:
    attempt: str
    seconds: int
    progress: str = ""


@dataclass(frozen=True)
class Finished:
    """A run that has ended.

    Args:
        status: of the script.
        tail: end of the script's output, at most 16 KiB, redacted.
    """

    attempt: str
    status: int
    tail: str = ""


@dataclass(frozen=True)
class Interrupted:
    """A run that stopped without a result: the host was rebooted, or the process was killed."""

    attempt: str
    why: str


ObservedRun = NoRun | RunInProgress | Finished | Interrupted


class HostRefuses(Rejected):
    """The host cannot run the script: sudo requires a password, no bash, full disk, unsupported CPU.

    Args:
        reason: of the condition Provisioning.
    """

    def __init__(self, message: str, reason: ConditionReason = ConditionReason.FAILED) -> None:
        super().__init__(message)
        self.reason = reason


class Installer(Protocol):
    """Runs of the script. Each is a process of its own on the host that outlives the connection."""

    async def observe(self, shell: Shell, uid: str) -> ObservedRun:
        """Observe the run on the host."""
        ...

    async def begin(self, shell: Shell, install: Install) -> ObservedRun:
        """Upload and start a run in one session. If a run is in progress, start nothing and return that run.

        Raises:
            HostRefuses, SshTransient, SshUncertain
        """
        ...

    async def follow(self, shell: Shell, install: Install, report: Callable[[str], None]) -> ObservedRun:
        """Wait until the current run has ended, this one or an earlier one, and report each line of progress.

        Raises:
            SshUncertain: the connection broke; the run continues on the host.
        """
        ...

    async def clear(self, shell: Shell, uid: str) -> None:
        """Remove config, script and log, also after a failure. The result of the run stays until the next run."""
        ...

    async def reset(
        self, shell: Shell, machine: str, uid: str, *, limit_s: float, report: Callable[[str], None]
    ) -> Finished:
        """Remove the agent and the node from the host: `unbounded-agent reset`, else all files and units that we know
        of.

        A host that is another Machine than the named one stays unchanged, and the status is ANOTHER_MACHINE.
        """
        ...


def progress_text(line: str) -> str:
    """Format a line of the install script or of the agent's log for a condition; return "" if it has no content."""
    line = " ".join(line.split())
    if line.startswith(CAUSE):
        return ""
    if (logged := _LOG.fullmatch(line)) is not None:
        line = logged["rest"]
        line = next((words.format(_unquoted(match["what"])) for match, words in _matches(line)), line)
    return end_of_text(" ".join(line.split()), _LINE_BYTES)


def _matches(line: str) -> Iterator[tuple[re.Match[str], str]]:
    for pattern, words in _PROGRESS_LINES:
        if (match := pattern.fullmatch(line)) is not None:
            yield match, words


def _unquoted(text: str) -> str:
    if _QUOTED.fullmatch(text) is None:
        return text
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text


def failure_text(finished: Finished) -> str:
    """Format the end of a failed run in a line: its last error, else its last output."""
    lines = [line.strip() for line in finished.tail.splitlines() if progress_text(line)]
    said = next((line for line in reversed(lines) if _RULE.match(line)), lines[-1] if lines else "")
    why = f": {progress_text(said)}" if said else ""
    if finished.status == STOPPED_STATUS:
        return f"the install script exceeded its time limit and was stopped{why}"
    return f"the install script ended with status {finished.status}{why}"


_CAUSE_LINE: Final = re.compile(rf"^{CAUSE}(\w+)$", re.MULTILINE)  # lines of install.sh and of the agent
_SYSTEM: Final = (  # messages of the C library that other programs pass on
    (re.compile(r"No space left on device|Disk quota exceeded"), ConditionReason.DISK_FULL),
)
_LAST_LINES: Final = 20


def cause_of(tail: str) -> ConditionReason:
    """Return the reason that the end of the install's output names, or Failed."""
    last = "\n".join(tail.splitlines()[-_LAST_LINES:])
    codes = [code for code in _CAUSE_LINE.findall(last) if code in ON_HOST]
    if codes:
        return ConditionReason(codes[-1])
    return next((reason for pattern, reason in _SYSTEM if pattern.search(last)), ConditionReason.FAILED)


def redacted(text: str, hidden: Iterable[SecretStr] = ()) -> str:
    """Return the text without secrets, known or likely ones, and without control characters but line ends."""
    text = _CONTROL.sub("", _ANSI.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))
    for secret in sorted(set(_parts(hidden)), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def _parts(hidden: Iterable[SecretStr]) -> Iterator[str]:
    """Yield each secret, and the lines or halves of a secret that has several."""
    for secret in hidden:
        text = secret.reveal()
        parts = [text.strip(), *text.splitlines(), *(text.split(".") if len(text.split(".")) == 2 else ())]
        yield from (part.strip() for part in parts if len(part.strip()) >= _SHORTEST)


def end_of_text(text: str, most: int) -> str:
    """Return the end of a text in at most `most` bytes; an ellipsis marks a cut within a line."""
    content = text.strip().encode()
    if len(content) <= most:
        return content.decode()
    return "…" + content[-(most - len("…".encode())) :].decode(errors="ignore").lstrip()
