"""The TFTP server's shell: a socket for requests and one for each transfer, on asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

from unbounded.kube.logs import Log
from unbounded.kube.rejection_counters import RejectionCounters
from unbounded.metalman.sockets import udp_socket
from unbounded.metalman.tftp import protocol

FIND_S: Final = 10.0  # clients repeat their request after a few seconds, and give up after about a minute
LARGEST_TEXT_BYTES: Final = 1 << 20  # netascii is for text; the server converts it in memory
LARGEST_BYTES: Final = 2048  # clients send nothing larger: requests, acknowledgements and errors
SEND_BUFFER_BYTES: Final = 1 << 20
Peer = tuple[str, int]

log = Log("metalman.tftp")


@dataclass(frozen=True, slots=True)
class TftpServerSettings:
    """Listening address of a server and its limits on concurrent transfers."""

    bind_address: str = "0.0.0.0"  # noqa: S104 - the reference's default; an interface narrows it
    port: int = 69
    interface: str | None = None
    most_transfers: int = 512
    most_transfers_of_one: int = 16


class TftpServer:
    """Send files; `counts` has the number of transfers by outcome."""

    def __init__(self, settings: TftpServerSettings, files: protocol.TftpFiles) -> None:
        self._settings = settings
        self._files = files
        self._loop = asyncio.get_running_loop()
        self._tally = RejectionCounters(log, self._loop.time)
        self._running: dict[Peer, asyncio.Task[None]] = {}
        self._by_client: Counter[str] = Counter()
        self.port = settings.port

    @property
    def counts(self) -> dict[str, int]:
        """Number of requests by result: the outcome of a transfer, or the reason why there was none."""
        return dict(self._tally.counts)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[TftpServer]:
        """Serve inside of the context; its end aborts running transfers.

        Raises:
            OSError: the port is taken, or the interface does not exist.
        """
        transport, _ = await self._loop.create_datagram_endpoint(
            lambda: _Requests(self), sock=_bound_socket(self._settings, self._settings.port)
        )
        self.port = transport.get_extra_info("sockname")[1]
        log.info("serving TFTP", port=self.port)
        try:
            yield self
        finally:
            transport.close()
            tasks = list(self._running.values())
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    def request_received(self, data: bytes, peer: Peer) -> None:
        """Handle a packet to the server's own port, where only requests are valid."""
        try:
            packet = protocol.decode(data)
        except protocol.MalformedTftpPacket as error:
            self._tally.count("malformed", source=peer[0], why=str(error))
            return
        if not isinstance(packet, protocol.TftpRequest):
            self._tally.count("not a request", source=peer[0])
        elif peer in self._running:  # the client repeated its request before our first packet reached it
            self._tally.counts["repeated"] += 1
        elif (
            len(self._running) >= self._settings.most_transfers
            or self._by_client[peer[0]] >= self._settings.most_transfers_of_one
        ):  # no error packet: the client repeats its request, and a transfer may be free by then
            self._tally.count("too many transfers", source=peer[0])
        else:
            self._by_client[peer[0]] += 1
            task = asyncio.create_task(self._serve(packet, peer))
            self._running[peer] = task
            task.add_done_callback(lambda _: self._forget(peer))

    def _forget(self, peer: Peer) -> None:
        del self._running[peer]
        self._by_client[peer[0]] -= 1
        if not self._by_client[peer[0]]:
            del self._by_client[peer[0]]

    async def _serve(self, request: protocol.TftpRequest, peer: Peer) -> None:
        try:
            with contextlib.closing(_bound_socket(self._settings, 0)) as sock:
                sock.connect(peer)  # the kernel drops packets of other senders
                await self._serve_file(request, peer, sock)
        except OSError as error:
            self._tally.count("not sent", source=peer[0], why=str(error))
        except Exception:
            self._tally.counts["failed"] += 1
            log.exception("transfer failed", source=peer[0])

    async def _serve_file(self, request: protocol.TftpRequest, peer: Peer, sock: socket.socket) -> None:
        found = await self._find(request, peer)
        if isinstance(found, protocol.TftpRejection):
            sock.send(protocol.encode_error(found.code, found.text))
            self._tally.count("refused", source=peer[0], name=request.name, why=found.text)
            return
        try:
            await self._send(
                protocol.TftpTransfer(found, protocol.negotiate(request.options, found.size), self._loop.time()), sock
            )
        finally:
            found.close()

    async def _find(self, request: protocol.TftpRequest, peer: Peer) -> protocol.TftpContent | protocol.TftpRejection:
        name = protocol.normalized_name(request.name)
        if request.write:
            return protocol.TftpRejection(protocol.ErrorCode.ACCESS, "Files are read-only")
        if request.mode not in ("octet", "netascii"):
            return protocol.TftpRejection(protocol.ErrorCode.ILLEGAL, "Unknown mode")
        if name is None:
            return protocol.TftpRejection(protocol.ErrorCode.ACCESS, "Invalid file name")
        try:
            async with asyncio.timeout(FIND_S):
                found = await self._files.find(peer[0], name)
        except TimeoutError:
            return protocol.TftpRejection(protocol.ErrorCode.UNDEFINED, "The file is not available yet")
        if isinstance(found, protocol.TftpRejection) or request.mode == "octet":
            return found
        try:
            if found.size > LARGEST_TEXT_BYTES:
                return protocol.TftpRejection(protocol.ErrorCode.ILLEGAL, "Too large for netascii; use octet")
            return protocol.MemoryContent(protocol.netascii(found.read(0, found.size)))
        finally:
            found.close()

    async def _send(self, transfer: protocol.TftpTransfer, sock: socket.socket) -> None:
        """Run a transfer until it has an outcome."""
        ended: asyncio.Future[protocol.TransferOutcome] = self._loop.create_future()
        timer: asyncio.TimerHandle | None = None

        def out(packets: list[bytes]) -> None:
            nonlocal timer
            for packet in packets:
                with contextlib.suppress(
                    OSError
                ):  # treated as a packet that was lost on the way; the next read reports an error of the socket
                    sock.send(packet)
            if transfer.outcome is not None:
                if not ended.done():
                    ended.set_result(transfer.outcome)
                return
            if timer is not None and timer.when() > transfer.deadline:
                timer.cancel()
                timer = None
            if timer is None:
                timer = self._loop.call_at(transfer.deadline, step, rung)

        def rung() -> None:
            nonlocal timer
            timer = None  # the deadline may have moved since: then `expired` sends nothing, and `out` sets a new timer
            out(transfer.timer_expired(self._loop.time()))

        def heard() -> None:
            packet = _read_packet(sock)
            if packet is not None:
                out(transfer.packet_received(packet, self._loop.time()))

        def step(what: Callable[[], None]) -> None:
            try:
                what()
            # a bug of ours or an error of the content: raise it in the transfer's task, not in the loop
            except Exception as error:
                if not ended.done():
                    ended.set_exception(error)

        self._loop.add_reader(sock, step, heard)
        try:
            out(transfer.start(self._loop.time()))
            outcome = await ended
        finally:
            self._loop.remove_reader(sock)
            if timer is not None:
                timer.cancel()
        self._tally.counts[outcome.value] += 1


def _read_packet(sock: socket.socket) -> protocol.TftpRequest | protocol.Ack | protocol.ErrorPacket | None:
    """Read a packet from a transfer's socket; a closed port of the client counts as its Error packet."""
    try:
        # one packet is enough: a client waits for the answer before it sends the next one
        return protocol.decode(sock.recv(LARGEST_BYTES))
    except (BlockingIOError, protocol.MalformedTftpPacket):
        return None
    except OSError as error:
        return protocol.ErrorPacket(protocol.ErrorCode.UNDEFINED, str(error))


class _Requests(asyncio.DatagramProtocol):
    def __init__(self, server: TftpServer) -> None:
        self._server = server

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        self._server.request_received(data, addr)


def _bound_socket(settings: TftpServerSettings, port: int) -> socket.socket:
    sock = udp_socket(settings.bind_address, port, settings.interface)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    return sock
