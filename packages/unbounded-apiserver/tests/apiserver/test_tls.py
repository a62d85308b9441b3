"""The server's TLS transport, with OpenSSL on the other side."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, Protocol

import pytest

from tests.support.waiting import eventually
from unbounded.kube.tls import client_context
from unbounded_apiserver.http import tls
from unbounded_apiserver.http.tls import TlsTransport, accept
from unbounded_apiserver.pki import CertificateAuthority, server_context

WAIT_S: Final = 20.0
MUCH: Final = bytes(range(256)) * 2**13  # 2 MiB
VERSIONS: Final = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


class Peer(asyncio.Protocol):
    """Stores received bytes, and records calls."""

    def __init__(self) -> None:
        self.line: TlsTransport | None = None
        self.heard = bytearray()
        self.told: list[str] = []
        self.fails = False
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    @property
    def transport(self) -> TlsTransport:
        assert self.line is not None
        return self.line

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TlsTransport)
        self.line = transport

    def data_received(self, data: bytes) -> None:
        if self.fails:
            raise ValueError("not that")
        self.heard += data

    def eof_received(self) -> None:
        self.told.append("eof")

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")
        self.ended.set_result(exc)

    async def has_heard(self, data: bytes) -> bool:
        async def so() -> bool:
            return bytes(self.heard) == data

        return bool(await eventually(so, within_s=WAIT_S))


class Meet(Protocol):
    async def __call__(
        self, version: ssl.TLSVersion = ..., *, window: int = ...
    ) -> tuple[Peer, asyncio.StreamReader, asyncio.StreamWriter]: ...


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path)


@pytest.fixture
async def meet(authority: CertificateAuthority) -> AsyncIterator[Meet]:
    """Connections between a Peer and a client of asyncio."""
    context = server_context(authority, ["localhost"])
    writers: list[asyncio.StreamWriter] = []
    peers: list[Peer] = []

    async def make(
        version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, *, window: int = 0
    ) -> tuple[Peer, asyncio.StreamReader, asyncio.StreamWriter]:
        ours, theirs = _pair(window)
        trusting = client_context(ca=authority.certificate)
        trusting.maximum_version = version
        peers.append(Peer())
        serving = asyncio.create_task(accept(lambda: peers[-1], ours, context, within_s=WAIT_S))
        reader, writer = await asyncio.open_connection(sock=theirs, ssl=trusting, server_hostname="localhost")
        writers.append(writer)
        await serving
        return peers[-1], reader, writer

    yield make
    for writer in writers:
        writer.transport.abort()
    for peer in peers:
        peer.transport.abort()
    async with asyncio.timeout(WAIT_S):
        for peer in peers:
            await peer.ended


def _pair(window: int = 0) -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection; `window` are small buffers on its way to the client."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.socket()
        if window:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        theirs.connect(listener.getsockname())
        ours, _ = listener.accept()
    if window:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, window)
    for one in (ours, theirs):
        one.setblocking(False)
    return ours, theirs


def _below(writer: asyncio.StreamWriter) -> socket.socket:
    """The socket below the TLS of a client."""
    return socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno()))


@pytest.mark.parametrize("version", VERSIONS, ids=["TLS 1.2", "TLS 1.3"])
async def test_much_goes_both_ways_at_once(meet: Meet, version: ssl.TLSVersion) -> None:
    peer, reader, writer = await meet(version)
    peer.transport.write(MUCH[:1000])
    peer.transport.write(MUCH[1000:])
    writer.write(MUCH)

    came = await asyncio.wait_for(reader.readexactly(len(MUCH)), WAIT_S)

    assert came == MUCH
    assert await peer.has_heard(MUCH)


async def test_a_writer_is_asked_to_wait_while_the_client_does_not_read(meet: Meet) -> None:
    peer, reader, _ = await meet(window=8192)
    for place in range(0, len(MUCH), 100_000):
        peer.transport.write(MUCH[place : place + 100_000])
    waits = list(peer.told), peer.transport.get_write_buffer_size()

    came = await asyncio.wait_for(reader.readexactly(len(MUCH)), WAIT_S)

    assert waits[0] == ["pause"]
    assert waits[1] > tls.HIGH_BYTES
    assert came == MUCH
    assert peer.told == ["pause", "resume"]
    assert peer.transport.get_write_buffer_size() == 0


async def test_the_limits_of_what_is_not_sent_can_be_set(meet: Meet) -> None:
    peer, _, _ = await meet(window=8192)
    peer.transport.set_write_buffer_limits(high=2**30)
    peer.transport.write(MUCH)
    before = list(peer.told)

    peer.transport.set_write_buffer_limits(high=0)

    assert (before, peer.told, peer.transport.get_write_buffer_limits()) == ([], ["pause"], (0, 0))
    with pytest.raises(ValueError, match=r"high \(1\) must be at least low \(2\)"):
        peer.transport.set_write_buffer_limits(high=1, low=2)


async def test_nothing_is_read_while_reading_is_paused(meet: Meet) -> None:
    peer, _, writer = await meet()
    peer.transport.pause_reading()
    writer.write(MUCH)
    await asyncio.sleep(0.1)
    meanwhile = bytes(peer.heard)

    peer.transport.resume_reading()

    assert meanwhile == b""
    assert await peer.has_heard(MUCH)


async def test_data_written_before_close_arrives_with_a_clean_tls_end(meet: Meet) -> None:
    peer, reader, _ = await meet(window=8192)
    peer.transport.write(MUCH)
    peer.transport.close()
    peer.transport.write(b"too late")

    came = await asyncio.wait_for(reader.read(), WAIT_S)  # raises where TLS is cut off

    assert came == MUCH
    assert await asyncio.wait_for(peer.ended, WAIT_S) is None


async def test_tls_close_notify_follows_the_last_data(authority: CertificateAuthority) -> None:
    """The connection stays until the client ends it, too: a reset may discard bytes that the client has not read."""
    ours, theirs = _pair(window=8192)
    theirs.setblocking(True)
    trusting, peer, read = client_context(ca=authority.certificate), Peer(), bytearray()
    may_end = threading.Event()

    def client() -> None:
        with trusting.wrap_socket(theirs, server_hostname="localhost", suppress_ragged_eofs=False) as line:
            line.sendall(b"something that is not read")
            while data := line.recv(65536):  # raises where the connection is cut off
                read.extend(data)
            may_end.wait(WAIT_S)

    reading = asyncio.create_task(asyncio.to_thread(client))
    await accept(lambda: peer, ours, server_context(authority, ["localhost"]), within_s=WAIT_S)
    peer.transport.write(MUCH)
    peer.transport.close()

    async def all_of_it() -> bool:
        return len(read) == len(MUCH)

    await eventually(all_of_it, within_s=WAIT_S)
    await asyncio.sleep(0.05)
    stayed = not peer.ended.done()
    may_end.set()
    await asyncio.wait_for(reading, WAIT_S)
    await asyncio.wait_for(peer.ended, WAIT_S)

    assert stayed
    assert read == MUCH


async def test_a_client_that_still_sends_gets_to_read_the_answer(meet: Meet) -> None:
    """A connection that is closed with something unread in it is reset, and the answer is lost."""
    peer, reader, writer = await meet()
    peer.transport.pause_reading()
    writer.write(MUCH)
    peer.transport.write(b"that is too much")
    peer.transport.close()
    await asyncio.sleep(0.05)

    assert await asyncio.wait_for(reader.read(), WAIT_S) == b"that is too much"


async def test_a_client_that_never_takes_leave_is_left(meet: Meet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "SHUTDOWN_S", 0.05)
    peer, _, writer = await meet()
    transport = writer.transport
    assert isinstance(transport, asyncio.Transport)
    transport.pause_reading()  # so that it does not see it

    peer.transport.close()

    assert await asyncio.wait_for(peer.ended, WAIT_S) is None


async def test_a_client_that_never_reads_the_rest_is_left(meet: Meet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "SEND_S", 0.05)
    peer, _, _ = await meet(window=8192)
    peer.transport.write(MUCH * 4)

    peer.transport.close()

    assert await asyncio.wait_for(peer.ended, WAIT_S) is None


@pytest.mark.parametrize("how", ["leave", "half-close", "reset"])
async def test_the_end_of_a_client_is_the_end_of_the_connection(meet: Meet, how: str) -> None:
    peer, _, writer = await meet()
    writer.write(b"the last words")
    assert await peer.has_heard(b"the last words")
    if how == "leave":
        writer.close()
    else:
        with _below(writer) as line:
            if how == "reset":
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                writer.transport.abort()
                await asyncio.sleep(0)
            else:
                line.shutdown(socket.SHUT_WR)

    await asyncio.wait_for(peer.ended, WAIT_S)

    assert peer.told[-1] == "lost"
    assert how == "reset" or peer.told == ["eof", "lost"]


async def test_writes_to_a_disconnected_client_raise_no_error(meet: Meet) -> None:
    peer, _, writer = await meet()
    writer.transport.abort()
    for _ in range(1000):
        peer.transport.write(MUCH[:1000])
        await asyncio.sleep(0)

    await asyncio.wait_for(peer.ended, WAIT_S)

    assert peer.told[-1] == "lost"


async def test_garbage_ends_the_connection(meet: Meet) -> None:
    peer, _, writer = await meet()
    with _below(writer) as line:
        line.send(b"\x17\x03\x03\x00\x20" + b"x" * 32)

    assert isinstance(await asyncio.wait_for(peer.ended, WAIT_S), ssl.SSLError)


async def test_a_protocol_that_fails_loses_its_connection_alone(meet: Meet) -> None:
    said: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: said.append(context))
    peer, _, writer = await meet()
    other, _, beside = await meet()
    peer.fails = True

    writer.write(b"x")
    error = await asyncio.wait_for(peer.ended, WAIT_S)
    beside.write(b"still there")

    assert str(error) == "not that"
    assert [context["message"] for context in said] == ["a protocol failed"]
    assert await other.has_heard(b"still there")


async def test_it_tells_of_the_connection_while_that_lasts(meet: Meet) -> None:
    peer, _, writer = await meet()
    line = peer.transport

    told = line.get_extra_info("peername"), line.get_extra_info("peercert"), line.get_extra_info("nothing", 7)
    line.abort()

    assert told == (writer.get_extra_info("sockname"), None, 7)
    assert line.get_extra_info("peername", "gone") == "gone"
    assert not line.is_reading()


@pytest.mark.parametrize(
    ("sends", "gets"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"x" * 3000, tls.PLAIN),
        (b"\x16\x03\x01\x00\x05hello", b"\x15\x03\x03\x00\x02\x02"),  # a fatal alert
    ],
    ids=["HTTP", "garbage"],
)
async def test_invalid_tls_handshake_gets_an_answer(authority: CertificateAuthority, sends: bytes, gets: bytes) -> None:
    ours, theirs = _pair()
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(theirs, sends)

    with pytest.raises(ssl.SSLError):
        await accept(Peer, ours, server_context(authority, ["localhost"]), within_s=WAIT_S)
    said = await asyncio.wait_for(loop.sock_recv(theirs, 1000), WAIT_S)

    assert said.startswith(gets)
    assert await asyncio.wait_for(loop.sock_recv(theirs, 1000), WAIT_S) == b""
    theirs.close()


@pytest.mark.parametrize("cut", [0, 3])
async def test_who_does_not_shake_hands_in_time_is_let_go(authority: CertificateAuthority, cut: int) -> None:
    ours, theirs = _pair()
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(theirs, b"\x16\x03\x01"[:cut])

    with pytest.raises(TimeoutError):
        await accept(Peer, ours, server_context(authority, ["localhost"]), within_s=0.05)

    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(loop.sock_recv(theirs, 1000), WAIT_S) == b""
    theirs.close()
