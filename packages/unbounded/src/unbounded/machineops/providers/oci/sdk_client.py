"""Oracle's SDK with one login. The SDK blocks: each call runs in a thread of a pool, bounded by the SDK's timeouts.

Responses are JSON, so that fields newer than the SDK are kept. The SDK's own retries are off.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import Any, Final

import oci.auth.signers
import oci.core
import oci.work_requests
from oci._vendor.requests import exceptions as http  # the SDK has its own copy of requests
from oci._vendor.requests.utils import get_environ_proxies
from oci.circuit_breaker import NoCircuitBreakerStrategy
from oci.exceptions import ClientError, ServiceError
from oci.regions import REGIONS_SHORT_NAMES
from oci.retry import NoneRetryStrategy
from oci.signer import Signer
from urllib3.exceptions import NewConnectionError

from unbounded.api.failures import Failure
from unbounded.machineops import reasons
from unbounded.machineops.provider import Budget, Instance, Login, Refusal, Transient, Uncertain, said
from unbounded.machineops.providers.oci.errors import OciErrorResponse, failure
from unbounded.machineops.providers.oci.instances import region_key
from unbounded.machineops.providers.oci.logins import OciApiKey, Principal, api_key, principal

THREADS: Final = 16
CONNECT_S: Final = 5.0
ANSWER_S: Final = 20.0
LOGIN_S: Final = 10.0

Body = dict[str, Any]

os.environ.setdefault("OCI_HEADER_PARSING_ERROR_MAX_RETRIES", "0")  # or the SDK would repeat a RESET

CLIENTS: Final[Mapping[str, Callable[..., Any]]] = {
    "get_vnic": oci.core.VirtualNetworkClient,
    "get_subnet": oci.core.VirtualNetworkClient,
    "get_boot_volume": oci.core.BlockstorageClient,
    "delete_boot_volume": oci.core.BlockstorageClient,
    "get_work_request": oci.work_requests.WorkRequestClient,
    "list_work_requests": oci.work_requests.WorkRequestClient,
    "list_work_request_errors": oci.work_requests.WorkRequestClient,
}
"""Client of each call; all others belong to ComputeClient."""


@dataclass(frozen=True)
class Wire:
    """Endpoints of requests.

    Args:
        endpoint: of the Core Services; empty for each region's own.
        authority: issuer of an instance's token; empty for its region's own.
        ca_file: trusted authorities; empty for the default ones.
        environ: environment from which a process without a Secret learns its principal.
    """

    endpoint: str = ""
    authority: str = ""
    ca_file: str = ""
    answer_s: float = ANSWER_S
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)


def wire_of(environ: Mapping[str, str]) -> Wire:
    """Read the settings of a process: OCI_CORE_ENDPOINT, OCI_SDK_AUTH_CLIENT_REGION_URL as in Oracle's other SDKs,
    SSL_CERT_FILE.

    The SDK itself reads regions that it does not know from OCI_REGION_METADATA.
    """
    return Wire(
        endpoint=environ.get("OCI_CORE_ENDPOINT", "").rstrip("/"),
        authority=environ.get("OCI_SDK_AUTH_CLIENT_REGION_URL", "").rstrip("/"),
        ca_file=environ.get("SSL_CERT_FILE", ""),
        environ=environ,
    )


@dataclass(frozen=True, eq=False)
class OciIdentity:
    """Result of a login.

    Args:
        region: empty if the login names none; then the SDK finds it by itself.
    """

    signer: Any
    config: Mapping[str, str]
    region: str


@dataclass(frozen=True)
class OciReply:
    """Response to a call."""

    body: Any
    headers: Mapping[str, str]

    @property
    def work_request(self) -> str:
        """OCID of the started work request; empty if the response names none."""
        return self.headers.get("opc-work-request-id") or ""

    @property
    def again_s(self) -> float | None:
        """Seconds after which the cloud wants to be polled, if it names them."""
        hint = self.headers.get("retry-after") or ""
        return float(hint) if hint.isdecimal() else None

    @property
    def at(self) -> datetime | None:
        """Time of the response, by the clock of the cloud and in whole seconds."""
        try:
            at = parsedate_to_datetime(self.headers.get("date") or "")
        except ValueError:
            return None
        return at if at.tzinfo is not None else None


class OciClient:
    """Calls of one login.

    Raises:
        ValueError: the Secret has an invalid value.
    """

    def __init__(self, login: Login, wire: Wire) -> None:
        self.credential = login.name
        self._key = api_key(login.secret) if login.secret else None
        self._wire = wire
        self._pool = ThreadPoolExecutor(THREADS, "oci")
        self._lock = Lock()
        self._identity: OciIdentity | None = None
        self._clients: dict[Any, Any] = {}

    def scope(self, instance: Instance) -> str:
        """Return the account whose rate limits apply to a call for this instance."""
        return f"{self._key.tenancy if self._key else 'own tenancy'} {instance.scope}"

    async def read(self, instance: Instance, name: str, *args: str, **query: str | int) -> OciReply:
        """Make a call that changes nothing, and return its response.

        Raises:
            OciNotFound, Refusal, Throttled, Transient
        """
        return _reply(await self._call(instance, name, args, query, None))

    async def write(
        self, instance: Instance, name: str, *args: str | Body, before: float, **options: str | bool
    ) -> OciReply:
        """Make a call that changes something, and return its response.

        Args:
            before: time of the loop after which the request is not sent any more.
        Raises:
            OciNotFound, TokenUsed, Refusal, NotDone, Throttled, Transient, Uncertain
        """
        return _reply(await self._call(instance, name, args, options, before))

    async def page(self, instance: Instance, name: str, *args: str, **query: str | int) -> tuple[list[Body], str]:
        """Return one page of a list, with the token of the next page, empty at the end."""
        answer = await self._call(instance, name, args, query, None)
        return answer.data, answer.next_page or ""

    async def every(self, budget: Budget, instance: Instance, name: str, *args: str, **query: str) -> list[Body]:
        """Return all items of a list, page by page.

        Raises:
            OciNotFound, Refusal, Throttled, Transient
        """
        found: list[Body] = []
        page: dict[str, str] = {}
        while True:
            await budget.read(self.scope(instance))
            shown, token = await self.page(instance, name, *args, **query, **page)
            found += shown
            if not token:
                return found
            page = {"page": token}

    async def _call(
        self, instance: Instance, name: str, args: tuple[Any, ...], options: Mapping[str, Any], before: float | None
    ) -> Any:
        loop = asyncio.get_running_loop()

        def send() -> Any:
            call = getattr(self._client(name, instance), name)
            if before is not None and loop.time() > before:
                raise Transient(f"{name}: the time limit for the request has passed")
            return self._answer(instance, name, lambda: call(*args, **options), changes=before is not None)

        return await self._threaded(name, send)

    async def _threaded(self, _name: str, send: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, send)

    def _answer(self, instance: Instance, name: str, send: Callable[[], Any], *, changes: bool) -> Any:
        """Return the SDK's result; translate its errors into failures."""
        try:
            return send()
        except ServiceError as error:
            if error.request_endpoint is None:  # the error belongs to a token request before this call
                raise self._refused_token(name, error) from error
            response = OciErrorResponse(
                error.status, str(error.code), str(error.message), str(error.headers.get("retry-after") or "")
            )
            raise failure(
                response, call=name, changes=changes, scope=self.scope(instance), credential=self.credential
            ) from error
        except http.RequestException as error:
            raise self._lost(name, error, changes=changes) from error
        except ClientError as error:
            raise Refusal(reasons.PROVIDER_REFUSED, f"{name}: {said(str(error))}") from error

    def _refused_token(self, name: str, error: ServiceError) -> Failure:
        """Return the failure of a token request; the call itself was not sent.

        A 404 of a token request must not count as the end of an instance.
        """
        words = f"{name}: no token was issued: {said(f'{error.status} {error.code}: {error.message}')}"
        if error.status == 429 or error.status >= 500:
            return Transient(words)
        return Refusal(reasons.AUTH_REFUSED, f"MachineOperationCredential {self.credential}: {words}")

    def _lost(self, name: str, error: http.RequestException, *, changes: bool) -> Failure:
        """Return the failure of a request without response; a request without connection has changed nothing."""
        cause = error.__context__  # the error as requests raised it; the SDK's own has only its text
        if isinstance(error, http.ConnectTimeout) or _never_connected(cause):
            return Transient(f"{name}: no connection to the endpoint")
        slow = isinstance(cause, http.ReadTimeout)
        words = f"no answer within {self._wire.answer_s:g} s" if slow else "the answer was lost"
        return (Uncertain if changes else Transient)(f"{name}: {words}")

    # Login

    def _client(self, name: str, instance: Instance) -> Any:
        """Return the client of a call; concurrent callers share one login."""
        kind = CLIENTS.get(name, oci.core.ComputeClient)
        if not self._lock.acquire(timeout=LOGIN_S):
            raise Transient(f"MachineOperationCredential {self.credential}: the login is still in progress")
        try:
            if self._identity is None:
                self._identity = self._log_in()
            _check_region(instance, self._identity.region, self.credential)
            if kind not in self._clients:
                self._clients[kind] = self._new_client(kind, self._identity)
            return self._clients[kind]
        finally:
            self._lock.release()

    def _log_in(self) -> OciIdentity:
        if self._key is not None:
            return _with_key(self._key)
        kind = principal(self._wire.environ)
        try:
            signer = _signer_of(kind, self._wire)
        except Exception as error:  # any error of the SDK in a process without the expected principal
            message = f"MachineOperationCredential {self.credential}: no login as {kind.value}: {said(str(error))}"
            raise Refusal(reasons.AUTH_REFUSED, message) from error
        return OciIdentity(signer, {}, str(getattr(signer, "region", "") or ""))

    def _new_client(self, kind: Callable[..., Any], identity: OciIdentity) -> Any:
        client = kind(
            config=dict(identity.config),
            signer=identity.signer,
            timeout=(CONNECT_S, self._wire.answer_s),
            retry_strategy=NoneRetryStrategy(),
            circuit_breaker_strategy=NoCircuitBreakerStrategy(),
            skip_deserialization=True,
            **({"service_endpoint": self._wire.endpoint} if self._wire.endpoint else {}),
        )
        self._dress(client)
        return client

    def _dress(self, client: Any) -> None:
        """Set the trusted authorities of a client."""
        if self._wire.ca_file:
            session = client.base_client.session
            session.trust_env = False  # REQUESTS_CA_BUNDLE would override `verify`
            session.proxies = get_environ_proxies(client.base_client.endpoint)
            session.verify = self._wire.ca_file

    def close(self) -> None:
        """Refuse further calls; those in progress end by their timeouts."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _reply(answer: Any) -> OciReply:
    return OciReply(answer.data, answer.headers or {})


def _never_connected(cause: BaseException | None) -> bool:
    return isinstance(getattr(cause.__context__ if cause else None, "reason", None), NewConnectionError)


def _with_key(key: OciApiKey) -> OciIdentity:
    passphrase = key.passphrase.reveal() if key.passphrase else None
    pem = key.private_key.reveal()
    signer = Signer(key.tenancy, key.user, key.fingerprint, None, passphrase, private_key_content=pem)
    config = {"tenancy": key.tenancy, "user": key.user, "fingerprint": key.fingerprint, "region": key.region}
    return OciIdentity(signer, {**config, "key_content": pem}, key.region)


def _signer_of(kind: Principal, wire: Wire) -> Any:
    match kind:
        case Principal.RESOURCE:
            return oci.auth.signers.get_resource_principals_signer()
        case Principal.WORKLOAD:
            return oci.auth.signers.get_oke_workload_identity_resource_principal_signer(
                retry_strategy=NoneRetryStrategy()  # retries would delay all callers of the login by minutes
            )
        case Principal.INSTANCE:
            elsewhere = {"federation_endpoint": f"{wire.authority}/v1/x509"} if wire.authority else {}
            trusted = {"federation_client_cert_bundle_verify": wire.ca_file} if wire.ca_file else {}
            return oci.auth.signers.InstancePrincipalsSecurityTokenSigner(
                retry_strategy=NoneRetryStrategy(),
                federation_client_retry_strategy=NoneRetryStrategy(),
                **elsewhere,
                **trusted,
            )


def _check_region(instance: Instance, region: str, credential: str) -> None:
    """Check the region of a login. In another region an instance is not found, which must not count as its end.

    Raises:
        Refusal: the login is for another region.
    """
    named = region_key(instance)
    named = REGIONS_SHORT_NAMES.get(named, named)
    if region and named != region and named in REGIONS_SHORT_NAMES.values():
        message = f"MachineOperationCredential {credential} is for region {region}, and {instance.name} is in {named}"
        raise Refusal(reasons.AUTH_INVALID, message, reasons.credential_cause(reasons.CREDENTIAL_INVALID, credential))
