"""Serial consoles of a BMC's systems: what Redfish lists of them, a web socket, and an SSH server.

A console echoes what is typed, as a host with a log-in prompt does, or misbehaves as the faults set.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import asyncssh
from aiohttp import WSMsgType, web
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from unbounded_lab.bmc.device import BmcSystem, SimulatedBmc
from unbounded_lab.bmc.redfish import BmcRequest, RedfishProblem
from unbounded_lab.clock import LabClock
from unbounded_lab.keys import derived_key
from unbounded_lab.listener import send

if TYPE_CHECKING:
    from unbounded_lab.bmc.redfish import Body

ENTER: Final = "console"
FLOOD: Final = b"0123456789abcdef" * 256 + b"\r\n"
HEARTBEAT_S: Final = 30.0

Send = Callable[[bytes], Awaitable[None]]
Receive = Callable[[], Awaitable[bytes]]


def console_service(bmc: SimulatedBmc, system: BmcSystem) -> Body:
    """Return what the system lists of its console."""
    faults = bmc.faults
    if faults.console == "absent":
        return {}
    ssh: Body = {"ServiceEnabled": faults.console in ("ssh", "both"), "Port": bmc.ssh_port or 22}
    if len(faults.systems) > 1:
        ssh |= {"ConsoleEntryCommand": f"{ENTER} {system.index}"}
    shown: Body = {"MaxConcurrentSessions": 1, "IPMI": {"ServiceEnabled": True, "Port": 623}, "SSH": ssh}
    if faults.console in ("websocket", "both"):
        shown["WebSocket"] = {"ServiceEnabled": True, "ConsoleURI": f"/console{system.index}", "Interactive": True}
    return {"SerialConsole": shown}


def console_at(bmc: SimulatedBmc, path: str) -> BmcSystem | None:
    """Return the system whose console a web socket is at a path."""
    if bmc.faults.console not in ("websocket", "both"):
        return None
    return next((system for system in bmc.systems if path == f"/console{system.index}"), None)


class BmcConsoles:
    """The consoles of one BMC, and their servers. `received` has what was typed, by the name of the system."""

    def __init__(self, bmc: SimulatedBmc, clock: LabClock, address: str) -> None:
        self._address = address
        self._bmc = bmc
        self._clock = clock
        self._ssh: asyncssh.SSHAcceptor | None = None
        self._connections: set[asyncssh.SSHServerConnection] = set()
        self._generation = 0
        self.received: dict[str, bytes] = {}
        self.open: Counter[str] = Counter()
        self.sent = 0  # bytes of floods
        self.hanging = asyncio.Event()  # a request waits for ever
        self.opened: list[str] = []  # the way of each session: ssh or websocket
        self._viewers: dict[str, set[Send]] = {}  # of open sessions, by the name of the system

    async def follow_faults(self, *, is_open: bool) -> None:
        """Serve SSH while the faults require it."""
        wanted = is_open and self._bmc.faults.console in ("ssh", "both")
        if self._ssh is not None and (not wanted or self._generation != self._bmc.faults.console_host_key):
            await self.close()
        if wanted and self._ssh is None:
            self._generation = self._bmc.faults.console_host_key
            self._ssh = await asyncssh.create_server(
                lambda: _SshServer(self._bmc, self._clock, self._connections),
                self._address,
                0,
                server_host_keys=[self._host_key()],
                process_factory=self._serve_ssh,
                encoding=None,
                line_editor=False,
                allow_scp=False,
            )
            self._bmc.ssh_port = self._ssh.get_port()

    async def show(self, data: bytes, name: str = "1") -> None:
        """Let the host of a system print something after its prompt, once a session is open; all of them get it."""
        while not self._viewers.get(name):  # noqa: ASYNC110  # for tests
            await asyncio.sleep(0.01)
        for send_output in tuple(self._viewers.get(name, ())):
            await send_output(data)

    async def close(self) -> None:
        """Stop the SSH server, and abort its connections."""
        if self._ssh is not None:
            acceptor, self._ssh, self._bmc.ssh_port = self._ssh, None, 0
            acceptor.close()
            for connection in tuple(self._connections):
                connection.abort()

    def _host_key(self) -> asyncssh.SSHKey:
        identity = self._bmc.identity
        key = derived_key(f"{identity.seed}/{identity.name}/ssh {self._generation}")
        return asyncssh.import_private_key(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        )

    async def serve(self, http: web.BaseRequest, system: BmcSystem) -> web.StreamResponse:
        """Serve a web socket, for an authenticated request."""
        headers = {name.lower(): value for name, value in http.headers.items()}
        try:
            self._admit(BmcRequest(http.method, http.path, headers, b""), system)
        except RedfishProblem as problem:
            return await send(http, problem.reply())
        if self._bmc.faults.console_output == "hangs":
            self.hanging.set()
            await asyncio.Event().wait()
        socket = web.WebSocketResponse(heartbeat=HEARTBEAT_S, compress=False)
        await socket.prepare(http)

        async def receive() -> bytes:
            message = await socket.receive()
            if message.type not in (WSMsgType.BINARY, WSMsgType.TEXT):
                return b""
            return message.data if isinstance(message.data, bytes) else message.data.encode()

        await self._serve("websocket", system, receive, socket.send_bytes)
        await socket.close()
        return socket

    def _admit(self, request: BmcRequest, system: BmcSystem) -> None:
        """Raise RedfishProblem for a request whose account may not open the console now."""
        faults = self._bmc.faults
        self._bmc.access.admit(request, self._clock.now(), faults)
        if faults.console_denied:
            raise RedfishProblem("InsufficientPrivilege")
        if self.open[system.name] >= faults.console_sessions:
            raise RedfishProblem("SessionLimitExceeded")

    async def _serve_ssh(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        system = self._entered(process.command)
        if system is None or self.open[system.name] >= self._bmc.faults.console_sessions:
            process.stdout.write(b"no such console\r\n" if system is None else b"the console is in use\r\n")
            process.exit(1)
            return

        async def sent(data: bytes) -> None:
            process.stdout.write(data)
            await process.stdout.drain()

        await self._serve("ssh", system, lambda: process.stdin.read(4096), sent)
        process.exit(0)

    def _entered(self, command: str | None) -> BmcSystem | None:
        """Return the system that the command of a session enters."""
        systems = self._bmc.systems
        if len(systems) == 1 and command is None:
            return systems[0]
        return next((system for system in systems if command == f"{ENTER} {system.index}"), None)

    async def _serve(self, way: str, system: BmcSystem, receive: Receive, sent: Send) -> None:
        """Serve one session until either side ends it."""
        self.open[system.name] += 1
        self.opened.append(way)
        works: list[Any] = [self._type(system, receive, sent)]
        if self._bmc.faults.console_output == "flood":
            works.append(self._flood(sent))
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.open[system.name] -= 1
            self._viewers.get(system.name, set()).discard(sent)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _type(self, system: BmcSystem, receive: Receive, sent: Send) -> None:
        faults, got = self._bmc.faults, 0
        prompt = f"\r\n{self._bmc.identity.name} login: ".encode()
        if faults.console_output == "echo":
            await sent(prompt)
        self._viewers.setdefault(system.name, set()).add(sent)
        while data := await receive():
            self.received[system.name] = self.received.get(system.name, b"") + data
            got += len(data)
            if faults.console_drops_after is not None and got >= faults.console_drops_after:
                return
            if faults.console_output == "echo":
                await sent(data.replace(b"\r", prompt))

    async def _flood(self, sent: Send) -> None:
        while True:
            await sent(FLOOD)
            self.sent += len(FLOOD)
            await asyncio.sleep(0)


class _SshServer(asyncssh.SSHServer):
    """Log-ins with the BMC's account."""

    def __init__(self, bmc: SimulatedBmc, clock: LabClock, connections: set[asyncssh.SSHServerConnection]) -> None:
        self._bmc = bmc
        self._clock = clock
        self._connections = connections
        self._own: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._own = conn
        self._connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self._own is not None:
            self._connections.discard(self._own)

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        try:
            self._bmc.access.check_password(username, password, self._clock.now(), self._bmc.faults)
        except RedfishProblem:
            return False
        return not self._bmc.faults.console_denied
