"""Runs of the install script on hosts, over a Shell.

Every user of a host can read command lines, so secrets go by stdin.
"""

from __future__ import annotations

import io
import re
import secrets
import tarfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

from unbounded.api.conditions import ConditionReason
from unbounded.api.failures import Failure
from unbounded.join.agent_install import exports, uninstall_script
from unbounded.kube.logs import SecretStr
from unbounded.machina.provisioning import model
from unbounded.machina.ssh.model import Shell, SshCommandResult, SshUncertain

_R = ConditionReason


class CommandRefusal(NamedTuple):
    """Cause of a rejected command: a message, and the reason of the condition Provisioning."""

    words: str
    reason: ConditionReason = _R.FAILED


_ROWS: Final = (  # patterns of one line
    (
        r"^(?>.*?sudo: ).*(?:password|terminal|tty)",  # atomic, so that a line with many matches is scanned once
        _R.SUDO_REFUSED,
        "sudo requires a password: let the user run it without one (`USER ALL=(ALL) NOPASSWD: ALL`), or log in as root",
    ),
    (
        r"not in the sudoers|may not run sudo|not allowed to (?:execute|run)",
        _R.SUDO_REFUSED,
        "sudo does not let this user become root: add `USER ALL=(ALL) NOPASSWD: ALL`, or log in as root",
    ),
    (
        r"sudo: (?:command )?not found|unknown command:? *.?sudo",
        _R.SUDO_REFUSED,
        "sudo is not installed, and the user is not root",
    ),
    (r"^\w+ is not installed on this host", _R.COMMAND_MISSING, "a program that the install needs is missing"),
    (r"No space left on device|Disk quota exceeded", _R.DISK_FULL, "the disk is full"),
    (r"Read-only file system", _R.FAILED, "the file system is read-only"),
    (r"Cannot allocate memory|fork: (?:retry|Resource)", _R.FAILED, "the host has no free memory"),
    (r"This account is|nologin|not available", _R.FAILED, "the user may not run commands on the host"),
)
_LAST_BYTES: Final = 300
_READ_BYTES: Final = 16384  # of the output, from its end


def refusal_of(status: int | None, stderr: bytes, stdout: bytes) -> CommandRefusal:
    """Return the cause of a rejected command, with the last output of the host."""
    message = model.redacted(_end(stderr)).strip() or model.redacted(_end(stdout)).strip()
    last = model.end_of_text(message.splitlines()[-1] if message else "", _LAST_BYTES)
    for pattern, reason, words in _ROWS:
        if (found := re.search(pattern, message, re.IGNORECASE | re.MULTILINE)) is not None:
            line = message[message.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0]
            return CommandRefusal(f"{words} ({model.end_of_text(line, _LAST_BYTES)})", reason)
    if last:
        return CommandRefusal(f"output of the host: {last}")
    return CommandRefusal(f"the command ended with status {status}, without output")


def _end(output: bytes) -> str:
    """Return the end without a cut first line, which may begin within a secret, unless it is the only line."""
    last = output[-_READ_BYTES:]
    if len(output) > _READ_BYTES:
        last = last.partition(b"\n")[2] or last
    return last.decode(errors="replace")


_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,63}")
_NOT_TAKEN: Final = frozenset("'\\!")
_AS_ROOT: Final = (
    "LC_ALL=C; export LC_ALL; code=$1; shift; "
    '[ "$(id -u)" = 0 ] && exec sh -c "$code" sh "$@"; exec sudo -n -- sh -c "$code" sh "$@"'
)


@cache
def script(name: str) -> str:
    """Read a file of scripts/."""
    return (files(__package__) / "scripts" / name).read_text()


def command(name: str, *words: str) -> str:
    """Build the line that runs a script as root under any login shell.

    Args:
        words: arguments of the script, which need no quotes.
    Raises:
        ValueError: an argument needs quotes.
    """
    if wrong := [word for word in words if not _NAME.fullmatch(word)]:
        raise ValueError(f"{wrong[0]!r} is not allowed in a command")
    return " ".join(("exec sh -c", f"'{_AS_ROOT}'", "sh", f"'{_code(name)}'", *words))


@cache
def _code(name: str) -> str:
    lines = (line.strip() for line in (script("prelude.sh") + script(name)).splitlines())
    code = " ".join(line for line in lines if line and not line.startswith("#"))
    if wrong := _NOT_TAKEN & set(code):
        raise ValueError(f"{name}: {''.join(sorted(wrong))} differs between shells")
    return code


WHOLE: Final = "whole"  # the last file: a tar without it is incomplete
_VARIABLE: Final = re.compile(r"[A-Z][A-Z0-9_]*")


def payload(install: model.Install, *, limit_s: float, more: dict[str, str] | None = None) -> bytes:
    """Build the upload.

    Args:
        limit_s: time after which the host itself stops the script.
        more: further files of the folder.
    Raises:
        ValueError: a variable cannot be set in a shell.
    """
    files = {
        "config.json": install.config.reveal(),
        "environment": _environment(install, limit_s),
        "install.sh": install.script,
        "run.sh": script("run.sh"),
        **(more or {}),
        WHOLE: "",
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, text in files.items():
            content = text.encode()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o600
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def _environment(install: model.Install, limit_s: float) -> str:
    for name, value in install.environment.items():
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            raise ValueError(f"{name!r} cannot be set for the install script")
    return f"limit={max(1, round(limit_s))}\n{exports(install.environment)}"  # run.sh parses the first line itself


TAIL_BYTES: Final = 16384
_MARK: Final = re.compile(rb"^unbounded-install: ([^\n]*)\n?", re.MULTILINE)
_LINE_BYTES: Final = 4096  # of progress
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_WHY: Final = {
    "killed": "its process was killed before it ended",
    "restarted": "the host restarted before it ended",
    "unstarted": "the host restarted, or the connection broke, before it started",
}


def split_answer(stdout: bytes) -> tuple[list[str], bytes] | None:
    """Split an answer into the words of its first line and the rest. Output of the host's own login may come before."""
    if (found := _MARK.search(stdout)) is None:
        return None
    return found[1].decode(errors="replace").split(), stdout[found.end() :]


def parse_answer(stdout: bytes, hidden: Iterable[SecretStr] = ()) -> model.ObservedRun | None:
    """Parse an answer; return None if there is no valid one."""
    match split_answer(stdout):
        case ["none"], _:
            return model.NoRun()
        case ["running", name, seconds], rest if _NUMBER.fullmatch(seconds):
            return model.RunInProgress(
                name, int(seconds), model.progress_text(model.redacted(_text(rest[:_LINE_BYTES]), hidden))
            )
        case ["finished", name, status], rest if _NUMBER.fullmatch(status):
            return model.Finished(
                name, int(status), model.end_of_text(model.redacted(_text(_whole_lines(rest)), hidden), TAIL_BYTES)
            )
        case ["interrupted", name, why], _:
            return model.Interrupted(name, _WHY.get(why) or model.progress_text(model.redacted(why, hidden)))
    return None


def _whole_lines(tail: bytes) -> bytes:
    """Drop the first line of a tail that was cut off at its beginning: the line may begin within a secret."""
    return tail.partition(b"\n")[2] if len(tail) >= TAIL_BYTES else tail


def _text(content: bytes) -> str:
    return content.decode(errors="replace")


LIMIT_S: Final = 1800.0
SETTLE_S: Final = 2
CALL_S: Final = 60.0
BEGIN_S: Final = 180.0
SILENCE_S: Final = 60.0  # the host sends a dot every ten seconds
_REPORT_MARGIN_S: Final = 60.0  # beyond a run's limit, for the host to stop the run and report it
RESET: Final = "reset"  # folder of a reset on a host
_ANSWER_BYTES: Final = 2 * TAIL_BYTES  # a valid answer is shorter: a line and a tail
_NEW_ATTEMPT_BYTES: Final = 8
_RESETS: Final = 2  # attempts; the first may have met a reset in progress


class HostInstaller:
    """Implementation of `Installer`.

    Args:
        limit_s: of a run; then the host itself stops it.
        settle_s: time that `begin` waits for a short run to end.
    """

    def __init__(self, *, limit_s: float = LIMIT_S, settle_s: int = SETTLE_S) -> None:
        self._limit_s = limit_s
        self._settle_s = settle_s
        self._clean: set[str] = set()  # Machines whose run left nothing behind

    async def observe(self, shell: Shell, uid: str) -> model.ObservedRun:
        return _run_of(await shell.run(command("observe_run.sh", uid), limit_s=CALL_S))

    async def begin(self, shell: Shell, install: model.Install) -> model.ObservedRun:
        return await self._begin(shell, install, limit_s=self._limit_s)

    async def _begin(
        self, shell: Shell, install: model.Install, *, limit_s: float, more: dict[str, str] | None = None
    ) -> model.ObservedRun:
        self._clean.discard(install.uid)
        call = command("start_run.sh", install.uid, install.attempt, str(self._settle_s))
        sent = payload(install, limit_s=limit_s, more=more)
        found = _run_of(await shell.run(call, stdin=sent, limit_s=BEGIN_S), install.hidden)
        return self._noting_clean(install, found)

    async def follow(self, shell: Shell, install: model.Install, report: Callable[[str], None]) -> model.ObservedRun:
        return await self._follow(shell, install, report, limit_s=self._limit_s)

    async def _follow(
        self, shell: Shell, install: model.Install, report: Callable[[str], None], *, limit_s: float
    ) -> model.ObservedRun:
        output = bytearray()  # the answer
        call = command("follow_run.sh", install.uid)
        async for line in shell.follow(call, limit_s=limit_s + _REPORT_MARGIN_S, silence_s=SILENCE_S):
            if output or line.startswith(b"unbounded-install: "):
                output += line + b"\n"
                if len(output) > _ANSWER_BYTES:
                    raise model.HostRefuses("the report of the host on the end of the install is too long")
            elif line.startswith(b"+") and (words := _progress_of(line[1:], install.hidden)):
                report(words)
        found = parse_answer(bytes(output), install.hidden)
        return self._noting_clean(install, found or await self.observe(shell, install.uid))

    def _noting_clean(self, install: model.Install, found: model.ObservedRun) -> model.ObservedRun:
        if found == model.Finished(install.attempt, 0):
            self._clean.add(install.uid)
        return found

    async def clear(self, shell: Shell, uid: str) -> None:
        if uid in self._clean:  # a successful run removes its files itself
            self._clean.discard(uid)
            return
        result = await shell.run(command("clear_run.sh", uid), limit_s=CALL_S)
        if split_answer(result.stdout) is None:
            raise _refused(result)

    async def reset(
        self, shell: Shell, machine: str, uid: str, *, limit_s: float, report: Callable[[str], None]
    ) -> model.Finished:
        """Reset the host; see `Installer.reset`.

        Raises:
            SshUncertain: the result of the reset is unknown; another reset resumes it.
        """
        attempt = secrets.token_hex(_NEW_ATTEMPT_BYTES)
        whose = {"RESET_MACHINE": machine, "RESET_UID": uid}
        install = model.Install(RESET, attempt, SecretStr("{}"), script("reset_host.sh"), whose)
        for _ in range(_RESETS):
            found = await self._reset(shell, install, limit_s, report)
            if isinstance(found, model.NoRun) or found.attempt == attempt or found == model.Finished(found.attempt, 0):
                break  # else the run belonged to another Machine, and its failure does not concern this one
        match found:
            case model.Finished(status=0):
                await self._remove_remains(shell, "remove_runs.sh")
                return found
            case model.Finished(attempt=other) if other != attempt:
                raise SshUncertain("a reset for another Machine is in progress on the host")
            case model.Finished(status=status):
                if status == model.ANOTHER_MACHINE:
                    await self._remove_remains(shell, "clear_run.sh")
                return found
            case model.Interrupted(why=why):
                raise SshUncertain(f"the reset did not finish: {why}")
            case model.NoRun():
                raise SshUncertain("the reset was started, but the host has no record of it")
            case model.RunInProgress():
                raise SshUncertain("the reset is still in progress")

    async def _reset(
        self, shell: Shell, install: model.Install, limit_s: float, report: Callable[[str], None]
    ) -> model.ObservedRun:
        found = await self._begin(shell, install, limit_s=limit_s, more={"uninstall.sh": uninstall_script()})
        if isinstance(found, model.RunInProgress):  # perhaps another Machine's, which suffices if it resets the host
            found = await self._follow(shell, install, report, limit_s=limit_s)
        return found

    async def _remove_remains(self, shell: Shell, how: str) -> None:
        with suppress(Failure):  # only empty folders or a log remain
            await shell.run(command(how, RESET), limit_s=CALL_S)


def _progress_of(line: bytes, hidden: Iterable[SecretStr]) -> str:
    return model.progress_text(model.redacted(line.decode(errors="replace"), hidden))


def _run_of(result: SshCommandResult, hidden: Iterable[SecretStr] = ()) -> model.ObservedRun:
    found = parse_answer(result.stdout, hidden)
    if found is None:
        raise _refused(result)
    return found


def _refused(result: SshCommandResult) -> Exception:
    if result.status is None:
        return SshUncertain("a signal ended the command on the host")
    words, reason = refusal_of(result.status, result.stderr, result.stdout)
    return model.HostRefuses(words, reason)
