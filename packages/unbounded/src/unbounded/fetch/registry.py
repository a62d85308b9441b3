"""The distribution API of OCI registries: manifests and blobs, with token and basic login."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from yarl import URL

from unbounded.fetch import manifest
from unbounded.fetch.download import BodyTransfer, Expected, OnBytes, growing
from unbounded.fetch.failures import Corrupt, Denied, TooLarge, Unavailable, UnusableContent
from unbounded.fetch.logins import RegistryLogin, RegistryLogins
from unbounded.fetch.manifest import Blob, ImageIndex, ImageManifest
from unbounded.fetch.reference import Digest, Platform, Reference
from unbounded.fetch.web import Web, redacted_url

_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105  # the grammar's word, no secret
_PARAMETER: Final = re.compile(rf'\s*,?\s*({_TOKEN})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN}))')
_SCHEME: Final = re.compile(rf"\s*,?\s*({_TOKEN})(?=\s|,|$)(?!\s*=)")


@dataclass(frozen=True)
class AuthChallenge:
    """A challenge of a 401: the WWW-Authenticate header (RFC 9110 section 11), as registries use it."""

    scheme: str  # in lower case
    parameters: Mapping[str, str]


def challenges(headers: Iterable[str]) -> list[AuthChallenge]:
    """Return the challenges of all WWW-Authenticate headers; a syntax error ends its header."""
    found: list[AuthChallenge] = []
    for header in headers:
        at = 0
        while scheme := _SCHEME.match(header, at):
            at = scheme.end()
            parameters: dict[str, str] = {}
            while parameter := _PARAMETER.match(header, at):
                at = parameter.end()
                quoted, bare = parameter.group(2), parameter.group(3)
                value = bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
                parameters[parameter.group(1).lower()] = value
            found.append(AuthChallenge(scheme.group(1).lower(), parameters))
    return found


DEEPEST_INDEX: Final = 3
_ANSWER_BYTES: Final = 64 * 1024  # of an error's or a token's response
_TOKEN_S: Final = 60.0  # default lifetime of a token (distribution's token specification)
_EARLY_S: Final = 10.0
_CLIENT_ID: Final = "unbounded"
_Opened = AbstractAsyncContextManager[aiohttp.ClientResponse]


class _Error(msgspec.Struct):
    code: str = ""
    message: str = ""


class _Errors(msgspec.Struct):
    errors: list[_Error] = []


class _Token(msgspec.Struct):
    token: str | None = None
    access_token: str | None = None
    expires_in: float | None = None


@dataclass(frozen=True)
class Resolved:
    """Image of a reference for one platform, as resolved now.

    Args:
        top: digest of the reference's manifest, which may be an index.
        digest: digest of the image's own manifest.
    """

    reference: Reference
    top: Digest
    digest: Digest
    image: ImageManifest


@dataclass
class _Session:
    """State of the access to one repository with one set of logins."""

    authorization: str = field(default="", repr=False)
    good_until: float | None = None

    def current(self) -> str:
        if self.good_until is not None and asyncio.get_running_loop().time() > self.good_until:
            self.authorization = ""
        return self.authorization


class RegistryClient:
    """One repository of one registry, accessed with these logins."""

    def __init__(self, web: Web, reference: Reference, logins: RegistryLogins | None = None) -> None:
        self.reference = reference
        self._web = web
        self._logins = (logins or RegistryLogins()).find(reference)
        self._session = _Session()
        self._logging_in = asyncio.Lock()
        self._base = URL(f"{web.trust.scheme(reference.host)}://{reference.host}/v2/{reference.repository}/")

    async def top(self) -> Digest | None:
        """Return the digest that the reference names now, by one HEAD; None where the registry does not report it.

        Raises:
            as `resolve`, after one attempt: the caller has an image already and does not need to wait.
        """
        if self.reference.digest:
            return self.reference.digest
        accept = {"Accept": manifest.ACCEPT}
        async with self._requested("HEAD", f"manifests/{self.reference.tag_or_digest}", accept) as response:
            header_digest = response.headers.get("Docker-Content-Digest")
            return Digest.parse(header_digest) if header_digest else None

    async def resolve(self, platform: Platform) -> Resolved:
        """Resolve the reference to the image for a platform.

        Raises:
            NotPublished, Denied, Unavailable: the registry's answer, after retries.
            Corrupt: a manifest does not match its digest.
            UnusableContent: no image for this platform, or an invalid manifest.
        """
        content, top, found = await self._manifest(self.reference.tag_or_digest, self.reference.digest)
        digest = top
        for _ in range(DEEPEST_INDEX):
            if isinstance(found, ImageManifest):
                return Resolved(self.reference, top, digest, found)
            try:
                chosen = found.choose(platform)
            except UnusableContent as error:
                raise UnusableContent(f"image {self.reference}: {error}") from None
            content, digest, found = await self._manifest(str(chosen.digest), chosen.digest)
            if len(content) != chosen.size:
                raise Corrupt(f"image {self.reference}: the size of {chosen.digest} differs from that in its index")
        raise UnusableContent(f"image {self.reference}: its indexes are nested more than {DEEPEST_INDEX} deep")

    async def _manifest(
        self, reference: str, desired: Digest | None
    ) -> tuple[bytes, Digest, ImageManifest | ImageIndex]:
        what = f"image {self.reference}"

        async def once() -> tuple[bytes, str, str | None]:
            async with self._requested("GET", f"manifests/{reference}", {"Accept": manifest.ACCEPT}) as response:
                body = await _bounded(response, manifest.MOST_BYTES, f"{what}: its manifest")
                kind = response.headers.get("Content-Type", "")
                return body, kind, response.headers.get("Docker-Content-Digest")

        content, media_type, header_digest = await self._web.retry(what, once)
        digest = desired or (Digest.parse(header_digest) if header_digest else Digest.of(content))
        if not digest.matches(content):
            raise Corrupt(f"{what}: the manifest that {self.reference.host} sent is not {digest}")
        try:
            return content, digest, manifest.parse(content, media_type)
        except UnusableContent as error:
            raise UnusableContent(f"{what}: {error}") from error

    async def fetch(self, blob: Blob, target: Path, *, limit: int, on_bytes: OnBytes | None = None) -> None:
        """Download a blob to `target`. A file `target` + `.partial` from an earlier download is resumed.

        Args:
            limit: maximum of bytes; a smaller size in the blob's descriptor is its limit.
        Raises:
            as BodyTransfer.run, and as `resolve`.
        """
        what = f"image {self.reference}: layer {blob.digest}"

        def opened(headers: Mapping[str, str]) -> _Opened:
            return self._requested("GET", f"blobs/{blob.digest}", headers, fine=(200, 206, 416))

        if blob.size > limit:
            raise TooLarge(f"{what}: {blob.size} bytes exceed the limit of {limit}")
        path = target.with_name(target.name + ".partial")
        async with growing(path, limit=min(limit, blob.size), algorithm=blob.digest.algorithm) as partial:
            transfer = BodyTransfer(self._web, what, opened, partial, Expected(blob.digest, blob.size))
            transfer.on_bytes = on_bytes or transfer.on_bytes
            await transfer.run()
            await partial.put_in_place(target)

    def _requested(self, method: str, path: str, headers: Mapping[str, str], fine: tuple[int, ...] = (200,)) -> _Opened:
        return self._opened(method, self._base.join(URL(path, encoded=True)), headers, fine)

    @asynccontextmanager
    async def _opened(
        self, method: str, url: URL, headers: Mapping[str, str], fine: tuple[int, ...]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open one response of the registry with an accepted status; log in first where the registry requires it."""
        tried = 0
        while True:
            sent = self._session.current()
            async with self._web.request(method, url, headers=headers, authorization=sent) as response:
                if response.status in fine:
                    yield response
                    return
                refused = response.status == 401 and response.url.origin() == url.origin()
                if not refused or tried >= max(1, len(self._logins)):
                    raise await self._failure_of(response)
                offered = challenges(response.headers.getall("WWW-Authenticate", ()))
            await self._log_in(offered, sent, tried)
            tried += 1

    async def _log_in(self, offered: list[AuthChallenge], refused: str, tried: int) -> None:
        """Replace a rejected credential: the first time by the first login, then by the next one."""
        async with self._logging_in:
            if self._session.current() != refused and tried == 0:
                return  # a concurrent request has done so already
            login = self._logins[min(tried, len(self._logins) - 1)] if self._logins else RegistryLogin()
            for challenge in offered:
                if challenge.scheme == "bearer":
                    self._session = await self._token(challenge, login)
                    return
                if challenge.scheme == "basic" and login.basic():
                    self._session = _Session(login.basic())
                    return
        raise Denied(f"image {self.reference}: {self.reference.host} {self._who()}")

    async def _token(self, challenge: AuthChallenge, login: RegistryLogin) -> _Session:
        if login.registry_token:
            return _Session(f"Bearer {login.registry_token.reveal()}")
        realm = URL(challenge.parameters.get("realm", ""))
        if realm.scheme not in ("http", "https") or not realm.host:
            raise UnusableContent(f"image {self.reference}: {self.reference.host} names no token server")
        if realm.scheme == "http" and not self._web.trust.may_be_plain(realm.authority):
            raise UnusableContent(
                f"image {self.reference}: its token server {redacted_url(realm)} would get the login without TLS"
            )
        asked_at = asyncio.get_running_loop().time()
        answer = await self._web.retry(
            f"token for {self.reference}", lambda: self._request_token(realm, challenge, login)
        )
        token = answer.token or answer.access_token
        if not token:
            raise UnusableContent(f"image {self.reference}: the token server {redacted_url(realm)} issued no token")
        life_s = max(answer.expires_in or _TOKEN_S, _TOKEN_S) - _EARLY_S
        return _Session(f"Bearer {token}", asked_at + life_s)

    async def _request_token(self, realm: URL, challenge: AuthChallenge, login: RegistryLogin) -> _Token:
        fields = {"scope": challenge.parameters.get("scope") or f"repository:{self.reference.repository}:pull"}
        if service := challenge.parameters.get("service"):
            fields["service"] = service
        if login.identity_token:
            secret = {"grant_type": "refresh_token", "refresh_token": login.identity_token.reveal()}
            asking = self._web.request("POST", realm, form=fields | secret | {"client_id": _CLIENT_ID})
        else:
            asking = self._web.request("GET", realm.extend_query(fields), authorization=login.basic())
        async with asking as response:
            if response.status in (401, 403):
                raise Denied(f"image {self.reference}: the token server {redacted_url(realm)} {self._who()}")
            if response.status != 200:
                raise self._web.failure_of(response, f"image {self.reference}: token server {redacted_url(realm)}")
            body = await _bounded(response, _ANSWER_BYTES, "a token")
        try:
            return msgspec.json.decode(body, type=_Token)
        except msgspec.DecodeError as error:
            raise Unavailable(
                f"image {self.reference}: the token server {redacted_url(realm)} did not answer with JSON"
            ) from error

    async def _failure_of(self, response: aiohttp.ClientResponse) -> Exception:
        """Return the failure of a response, with the registry's message and a remedy."""
        what = f"image {self.reference}"
        if response.status in (401, 403):
            # Without TLS, a proxy answers in the registry's place, so its rejection looks the same
            proxy = self._web.by_proxy(response.url) if response.url.scheme == "http" else ""
            maybe = f"{proxy}, unless the proxy rejects it" if proxy else ""
            return Denied(f"{what}: {self.reference.host} {self._who()} ({response.status}{maybe})")
        try:
            body = await _bounded(response, _ANSWER_BYTES, "an error")
            errors = msgspec.json.decode(body, type=_Errors).errors
        except (msgspec.DecodeError, TooLarge):
            errors = []
        message = "; ".join(_one_line(f"{error.code}: {error.message}") for error in errors[:3])
        return self._web.failure_of(response, f"{what}: {self.reference.host}", message)

    def _who(self) -> str:
        if not self._logins:
            return "requires a login, and none is configured for it: set a pull secret"
        users = ", ".join(repr(login.user) if login.user else "a token" for login in self._logins)
        return f"does not let {users} read {self.reference.repository}: check the pull secret"


async def _bounded(response: aiohttp.ClientResponse, limit: int, what: str) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > limit:
            raise TooLarge(f"{what}: more than {limit} bytes")
    return bytes(body)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
