"""`kubectl unbounded machine serial`: a terminal on the serial console of a Machine, through metalman.

metalman listens on loopback. Where it runs in a Pod, `kubectl port-forward` leads there through the API server.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import termios
import tty
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from unbounded.api import serial_console
from unbounded.api.core import CERTIFICATE_REQUESTS, LEASES, SECRETS, Lease
from unbounded.api.machine import Machine
from unbounded.api.names import NAMESPACE
from unbounded.cli.operation_commands import lookup
from unbounded.cli.plugin.command import DONE, FAILED, CliError, CliInvocation, CommandSession
from unbounded.kube.api import Api, ApiError, NotFound
from unbounded.kube.settings import lease_name

READ_BYTES: Final = 4096
MESSAGE_BYTES: Final = 1024 * 1024
CONNECT_S: Final = 20.0
OPEN_S: Final = 90.0  # the log-in to the BMC included
HEARTBEAT_S: Final = 30.0
FORWARDING: Final = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+) ->")
ESCAPE: Final = ord("~")
LINE_ENDS: Final = b"\r\n"
HELP: Final = "\r\n~. leaves the console\r\n~~ sends a ~\r\n~? prints this\r\n"


class EscapeFilter:
    """Escape sequences of a terminal, as ssh has them: they begin with ~ at the start of a line."""

    def __init__(self) -> None:
        self._at_start = True
        self._escaped = False

    def feed(self, data: bytes) -> tuple[bytes, str]:
        """Return the input for the console, and the requested action: `help`, `leave` (the rest is dropped) or none."""
        passed = bytearray()
        action = ""
        for byte in data:
            if self._escaped:
                self._escaped = False
                if byte == ord("."):
                    return bytes(passed), "leave"
                if byte == ord("?"):
                    action = "help"
                    continue
                passed += b"" if byte == ESCAPE else b"~"
            elif byte == ESCAPE and self._at_start:
                self._escaped = True
                continue
            passed.append(byte)
            self._at_start = byte in LINE_ENDS
        return bytes(passed), action


@dataclass(frozen=True)
class PublishedServer:
    """The server of serial consoles of a site, as metalman publishes it."""

    url: str
    certificate: str
    pod: str
    host: str


async def run(session: CommandSession) -> int:
    invocation = session.invocation
    machine = await lookup.machine(session, invocation.args.name)
    if invocation.args.last_failed:
        return await _show_kept(session, machine)
    server = await find_server(session, machine)
    async with _way_to(server, invocation) as url, _connected(url, server, machine) as connection:
        notice = await _open(session, connection, server, machine)
        return await _converse(invocation, connection, machine.name, notice)


async def _show_kept(session: CommandSession, machine: Machine) -> int:
    """Print the console output of the last boot that failed."""
    text, invocation = await kept_console(session.api, machine), session.invocation
    kept = machine.status.console_output
    if kept is not None:
        print(f"console output of {machine.name} until {kept.operation} failed, at {kept.at}", file=invocation.err)
    invocation.out.write(text + "\n")
    return DONE


async def kept_console(api: Api, machine: Machine) -> str:
    """Return the console output of the last boot that failed. Raises CliError, ApiError."""
    kept = machine.status.console_output
    if kept is None:
        raise CliError(
            f"no console output of Machine {machine.name} is kept: no boot failed while metalman recorded its console"
        )
    try:
        secret = await api.get(SECRETS, kept.secret, namespace=NAMESPACE)
    except NotFound:
        raise CliError(f"Secret {NAMESPACE}/{kept.secret} with the console output does not exist any more") from None
    if secret.type != serial_console.CONSOLE_SECRET_TYPE:
        raise CliError(f"Secret {NAMESPACE}/{kept.secret} has no console output: it is of type {secret.type}")
    return (secret.value(serial_console.CONSOLE_KEY) or b"").decode(errors="replace").rstrip("\n")


async def find_server(session: CommandSession, machine: Machine) -> PublishedServer:
    """Return the server for a Machine: that of the metalman of its site, or of one that serves all sites.

    Raises:
        CliError: none is published, or what is published is malformed.
    """
    for name in dict.fromkeys((lease_name(serial_console.LEASE, machine.site or ""), lease_name(serial_console.LEASE))):
        with suppress(NotFound):
            lease = await session.api.get(LEASES, name, namespace=NAMESPACE)
            if (found := published_server(lease)) is not None:
                return found
            raise CliError(
                f"Lease {name} in {NAMESPACE} names no server of serial consoles: its annotation "
                f"{serial_console.ANNOTATION_URL} is not https://ADDRESS:PORT, or that of the certificate is not a "
                "SHA-256",
                next_step="metalman writes it when it starts, unless --serial-console-address is empty",
            )
    raise CliError(
        f"no metalman serves serial consoles for site {machine.site or ''!r}: Lease "
        f"{lease_name(serial_console.LEASE, machine.site or '')} in {NAMESPACE} does not exist",
        next_step="metalman of this release creates it, unless --serial-console-address is empty",
    )


def published_server(lease: Lease) -> PublishedServer | None:
    found = lease.metadata.annotations or {}
    url, certificate = (
        found.get(serial_console.ANNOTATION_URL, ""),
        found.get(serial_console.ANNOTATION_CERTIFICATE, ""),
    )
    try:
        is_complete = url.startswith("https://") and bool(urlsplit(url).port)
    except ValueError:  # a port that is none
        is_complete = False
    if not is_complete or re.fullmatch("[0-9a-f]{64}", certificate) is None:
        return None
    return PublishedServer(
        url, certificate, found.get(serial_console.ANNOTATION_POD, ""), found.get(serial_console.ANNOTATION_HOST, "")
    )


@asynccontextmanager
async def _way_to(server: PublishedServer, invocation: CliInvocation) -> AsyncIterator[str]:
    """Yield the URL at which this machine reaches a server."""
    if not server.pod:
        yield server.url
        return
    port = urlsplit(server.url).port
    process = await asyncio.create_subprocess_exec(
        *_kubectl(invocation),
        *("port-forward", "--namespace", NAMESPACE, "--address", "127.0.0.1", f"pod/{server.pod}", f":{port}"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # the terminal's Ctrl-C is for the console
    )
    try:
        yield f"https://127.0.0.1:{await _forwarded_port(process, server.pod)}"
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _forwarded_port(process: asyncio.subprocess.Process, pod: str) -> int:
    """Return the local port once kubectl listens on it."""
    line, text = b"", f"no answer within {CONNECT_S:g} s"
    with suppress(TimeoutError):
        async with asyncio.timeout(CONNECT_S):
            line = await process.stdout.readline() if process.stdout is not None else b""
            if not line and process.stderr is not None:  # it has ended
                text = (await process.stderr.read()).decode(errors="replace").strip()
    if (found := FORWARDING.match(line)) is None:
        raise CliError(f"kubectl port-forward to Pod {pod} failed: {text}")
    return int(found[1])


def _kubectl(invocation: CliInvocation) -> list[str]:
    """Return the command of kubectl with the cluster and the user of this command."""
    args, found = invocation.args, shutil.which("kubectl")
    if found is None:
        raise CliError("kubectl is not in PATH; it is needed to reach a metalman that runs in a Pod")
    flags = [("--kubeconfig", args.kubeconfig), ("--context", args.context), ("--as", args.as_user)]
    flags += [("--as-uid", args.as_uid), *(("--as-group", group) for group in args.as_groups)]
    return [found, *(f"{flag}={value}" for flag, value in flags if value)]


@asynccontextmanager
async def _connected(
    url: str, server: PublishedServer, machine: Machine
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    pin = aiohttp.Fingerprint(bytes.fromhex(server.certificate))
    async with aiohttp.ClientSession() as http:
        try:
            async with asyncio.timeout(CONNECT_S):
                connection = await http.ws_connect(
                    f"{url}{serial_console.PATH}{quote(machine.name, safe='')}",
                    ssl=pin,
                    heartbeat=HEARTBEAT_S,
                    max_msg_size=MESSAGE_BYTES,
                    compress=0,
                )
        except aiohttp.ServerFingerprintMismatch:
            raise CliError(
                f"the server at {server.url} is not the metalman that has published this address; nothing was sent",
                next_step="try again once metalman has started",
            ) from None
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            raise CliError(
                f"cannot reach metalman at {server.url} on host {server.host}: {_why(error)}",
                next_step=""
                if server.pod
                else f"run this on host {server.host}, or let metalman listen on another "
                "address with --serial-console-address",
            ) from error
        try:
            yield connection
        finally:
            await connection.close()


def _why(error: Exception) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__


async def _open(
    session: CommandSession, connection: aiohttp.ClientWebSocketResponse, server: PublishedServer, machine: Machine
) -> serial_console.SerialNotice:
    """Prove who the user is, and wait until the console is open."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = await _create_request(session, key)
    try:
        async with asyncio.timeout(OPEN_S):
            challenge = msgspec.json.decode(await connection.receive_str(), type=serial_console.SerialChallenge)
            signature = key.sign(
                serial_console.signed_text(challenge, server.certificate, machine.name), ec.ECDSA(hashes.SHA256())
            )
            opening = serial_console.SerialOpening(
                request=name, signature=b64encode(signature).decode(), read_only=session.invocation.args.read_only
            )
            await connection.send_str(msgspec.json.encode(opening).decode())
            notice = msgspec.json.decode(await connection.receive_str(), type=serial_console.SerialNotice)
    except TimeoutError:
        raise CliError(f"metalman did not open the console within {OPEN_S:g} s") from None
    except (TypeError, msgspec.MsgspecError, aiohttp.ClientError) as error:
        raise CliError("the connection to metalman was lost") from error
    finally:
        with suppress(ApiError):  # a right that the user need not have; requests without a decision expire in a day
            await session.api.delete(CERTIFICATE_REQUESTS, name)
    if notice.end:
        raise CliError(notice.end)
    return notice


async def _create_request(session: CommandSession, key: ec.EllipticCurvePrivateKey) -> str:
    """Let the API server record this user for a key; return the name of the request."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, serial_console.LEASE)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    created = await session.api.create(
        CERTIFICATE_REQUESTS,
        {
            "metadata": {"name": f"{serial_console.LEASE}-{secrets.token_hex(8)}"},
            "spec": {
                "request": b64encode(request.public_bytes(serialization.Encoding.PEM)).decode(),
                "signerName": serial_console.SIGNER,
                "usages": ["digital signature"],
            },
        },
    )
    return created.name


async def _converse(
    invocation: CliInvocation,
    connection: aiohttp.ClientWebSocketResponse,
    name: str,
    notice: serial_console.SerialNotice,
) -> int:
    terminal = invocation.stdin.isatty()
    mode = "read-only: it ignores what you type" if notice.read_only else "you can type"
    leave = "~. at the start of a line leaves it, ~? lists more" if terminal else "Ctrl-C leaves it"
    print(f"serial console of {name} over {notice.over}; {mode}; {leave}", file=invocation.err, flush=True)
    with _raw(invocation.stdin.fileno() if terminal else None):
        output = asyncio.create_task(_show(invocation, connection), name="output")
        typed = asyncio.create_task(_type(invocation, connection, is_terminal=terminal), name="input")
        try:
            await asyncio.wait({output, typed}, return_when=asyncio.FIRST_COMPLETED)
            if not output.done() and not typed.result():  # the input has ended without the escape to leave
                await asyncio.wait({output})
            end = output.result() if output.done() else serial_console.SerialNotice(end="left")
        finally:
            for task in (output, typed):
                task.cancel()
            await asyncio.gather(output, typed, return_exceptions=True)
    print(f"\nserial console of {name}: {end.end}", file=invocation.err)
    return FAILED if end.is_failure else DONE


async def _show(invocation: CliInvocation, connection: aiohttp.ClientWebSocketResponse) -> serial_console.SerialNotice:
    """Print the output until the end; return its reason."""
    out = getattr(invocation.out, "buffer", None)
    async for message in connection:
        if message.type is aiohttp.WSMsgType.TEXT:
            return msgspec.json.decode(message.data, type=serial_console.SerialNotice)
        if message.type is aiohttp.WSMsgType.BINARY:
            if out is None:
                invocation.out.write(message.data.decode(errors="replace"))
            else:
                out.write(message.data)
            (out or invocation.out).flush()
    return serial_console.SerialNotice(end="the connection to metalman was lost", is_failure=True)


async def _type(invocation: CliInvocation, connection: aiohttp.ClientWebSocketResponse, *, is_terminal: bool) -> bool:
    """Send the input; return True once the user leaves, and False at the end of the input."""
    escapes = EscapeFilter()
    async for data in _inputs(invocation.stdin.fileno()):
        passed, action = escapes.feed(data) if is_terminal else (data, "")
        if passed:
            await connection.send_bytes(passed)
        if action == "leave":
            return True
        if action == "help":
            print(HELP, end="", file=invocation.err, flush=True)
    return False


async def _inputs(descriptor: int) -> AsyncIterator[bytes]:
    """Yield what is read from a file, until its end."""
    while data := await _read(descriptor):
        yield data


async def _read(descriptor: int) -> bytes:
    """Read once the file is readable; a blocking read would stop the output."""
    loop = asyncio.get_running_loop()
    got: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        loop.remove_reader(descriptor)
        if not got.done():
            got.set_result(_available(descriptor))

    try:
        loop.add_reader(descriptor, read)
    except PermissionError:  # a regular file, which never blocks
        return _available(descriptor)
    try:
        return await got
    finally:
        loop.remove_reader(descriptor)


def _available(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, READ_BYTES)
    except OSError:  # the terminal is gone
        return b""


@contextmanager
def _raw(descriptor: int | None) -> Iterator[None]:
    """Let a terminal pass each key on at once, Ctrl-C included; restore it afterwards."""
    if descriptor is None:
        yield
        return
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
