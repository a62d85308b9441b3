"""Runs of the install script on hosts, over a Shell."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from unbounded.api.failures import Failure
from unbounded.join.install import uninstall_script
from unbounded.kube.logs import SecretStr
from unbounded.machina.provisioning.answers import TAIL_BYTES, parse_answer, split_answer
from unbounded.machina.provisioning.commands import command, script
from unbounded.machina.provisioning.model import (
    ANOTHER_MACHINE,
    Finished,
    HostRefuses,
    Install,
    Interrupted,
    NoRun,
    ObservedRun,
    RunInProgress,
)
from unbounded.machina.provisioning.payload import payload
from unbounded.machina.provisioning.progress import progress_text
from unbounded.machina.provisioning.redact import redacted
from unbounded.machina.provisioning.refusals import refusal_of
from unbounded.machina.ssh.model import Shell, SshCommandResult, SshUncertain

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

    async def observe(self, shell: Shell, uid: str) -> ObservedRun:
        return _run_of(await shell.run(command("look.sh", uid), limit_s=CALL_S))

    async def begin(self, shell: Shell, install: Install) -> ObservedRun:
        return await self._begin(shell, install, limit_s=self._limit_s)

    async def _begin(
        self, shell: Shell, install: Install, *, limit_s: float, more: dict[str, str] | None = None
    ) -> ObservedRun:
        self._clean.discard(install.uid)
        told = command("begin.sh", install.uid, install.attempt, str(self._settle_s))
        sent = payload(install, limit_s=limit_s, more=more)
        found = _run_of(await shell.run(told, stdin=sent, limit_s=BEGIN_S), install.hidden)
        return self._noting_clean(install, found)

    async def follow(self, shell: Shell, install: Install, tell: Callable[[str], None]) -> ObservedRun:
        return await self._follow(shell, install, tell, limit_s=self._limit_s)

    async def _follow(
        self, shell: Shell, install: Install, tell: Callable[[str], None], *, limit_s: float
    ) -> ObservedRun:
        said = bytearray()  # the answer
        told = command("follow.sh", install.uid)
        async for line in shell.follow(told, limit_s=limit_s + _REPORT_MARGIN_S, silence_s=SILENCE_S):
            if said or line.startswith(b"unbounded-install: "):
                said += line + b"\n"
                if len(said) > _ANSWER_BYTES:
                    raise HostRefuses("the host does not come to an end when it says how the install ended")
            elif line.startswith(b"+") and (words := _progress_of(line[1:], install.hidden)):
                tell(words)
        found = parse_answer(bytes(said), install.hidden)
        return self._noting_clean(install, found or await self.observe(shell, install.uid))

    def _noting_clean(self, install: Install, found: ObservedRun) -> ObservedRun:
        if found == Finished(install.attempt, 0):
            self._clean.add(install.uid)
        return found

    async def clear(self, shell: Shell, uid: str) -> None:
        if uid in self._clean:  # a successful run removes its files itself
            self._clean.discard(uid)
            return
        ended = await shell.run(command("clear.sh", uid), limit_s=CALL_S)
        if split_answer(ended.stdout) is None:
            raise _refused(ended)

    async def reset(
        self, shell: Shell, machine: str, uid: str, *, limit_s: float, tell: Callable[[str], None]
    ) -> Finished:
        """Reset the host; see `Installer.reset`.

        Raises:
            SshUncertain: the result of the reset is unknown; another reset resumes it.
        """
        attempt = secrets.token_hex(_NEW_ATTEMPT_BYTES)
        whose = {"RESET_MACHINE": machine, "RESET_UID": uid}
        install = Install(RESET, attempt, SecretStr("{}"), script("reset.sh"), whose)
        for _ in range(_RESETS):
            found = await self._reset(shell, install, limit_s, tell)
            if isinstance(found, NoRun) or found.attempt == attempt or found == Finished(found.attempt, 0):
                break  # else the run belonged to another Machine, and its failure does not concern this one
        match found:
            case Finished(status=0):
                await self._remove_remains(shell, "forget.sh")
                return found
            case Finished(attempt=other) if other != attempt:
                raise SshUncertain("a reset for another Machine is at work on the host")
            case Finished(status=status):
                if status == ANOTHER_MACHINE:
                    await self._remove_remains(shell, "clear.sh")
                return found
            case Interrupted(why=why):
                raise SshUncertain(f"the reset did not come to its end: {why}")
            case NoRun():
                raise SshUncertain("the host knows nothing of the reset that was begun")
            case RunInProgress():
                raise SshUncertain("the reset is still at work")

    async def _reset(self, shell: Shell, install: Install, limit_s: float, tell: Callable[[str], None]) -> ObservedRun:
        found = await self._begin(shell, install, limit_s=limit_s, more={"uninstall.sh": uninstall_script()})
        if isinstance(found, RunInProgress):  # perhaps another Machine's, which suffices if it resets the host
            found = await self._follow(shell, install, tell, limit_s=limit_s)
        return found

    async def _remove_remains(self, shell: Shell, how: str) -> None:
        with suppress(Failure):  # only empty folders or a log remain
            await shell.run(command(how, RESET), limit_s=CALL_S)


def _progress_of(line: bytes, hidden: Iterable[SecretStr]) -> str:
    return progress_text(redacted(line.decode(errors="replace"), hidden))


def _run_of(ended: SshCommandResult, hidden: Iterable[SecretStr] = ()) -> ObservedRun:
    found = parse_answer(ended.stdout, hidden)
    if found is None:
        raise _refused(ended)
    return found


def _refused(ended: SshCommandResult) -> Exception:
    if ended.status is None:
        return SshUncertain("the command was ended by a signal on the host")
    words, reason = refusal_of(ended.status, ended.stderr, ended.stdout)
    return HostRefuses(words, reason)
