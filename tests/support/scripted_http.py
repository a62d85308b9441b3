"""A server that answers by a script, byte by byte: for behaviour that no healthy server has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

READ_S = 10.0


@dataclass
class Exchange:
    """One received request, and the means to answer it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    async def answer(self, code: int, body: Any, **headers: str) -> None:
        """A whole answer; `body` is JSON unless it is bytes."""
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        extra = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n{extra}\r\n"
        self.writer.write(head.encode() + content)
        await self.writer.drain()

    async def begin_stream(self) -> None:
        self.writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        await self.writer.drain()

    async def chunk(self, content: bytes) -> None:
        self.writer.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
        await self.writer.drain()

    async def event(self, type_: str, item: Any) -> None:
        await self.chunk(msgspec.json.encode({"type": type_, "object": item}) + b"\n")

    async def end_stream(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def left(self) -> None:
        """Until the client closes its side."""
        assert await self.reader.read() == b""

    def drop(self) -> None:
        self.writer.transport.abort()


Handler = Callable[[Exchange], Awaitable[None]]


@dataclass
class ScriptedServer:
    """The received requests, and the address for more."""

    url: str
    exchanges: list[Exchange] = field(default_factory=list)
    connections: int = 0


@asynccontextmanager
async def scripted_server(handler: Handler) -> AsyncIterator[ScriptedServer]:
    """Serve on loopback; `handler` is called for each request, and a connection ends when it closes the writer."""
    server = ScriptedServer("")
    tasks: set[asyncio.Task[None]] = set()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while not writer.is_closing():
                exchange = await _read(reader, writer)
                server.exchanges.append(exchange)
                await handler(exchange)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    listener = await asyncio.start_server(connection, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Exchange:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Exchange(method, target, headers, body, reader, writer)
