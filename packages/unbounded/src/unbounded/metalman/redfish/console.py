"""Serial consoles that a BMC offers: a web socket of its Redfish service, or SSH (DSP0268, ComputerSystem 1.13, 1.26).

The web socket goes through the BMC's session and pinned certificate. SSH logs in with the same account, after the host
key was compared with the pinned one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Final

import aiohttp
import asyncssh

from unbounded.api.failures import Failure, Rejected
from unbounded.kube.logs import Log
from unbounded.metalman.redfish.bmc_interface import (
    BmcAccount,
    BmcLimits,
    BmcUnreachable,
    ConsoleOffers,
    SerialConsole,
    SshOffer,
    TrustHostKey,
    Unsupported,
    WebSocketOffer,
    clean,
)
from unbounded.metalman.redfish.client import RedfishClient
from unbounded.metalman.redfish.documents import console_offers
from unbounded.metalman.redfish.endpoint import endpoint_of

READ_BYTES: Final = 16 * 1024
WINDOW_BYTES: Final = 64 * 1024  # of SSH: a BMC that floods waits for its reader
TERMINAL: Final = "vt100"
TERMINAL_SIZE: Final = (80, 24)
KEEPALIVE_S: Final = 30.0

log = Log(__name__)

asyncssh.set_log_level(logging.WARNING)  # at lower levels asyncssh logs user names and whole commands


class ConsoleClient:
    """Opens the console of one system."""

    def __init__(self, client: RedfishClient, access: BmcAccount, limits: BmcLimits) -> None:
        self._client = client
        self._access = access
        self._limits = limits

    @asynccontextmanager
    async def open(
        self, pin: str | None, trust: TrustHostKey, offers: ConsoleOffers | None
    ) -> AsyncIterator[SerialConsole]:
        """See `PooledBmc.console`. A web socket that cannot be opened leaves SSH, where the BMC offers both."""
        if offers is None or not self._client.channel.password_in_use:  # no log-in yet
            offers = console_offers(await self._client.system_document(self._access.device_id))
        if not offers.usable:
            listed = ", ".join(offers.others) or "none"
            raise Unsupported(
                f"{self._client.channel.where}: the BMC offers no serial console over a web socket or SSH for system "
                f"{clean(self._access.device_id)}; its SerialConsole lists: {listed}"
            )
        async with AsyncExitStack() as opened:
            yield await self._first(opened, offers.usable, pin, trust)

    async def _first(
        self,
        opened: AsyncExitStack,
        offers: Sequence[WebSocketOffer | SshOffer],
        pin: str | None,
        trust: TrustHostKey,
    ) -> SerialConsole:
        *preferred, last = offers
        for offer in preferred:
            try:
                return await opened.enter_async_context(self._way(offer, pin, trust))
            except Failure as error:
                log.info("cannot open serial console; trying the next way", error=error)
        return await opened.enter_async_context(self._way(last, pin, trust))

    def _way(
        self, offer: WebSocketOffer | SshOffer, pin: str | None, trust: TrustHostKey
    ) -> AbstractAsyncContextManager[SerialConsole]:
        if isinstance(offer, WebSocketOffer):
            return self._over_websocket(offer)
        return self._over_ssh(offer, pin, trust)

    @asynccontextmanager
    async def _over_websocket(self, offer: WebSocketOffer) -> AsyncIterator[SerialConsole]:
        async with self._client.channel.websocket(offer.uri) as socket:
            yield _WebSocketConsole(socket, self._client.channel.where, offer)

    @asynccontextmanager
    async def _over_ssh(self, offer: SshOffer, pin: str | None, trust: TrustHostKey) -> AsyncIterator[SerialConsole]:
        login = _SshLogin(self._client.channel.password_in_use, pin, trust)
        host = endpoint_of(self._access.url).host
        where = f"SSH on port {offer.port} of {host}"
        connection: asyncssh.SSHClientConnection | None = None
        try:
            try:
                async with asyncio.timeout(self._limits.call_s):
                    connection = await asyncssh.connect(
                        host, offer.port, options=_ssh_options(self._access.username, login, self._limits)
                    )
                    await login.pin()  # a server that requires no password
                    process = await connection.create_process(
                        offer.command,
                        term_type=TERMINAL,
                        term_size=TERMINAL_SIZE,
                        encoding=None,
                        window=WINDOW_BYTES,
                        stderr=asyncssh.STDOUT,
                    )
            except Exception as error:
                raise login.failure(error, where, self._access.username) from error
            yield _SshConsole(process, offer.port)
        finally:
            if connection is not None:
                connection.abort()


class _WebSocketConsole:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse, where: str, offer: WebSocketOffer) -> None:
        self.over = "a web socket"
        self.interactive = offer.interactive
        self._socket = socket
        self._where = where

    async def read(self) -> bytes:
        while True:
            message = await self._socket.receive()
            if message.type not in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
                return b""
            data = message.data if isinstance(message.data, bytes) else str(message.data).encode()
            if data:
                return data

    async def write(self, data: bytes) -> None:
        try:
            await self._socket.send_bytes(data)
        except (aiohttp.ClientError, ConnectionError) as error:
            raise BmcUnreachable(f"{self._where}: the web socket of the serial console broke") from error


class _SshConsole:
    interactive = True

    def __init__(self, process: asyncssh.SSHClientProcess[bytes], port: int) -> None:
        self.over = f"SSH (port {port})"
        self._process = process

    async def read(self) -> bytes:
        try:
            return await self._process.stdout.read(READ_BYTES)
        except (asyncssh.Error, OSError):
            return b""

    async def write(self, data: bytes) -> None:
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except (asyncssh.Error, OSError) as error:
            raise BmcUnreachable(f"{self.over}: the connection of the serial console broke") from error


class _SshLogin(asyncssh.SSHClient):
    """Callbacks of one log-in: compares the host key in the key exchange, pins a first one, offers the password."""

    def __init__(self, password: str, pin: str | None, trust: TrustHostKey) -> None:
        self._password: str | None = password
        self._pin = pin
        self._trust = trust
        self._shown = ""
        self._not_pinned: Exception | None = None

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:  # noqa: ARG002
        self._shown = key.get_fingerprint()
        return self._pin is None or self._shown == self._pin

    async def pin(self) -> None:
        """Store a first host key; by now the server has proven that it owns the key."""
        if self._pin is None:
            try:
                await self._trust(self._shown)
            except Exception as error:
                self._not_pinned = error
                raise
            self._pin = self._shown

    async def password_auth_requested(self) -> str | None:
        return await self._next_password()

    async def kbdint_auth_requested(self) -> str | None:
        return "" if self._password is not None else None

    async def kbdint_challenge_received(
        self,
        name: str,  # noqa: ARG002
        instructions: str,  # noqa: ARG002
        lang: str,  # noqa: ARG002
        prompts: Sequence[tuple[str, bool]],
    ) -> list[str] | None:
        if not prompts:
            return []
        password = await self._next_password() if len(prompts) == 1 else None
        return None if password is None else [password]

    async def _next_password(self) -> str | None:
        """Return the password once, after the host key was pinned; each rejection counts for the BMC's lock-out."""
        if self._password is None:
            return None
        try:
            await self.pin()
        except Exception:  # `failure` raises it
            return None
        password, self._password = self._password, None
        return password

    def failure(self, error: Exception, where: str, user: str) -> Exception:
        """Classify the error of a log-in."""
        if self._not_pinned is not None:
            return self._not_pinned
        match error:
            case Failure():
                return error
            case asyncssh.HostKeyNotVerifiable() if self._shown:
                return Rejected(
                    f"{where} presents the host key {self._shown}, pinned is {self._pin}; no password was sent. If the "
                    "BMC has another key now, remove status.redfish.sshHostKey of the Machine"
                )
            case asyncssh.PermissionDenied():
                return Rejected(
                    f"{where} rejects {user!r}, whose password opens the Redfish service: the account may have no "
                    "right to the console"
                )
            case TimeoutError():
                return BmcUnreachable(f"{where}: no answer in time")
            case asyncssh.Error() | OSError():
                return BmcUnreachable(f"{where}: {clean(str(error)) or type(error).__name__}")
            case _:
                return error


def _ssh_options(user: str, login: _SshLogin, limits: BmcLimits) -> asyncssh.SSHClientConnectionOptions:
    """Build options that take nothing from ~/.ssh, an SSH agent or the environment."""
    return asyncssh.SSHClientConnectionOptions(
        config=[],
        username=user,
        client_factory=lambda: login,
        known_hosts=([], [], []),  # None would trust each server
        x509_trusted_certs=None,
        x509_trusted_cert_paths=[],
        compression_algs=["none"],
        client_keys=None,
        client_host_keys=None,
        agent_path=None,
        agent_forwarding=False,
        gss_host=None,
        gss_kex=False,
        gss_auth=False,
        host_based_auth=False,
        public_key_auth=False,
        preferred_auth=("password", "keyboard-interactive"),
        connect_timeout=limits.connect_s,
        login_timeout=limits.call_s,
        keepalive_interval=KEEPALIVE_S,
    )
