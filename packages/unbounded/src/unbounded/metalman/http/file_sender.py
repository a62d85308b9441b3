"""Sending of files to sockets in a thread of its own, with fair scheduling among clients.

The kernel copies from the page cache (sendfile), and Python releases the GIL meanwhile. Thus the event loop continues
to answer DHCP and TFTP while gigabytes of images are sent, even if an image has to be read from disk first. Scheduling
and the detection of slow clients have no socket and no clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Generic, TypeVar

from unbounded.kube.logs import Log

CHUNK_BYTES: Final = 1 << 20  # of one turn: larger ones gain nothing, and others wait longer
SEND_BUFFER_BYTES: Final = (
    512 << 10
)  # the kernel doubles it: enough for 10 Gbit/s at 0.8 ms, and 200 clients pin 200 MiB
NICE: Final = 10  # of this thread alone: if CPU is scarce, leases and loaders go first and images take longer
TRANSFERS_OF_ONE: Final = (
    2  # concurrent transfers of a client; each has a share of the network, and boot loaders use one
)
CHECK_EVERY_S: Final = 0.5
OF_THE_FILE: Final = frozenset({errno.EIO, errno.ESTALE, errno.EINVAL, errno.EOVERFLOW})
RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: unsent bytes are discarded


log = Log("metalman.http")


class SendOutcome(Enum):
    """Outcome of a transfer."""

    DONE = "done"
    GONE = "the client has gone"
    SLOW = "the client took too little"
    FILE = "the file has become shorter, or cannot be read"
    STOPPED = "the server stops"


@dataclass(slots=True, eq=False)
class FileTransfer:
    """Transfer of a part of a file. The sender owns its socket and file, and closes them."""

    client: str
    sock: socket.socket
    file: int
    at: int
    stop: int
    ended: asyncio.Future[tuple[SendOutcome, int]]
    begun: int
    pace: RateCheck | None = None  # set once it has a place
    ready: bool = False
    over: bool = False

    @property
    def sent(self) -> int:
        return self.at - self.begun


@dataclass(frozen=True, slots=True)
class MinimumRate:
    """Minimum rate of a client: `bytes` within `within_s` seconds."""

    bytes: int = 64 << 10  # firmware over the slowest BMC is faster; a stalled reader takes none
    within_s: float = 30.0


MINIMUM_RATE: Final = MinimumRate()


class FileSender:
    """Sender of files, which works inside of the context `running()`."""

    def __init__(self, *, places_of_one: int = TRANSFERS_OF_ONE, least: MinimumRate = MINIMUM_RATE) -> None:
        self._least = least
        self._loop = asyncio.get_running_loop()
        self._queue: FairQueue[FileTransfer] = FairQueue(places_of_one)
        self._open: dict[int, FileTransfer] = {}  # by socket number; only transfers with a place
        self._new: deque[FileTransfer] = deque()
        self._dropped: deque[FileTransfer] = deque()
        self._stopping = False
        self._epoll = select.epoll()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="http pump", daemon=True)

    @property
    def broken(self) -> bool:
        """Return whether the thread has ended by itself, which is a bug."""
        return self._thread.ident is not None and not self._thread.is_alive()

    @property
    def open(self) -> int:
        """Number of transfers with a place."""
        return len(self._open)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FileSender]:
        """Send inside of the context; its end aborts open transfers."""
        self._epoll.register(self._wakeup, select.EPOLLIN)
        self._thread.start()
        try:
            yield self
        finally:
            self.stop()
            await asyncio.shield(asyncio.to_thread(self._thread.join))
            self._epoll.close()
            os.close(self._wakeup)
            for transfer in self._new:  # queued after the thread had checked the queue
                transfer.sock.close()
                os.close(transfer.file)
                _resolve(transfer, SendOutcome.STOPPED)

    async def send(self, client: str, sock: socket.socket, file: int, start: int, stop: int) -> tuple[SendOutcome, int]:
        """Send a part of a file; return its outcome and the number of bytes sent.

        No other writer may use the socket meanwhile; closing it is safe. This method closes `file`.
        """
        try:
            own = sock.dup()
        except OSError:
            os.close(file)
            return SendOutcome.GONE, 0
        if self._stopping:
            own.close()
            os.close(file)
            return SendOutcome.STOPPED, 0
        transfer = FileTransfer(client, own, file, start, stop, self._loop.create_future(), start)
        self._new.append(transfer)
        self._wake()
        try:
            return await transfer.ended
        except asyncio.CancelledError:
            self._dropped.append(transfer)
            self._wake()
            raise

    def stop(self) -> None:
        """Abort all present and future transfers."""
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self._wakeup, 1)

    # In the thread

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        try:
            self._serve()
        except Exception:  # our bug: abort running transfers and reject new ones
            log.exception("cannot send files")
        self._stopping = True
        self._accept_new()
        while self._open:  # waiting transfers get the places of others, and end like them
            self._end(next(iter(self._open.values())), SendOutcome.STOPPED)

    def _serve(self) -> None:
        look_at = 0.0
        while not self._stopping:
            self._accept_new()
            for _ in range(len(self._queue)):  # one round; then epoll reports which sockets can take more
                self._serve_next()
            now = time.monotonic()
            if now >= look_at:
                look_at = now + CHECK_EVERY_S
                self._cut_slow(now)
            self._wait(0.0 if len(self._queue) else CHECK_EVERY_S)

    def _wait(self, within_s: float) -> None:
        for number, _ in self._epoll.poll(within_s):
            if number == self._wakeup:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wakeup)
            elif not (transfer := self._open[number]).ready:  # also if the client has gone: the next send fails then
                self._make_ready(transfer)

    def _accept_new(self) -> None:
        while self._new:
            transfer = self._new.popleft()
            if self._queue.add(transfer.client, transfer):
                self._start(transfer)
        while self._dropped:
            transfer = self._dropped.popleft()
            if not transfer.over:
                self._end(transfer, SendOutcome.STOPPED)

    def _start(self, transfer: FileTransfer) -> None:
        transfer.pace = RateCheck(self._least, time.monotonic())
        self._open[transfer.sock.fileno()] = transfer
        try:
            transfer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            self._epoll.register(transfer.sock, select.EPOLLOUT | select.EPOLLET)
        except OSError:  # the kernel has no memory for it
            self._end(transfer, SendOutcome.STOPPED)
        else:
            self._make_ready(transfer)

    def _make_ready(self, transfer: FileTransfer) -> None:
        transfer.ready = True
        self._queue.mark_ready(transfer.client, transfer)

    def _serve_next(self) -> None:
        if (transfer := self._queue.next()) is None:
            return
        transfer.ready = False
        count = min(CHUNK_BYTES, transfer.stop - transfer.at)
        try:
            sent = os.sendfile(transfer.sock.fileno(), transfer.file, transfer.at, count)
        except BlockingIOError:  # the next edge, when there is room again, makes it ready
            return
        except OSError as error:
            self._end(transfer, SendOutcome.FILE if error.errno in OF_THE_FILE else SendOutcome.GONE)
            return
        transfer.at += sent
        if transfer.at == transfer.stop:
            self._end(transfer, SendOutcome.DONE)
        elif sent == 0:
            self._end(transfer, SendOutcome.FILE)
        else:  # a short write does not guarantee a later edge: only a send that fails with EAGAIN does
            self._make_ready(transfer)

    def _cut_slow(self, now: float) -> None:
        for transfer in list(self._open.values()):
            if not transfer.ready and transfer.pace is not None and transfer.pace.too_slow(transfer.sent, now):
                transfer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                self._end(transfer, SendOutcome.SLOW)

    def _end(self, transfer: FileTransfer, end: SendOutcome) -> None:
        transfer.over = True
        if self._open.pop(transfer.sock.fileno(), None) is not None:
            with contextlib.suppress(OSError):  # its registration failed
                self._epoll.unregister(transfer.sock)
        transfer.sock.close()
        os.close(transfer.file)
        self._loop.call_soon_threadsafe(_resolve, transfer, end)
        if (following := self._queue.remove(transfer.client, transfer)) is not None:
            self._start(following)


def _resolve(transfer: FileTransfer, end: SendOutcome) -> None:
    if not transfer.ended.done():
        transfer.ended.set_result((end, transfer.sent))


T = TypeVar("T")


@dataclass(slots=True)
class _Client(Generic[T]):
    ready: deque[T] = field(default_factory=deque)
    waiting: deque[T] = field(default_factory=deque)
    places: int = 0  # taken ones, whether their transfers are ready or not


class FairQueue(Generic[T]):
    """Round robin over clients, independent of their number of transfers, and over the transfers of a client.

    A client has a limited number of places; its further transfers wait until a place is free.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._clients: dict[str, _Client[T]] = {}
        self._ring: deque[str] = deque()  # clients with a ready transfer, each once

    def __len__(self) -> int:
        """Number of clients with a ready transfer."""
        return len(self._ring)

    def add(self, client: str, item: T) -> bool:
        """Add a transfer, and return whether it has a place at once. It becomes ready by `mark_ready`."""
        state = self._clients.setdefault(client, _Client())
        if state.places >= self._limit:
            state.waiting.append(item)
            return False
        state.places += 1
        return True

    def mark_ready(self, client: str, item: T) -> None:
        """Mark a transfer ready that has a place and is not ready yet."""
        state = self._clients[client]
        if not state.ready:
            self._ring.append(client)
        state.ready.append(item)

    def next(self) -> T | None:
        """Take the next ready transfer, which is no longer ready then; None if there is none."""
        if not self._ring:
            return None
        client = self._ring.popleft()
        state = self._clients[client]
        item = state.ready.popleft()
        if state.ready:
            self._ring.append(client)
        return item

    def remove(self, client: str, item: T) -> T | None:
        """Remove a transfer in any state; return the waiting one that gets its place, if there is one."""
        state = self._clients[client]
        if item in state.waiting:
            state.waiting.remove(item)
            return None
        if item in state.ready:
            state.ready.remove(item)
            if not state.ready:
                self._ring.remove(client)
        state.places -= 1
        if state.waiting:
            state.places += 1
            return state.waiting.popleft()
        if not state.places:
            del self._clients[client]
        return None


@dataclass(slots=True)
class RateCheck:
    """Rate of one transfer, measured from `since` on."""

    least: MinimumRate
    since: float
    sent: int = 0  # bytes sent at `since`

    def too_slow(self, sent: int, now: float) -> bool:
        """Return whether the client was slower than the minimum rate.

        Args:
            sent: bytes since the transfer began.
        """
        if sent - self.sent >= self.least.bytes:
            self.since, self.sent = now, sent
            return False
        return now - self.since > self.least.within_s
