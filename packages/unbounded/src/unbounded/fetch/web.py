"""HTTP client for downloads: proxies, redirects that leak no login, time limits, and one classification of statuses."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Final, Self, TypeVar

import aiohttp
from yarl import URL

from unbounded.fetch.failures import Denied, NotPublished, Unavailable, UnusableContent
from unbounded.fetch.reference import is_local
from unbounded.kube.clock import Backoff, WallClock, utc_now
from unbounded.kube.logs import Log
from unbounded.kube.tls import client_context

log = Log("fetch")
T = TypeVar("T")

MOST_REDIRECTS: Final = 10
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_BACKOFF: Final = Backoff(0.5, 20.0)
_LATER: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Patience:
    """Time limits and retries.

    Args:
        silence_s: the longest pause within a response.
        attempts: failures in a row without progress.
        longest_wait_s: a Retry-After above this ends the download at once, with that time in the failure.
        slowest_bytes_per_s: a body that is slower for `pace_s` is interrupted and resumed.
    """

    connect_s: float = 10.0
    silence_s: float = 30.0
    attempts: int = 5
    backoff: Backoff = _BACKOFF
    longest_wait_s: float = 60.0
    slowest_bytes_per_s: float = 1024.0
    pace_s: float = 60.0


@dataclass(frozen=True)
class Trust:
    """TLS settings of hosts; hosts as `name` or `name:port`.

    Args:
        authorities: PEM bundles by host, "" for all other hosts; the system's authorities for hosts without one.
        plain: hosts without TLS. This machine's own and private IPv4 literals are always allowed.
        tls: hosts of that kind with TLS.
        added: PEM of authorities in addition to the system's, for hosts without a bundle.
    """

    authorities: Mapping[str, bytes] = field(default_factory=dict)
    plain: frozenset[str] = frozenset()
    tls: frozenset[str] = frozenset()
    added: bytes = b""

    def scheme(self, host: str) -> str:
        """Return the scheme of a registry, whose name has none."""
        return "http" if self.may_be_plain(host) else "https"

    def may_be_plain(self, host: str) -> bool:
        names = {host, host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host}
        return not names & self.tls and (is_local(host) or bool(names & self.plain))

    def bundle(self, host: str) -> bytes | None:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        return self.authorities.get(host) or self.authorities.get(name) or self.authorities.get("")


class Web:
    """A session for downloads; an async context manager that owns its connections."""

    def __init__(
        self,
        trust: Trust | None = None,
        patience: Patience | None = None,
        now: WallClock = utc_now,
        *,
        proxies: Proxies | None = None,
    ) -> None:
        self.trust = trust or Trust()
        self.proxies = proxies or Proxies()
        self.patience = patience or Patience()
        self._now = now
        self._contexts: dict[bytes | None, ssl.SSLContext] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        limits = aiohttp.ClientTimeout(
            total=None, sock_connect=self.patience.connect_s, sock_read=self.patience.silence_s
        )
        self._session = aiohttp.ClientSession(
            timeout=limits, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def request(
        self,
        method: str,
        url: URL,
        *,
        headers: Mapping[str, str] | None = None,
        authorization: str = "",
        form: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open one response of any status, after redirects.

        Args:
            authorization: an Authorization header for the host of `url`; a redirect to another host drops it.
        Raises:
            Unavailable: no answer, or a body that broke off while inside.
            Denied: the server's certificate is not trusted.
            UnusableContent: a redirect loop, or a redirect to a forbidden target.
        """
        what = f"{method} {redacted_url(url)}"
        with_login = bool(authorization)
        for _ in range(MOST_REDIRECTS + 1):
            sent = {"Accept-Encoding": "identity", **(headers or {})}
            if with_login:
                sent["Authorization"] = authorization
            async with self._one(method, url, sent, form, what) as response:
                if response.status not in _REDIRECTS or "Location" not in response.headers or form:
                    yield response
                    return
                target = self._target(url, response.headers["Location"], what)
            with_login = with_login and target.origin() == url.origin()
            url = target
        raise UnusableContent(f"{what}: more than {MOST_REDIRECTS} redirects")

    @asynccontextmanager
    async def _one(
        self, method: str, url: URL, headers: Mapping[str, str], form: Mapping[str, str] | None, what: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            raise RuntimeError("Web is used outside of its `async with`")
        proxy = self.proxies.of(url)
        try:
            async with self._session.request(
                method, url, headers=headers, data=form, allow_redirects=False, ssl=self._context(url), proxy=proxy
            ) as response:
                yield response
        except aiohttp.ClientHttpProxyError as error:
            refused = (
                f"{what}: the proxy {redacted_url(proxy or url)} rejected the request: {error.status} {error.message}"
            ).rstrip()
            raise (Unavailable if error.status in _LATER else Denied)(refused) from None
        except aiohttp.ClientProxyConnectionError as error:
            raise Unavailable(
                f"{what}: cannot reach the proxy {redacted_url(proxy or url)}: {error.os_error}"
            ) from error
        except aiohttp.ClientConnectorCertificateError as error:
            hint = "add its authority to the CA bundle"
            raise Denied(f"{what}: the certificate of {_host(url)} is not trusted ({error}); {hint}") from error
        except aiohttp.ClientConnectorDNSError as error:
            raise Unavailable(f"{what}: cannot resolve the name {url.host}") from error
        except aiohttp.InvalidURL:
            raise UnusableContent(
                f"{what}: this is not a URL"
            ) from None  # the error's own text has the URL, with its query
        except aiohttp.ClientResponseError as error:  # as above
            raise Unavailable(f"{what}: the server does not use HTTP ({error.status})") from None
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            raise Unavailable(f"{what}: {str(error) or 'no answer in time'}") from error

    def _target(self, url: URL, location: str, what: str) -> URL:
        try:
            target = url.join(URL(location, encoded=True))
            host = _host(target)
        except ValueError as error:
            raise UnusableContent(f"{what}: it redirects to an invalid URL") from error
        if target.scheme not in ("http", "https") or not target.host:
            raise UnusableContent(f"{what}: it redirects to {redacted_url(target)}, which is not supported")
        if url.scheme == "https" and target.scheme == "http" and not self.trust.may_be_plain(host):
            raise UnusableContent(f"{what}: it redirects from https to plain http ({redacted_url(target)})")
        return target

    def _context(self, url: URL) -> ssl.SSLContext | bool:
        if url.scheme != "https":
            return True
        bundle = self.trust.bundle(_host(url))
        if bundle not in self._contexts:
            try:
                self._contexts[bundle] = client_context(ca=bundle)
                if bundle is None and self.trust.added:
                    self._contexts[bundle].load_verify_locations(cadata=self.trust.added.decode("ascii", "replace"))
            except ssl.SSLError as error:
                raise Denied(f"the CA bundle for {_host(url)} contains no PEM certificate") from error
        return self._contexts[bundle]

    async def retry(self, what: str, once: Callable[[], Awaitable[T]]) -> T:
        """Retry with backoff until the call succeeds; raise the last Unavailable."""
        failures = 0
        while True:
            try:
                return await once()
            except Unavailable as failure:
                failures += 1
                await self.wait_retry(what, failures, failure)

    async def wait_retry(self, what: str, failures: int, failure: Unavailable) -> None:
        """Wait before the next attempt: the server's Retry-After, else a backoff. Raise the failure after the last
        attempt.
        """
        wait_s = self.patience.backoff.after(failures)
        if failure.retry_after_s is not None:
            wait_s = max(wait_s, failure.retry_after_s)
        if failures >= self.patience.attempts or wait_s > self.patience.longest_wait_s:
            raise failure
        log.debug("retrying fetch", what=what, attempt=failures + 1, wait_s=round(wait_s, 1), error=str(failure))
        await asyncio.sleep(wait_s)

    def failure_of(self, response: aiohttp.ClientResponse, what: str, explanation: str = "") -> Exception:
        """Return the failure of a response with an unexpected status."""
        message = f"{what}{self.by_proxy(response.url)}: {response.status} {response.reason or ''}".rstrip() + (
            f" ({explanation})" if explanation else ""
        )
        if response.status in (401, 403, 407):
            return Denied(message)
        if response.status in (404, 410):
            return NotPublished(message)
        if response.status in _LATER:
            return Unavailable(message, retry_after_s=self._retry_after(response.headers.get("Retry-After", "")))
        return UnusableContent(message)

    def by_proxy(self, url: URL) -> str:
        """Return the proxy of a URL as the end of a message; empty for a direct connection."""
        proxy = self.proxies.of(url)
        return f" through the proxy {redacted_url(proxy)}" if proxy is not None else ""

    def _retry_after(self, text: str) -> float | None:
        """Return the seconds of a Retry-After: a number, or a date (RFC 9110 section 10.2.3), which is compared once,
        here.
        """
        if text.strip().isdecimal():
            return float(text)
        try:
            return max(0.0, (parsedate_to_datetime(text) - self._now()).total_seconds())
        except (ValueError, TypeError):
            return None


def redacted_url(url: URL) -> str:
    """Return a URL for messages: without a password, and without its query, which may hold a signature."""
    return str(url.with_user(None).with_query(None).with_fragment(None)) if url.host else str(url.with_query(None))


def _host(url: URL) -> str:
    host = f"[{url.host}]" if url.host and ":" in url.host else url.host or ""
    return host if url.is_default_port() else f"{host}:{url.port}"


@dataclass(frozen=True)
class Proxies:
    """Proxies by scheme, and hosts without one.

    Args:
        http, https: URLs of proxies; empty for none.
        direct: hosts; domains, with a leading dot for the names below them alone; addresses; networks; `*` for all.
            Each may end with a port.
    """

    http: str = ""
    https: str = ""
    direct: tuple[str, ...] = ()

    def of(self, url: URL) -> URL | None:
        """Return the proxy for a URL; None for a direct connection."""
        proxy = self.https if url.scheme == "https" else self.http
        if not proxy or any(_covers(one, url) for one in self.direct):
            return None
        return URL(proxy)


def _covers(entry: str, url: URL) -> bool:
    if entry == "*":
        return True
    host, entry = (url.host or "").lower(), entry.lower()
    network = _network(entry)
    if network is None and entry.rpartition(":")[2].isdecimal():
        entry, _, port = entry.rpartition(":")
        if port != str(url.port):
            return False
        network = _network(entry.strip("[]"))
    if network is not None:
        address = _network(host)
        return address is not None and address.version == network.version and address[0] in network
    return host.endswith(entry) if entry.startswith(".") else host == entry or host.endswith(f".{entry}")


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
