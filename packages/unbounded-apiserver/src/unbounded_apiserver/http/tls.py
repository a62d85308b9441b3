"""TLS of the server's connections, in which OpenSSL reads from and writes to a client's socket itself.

asyncio runs OpenSSL on memory. It copies all bytes between that memory, its own buffers and a second transport below.
That takes a quarter of the time of a small request, and half of the memory of a connection. With the socket, OpenSSL
also reports to a client the reason of a failed handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

RECORD_BYTES: Final = 16 * 1024  # the most that one TLS record contains; a read of this size leaves nothing behind
PART_BYTES: Final = 64 * 1024
UNREAD_PARTS: Final = 16  # that a client has sent before its handshake failed
HIGH_BYTES: Final = 64 * 1024  # unread by the client: above it, the writer is paused
SEND_S: Final = 30.0  # time for a client to read the rest after the connection was closed
SHUTDOWN_S: Final = 2.0  # time for a client to read the last message
SHUTDOWN_BYTES: Final = 64 * 2**20  # that the client may send meanwhile
PLAIN: Final = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
FACTS: Final[Mapping[str, Callable[[ssl.SSLSocket], Any]]] = {  # by asyncio's names
    "peercert": ssl.SSLSocket.getpeercert,
    "peername": ssl.SSLSocket.getpeername,
    "socket": lambda line: line,
    "sockname": ssl.SSLSocket.getsockname,
    "ssl_object": lambda line: line,
    "sslcontext": lambda line: line.context,
}
AGAIN: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


async def accept(
    make: Callable[[], asyncio.BaseProtocol], arrived: socket.socket, context: ssl.SSLContext, *, within_s: float
) -> None:
    """Run the handshake with a client, and connect its protocol.

    Args:
        arrived: not blocking; it is closed if the handshake fails.

    Raises:
        OSError, ssl.SSLError: the handshake failed, and the client got the reason.
        TimeoutError: the handshake took too long.
    """
    try:
        arrived.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = context.wrap_socket(arrived, server_side=True, do_handshake_on_connect=False)
    except BaseException:
        arrived.close()
        raise
    try:
        async with asyncio.timeout(within_s):
            await _shake_hands(line)
        TlsTransport(line, cast(asyncio.Protocol, make()))
    except BaseException as error:
        if isinstance(error, ssl.SSLError) and error.reason == "HTTP_REQUEST":
            with contextlib.suppress(OSError):
                socket.socket.send(line, PLAIN)
        _close_failed(line)
        raise


def _close_failed(line: ssl.SSLSocket) -> None:
    """Close a socket whose handshake failed.

    With unread bytes, closing would reset it, and the client would lose the reason.
    """
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_WR)
        for _ in range(UNREAD_PARTS):
            if not line.recv(PART_BYTES):
                break
    line.close()


async def _shake_hands(line: ssl.SSLSocket) -> None:
    loop = asyncio.get_running_loop()
    while True:
        try:
            line.do_handshake()
        except ssl.SSLWantReadError:
            await _wait_ready(loop.add_reader, loop.remove_reader, line)
        except ssl.SSLWantWriteError:
            await _wait_ready(loop.add_writer, loop.remove_writer, line)
        else:
            return


async def _wait_ready(add: Callable[..., None], remove: Callable[[int], object], line: ssl.SSLSocket) -> None:
    """Wait until the socket is readable or writable."""
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    add(line.fileno(), _set, ready)
    try:
        await ready
    finally:
        remove(line.fileno())


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


class TlsTransport(asyncio.Transport):
    """The transport of one connection after its handshake.

    A client cannot renegotiate keys (TLS 1.2): if the context allowed renegotiation, the connection would end.
    """

    def __init__(self, line: ssl.SSLSocket, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._line = line
        self._file = line.fileno()
        self._protocol = protocol
        self._unsent = bytearray()
        self._high, self._low = HIGH_BYTES, HIGH_BYTES // 4
        self._protocol_paused = False  # pause_writing was called
        self._is_paused = False
        self._is_closing = False
        self._is_over = False
        self._reads_when_writable = False
        self._ends_at: asyncio.TimerHandle | None = None
        self._discarded = 0  # bytes that arrived after the connection was shut down
        protocol.connection_made(self)
        if self.is_reading():
            self._loop.add_reader(self._file, self._read)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        fact = None if self._is_closing else FACTS.get(name)
        try:
            return default if fact is None else fact(self._line)
        except OSError:  # the client has disconnected
            return default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    # Reading

    def is_reading(self) -> bool:
        return not self._is_paused and not self._is_closing

    def pause_reading(self) -> None:
        if self.is_reading():
            self._is_paused = True
            self._loop.remove_reader(self._file)

    def resume_reading(self) -> None:
        if not self._is_paused or self._is_closing:
            return
        self._is_paused = False
        self._loop.add_reader(self._file, self._read)

    def _read(self) -> None:
        """Read one record, and the further ones that OpenSSL has buffered, which the event loop does not know of."""
        while self.is_reading():
            try:
                data = self._line.recv(RECORD_BYTES)
            except ssl.SSLWantWriteError:  # the client requests new keys, and OpenSSL's answer has to wait
                self._reads_when_writable = True
                self._loop.add_writer(self._file, self._flush)
                return
            except AGAIN:
                return
            except OSError as error:
                self._end(error)
                return
            if not data:
                self._loop.remove_reader(self._file)
                self._call_protocol(self._protocol.eof_received)
                self.close()
                return
            self._call_protocol(self._protocol.data_received, data)
            if len(data) < RECORD_BYTES or self._is_over or not self._line.pending():
                return

    def _call_protocol(self, what: Callable[..., object], *facts: object) -> None:
        try:
            what(*facts)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._loop.call_exception_handler(
                {"message": "a protocol failed", "exception": error, "transport": self, "protocol": self._protocol}
            )
            self._end(error if isinstance(error, Exception) else None)

    # Writing

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._is_closing or not data:
            return
        sent = 0
        if not self._unsent:
            try:
                sent = self._line.send(data) if len(data) <= PART_BYTES else self._send(data)
            except AGAIN:
                pass
            except OSError as error:
                self._end(error)
                return
            if sent == len(data):
                return
            self._loop.add_writer(self._file, self._flush)
        self._unsent += memoryview(data)[sent:]
        self._pause_protocol()

    def _send(self, data: bytes | bytearray | memoryview[Any]) -> int:
        """Send as much as the socket accepts, in parts: of a part, OpenSSL does not report how much was sent."""
        sent = 0
        with memoryview(data) as view, contextlib.suppress(*AGAIN):
            while sent < len(view):
                sent += self._line.send(view[sent : sent + PART_BYTES])
        return sent

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else HIGH_BYTES if low is None else 4 * low
        self._low = low if low is not None else self._high // 4
        if not self._high >= self._low >= 0:
            raise ValueError(f"high ({self._high}) must be at least low ({self._low}), and that at least 0")
        self._pause_protocol()

    def can_write_eof(self) -> bool:
        return False

    def _pause_protocol(self) -> None:
        if len(self._unsent) > self._high and not self._protocol_paused:
            self._protocol_paused = True
            self._call_protocol(self._protocol.pause_writing)

    def _flush(self) -> None:
        """Send buffered bytes when the socket is writable."""
        if self._reads_when_writable:
            self._reads_when_writable = False
            self._read()
        if self._is_over:
            return
        try:
            sent = self._send(self._unsent)
        except OSError as error:
            self._end(error)
            return
        del self._unsent[:sent]
        if not self._unsent and not self._reads_when_writable:
            self._loop.remove_writer(self._file)
        if self._protocol_paused and len(self._unsent) <= self._low:
            self._protocol_paused = False
            self._call_protocol(self._protocol.resume_writing)
        if self._is_closing and not self._unsent:
            self._shut_down()

    # Ending

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Send the buffered bytes, shut down TLS, and end."""
        if self._is_closing:
            return
        self._loop.remove_reader(self._file)
        self._is_closing = True
        if self._unsent:
            self._ends_at = self._loop.call_later(SEND_S, self._end, None)
        else:
            self._shut_down()

    def abort(self) -> None:
        """End at once."""
        self._end(None)

    def _shut_down(self) -> None:
        """Shut down TLS, and discard what still arrives: a reset would take the last message from the client."""
        if self._is_over:
            return
        try:
            with contextlib.suppress(ssl.SSLError):  # the client has sent more, or has not shut down yet
                self._line.unwrap()
                self._end(None)
                return
            self._line.shutdown(socket.SHUT_WR)  # the connection is no longer TLS
        except OSError:
            self._end(None)
            return
        if self._ends_at is not None:
            self._ends_at.cancel()
        self._ends_at = self._loop.call_later(SHUTDOWN_S, self._end, None)
        self._loop.add_reader(self._file, self._discard)

    def _discard(self) -> None:
        try:
            heard = len(self._line.recv(PART_BYTES))
        except AGAIN:
            return
        except OSError:
            heard = 0
        self._discarded += heard
        if not heard or self._discarded > SHUTDOWN_BYTES:
            self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._is_over:
            return
        self._is_over = self._is_closing = True
        if self._ends_at is not None:
            self._ends_at.cancel()
        self._loop.remove_reader(self._file)
        self._loop.remove_writer(self._file)
        self._unsent = bytearray()  # the writer may still use the old one
        self._loop.call_soon(self._finish, error)

    def _finish(self, error: Exception | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._line.close()
