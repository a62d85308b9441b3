"""Serial consoles over a web socket and over SSH, with OpenSSH's client: those that work, and their misbehaviours."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import pytest

from tests.lab.misbehaviours.checks import Checks
from tests.lab.wire import Wire, wire

CHECKS = Checks()
LIMIT_S = 20.0
PROMPT = b"lab-01 login: "


@asynccontextmanager
async def websocket(talk: Wire) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """Open the console at the address that the system lists."""
    uri = (await talk.get()).json["SerialConsole"]["WebSocket"]["ConsoleURI"]
    async with asyncio.timeout(LIMIT_S), talk.upgrade(uri) as socket:
        yield socket


async def read(socket: aiohttp.ClientWebSocketResponse, end: bytes) -> None:
    got = b""
    while end not in got:
        got += await socket.receive_bytes()


async def ssh(talk: Wire, *typed: bytes) -> tuple[int, bytes, bytes]:
    """Run OpenSSH's client at the port that the system lists, and type one text at each prompt."""
    port = (await talk.get()).json["SerialConsole"]["SSH"]["Port"]
    with TemporaryDirectory() as folder:
        process = await asyncio.create_subprocess_exec(
            *("ssh", "-F", "none", "-tt", "-p", str(port), "-o", "StrictHostKeyChecking=no"),
            *("-o", "UserKnownHostsFile=/dev/null", "-o", "PubkeyAuthentication=no", "-o", "NumberOfPasswordPrompts=1"),
            f"{talk.bmc.username}@127.0.0.1",
            env={**os.environ, "SSH_ASKPASS_REQUIRE": "force", "SSH_ASKPASS": askpass(Path(folder), talk.bmc.password)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        got = b""
        async with asyncio.timeout(LIMIT_S):
            for count, text in enumerate(typed, 1):
                while got.count(PROMPT) < count and (data := await process.stdout.read(1000)):
                    got += data
                process.stdin.write(text)
            output, errors = await process.communicate()
        return process.returncode or 0, got + output, errors


def askpass(folder: Path, password: str) -> str:
    script = folder / "askpass"
    script.write_text(f"#!/bin/sh\necho '{password}'\n")
    script.chmod(0o700)
    return str(script)


@CHECKS.shows
async def serial_console(talk: Wire) -> None:
    async with websocket(talk) as socket:
        await read(socket, PROMPT)
        await socket.send_bytes(b"one\r")
        await read(socket, b"one\r\n" + PROMPT)
    await until_closed(talk)
    status, output, errors = await ssh(talk, b"two\r", b"~.")
    assert b"two\r\n" + PROMPT in output, errors
    assert status == 255  # of ssh, left with its ~.
    assert talk.bmc.consoles.received == {"1": b"one\rtwo\r"}


async def until_closed(talk: Wire) -> None:
    async with asyncio.timeout(LIMIT_S):
        while talk.bmc.consoles.open.total():  # noqa: ASYNC110  # a counter tells nobody
            await asyncio.sleep(0.01)


@CHECKS.shows
async def serial_console_disabled(talk: Wire) -> None:
    shown = (await talk.get()).json["SerialConsole"]
    assert shown["SSH"]["ServiceEnabled"] is False
    assert "WebSocket" not in shown
    assert (await talk.get("/console0")).status == 404


@CHECKS.shows
async def serial_console_drops(talk: Wire) -> None:
    async with websocket(talk) as socket:
        await read(socket, PROMPT)
        await socket.send_bytes(b"x")
        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
    await until_closed(talk)
    status, _, _ = await ssh(talk, b"x")
    assert status == 0


@CHECKS.shows
async def serial_console_floods(talk: Wire) -> None:
    async with websocket(talk) as socket:
        got = 0
        while got < 10_000_000:
            got += len(await socket.receive_bytes())


@CHECKS.shows
async def serial_console_silent(talk: Wire) -> None:
    async with websocket(talk) as socket:
        await socket.send_bytes(b"x\r")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(socket.receive(), 0.3)


@CHECKS.shows
async def serial_console_taken(talk: Wire) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
        async with websocket(talk):
            pass
    status, output, _ = await ssh(talk)
    assert (status, b"the console is in use" in output) == (1, True)


@CHECKS.shows
async def serial_console_denied(talk: Wire) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
        async with websocket(talk):
            pass
    status, _, errors = await ssh(talk)
    assert (status, b"Permission denied" in errors) == (255, True)


@pytest.mark.skipif(shutil.which("ssh") is None, reason="ssh is not installed")
@pytest.mark.parametrize("name", CHECKS)
async def test_a_misbehaviour_does_what_its_description_says(name: str) -> None:
    await CHECKS.show(name)


async def test_a_web_socket_needs_a_log_in() -> None:
    async with wire("serial-console") as talk:
        with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
            async with talk.upgrade("/console0", authorization=""):
                pass
