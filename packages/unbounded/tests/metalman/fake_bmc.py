"""A small BMC for faults of the wire: any answer can be replaced, delayed or cut, and every request is on record."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import socket
import ssl
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from aiohttp import BasicAuth, web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from unbounded.metalman.redfish.bmc_interface import BmcAccount
from unbounded.metalman.redfish.endpoint import fingerprint_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ROOT = "/redfish/v1"
SESSIONS = f"{ROOT}/SessionService/Sessions"
SYSTEM = f"{ROOT}/Systems/1"
RESET = f"{SYSTEM}/Actions/ComputerSystem.Reset"
PASSWORD = "correct horse"


@dataclass(frozen=True)
class Certificate:
    pem: str
    fingerprint: str
    context: ssl.SSLContext


def certificate(*names: str) -> Certificate:
    """A new self-signed certificate for 127.0.0.1, or for the names given."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bmc")])
    now = datetime.datetime.now(datetime.UTC)
    here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    general: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName(general or [here]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "both.pem")
        path.write_bytes(pem + secret)
        context.load_cert_chain(path)
    return Certificate(pem.decode(), fingerprint_of(made.public_bytes(serialization.Encoding.DER)), context)


def bound(port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    return made


def error(status: int, identity: str, text: str = "", **headers: str) -> web.Response:
    """A Redfish error with one extended message."""
    message = {"MessageId": f"Base.1.8.{identity}", "Message": text}
    return web.json_response(
        {"error": {"code": "Base.1.8.GeneralError", "@Message.ExtendedInfo": [message]}},
        status=status,
        headers=headers,
    )


@dataclass
class FakeBmc:
    """Changes power at once. `answers[(method, path)]` is a queue of handlers used before the normal one."""

    tls: Certificate | None = field(default_factory=certificate)
    power: object = "On"
    password: str = PASSWORD
    sessions_served: bool = True
    allowable: list[str] | None = field(default_factory=lambda: ["On", "ForceOff", "GracefulShutdown"])
    members: tuple[str, ...] = ("1",)
    boot: dict[str, Any] = field(
        default_factory=lambda: {"BootSourceOverrideEnabled": "Disabled", "BootSourceOverrideTarget": "None"}
    )
    extra: dict[str, Any] = field(default_factory=dict)
    answers: dict[tuple[str, str], list[Handler]] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    resets: list[tuple[str, str]] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=dict)  # {token: session path}
    wrong_passwords: int = 0
    opened: int = 0
    at_once: int = 0
    most_at_once: int = 0
    port: int = 0

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        self._socket = bound(0)
        self.port = self._socket.getsockname()[1]
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        self._socket.close()

    async def listen(self) -> None:
        """Listen again, on the same port: after `deafen`, or with another certificate."""
        self._site = web.SockSite(self._runner, self._socket, ssl_context=self.tls.context if self.tls else None)
        await self._site.start()

    async def deafen(self) -> None:
        """Refuse connections, and drop open ones. The port stays ours: bound, without a listener."""
        await self._site.stop()
        if self._runner.server is not None:
            await self._runner.server.shutdown(0.1)
        self._socket = bound(self.port)

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def access(self, **changed: Any) -> BmcAccount:
        fields: dict[str, Any] = {
            "url": self.url,
            "username": "admin",
            "password": PASSWORD,
            "cert_fingerprint": self.tls.fingerprint if self.tls else None,
        }
        return BmcAccount(**(fields | changed))

    def once(self, method: str, path: str, *handlers: Handler) -> None:
        self.answers.setdefault((method, path), []).extend(handlers)

    def always(self, method: str, path: str, handler: Handler) -> None:
        self.answers[(method, path)] = [handler] * 1000

    def count(self, method: str, path: str) -> int:
        return Counter(self.requests)[(method, path)]

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self.requests.append((request.method, request.path))
            self.headers.append(dict(request.headers))
            queue = self.answers.get((request.method, request.path))
            if queue:
                return await queue.pop(0)(request)
            return await self.normal(request)
        finally:
            self.at_once -= 1

    async def normal(self, request: web.Request) -> web.StreamResponse:
        path = request.path.rstrip("/")
        if path == ROOT:
            return web.json_response({"Id": "Root"} | ({"SessionService": {}} if self.sessions_served else {}))
        if path == SESSIONS and request.method == "POST":
            return await self._log_in(request)
        if not self._authenticated(request):
            return error(401, "NoValidSession")
        if request.method == "DELETE":
            self.tokens = {token: where for token, where in self.tokens.items() if where != path}
            return web.Response(status=204)
        return await self._resource(request, path)

    async def _log_in(self, request: web.Request) -> web.StreamResponse:
        if not self.sessions_served:
            return error(404, "ResourceMissingAtURI")
        if (await request.json())["Password"] != self.password:
            self.wrong_passwords += 1
            return error(401, "ResourceAtUriUnauthorized")
        self.opened += 1
        token, where = f"token-{self.opened}", f"{SESSIONS}/{self.opened}"
        self.tokens[token] = where
        headers = {"X-Auth-Token": token, "Location": f"https://bmc.inside:8443{where}"}
        return web.json_response({"@odata.id": where}, status=201, headers=headers)

    def _authenticated(self, request: web.Request) -> bool:
        if "Authorization" in request.headers:
            good: bool = BasicAuth.decode(request.headers["Authorization"]).password == self.password
            self.wrong_passwords += not good
            return good
        return request.headers.get("X-Auth-Token") in self.tokens

    async def _resource(self, request: web.Request, path: str) -> web.StreamResponse:
        if path == f"{ROOT}/Systems":
            return web.json_response({"Members": [{"@odata.id": f"{path}/{name}/"} for name in self.members]})
        name, _, rest = path.removeprefix(f"{ROOT}/Systems/").partition("/")
        if name not in self.members:
            return error(404, "ResourceMissingAtURI", f"no {path}")
        if request.method == "GET" and not rest:
            return web.json_response(self.system(name))
        if request.method == "PATCH" and not rest:
            self.boot |= (await request.json())["Boot"]
            return web.Response(status=204)
        if request.method == "POST" and rest == "Actions/ComputerSystem.Reset":
            return await self.reset(request)
        return error(404, "ResourceMissingAtURI", f"no {path}")

    async def reset(self, request: web.Request) -> web.StreamResponse:
        name = request.path.removeprefix(f"{ROOT}/Systems/").partition("/")[0]
        wanted = (await request.json())["ResetType"]
        self.resets.append((name, wanted))
        self.power = "On" if "On" in wanted else "Off"
        return web.Response(status=204)

    def system(self, name: str) -> dict[str, Any]:
        reset: dict[str, Any] = {"target": f"{ROOT}/Systems/{name}/Actions/ComputerSystem.Reset"}
        if self.allowable is not None:
            reset["ResetType@Redfish.AllowableValues"] = self.allowable
        system = {"Id": name, "PowerState": self.power, "Boot": self.boot, "Actions": {"#ComputerSystem.Reset": reset}}
        return system | self.extra


async def hang_up(request: web.Request) -> web.StreamResponse:
    """Close the connection without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def slow(seconds: float, then: Handler) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return await then(request)

    return answer


def held(until: asyncio.Event, then: Handler) -> Handler:
    """Return a handler that answers once an event is set."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await until.wait()
        return await then(request)

    return answer


def says(response: Callable[[], web.StreamResponse]) -> Handler:
    """A handler that answers what `response` makes."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        return response()

    return answer
