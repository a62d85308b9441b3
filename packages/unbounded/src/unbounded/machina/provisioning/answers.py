"""Parser of the answers of scripts on a host: a line that begins with `unbounded-install:`, and its content."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from unbounded.kube.logs import SecretStr
from unbounded.machina.provisioning.model import Finished, Interrupted, NoRun, ObservedRun, RunInProgress
from unbounded.machina.provisioning.progress import progress_text
from unbounded.machina.provisioning.redact import end_of_text, redacted

TAIL_BYTES: Final = 16384
_MARK: Final = re.compile(rb"^unbounded-install: ([^\n]*)\n?", re.MULTILINE)
_LINE_BYTES: Final = 4096  # of progress
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_WHY: Final = {
    "killed": "its process was killed before it had ended",
    "restarted": "the host was restarted before it had ended",
    "unstarted": "the host was restarted, or the connection broke, before it had started",
}


def split_answer(stdout: bytes) -> tuple[list[str], bytes] | None:
    """Split an answer into the words of its first line and the rest. Output of the host's own login may come before."""
    if (found := _MARK.search(stdout)) is None:
        return None
    return found[1].decode(errors="replace").split(), stdout[found.end() :]


def parse_answer(stdout: bytes, hidden: Iterable[SecretStr] = ()) -> ObservedRun | None:
    """Parse an answer; return None if there is no valid one."""
    match split_answer(stdout):
        case ["none"], _:
            return NoRun()
        case ["running", name, seconds], rest if _NUMBER.fullmatch(seconds):
            return RunInProgress(name, int(seconds), progress_text(redacted(_text(rest[:_LINE_BYTES]), hidden)))
        case ["finished", name, status], rest if _NUMBER.fullmatch(status):
            return Finished(name, int(status), end_of_text(redacted(_text(_whole_lines(rest)), hidden), TAIL_BYTES))
        case ["interrupted", name, why], _:
            return Interrupted(name, _WHY.get(why) or progress_text(redacted(why, hidden)))
    return None


def _whole_lines(tail: bytes) -> bytes:
    """Drop the first line of a tail that was cut off at its beginning: the line may begin within a secret."""
    return tail.partition(b"\n")[2] if len(tail) >= TAIL_BYTES else tail


def _text(content: bytes) -> str:
    return content.decode(errors="replace")
