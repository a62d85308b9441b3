"""A simulated cloud on a port of loopback: the shell of HTTPS around it.

A certificate authority of its own issues the certificate of the endpoint.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from abc import abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any, Final, Generic, TypeVar

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from unbounded.kube.tls import bound_buffers
from unbounded_lab.clock import LabClock, LoopClock
from unbounded_lab.cloud.frontend import Cloud, CloudExchange, CloudFrontend
from unbounded_lab.cloud.history import CloudHistory
from unbounded_lab.cloud.misbehaviours import CloudFaults, Misbehaviours
from unbounded_lab.faults import changed
from unbounded_lab.http import Delivery, LabReply, LabRequest
from unbounded_lab.keys import derived, derived_key
from unbounded_lab.listener import HOST, LabListener, LabServer, send, server

VALID_FROM: Final = datetime(2024, 1, 1, tzinfo=UTC)
VALID_TO: Final = datetime(2054, 1, 1, tzinfo=UTC)
D = TypeVar("D", bound=CloudFaults)
CUSTOM: Final = "custom"
"""The profile of a cloud with single faults set."""


class LabAuthority:
    def __init__(self, name: str, seed: int) -> None:
        self._seed = f"{seed}/{name}"
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} lab authority")])
        self._key = derived_key(f"{self._seed}/authority")
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        self._certificate = self._signed(
            self._unsigned(self._name, self._key, "authority")
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
        )

    @property
    def pem(self) -> bytes:
        """The authority's certificate, for clients to trust."""
        return self._certificate.public_bytes(Encoding.PEM)

    def server(self, *names: str) -> bytes:
        """Return certificate and key of the endpoint, in PEM; valid for loopback and for these host names."""
        key = derived_key(f"{self._seed}/server")
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
        addresses = [x509.IPAddress(ip_address(HOST)), *(x509.DNSName(name) for name in ("localhost", *names))]
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = self._signed(
            self._unsigned(subject, key, "server")
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(issuer, critical=False)
        )
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return certificate.public_bytes(Encoding.PEM) + private

    def _unsigned(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, what: str) -> x509.CertificateBuilder:
        serial = int.from_bytes(derived(f"{self._seed}/{what} serial")[:16], "big") | 1
        return (
            x509.CertificateBuilder(self._name, subject, key.public_key())
            .serial_number(serial)
            .not_valid_before(VALID_FROM)
            .not_valid_after(VALID_TO)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )

    def _signed(self, builder: x509.CertificateBuilder) -> x509.Certificate:
        return builder.sign(self._key, SHA256(), ecdsa_deterministic=True)


class LabCloud(LabServer, Generic[D]):
    """One cloud in this process; `async with` serves it at `url`. Each provider has its own class.

    Args:
        profile: a misbehaviour, or several joined with `+`.
        faults: instead of a profile.
        clock: the cloud's time; the event loop's if None.
        port: 0 takes a free one; None opens none, so that clients use `exchange`.
    """

    table: Misbehaviours[D]
    """The misbehaviours of this cloud."""

    def __init__(
        self,
        name: str,
        *,
        profile: str = "ideal",
        faults: D | None = None,
        seed: int = 0,
        clock: LabClock | None = None,
        port: int | None = 0,
    ) -> None:
        self.name = name
        self.seed = seed
        self.concurrent = 0  # requests in progress, including those with a closed connection
        self.most_concurrent = 0
        self.profile, self._faults = (profile, self.table.faults(profile)) if faults is None else (CUSTOM, faults)
        self._authority = LabAuthority(name, seed)
        self._given_clock = clock
        self._port = port

    @abstractmethod
    def _begin(self, faults: D, now: float) -> Cloud:
        """Create the cloud in its initial state."""

    async def start(self) -> None:
        """Serve; returns when connections are accepted."""
        bound_buffers()
        self.clock = self._given_clock or LoopClock()
        now = self.clock.now()
        self.front = CloudFrontend(self._begin(self._faults, now), now)
        self._door: LabListener | None = None
        if self._port is not None:
            tls = _context(self._authority.server(*self._host_names()))
            self._door = LabListener(server(self._answer), self._port, tls)
            await self._door.open()
        self.ca_file = write_private_file(self.ca)  # last, as only `stop` removes the file: nothing after it may fail

    async def stop(self) -> None:
        if self._door is not None:
            await self._door.close()
        os.unlink(self.ca_file)

    def _host_names(self) -> Sequence[str]:
        """Return the host names of the endpoint's certificate, beside loopback."""
        return ()

    # Properties for users

    @property
    def url(self) -> str:
        return f"https://{self.name}.lab.invalid" if self._door is None else f"https://{HOST}:{self._door.port}"

    @property
    def ca(self) -> bytes:
        """PEM of the authority that signed the endpoint's certificate; `ca_file` is a file with it."""
        return self._authority.pem

    def environment(self) -> dict[str, str]:
        """Return the variables with which machine-ops-controller reaches this cloud and logs in to it."""
        return {"SSL_CERT_FILE": self.ca_file}

    # The true state, and the faults

    @property
    def now(self) -> float:
        """The cloud's time, after everything due by it has been executed."""
        now = self.clock.now()
        self.front.cloud.advance(now)
        return now

    @property
    def history(self) -> CloudHistory:
        """The events until now, oldest first."""
        self.front.cloud.advance(self.clock.now())
        return self.front.cloud.history

    @property
    def journal(self) -> list[CloudExchange]:
        """The last requests, with the status of their replies."""
        return list(self.front.journal)

    @property
    def faults(self) -> CloudFaults:
        return self.front.cloud.faults

    def set_faults(self, **settings: Any) -> None:
        """Set single faults; the others stay. Counts restart.

        Raises:
            ValueError: there is no such fault, or the value is invalid.
        """
        self.front.set_faults(changed(self.faults, settings), self.now)
        self.profile = CUSTOM

    def set_profile(self, profile: str) -> None:
        """Set all faults to a profile.

        Raises:
            ValueError: there is no such profile.
        """
        self.front.set_faults(self.table.faults(profile), self.now)
        self.profile = profile

    # Answering

    async def exchange(self, request: LabRequest) -> LabReply:
        """Answer a request as the endpoint does, with its delays; for clients that need no socket."""
        self.concurrent += 1
        self.most_concurrent = max(self.most_concurrent, self.concurrent)
        try:
            passage = self.front.admit(request, self.clock.now())
            if passage.wait_s:
                await self.clock.sleep(passage.wait_s)
            if passage.dropped:
                return LabReply(fate=Delivery.DROPPED)
            reply = self.front.answer(request, passage, self.clock.now())
            if reply.hold_s:
                await self.clock.sleep(reply.hold_s)
            return reply
        finally:
            self.concurrent -= 1

    async def _answer(self, http: web.BaseRequest) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in http.headers.items()}
        path, _, query = http.raw_path.partition("?")
        return await send(http, await self.exchange(LabRequest(http.method, path, headers, await http.read(), query)))


def _context(pem: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # no client resumes sessions, and tickets take time to make
    path = write_private_file(pem)
    try:
        context.load_cert_chain(path)
    finally:
        os.unlink(path)
    return context


def write_private_file(content: bytes) -> str:
    """Write a new file with this content, for its owner alone; returns its path. The caller removes it."""
    descriptor, path = tempfile.mkstemp(prefix="unbounded-lab-", suffix=".pem")
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    return path
