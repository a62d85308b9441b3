"""Server of serial consoles: identifies a user, checks the right to a Machine's console, and connects the two.

A console has one user at a time. Sessions are limited in idle time and in total, and a right that is withdrawn ends
them within a minute. Bytes wait in small buffers only: a BMC that floods, or a user that does not read, slows its own
session down.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import socket
import ssl
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from aiohttp import WSMsgType, web
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from unbounded.api import serial_console
from unbounded.api.core import CERTIFICATE_REQUESTS, LEASES
from unbounded.api.failures import Failure
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.api.names import NAMESPACE
from unbounded.kube.api import AlreadyExists, ApiError, NotFound
from unbounded.kube.cache import Cache
from unbounded.kube.clock import loop_time, rfc3339, seconds_since
from unbounded.kube.events import event_sink
from unbounded.kube.logs import Log
from unbounded.kube.process import Runtime
from unbounded.kube.settings import Address, lease_name
from unbounded.kube.tls import ClientCertificate, load_certificate
from unbounded.metalman.bmc_access import binding_of, redfish_of
from unbounded.metalman.redfish.bmc_interface import SerialConsole, clean
from unbounded.metalman.shared_consoles import SharedConsoles
from unbounded.operations.executor_protocol import Refusal

REVIEWS: Final[Kind[dict[str, Any]]] = Kind(
    "authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", dict
)
POD_NAME: Final = "POD_NAME"  # environment variable, from the Deployment
MESSAGE_BYTES: Final = 64 * 1024  # of one message of a user
CONNECTIONS: Final = 128
BACKLOG: Final = 64
STOP_S: Final = 1.0
RETRY_S: Final = 10.0
REQUEST_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)  # no path leads elsewhere
CERTIFICATE_DAYS: Final = 3650  # pinned by its digest, so that its age does not matter

log = Log("metalman.serial")


@dataclass(frozen=True, slots=True)
class SerialLimits:
    """Time limits in seconds; tests of time limits shorten them."""

    opening_s: float = 10.0  # from the connection to the caller's signature
    idle_s: float = 1800.0  # without a byte in either direction
    session_s: float = 8 * 3600.0
    review_s: float = 60.0  # between two reviews of the right
    unreviewed_s: float = 300.0  # a session lasts so long while the right cannot be reviewed
    take_s: float = 60.0  # in which a user takes a piece of output
    heartbeat_s: float = 30.0


class SerialRefused(Exception):
    """A session that does not begin; the message is for the user."""


@dataclass(frozen=True, slots=True)
class SerialUser:
    """A user as the API server has recorded it."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def access_review(user: SerialUser, machine: str) -> dict[str, Any]:
    """Return the SubjectAccessReview of a user's right to the console of a Machine."""
    return {
        "spec": {
            "user": user.name,
            "groups": list(user.groups),
            "uid": user.uid,
            "extra": {key: list(values) for key, values in user.extra.items()},
            "resourceAttributes": {
                "group": MACHINES.group,
                "version": MACHINES.version,
                "resource": MACHINES.plural,
                "name": machine,
                "verb": serial_console.VERB,
            },
        }
    }


def identify(
    request: Mapping[str, Any], opening: serial_console.SerialOpening, text: bytes, now: datetime
) -> SerialUser:
    """Return the user of a CertificateSigningRequest whose key has signed the text.

    Raises:
        SerialRefused: the request is for another signer, too old or malformed, or another key has signed.
    """
    spec, meta = request.get("spec") or {}, request.get("metadata") or {}
    if spec.get("signerName") != serial_console.SIGNER:
        raise SerialRefused(f"the certificate request is not for the signer {serial_console.SIGNER}")
    age_s = seconds_since(meta.get("creationTimestamp"), now)
    if age_s > serial_console.REQUEST_LIFE_S:
        raise SerialRefused(
            f"the certificate request is {age_s:.0f} s old; {serial_console.REQUEST_LIFE_S:.0f} s are allowed"
        )
    try:
        key = x509.load_pem_x509_csr(b64decode(spec.get("request") or "")).public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise SerialRefused("the key of the certificate request is not of an elliptic curve")
        key.verify(b64decode(opening.signature), text, ec.ECDSA(hashes.SHA256()))
    except (ValueError, InvalidSignature) as error:
        raise SerialRefused("the challenge is not signed with the key of the certificate request") from error
    return SerialUser(
        spec.get("username") or "",
        tuple(spec.get("groups") or ()),
        spec.get("uid") or "",
        {key: tuple(values) for key, values in (spec.get("extra") or {}).items()},
    )


@dataclass(frozen=True, slots=True)
class _Holder:
    user: str
    since: datetime


class SerialServer:
    """The server of one process; it serves the Machines of its site.

    Args:
        site: None for all sites.
    """

    def __init__(
        self,
        runtime: Runtime,
        machines: Cache[Machine],
        consoles: SharedConsoles,
        *,
        site: str | None,
        address: Address,
        limits: SerialLimits | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._runtime = runtime
        self._machines = machines
        self._consoles = consoles
        self._site = site
        self._address = address
        self._limits = limits or SerialLimits()
        self._pod = (os.environ if environ is None else environ).get(POD_NAME, "")
        self._emit = event_sink(runtime.events)
        self._holders: dict[str, _Holder] = {}  # by BMC and system
        self._connections = 0
        self._certificate = ""

    async def run(self) -> None:
        """Serve until cancelled; open sessions end with it. An address that is not available is tried again."""
        while True:
            try:
                async with self._serving() as port:
                    await self._publish_until_done(port)
                    await asyncio.Event().wait()
            except OSError as error:
                at = f"{self._address.host}:{self._address.port}"
                log.warning("cannot serve serial consoles", error=error, address=at)
            await asyncio.sleep(RETRY_S)

    async def _publish_until_done(self, port: int) -> None:
        while True:
            try:
                await self._publish(port)
            except ApiError as error:
                log.warning("cannot publish the address of serial consoles", error=error)
            else:
                return
            await asyncio.sleep(RETRY_S)

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[int]:
        context, self._certificate = _tls()
        server = web.Server(self._handle, access_log=None)
        listener = await asyncio.get_running_loop().create_server(
            server, self._address.host, self._address.port, ssl=context, backlog=BACKLOG
        )
        port: int = listener.sockets[0].getsockname()[1]
        log.info("serving serial consoles", address=self._address.host, port=port)
        try:
            yield port
        finally:
            listener.close()
            server.pre_shutdown()
            await server.shutdown(STOP_S)

    async def _publish(self, port: int) -> None:
        host = self._address.host
        annotations = {
            serial_console.ANNOTATION_URL: f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
            serial_console.ANNOTATION_CERTIFICATE: self._certificate,
            serial_console.ANNOTATION_HOST: socket.gethostname(),
            serial_console.ANNOTATION_POD: self._pod or None,
        }
        name = lease_name(serial_console.LEASE, self._site or "")
        try:
            await self._runtime.api.patch(LEASES, name, {"metadata": {"annotations": annotations}}, namespace=NAMESPACE)
        except NotFound:
            given = {key: value for key, value in annotations.items() if value is not None}
            with contextlib.suppress(AlreadyExists):
                body = {"metadata": {"name": name, "annotations": given}, "spec": {}}
                await self._runtime.api.create(LEASES, body, namespace=NAMESPACE)

    # One connection

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if not request.path.startswith(serial_console.PATH) or request.method != "GET":
            return web.Response(status=404, text="not found\n")
        if self._connections >= CONNECTIONS:
            return web.Response(status=503, text="too many connections\n")
        self._connections += 1
        try:
            connection = web.WebSocketResponse(
                max_msg_size=MESSAGE_BYTES, heartbeat=self._limits.heartbeat_s, compress=False
            )
            await connection.prepare(request)
            with contextlib.suppress(ConnectionError, TimeoutError):  # the user has left
                await self._serve(connection, unquote(request.path.removeprefix(serial_console.PATH)))
            return connection
        finally:
            self._connections -= 1

    async def _serve(self, connection: web.WebSocketResponse, name: str) -> None:
        try:
            end = serial_console.SerialNotice(end=await self._session(connection, name))
        except (SerialRefused, Refusal, Failure) as error:
            end = serial_console.SerialNotice(end=clean(str(error)), is_failure=True)
        async with asyncio.timeout(self._limits.take_s):
            await connection.send_str(msgspec.json.encode(end).decode())
            await connection.close()

    async def _session(self, connection: web.WebSocketResponse, name: str) -> str:
        """Serve one session; return the reason of its end."""
        opening, user = await self._identified(connection, name)
        await self._check_right(user, name)
        machine = self._machine(name)
        with self._held(machine, user):
            async with self._consoles.join(machine) as console:
                return await self._connected(connection, console, machine, user, opening)

    async def _connected(
        self,
        connection: web.WebSocketResponse,
        console: SerialConsole,
        machine: Machine,
        user: SerialUser,
        opening: serial_console.SerialOpening,
    ) -> str:
        read_only = opening.read_only or not console.interactive
        notice = serial_console.SerialNotice(over=console.over, read_only=read_only)
        await connection.send_str(msgspec.json.encode(notice).decode())
        use = "reads" if read_only else "uses"
        text = f"{clean(user.name)} {use} the serial console over {console.over}"
        self._emit(machine, "Normal", "SerialConsoleOpened", text)
        log.info("serial console opened", machine=machine.name, user=user.name, over=console.over, read_only=read_only)
        relay = _Relay(connection, console, self._limits, read_only=read_only)
        end = "metalman stops"
        try:
            end = await relay.run(lambda: self._review_until_withdrawn(user, machine.name))
        finally:
            log.info(
                "serial console closed", machine=machine.name, user=user.name, end=end, sent=relay.sent, got=relay.got
            )
        return end

    async def _identified(
        self, connection: web.WebSocketResponse, name: str
    ) -> tuple[serial_console.SerialOpening, SerialUser]:
        challenge = serial_console.SerialChallenge(nonce=secrets.token_hex(32))
        try:
            async with asyncio.timeout(self._limits.opening_s):
                await connection.send_str(msgspec.json.encode(challenge).decode())
                message = await connection.receive()
        except TimeoutError:
            raise SerialRefused(f"no answer to the challenge within {self._limits.opening_s:g} s") from None
        if message.type is not WSMsgType.TEXT:
            raise SerialRefused("the first message is not an answer to the challenge")
        try:
            opening = msgspec.json.decode(message.data, type=serial_console.SerialOpening)
            if REQUEST_NAME.fullmatch(opening.request) is None:
                raise SerialRefused("the name of the certificate request is malformed")
            request = await self._runtime.api.get(CERTIFICATE_REQUESTS.raw(), opening.request)
        except msgspec.MsgspecError as error:
            raise SerialRefused(f"the answer to the challenge is malformed: {error}") from error
        except NotFound:
            raise SerialRefused("the certificate request does not exist") from None
        return opening, identify(
            request, opening, serial_console.signed_text(challenge, self._certificate, name), self._runtime.now()
        )

    async def _check_right(self, user: SerialUser, name: str) -> None:
        """Raise SerialRefused if the user has no right to the console; before anything of the Machine is told."""
        review = await self._runtime.api.create(REVIEWS, access_review(user, name))
        status = review.get("status") or {}
        if status.get("allowed") is not True:
            raise SerialRefused(
                f'User "{user.name}" cannot {serial_console.VERB} resource "{MACHINES.plural}" in API group '
                f'"{MACHINES.group}": machine {name!r}'
            )

    async def _review_until_withdrawn(self, user: SerialUser, name: str) -> str:
        reviewed = loop_time()
        while True:
            await asyncio.sleep(self._limits.review_s)
            try:
                await self._check_right(user, name)
            except SerialRefused as error:
                return f"the right was withdrawn: {error}"
            except ApiError as error:
                if loop_time() - reviewed > self._limits.unreviewed_s:
                    return f"the right cannot be reviewed: {error}"
            else:
                reviewed = loop_time()

    def _machine(self, name: str) -> Machine:
        machine = self._machines.get(name)
        if machine is None:
            raise SerialRefused(f"Machine {name!r} does not exist")
        if self._site not in (None, machine.site):
            raise SerialRefused(f"Machine {name} is not of site {self._site!r}, which this metalman serves")
        redfish_of(machine)
        return machine

    @contextlib.contextmanager
    def _held(self, machine: Machine, user: SerialUser) -> Iterator[None]:
        """Hold the console for one user; most BMCs have one session for it."""
        key = binding_of(machine)
        if (holder := self._holders.get(key)) is not None:
            since = rfc3339(holder.since)
            raise SerialRefused(f"{clean(holder.user)} has the serial console of {machine.name} since {since}")
        self._holders[key] = _Holder(user.name, self._runtime.now())
        try:
            yield
        finally:
            del self._holders[key]


class _Relay:
    """Copies between a user and a console until one of them, or a limit, ends it."""

    def __init__(
        self, connection: web.WebSocketResponse, console: SerialConsole, limits: SerialLimits, *, read_only: bool
    ) -> None:
        self._connection = connection
        self._console = console
        self._limits = limits
        self._read_only = read_only
        self._used_at = loop_time()
        self.sent = 0  # bytes to the user
        self.got = 0  # bytes from the user

    async def run(self, withdrawn: Callable[[], Awaitable[str]]) -> str:
        """Return the reason of the end; a failure of the console is raised."""
        works = (self._output(), self._input(), self._limited(), withdrawn())
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(task.result() for task in tasks if task in done)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _output(self) -> str:
        while data := await self._console.read():
            self._used_at = loop_time()
            self.sent += len(data)
            try:
                async with asyncio.timeout(self._limits.take_s):
                    await self._connection.send_bytes(data)
            except TimeoutError:
                return f"no output was taken for {self._limits.take_s:g} s"
        return "the BMC closed the console"

    async def _input(self) -> str:
        async for message in self._connection:
            if message.type is WSMsgType.BINARY and not self._read_only:
                self._used_at = loop_time()
                self.got += len(message.data)
                await self._console.write(message.data)
        return "the user left"

    async def _limited(self) -> str:
        end_at = loop_time() + self._limits.session_s
        while (now := loop_time()) < end_at:
            idle_at = self._used_at + self._limits.idle_s
            if now >= idle_at:
                return f"idle for {self._limits.idle_s:g} s"
            await asyncio.sleep(min(idle_at, end_at) - now)
        return f"the session took {self._limits.session_s:g} s"


def _tls() -> tuple[ssl.SSLContext, str]:
    """Return the TLS context of a server with a new certificate, and the SHA-256 of the certificate in hex."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, serial_console.LEASE)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=CERTIFICATE_DAYS))
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    load_certificate(context, ClientCertificate(certificate.public_bytes(serialization.Encoding.PEM), pem))
    return context, certificate.fingerprint(hashes.SHA256()).hex()
