"""A server and plain HTTP on it, for the tests of this folder."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from multidict import CIMultiDict
from yarl import URL

from tests.support import paths
from unbounded.kube.tls import ClientCertificate, client_context
from unbounded_apiserver.controllers.nodes import DEFAULT_TIMES, NodeTimes
from unbounded_apiserver.pki import CertificateAuthority
from unbounded_apiserver.server import ApiServer

MADE_HERE = "fieldSelector=metadata.name!%3Dkube-root-ca.crt"  # ConfigMaps, without the one of each namespace
GOLDENS = paths.GOLDENS / "kube"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    warnings: list[str]
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


@dataclass
class Client:
    """Requests as the administrator."""

    session: aiohttp.ClientSession
    url: str

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> Answer:
        sent = json.dumps(body, separators=(",", ":")).encode() if body is not None else data
        given = CIMultiDict(headers or {})
        if sent is not None:
            given.setdefault("Content-Type", "application/json")
        url = URL(self.url + path, encoded=True)
        skip = () if sent is not None else ("Content-Type",)
        async with self.session.request(method, url, data=sent, headers=given, skip_auto_headers=skip) as response:
            warnings = response.headers.getall("Warning", [])
            return Answer(response.status, response.headers, warnings, await response.text())

    async def get(self, path: str) -> Any:
        return (await self.ask("GET", path)).json()

    async def create(self, path: str, body: Any) -> Any:
        answer = await self.ask("POST", path, body)
        assert answer.status == 201, answer.text
        return answer.json()

    async def merge(self, path: str, body: Any) -> Any:
        answer = await self.ask("PATCH", path, body, headers={"Content-Type": "application/merge-patch+json"})
        assert answer.status == 200, answer.text
        return answer.json()


def admin_context(kubeconfig: Path) -> ssl.SSLContext:
    import base64

    config = yaml.load(kubeconfig.read_bytes(), Loader=yaml.CSafeLoader)
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    ca = base64.b64decode(cluster["certificate-authority-data"])
    chain, key = (base64.b64decode(user[f"client-{part}-data"]) for part in ("certificate", "key"))
    return client_context(ca=ca, certificate=ClientCertificate(chain, key))


@asynccontextmanager
async def running(
    directory: Path,
    node_times: NodeTimes = DEFAULT_TIMES,
    *,
    bind: str = "127.0.0.1",
    make: Callable[..., ApiServer] = ApiServer,
) -> AsyncIterator[tuple[ApiServer, Client]]:
    server = make(directory, node_times=node_times, bind=bind)
    await server.start()
    try:
        connector = aiohttp.TCPConnector(ssl=admin_context(server.kubeconfig_path), limit=0)
        timeout = aiohttp.ClientTimeout(total=60)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            yield server, Client(session, server.url)
    finally:
        await server.stop()


def client_identity(data_dir: Path, user: str, *groups: str) -> ssl.SSLContext:
    """TLS with a certificate for another user, signed by the server's own authority."""
    authority = CertificateAuthority(data_dir)
    identity = authority.issue_client(user, groups)
    return client_context(ca=authority.certificate, certificate=ClientCertificate(identity.certificate, identity.key))


@asynccontextmanager
async def client_of(server: ApiServer, user: str, *groups: str) -> AsyncIterator[Client]:
    """Requests as another user, with a certificate that was made beside the API."""
    async with client_with(server, client_identity(server.data_dir, user, *groups)) as client:
        yield client


@asynccontextmanager
async def client_with(server: ApiServer, context: ssl.SSLContext, **headers: str) -> AsyncIterator[Client]:
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
        yield Client(session, server.url)


def signing_request(
    name: str, *organizations: str, alternative: Sequence[x509.GeneralName] = (), before: str = ""
) -> tuple[bytes, ec.EllipticCurvePrivateKey]:
    """A request for a certificate in PEM, and its key; `before` is a common name before the other."""
    key = ec.generate_private_key(ec.SECP256R1())
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, one) for one in organizations]
    attributes += [x509.NameAttribute(NameOID.COMMON_NAME, one) for one in (before, name) if one]
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(attributes))
    if alternative:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternative), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), key


def golden_definitions() -> list[dict[str, Any]]:
    """The definitions of Widget and Gadget that the recorded exchanges use."""
    exchanges = json.loads((GOLDENS / "00-setup.json").read_text())["exchanges"]
    return [e["request"]["body"] for e in exchanges if e["request"]["method"] == "POST"]


E = TypeVar("E", bound=Exception)


def refusal(kind: type[E], call: Callable[[], object]) -> E | None:
    """The failure of this kind that `call` raises, None when it does not; any other is a crash."""
    try:
        call()
    except kind as error:
        return error
    return None
