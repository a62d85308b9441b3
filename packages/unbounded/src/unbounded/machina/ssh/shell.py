"""Commands on a host over an established connection, with limits on time and retained output."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, cast

import asyncssh

from unbounded.kube.tracing import SpanKind, span
from unbounded.machina.ssh import failures
from unbounded.machina.ssh.failures import printable
from unbounded.machina.ssh.handshake import SshConnection
from unbounded.machina.ssh.model import SshCommandResult, SshReason, SshUncertain

LINE_BYTES: Final = 4096
WRITE_BYTES: Final = 65536  # of stdin, per write
WINDOW_BYTES: Final = 262144  # of output that the host may send before the client reads it
# of lines that the caller has not read; beyond that the client stops reading from the host
QUEUE_BYTES: Final = 65536
OPEN_S: Final = 30.0


class Tail:
    """Last bytes of a stream, and the number of bytes before them."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._bytes = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        self._bytes += data
        if len(self._bytes) > 2 * self._keep:
            self._cut()

    def _cut(self) -> None:
        more = max(0, len(self._bytes) - self._keep)
        self._dropped += more
        del self._bytes[:more]

    def end(self) -> tuple[bytes, int]:
        self._cut()
        return bytes(self._bytes), self._dropped


class LineBuffer:
    """A stream cut into lines. A line that is too long is cut into pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, data: bytes) -> list[bytes]:
        """Add bytes; return the lines that are complete now, without their line ends."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        lines = [piece for line in whole for piece in _pieces(line)]
        if len(self._rest) > LINE_BYTES:
            *pieces, self._rest = _pieces(self._rest)
            lines += pieces
        return lines

    def end(self) -> list[bytes]:
        """Return the rest at the end of the stream."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


def _pieces(line: bytes) -> list[bytes]:
    return [line[at : at + LINE_BYTES] for at in range(0, len(line), LINE_BYTES)] or [b""]


class _CommandSession(asyncssh.SSHClientSession[bytes]):
    """Session of one command. `over` is set when its channel closes."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()
        self.status: int | None = None
        self.signal: str | None = None
        self.channel: asyncssh.SSHClientChannel[bytes] | None = None

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self.channel = chan

    def exit_status_received(self, status: int) -> None:
        self.status = status

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:  # noqa: ARG002
        self.signal = signal

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.writable.set()
        self.over.set()

    @property
    def ended(self) -> bool:
        """Return whether the host reported the end of the command."""
        return self.status is not None or self.signal is not None


class _TailSession(_CommandSession):
    """Session that retains the last bytes of the command's output."""

    def __init__(self, keep: int) -> None:
        super().__init__()
        self.stdout = Tail(keep)
        self.stderr = Tail(keep)

    def data_received(self, data: bytes, datatype: int | None) -> None:
        (self.stdout if datatype is None else self.stderr).add(data)


class FollowSession(_CommandSession):
    """Session that queues lines of stdout and pauses the host while too many are queued."""

    def __init__(self) -> None:
        super().__init__()
        self._lines = LineBuffer()
        self._bytes = 0
        self.waiting: deque[bytes] = deque()
        self.news = asyncio.Event()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if datatype is not None:
            return
        self._add(self._lines.add(data))
        if self._bytes > QUEUE_BYTES and self.channel is not None:
            self.channel.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and self.ended:
            self._add(self._lines.end())
        super().connection_lost(exc)
        self.news.set()

    def _add(self, lines: list[bytes]) -> None:
        self.waiting += lines
        self._bytes += sum(map(len, lines)) + len(lines)
        self.news.set()

    def take(self) -> bytes:
        line = self.waiting.popleft()
        self._bytes -= len(line) + 1
        if self._bytes <= QUEUE_BYTES // 2 and self.channel is not None:
            self.channel.resume_reading()
        return line


class RemoteShell:
    """Implementation of `Shell` over a line."""

    def __init__(self, line: SshConnection) -> None:
        self._connection = line

    async def run(self, command: str, *, stdin: bytes = b"", limit_s: float, keep: int = 65536) -> SshCommandResult:
        loop = asyncio.get_running_loop()
        end = loop.time() + limit_s
        session = _TailSession(keep)
        async with self._started(command, session, limit_s) as channel:
            try:
                async with asyncio.timeout_at(end):
                    await _write(channel, session, stdin)
                    await session.over.wait()
            except TimeoutError:
                raise SshUncertain(f"{self._place}: the command did not end within {limit_s:g} s") from None
            self._check(session)
        (stdout, before), (stderr, before_stderr) = session.stdout.end(), session.stderr.end()
        return SshCommandResult(session.status, stdout, stderr, before + before_stderr)

    async def follow(self, command: str, *, limit_s: float, silence_s: float) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        end = loop.time() + limit_s
        session = FollowSession()
        async with self._started(command, session, limit_s) as channel:
            with suppress(OSError):
                channel.write_eof()
            while session.waiting or not session.over.is_set():
                if session.waiting:
                    yield session.take()
                    await asyncio.sleep(0)  # a host that sends many lines gets no more turns of the loop than others
                    continue
                session.news.clear()
                await self._wait(session.news, end, silence_s)
            self._check(session)

    async def _wait(self, news: asyncio.Event, end: float, silence_s: float) -> None:
        silent_at = asyncio.get_running_loop().time() + silence_s
        try:
            async with asyncio.timeout_at(min(end, silent_at)):
                await news.wait()
        except TimeoutError:
            what = f"sent no output for {silence_s:g} s" if silent_at <= end else "took too long"
            raise SshUncertain(f"{self._place}: the command {what}") from None

    @asynccontextmanager
    async def _started(
        self, command: str, session: _CommandSession, limit_s: float
    ) -> AsyncIterator[asyncssh.SSHClientChannel[bytes]]:
        """Run a command on the host; terminate it if the block ends earlier."""
        at = self._connection.hop.at
        with span("SSH command", kind=SpanKind.CLIENT, server_address=at.host, server_port=at.port):
            try:
                yield await self._open(command, session, min(limit_s, OPEN_S))
            finally:
                if session.channel is not None and not session.over.is_set():
                    with suppress(OSError):
                        session.channel.terminate()
                    session.channel.abort()

    async def _open(self, command: str, session: _CommandSession, limit_s: float) -> asyncssh.SSHClientChannel[bytes]:
        """Open the channel of a command.

        Raises:
            SshTransient: the host has not received the command.
            SshUncertain: the host may have received the command.
        """
        if self._connection.closed:
            raise self._lost()
        try:
            async with asyncio.timeout(limit_s):
                channel, _ = await self._connection.connection.create_session(
                    lambda: session, command, encoding=None, window=WINDOW_BYTES, request_pty=False
                )
        except TimeoutError:
            raise SshUncertain(f"{self._place}: no answer to a command within {limit_s:g} s") from None
        except asyncssh.ChannelOpenError as error:
            raise self._not_opened(error) from error
        except (asyncssh.Error, OSError) as error:
            raise self._broke("while sending a command") from error
        return cast("asyncssh.SSHClientChannel[bytes]", channel)

    def _not_opened(self, error: asyncssh.ChannelOpenError) -> Exception:
        refused = error.code == failures.SESSION_REFUSED
        if self._connection.closed:
            return self._broke("while sending a command") if refused else self._lost()
        what = "does not start a command" if refused else f"opens no further session ({printable(error.reason)})"
        return failures.failure(SshReason.TOO_MANY, self._connection.hop.name, f"{self._place}: {what}")

    def _check(self, session: _CommandSession) -> None:
        """Check that the command has ended.

        Raises:
            SshUncertain: the channel closed without the end of the command.
        """
        if session.ended:
            return
        if self._connection.closed:
            raise self._broke("during a command")
        raise SshUncertain(f"{self._place}: the host did not report the result of the command")

    def _lost(self) -> failures.SshFailure:
        """Return the failure of a connection that broke before the command was sent."""
        return failures.broken(self._connection.lost_at)

    def _broke(self, when: str) -> SshUncertain:
        return SshUncertain(f"{failures.broken(self._connection.lost_at)} {when}")

    @property
    def _place(self) -> str:
        return failures.hop_text(self._connection.hop.name, self._connection.hop.at)


async def _write(channel: asyncssh.SSHClientChannel[bytes], session: _CommandSession, stdin: bytes) -> None:
    """Write stdin in pieces, each after the previous one was sent. A command may end without reading it."""
    try:
        for at in range(0, len(stdin), WRITE_BYTES):
            await session.writable.wait()
            channel.write(stdin[at : at + WRITE_BYTES])
        channel.write_eof()
    except OSError:
        return
