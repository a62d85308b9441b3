"""The agent's interfaces to the host: programs run to their end within a time limit, systemd through systemctl, and
mounts.

The arguments of a program are passed as they are; no shell is involved.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from asyncio.subprocess import Process
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

from unbounded.agent.interfaces import Commands, HostCommandResult, UnitFacts
from unbounded.agent.paths import HostPaths
from unbounded.api.failures import Rejected, Transient
from unbounded.kube.logs import Log

log = Log("agent")

LARGEST: Final = 1 << 20
_PIECE: Final = 1 << 16
_REAP_S: Final = 2.0
_TAIL: Final = 400  # characters of stderr in a message
_BUNDLED: Final = ("LD_LIBRARY_PATH", "LD_LIBRARY_PATH_ORIG")


class HostCommands:
    """Run programs in the agent's own environment, without the variables that its packaging adds.

    Each program gets its own session. A kill ends all processes of the session.
    """

    async def run(
        self,
        *argv: str,
        timeout_s: float = 60.0,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> HostCommandResult:
        try:
            process = await _started(
                asyncio.create_subprocess_exec(
                    *argv,
                    stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env=_environment(env or {}),
                    start_new_session=True,
                )
            )
        except FileNotFoundError as error:
            raise Rejected(f"{argv[0]}: this program is not installed on the host") from error
        except OSError as error:
            raise Transient(f"{argv[0]}: {error.strerror}") from error
        try:
            async with asyncio.timeout(timeout_s):
                out, err = await _communicated(process, stdin)
        except TimeoutError as error:
            raise Transient(f"{' '.join(argv[:3])}: not complete within {timeout_s:g} s") from error
        ran = HostCommandResult(argv, process.returncode or 0, _text(out), _text(err))
        log.debug("ran", argv=list(argv), status=ran.status)
        if check and not ran.ok:
            message = " ".join((ran.stderr.strip() or ran.stdout.strip())[-_TAIL:].split())
            raise Transient(f"{' '.join(argv[:3])}: status {ran.status}: {message}")
        return ran


async def _started(starting: Coroutine[Any, Any, Process]) -> Process:
    """Return the started process. A cancelled start would otherwise wait until its children close their output."""
    task = asyncio.create_task(starting)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):  # the program could not be started
            await _end(await task)
        raise


async def _communicated(process: Process, stdin: bytes | None) -> tuple[bytes, bytes]:
    """Return stdout and stderr once the process has exited and all its children have closed their output. On any error,
    kill the whole session.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            out, err = (tasks.create_task(_tail(stream)) for stream in (process.stdout, process.stderr))
            tasks.create_task(_feed(process.stdin, stdin or b""))
        await process.wait()
    except BaseException:
        await _end(process)
        raise
    return out.result(), err.result()


async def _end(process: Process) -> None:
    """Kill the process and its children: its group exists while any member does, even after the leader has exited."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):  # a process that left the group may keep the output open
        async with asyncio.timeout(_REAP_S):
            await process.wait()


async def _tail(stream: asyncio.StreamReader | None) -> bytes:
    """Return the end of the output: an endless one does not fill the memory."""
    tail = bytearray()
    while stream is not None and (piece := await stream.read(_PIECE)):
        tail += piece
        del tail[:-LARGEST]
    return bytes(tail)


async def _feed(stream: asyncio.StreamWriter | None, content: bytes) -> None:
    if stream is None:
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the program does not read all of its input
        stream.write(content)
        await stream.drain()
    stream.close()


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program, without the library paths of the packaged agent: host programs must not load
    its libraries.
    """
    own = {name: value for name, value in os.environ.items() if name not in _BUNDLED}
    if original := os.environ.get("LD_LIBRARY_PATH_ORIG"):
        own["LD_LIBRARY_PATH"] = original
    return {**own, "LC_ALL": "C", **more}


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


_PROPERTIES: Final = "Id,LoadState,ActiveState,SubState,UnitFileState,MainPID,NRestarts,Result"
_SHORT_S: Final = 120.0  # under emulation on a loaded host, one systemctl query took 40 s
_NOT_LOADED: Final = ("not loaded", "does not exist", "not found")


class Systemctl:
    """Units of one service manager.

    Args:
        machine: nspawn machine of the manager; empty for the host's own.
    """

    def __init__(self, commands: Commands, *, machine: str = "") -> None:
        self._commands = commands
        self._prefix = ("systemctl", f"--machine={machine}") if machine else ("systemctl",)

    async def _call(self, *arguments: str, timeout_s: float = _SHORT_S, check: bool = True) -> str:
        ran = await self._commands.run(*self._prefix, *arguments, timeout_s=timeout_s, check=check)
        return ran.stdout if ran.ok else ran.stderr

    async def observe(self, unit: str) -> UnitFacts:
        output = await self._call("show", f"--property={_PROPERTIES}", "--", unit)
        properties = dict(line.partition("=")[::2] for line in output.splitlines() if "=" in line)
        return UnitFacts(
            name=unit,
            load=properties.get("LoadState", "not-found"),
            active=properties.get("ActiveState", "inactive"),
            sub=properties.get("SubState", "dead"),
            enabled=properties.get("UnitFileState", ""),
            main_pid=int(properties.get("MainPID") or 0),
            restarts=int(properties.get("NRestarts") or 0),
            result=properties.get("Result", ""),
        )

    async def start(self, unit: str, *, timeout_s: float = 90.0) -> None:
        await self._call("start", "--", unit, timeout_s=timeout_s)

    async def stop(self, unit: str, *, timeout_s: float = 90.0) -> None:
        try:
            await self._call("stop", "--", unit, timeout_s=timeout_s)
        except Transient:
            if (await self.observe(unit)).load == "not-found":
                return
            raise

    async def restart(self, unit: str, *, block: bool = True, timeout_s: float = 90.0) -> None:
        await self._call("restart", *(() if block else ("--no-block",)), "--", unit, timeout_s=timeout_s)

    async def kill(self, unit: str, signal: str = "SIGKILL") -> None:
        await self._call("kill", f"--signal={signal}", "--", unit, check=False)

    async def enable(self, *units: str) -> None:
        await self._call("enable", "--quiet", "--", *units)

    async def disable(self, *units: str) -> None:
        for unit in units:  # a missing unit must not stop the others
            result = await self._commands.run(*self._prefix, "disable", "--quiet", "--", unit, check=False)
            if not result.ok and not any(words in result.stderr for words in _NOT_LOADED):
                raise Transient(f"systemctl disable {unit}: {result.stderr.strip()}")

    async def mask(self, *units: str) -> None:
        await self._call("mask", "--quiet", "--", *units)

    async def unmask(self, *units: str) -> None:
        await self._call("unmask", "--quiet", "--", *units)

    async def reset_failed(self, unit: str) -> None:
        await self._call("reset-failed", "--", unit, check=False)

    async def reload(self) -> None:
        await self._call("daemon-reload")


UNMOUNT_S: Final = 30.0
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


def unescaped(field: str) -> str:
    """Return a path that the kernel printed in /proc with octal escapes for blanks and backslashes
    (proc_pid_mountinfo(5)).
    """
    return _OCTAL.sub(lambda octal: chr(int(octal[1], 8)), field)


def mounts_below(folder: Path, mountinfo: str) -> tuple[str, ...]:
    """Return the mount points at a folder and below, the last mounted first, from the text of /proc/self/mountinfo."""
    points = [unescaped(line.split(" ")[4]) for line in mountinfo.splitlines() if line.count(" ") > 4]
    whole = str(folder)
    return tuple(point for point in reversed(points) if point == whole or point.startswith(f"{whole}/"))


async def unmount_below(paths: HostPaths, commands: Commands, folder: Path) -> None:
    """Unmount all mounts at a folder and below. The mounted content belongs to others and is not changed.

    A mount in use is detached at once (umount --lazy) and ends with its last user.

    Raises:
        Transient: a mount remains.
    """
    for point in mounts_below(folder, _mountinfo(paths)):
        log.info("unmounted before removal of its directory", path=point)
        if not (await commands.run("umount", "--", point, timeout_s=UNMOUNT_S, check=False)).ok:
            await commands.run("umount", "--lazy", "--", point, timeout_s=UNMOUNT_S)


def _mountinfo(paths: HostPaths) -> str:
    try:
        return paths.at("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return ""
