"""Messages about a run: lines of its progress, its end, and the reason that its output names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from unbounded.api.conditions import ON_HOST, ConditionReason
from unbounded.machina.provisioning.model import Finished
from unbounded.machina.provisioning.redact import end_of_text

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


def progress_text(line: str) -> str:
    """Format a line of the install script or of the agent's log for a condition; return "" if it has no content."""
    line = " ".join(line.split())
    if line.startswith(CAUSE):
        return ""
    if (logged := _LOG.fullmatch(line)) is not None:
        line = logged["rest"]
        line = next((words.format(_unquoted(told["what"])) for told, words in _matches(line)), line)
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
