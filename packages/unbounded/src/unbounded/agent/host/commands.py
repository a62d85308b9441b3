"""Programs of the host, run to their end within a time limit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from unbounded.agent.ports import HostCommandResult
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
    kept = bytearray()
    while stream is not None and (piece := await stream.read(_PIECE)):
        kept += piece
        del kept[:-LARGEST]
    return bytes(kept)


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
