"""The TFTP server over loopback, with sockets and with curl."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.waiting import eventually
from unbounded.metalman.tftp.protocol import ErrorCode, MemoryContent, TftpContent, TftpRejection
from unbounded.metalman.tftp.server import TftpServer, TftpServerSettings

LOADER = bytes(range(256)) * 3000  # 750 KiB: 1500 blocks, less than the wrap
KERNEL = LOADER * 44  # 32 MiB: beyond block 65535 of 512 bytes


@dataclass
class FixedFiles:
    """Files by name."""

    content: dict[str, bytes] = field(default_factory=lambda: {"loader.efi": LOADER, "kernel": KERNEL, "empty": b""})
    asked: list[tuple[str, str]] = field(default_factory=list)
    held: asyncio.Event | None = None

    async def find(self, client: str, name: str) -> TftpContent | TftpRejection:
        self.asked.append((client, name))
        if self.held is not None:
            await self.held.wait()
        if name == "broken":
            raise ZeroDivisionError
        return MemoryContent(self.content[name]) if name in self.content else TftpRejection()


@asynccontextmanager
async def serving(files: FixedFiles, most: int = 512, most_of_one: int = 16) -> AsyncIterator[TftpServer]:
    settings = TftpServerSettings("127.0.0.1", 0, most_transfers=most, most_transfers_of_one=most_of_one)
    async with TftpServer(settings, files).serving() as server:
        yield server


class Asker:
    """A client by hand."""

    def __init__(self, server: TftpServer) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.setblocking(False)
        self.sock.bind(("127.0.0.1", 0))
        self.server = ("127.0.0.1", server.port)

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def say(self, data: bytes, to: tuple[str, int] | None = None) -> None:
        self.sock.sendto(data, to or self.server)

    async def hear(self) -> tuple[bytes, tuple[str, int]]:
        async with asyncio.timeout(10):
            return await asyncio.get_running_loop().sock_recvfrom(self.sock, 70000)


CLIENTS = {
    "curl": "curl -sS -m 60 tftp://127.0.0.1:{port}/{name} -o {target}",
    "curl without options": "curl -sS -m 60 --tftp-no-options tftp://127.0.0.1:{port}//{name} -o {target}",
    "curl, blocks of 1468": "curl -sS -m 60 --tftp-blksize 1468 tftp://127.0.0.1:{port}/{name} -o {target}",
    "tftp": "tftp -m binary 127.0.0.1 {port} -c get {name} {target}",
    "atftp": "atftp --get -r {name} -l {target} 127.0.0.1 {port}",
    "atftp with a window": (
        "atftp --option 'windowsize 16' --option 'blksize 1428' --get -r {name} -l {target} 127.0.0.1 {port}"
    ),
    "busybox": "busybox tftp -g -b 1428 -r {name} -l {target} 127.0.0.1 {port}",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("client", "name"),
    [
        *((client, "loader.efi") for client in CLIENTS),
        *((client, "kernel") for client in ("curl", "tftp", "atftp with a window")),
        *((client, "empty") for client in ("curl without options", "tftp", "busybox")),  # curl refuses a tsize of 0
    ],
)
async def test_real_clients_get_files_of_any_size(tmp_path: Path, client: str, name: str) -> None:
    if shutil.which(client.split(maxsplit=1)[0].strip(",")) is None:
        pytest.skip(f"{client} is not installed; scripts/net-tools gets it")
    files, got = FixedFiles(), tmp_path / "got"
    async with serving(files) as server:
        command = CLIENTS[client].format(port=server.port, name=name, target=got)
        process = await asyncio.create_subprocess_exec(*shlex.split(command))
        async with asyncio.timeout(60):
            assert await process.wait() == 0
        assert (got.read_bytes() if got.exists() else b"") == files.content[name]
        await eventually(lambda: server.counts == {"done": 1})


async def test_a_file_that_is_not_there_is_an_error() -> None:
    files = FixedFiles()
    async with serving(files) as server:
        with Asker(server) as asker:
            asker.say(b"\0\1//no/such\0octet\0")
            data, _ = await asker.hear()
            assert data == b"\0\5\0\1File not found\0"
        assert files.asked == [("127.0.0.1", "no/such")]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"\0\2loader.efi\0octet\0", ErrorCode.ACCESS),
        (b"\0\1../loader.efi\0octet\0", ErrorCode.ACCESS),
        (b"\0\1loader.efi\0mail\0", ErrorCode.ILLEGAL),
        (b"\0\1kernel\0netascii\0", ErrorCode.ILLEGAL),
    ],
)
async def test_what_is_not_served_is_an_error_with_its_code(request_: bytes, code: ErrorCode) -> None:
    async with serving(FixedFiles()) as server:
        with Asker(server) as asker:
            asker.say(request_)
            data, _ = await asker.hear()
            assert data[:4] == b"\0\5\0" + bytes((code,))
            await eventually(lambda: server.counts == {"refused": 1})


async def test_text_is_converted_for_netascii() -> None:
    async with serving(FixedFiles({"grub.cfg": b"a\nb\n"})) as server:
        with Asker(server) as asker:
            asker.say(b"\0\1grub.cfg\0netascii\0")
            data, line = await asker.hear()
            assert data == b"\0\3\0\1a\r\nb\r\n"
            asker.say(b"\0\4\0\1", line)
            await eventually(lambda: server.counts == {"done": 1})


@pytest.mark.slow
async def test_repeated_tftp_request_starts_no_second_transfer() -> None:
    files = FixedFiles()
    async with serving(files) as server:
        with Asker(server) as asker:
            asker.say(b"\0\1loader.efi\0octet\0timeout\x001\0")
            asker.say(b"\0\1loader.efi\0octet\0timeout\x001\0")
            (first, line), (again, same) = await asker.hear(), await asker.hear()
            assert first == again == b"\0\6timeout\x001\0"
            assert line == same
            assert server.counts == {"repeated": 1}
        assert len(files.asked) == 1


async def test_another_host_cannot_take_part_in_a_transfer() -> None:
    async with serving(FixedFiles()) as server:
        with Asker(server) as asker, Asker(server) as other:
            asker.say(b"\0\1loader.efi\0octet\0")
            _, line = await asker.hear()
            other.say(b"\0\5\0\0stop", line)
            asker.say(b"\0\4\0\1", line)
            assert (await asker.hear())[0][:4] == b"\0\3\0\2"


async def test_tftp_transfers_have_a_concurrency_limit() -> None:
    files = FixedFiles(held=asyncio.Event())
    async with serving(files, most=2) as server:
        with Asker(server) as one, Asker(server) as two, Asker(server) as three:
            for asker in (one, two, three):
                asker.say(b"\0\1empty\0octet\0")
            await eventually(lambda: server.counts == {"too many transfers": 1})
            assert files.held is not None
            files.held.set()
            for asker in (one, two):
                data, line = await asker.hear()
                assert data == b"\0\3\0\1"
                asker.say(b"\0\4\0\1", line)
            await eventually(lambda: server.counts.get("done") == 2)
            three.say(b"\0\1empty\0octet\0")
            assert (await three.hear())[0] == b"\0\3\0\1"


async def test_one_client_does_not_take_all_places() -> None:
    async with serving(FixedFiles(held=asyncio.Event()), most_of_one=1) as server:
        with Asker(server) as one, Asker(server) as two:
            one.say(b"\0\1empty\0octet\0")
            two.say(b"\0\1empty\0octet\0")
            await eventually(lambda: server.counts == {"too many transfers": 1})


async def test_malformed_packets_and_internal_errors_are_counted_and_service_continues() -> None:
    async with serving(FixedFiles()) as server:
        with Asker(server) as asker:
            for data in (b"", b"\0\1", b"\0\4\0\1", b"\xff" * 1000, b"\0\1broken\0octet\0"):
                asker.say(data)
            await eventually(lambda: server.counts == {"malformed": 3, "not a request": 1, "failed": 1})
            asker.say(b"\0\1empty\0octet\0")
            assert (await asker.hear())[0] == b"\0\3\0\1"
