"""Connection to the BMC under test: prove its identity, find a Redfish service, log in once, and record its answers.

An error ends the certification before the first check. No password is sent before the certificate is verified.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from unbounded.api.failures import Rejected
from unbounded.metalman.redfish.bmc_channel import BmcAuth, BmcChannel
from unbounded.metalman.redfish.bmc_interface import BmcAccount, BmcLimits, Garbled
from unbounded.metalman.redfish.circuit_breaker import BmcGate
from unbounded.metalman.redfish.client import RedfishClient
from unbounded.metalman.redfish.documents import failure_of
from unbounded.metalman.redfish.endpoint import SERVICE_ROOT, BmcEndpoint, Tls, endpoint_of, tls_of
from unbounded.metalman.redfish.http import BmcConnections, BmcResponse, Http

ROOT: Final = f"{SERVICE_ROOT}/"


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """Last answer to a GET of one path. `document` is None where the body is not a JSON object."""

    status: int
    content_type: str
    etag: str
    document: Mapping[str, Any] | None
    is_empty: bool = False


@dataclass(slots=True)
class Recording:
    """Answers by their paths without a slash at the end, and the times of the requests."""

    answers: dict[str, RecordedAnswer] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    slowest: str = ""  # path of the slowest request

    def add(self, reference: str, answer: BmcResponse) -> None:
        try:
            document = answer.document()
        except Garbled:
            document = None
        headers = answer.headers
        content_type, etag = headers.get("Content-Type", ""), headers.get("ETag", "")
        found = RecordedAnswer(answer.status, content_type, etag, document, is_empty=not answer.body)
        self.answers[path_of(reference)] = found

    def time(self, reference: str, seconds: float) -> None:
        if seconds >= max(self.seconds, default=0.0):
            self.slowest = path_of(reference)
        self.seconds.append(seconds)


def path_of(reference: str) -> str:
    """Return the path of a link: without host, query, fragment and a slash at its end."""
    return "/" + urlsplit(reference).path.strip("/")


class RecordingChannel(BmcChannel):
    """A channel that records the answers to reads. Credentials and the bodies of requests are not recorded."""

    recording: Recording

    async def send(
        self,
        method: str,
        reference: str,
        *,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        leave_by: float | None = None,
    ) -> BmcResponse:
        started = time.monotonic()
        try:
            answer = await super().send(method, reference, body=body, headers=headers, leave_by=leave_by)
        finally:
            self.recording.time(reference, time.monotonic() - started)
        if method == "GET":
            self.recording.add(reference, answer)
        return answer


class NoRedfish(Rejected):
    """A server answers, and it is no Redfish service."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A BMC that has accepted the log-in.

    Args:
        root: its service root.
        is_root_open: the service root is readable without a log-in, as DSP0266 requires.
    """

    client: RedfishClient
    recording: Recording
    root: Mapping[str, Any]
    is_root_open: bool

    @property
    def has_session(self) -> bool:
        return self.client.channel.has_session


@asynccontextmanager
async def connect(
    account: BmcAccount, *, trust_any: bool = False, limits: BmcLimits | None = None
) -> AsyncIterator[Connection]:
    """Connect, log in, and delete the session at the end.

    Args:
        trust_any: pin the certificate that the BMC presents now. Without it and without a pin, the certificate has to
            chain to the CAs of this machine.
    Raises:
        InvalidBmcUrl, CertificateUntrusted, BmcUnreachable, NoRedfish, PasswordRejected: as their names say.
    """
    limits = limits or BmcLimits()
    endpoint = endpoint_of(account.url)
    async with BmcConnections() as connections:
        http = Http(
            connections, endpoint, await _tls(connections, endpoint, account, limits, trust_any=trust_any), limits
        )
        recording = Recording()
        answer = await _open_root(http, limits)
        is_root_open = answer.status not in (401, 403)
        auth = BmcAuth(http, account.username, account.password, limits)
        channel = RecordingChannel(http, auth, BmcGate(endpoint.origin), limits)
        channel.recording = recording
        try:
            if is_root_open:
                _root_of(answer, http)  # no password is sent to a server without Redfish
            root = _root_of(await channel.get(ROOT), http)
            yield Connection(RedfishClient(channel, limits), recording, root, is_root_open)
        finally:
            await channel.delete_session()


async def _tls(
    connections: BmcConnections, endpoint: BmcEndpoint, account: BmcAccount, limits: BmcLimits, *, trust_any: bool
) -> Tls:
    if not endpoint.encrypted or account.cert_fingerprint or account.ca_bundle:
        return tls_of(endpoint, account)
    if not trust_any:
        return ssl.create_default_context()
    pin = await Http(connections, endpoint, False, limits).certificate()  # as aiohttp spells it
    return tls_of(endpoint, BmcAccount(account.url, "", "", cert_fingerprint=pin))


async def _open_root(http: Http, limits: BmcLimits) -> BmcResponse:
    """Read the service root without credentials."""
    return await http.send("GET", ROOT, within_s=limits.call_s)


def _root_of(answer: BmcResponse, http: Http) -> Mapping[str, Any]:
    where = http.endpoint.origin
    if answer.status in (404, 405, 410, 501):
        raise NoRedfish(f"{where} answers, and has no Redfish service: GET {ROOT} is answered with {answer.status}")
    if not answer.ok:
        raise failure_of(answer, what="the service root", where=where, changes=False)
    try:
        root = answer.document()
    except Garbled as error:
        raise NoRedfish(f"{where} answers, and has no Redfish service: at {ROOT}, {error}") from None
    if not {"RedfishVersion", "Systems"} & root.keys():
        raise NoRedfish(f"{where} answers, and has no Redfish service: {ROOT} is another document")
    return root
