"""An OpenID Connect provider: discovery, codes and refresh tokens for ID tokens, and their validation."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

import httpx2
from authlib.integrations.base_client import OAuthError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from authlib.oidc.core import CodeIDToken
from authlib.oidc.discovery import get_well_known_url
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet, KeySetSerialization
from joserfc.jws import JWSRegistry

from unbounded.console.oidc_settings import OPENID, OidcSettings, provider_url
from unbounded.kube.credentials import RENEW_AFTER, AuthInfo
from unbounded.kube.logs import Log
from unbounded.kube.tls import client_context
from unbounded.kube.visible_text import visible_text

TIMEOUT_S: Final = 10.0
METADATA_S: Final = 3600.0  # they are read again after this time
LEEWAY_S: Final = 10  # between the clocks of the provider and the console
RETRY_S: Final = 10.0  # between attempts to renew an ID token
TEXT: Final = 300  # characters of a provider's text
OF_CLIENT: Final = frozenset(  # errors that say nothing about the user's tokens
    {"invalid_client", "server_error", "temporarily_unavailable"}
)
OFFLINE: Final = "offline_access"
ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")
# those with public keys, as --oidc-signing-algs of kube-apiserver has them
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512")

log = Log(__name__)
Clock = Callable[[], float]


class OidcError(Exception):
    """The provider has not logged the user in, or cannot be used; the message tells the user why."""


class TemporaryOidcError(OidcError):
    """The provider gives no proper answer, or not to this client; the same tokens may be of use later."""


@dataclass(frozen=True)
class OidcTokens:
    """The tokens that a provider has issued to a user.

    Attributes:
        subject: of the ID token.
        expires: of the ID token, in seconds since the epoch.
    """

    id_token: str = field(repr=False)
    refresh_token: str = field(repr=False)
    subject: str
    expires: float


@dataclass(frozen=True)
class AuthorizationRequest:
    """A question to the provider, which one browser carries there; a code is the answer.

    Attributes:
        state, nonce: come back with the code, and in the ID token.
        verifier: proves that the code comes from who has asked (PKCE).
    """

    redirect_uri: str
    state: str = field(repr=False)
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)


class OidcProvider:
    """A provider. It is asked for the first time when a user wants to log in, so it may be down before.

    Args:
        now: in seconds since the epoch.
    """

    def __init__(self, settings: OidcSettings, *, now: Clock = time.time) -> None:
        self.settings, self.now = settings, now
        self._metadata: dict[str, Any] = {}
        self._metadata_until = 0.0  # on the monotonic clock
        self._keys: KeySet | None = None

    async def authorization_url(self, request: AuthorizationRequest) -> str:
        """Return the URL at the provider where the user logs in. Raises OidcError."""
        async with self._client() as (client, metadata):
            scopes = self.settings.scopes or (
                OPENID,
                *[OFFLINE] * (OFFLINE in (metadata.get("scopes_supported") or ())),
            )
            url, _ = client.create_authorization_url(
                metadata["authorization_endpoint"],
                state=request.state,
                code_verifier=request.verifier,
                nonce=request.nonce,
                redirect_uri=request.redirect_uri,
                scope=" ".join(scopes),
            )
            return str(url)

    async def redeem(self, code: str, request: AuthorizationRequest) -> OidcTokens:
        """Return the tokens for a code. Raises OidcError."""
        async with self._client() as (client, metadata):
            answer = await client.fetch_token(
                metadata["token_endpoint"],
                grant_type="authorization_code",
                code=code,
                redirect_uri=request.redirect_uri,
                code_verifier=request.verifier,
            )
            return await self._tokens(client, answer, nonce=request.nonce)

    async def renew(self, tokens: OidcTokens) -> OidcTokens:
        """Return the tokens for a refresh token. Raises OidcError."""
        async with self._client() as (client, metadata):
            answer = await client.refresh_token(metadata["token_endpoint"], refresh_token=tokens.refresh_token)
            fresh = await self._tokens(client, {"refresh_token": tokens.refresh_token} | answer)
        if fresh.subject != tokens.subject:
            raise OidcError("the provider has renewed the ID token for another user")
        return fresh

    async def _tokens(self, client: AsyncOAuth2Client, answer: dict[str, Any], nonce: str = "") -> OidcTokens:
        id_token = answer.get("id_token")
        if not isinstance(id_token, str):
            raise OidcError("the provider has issued no ID token")
        signed = await self._signed(client, id_token)
        settings = self.settings
        claims = CodeIDToken(
            signed.claims,
            signed.header,
            {
                "iss": {"essential": True, "value": settings.issuer},
                "aud": {"essential": True, "value": settings.client_id},
            },
            {"nonce": nonce, "client_id": settings.client_id, "access_token": answer.get("access_token")},
        )
        claims.validate(int(self.now()), LEEWAY_S)
        return OidcTokens(id_token, str(answer.get("refresh_token") or ""), str(claims["sub"]), float(claims["exp"]))

    async def _signed(self, client: AsyncOAuth2Client, id_token: str) -> jwt.Token:
        """Return an ID token whose signature is valid. A key that is not known may be a new one of the provider."""
        registry = JWSRegistry(algorithms=list(ALGORITHMS), strict_check_header=False)
        if self._keys is not None:
            try:
                return jwt.decode(id_token, self._keys, registry=registry)
            except InvalidKeyIdError:
                pass
        body = await _json(client, self._metadata["jwks_uri"])
        self._keys = KeySet.import_key_set(cast("KeySetSerialization", body))
        return jwt.decode(id_token, self._keys, registry=registry)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[tuple[AsyncOAuth2Client, dict[str, Any]]]:
        """Talk with the provider inside of the context; its failures are raised as OidcError."""
        try:
            context, secret = await asyncio.to_thread(self._material)
            client = AsyncOAuth2Client(
                self.settings.client_id,
                secret or None,
                code_challenge_method="S256",
                verify=context,
                timeout=TIMEOUT_S,
            )
            async with client:
                metadata = await self._load(client)
                methods = metadata.get("token_endpoint_auth_methods_supported") or ()
                if secret and "client_secret_post" in methods and "client_secret_basic" not in methods:
                    client.token_endpoint_auth_method = "client_secret_post"  # noqa: S105 - the name of a method
                yield client, metadata
        except OAuthError as error:
            raised = TemporaryOidcError if error.error in OF_CLIENT else OidcError
            raise raised(refusal(str(error.error), str(error.description or ""))) from error
        except JoseError as error:
            raise OidcError(f"the ID token of the provider is not valid: {error}"[:TEXT]) from error
        except httpx2.HTTPError as error:
            cause = str(error) or type(error).__name__
            raise TemporaryOidcError(f"the provider {self.settings.issuer} gives no answer: {cause}"[:TEXT]) from error
        except OSError as error:  # a file; ssl.SSLError is one, too
            raise TemporaryOidcError(
                f"the console cannot use {error.filename or self.settings.ca_file}: {error.strerror}"
            ) from error
        except (ValueError, TypeError, KeyError) as error:
            cause = f"{type(error).__name__}: {error}"
            raise TemporaryOidcError(
                f"the provider {self.settings.issuer} gives no proper answer: {cause}"[:TEXT]
            ) from error

    def _material(self) -> tuple[ssl.SSLContext, str]:
        """Read the files, which others may renew."""
        ca, secret = self.settings.ca_file, self.settings.client_secret_file
        context = client_context(ca=None if ca is None else ca.read_bytes())
        return context, "" if secret is None else secret.read_text().strip()

    async def _load(self, client: AsyncOAuth2Client) -> dict[str, Any]:
        """Return the metadata of the provider (OpenID Connect Discovery)."""
        now = asyncio.get_running_loop().time()
        if self._metadata and now < self._metadata_until:
            return self._metadata
        issuer = self.settings.issuer
        metadata = await _json(client, get_well_known_url(issuer, external=True))
        if metadata.get("issuer") != issuer:
            told = str(metadata.get("issuer"))[:TEXT]
            raise OidcError(f"the provider at {issuer} calls itself {told!r}: --oidc-issuer-url has to be the same")
        for name in ENDPOINTS:
            provider_url(str(metadata.get(name)))
        self._metadata, self._metadata_until, self._keys = metadata, now + METADATA_S, None
        return metadata


async def _json(client: AsyncOAuth2Client, url: str) -> dict[str, Any]:
    answer = await client.request("GET", url, withhold_token=True)
    answer.raise_for_status()
    body = answer.json()
    if not isinstance(body, dict):
        raise TypeError(f"{url} is no object")
    return body


def refusal(code: str, description: str) -> str:
    """Return the words for an error that a provider has answered with."""
    told = visible_text(f"{code}: {description}" if description else code)
    return f"the provider has refused: {told}"[:TEXT]


class OidcCredentials:
    """The ID token of a user, which is renewed before it expires, if there is a refresh token.

    An ID token that cannot be renewed is used until the API server does not accept it any more.
    """

    def __init__(self, provider: OidcProvider, tokens: OidcTokens) -> None:
        self._provider = provider
        self._renewal: asyncio.Task[None] | None = None
        self._take(tokens)

    async def login(self) -> AuthInfo:
        if self._tokens.refresh_token and asyncio.get_running_loop().time() >= self._renew_at:
            if self._renewal is None or self._renewal.done():
                self._renewal = asyncio.create_task(self._renew(), name="renewal of an ID token")
            if self._provider.now() >= self._tokens.expires:
                # not with the request, which may be cancelled: the refresh token may be of use once
                await asyncio.shield(self._renewal)
        return AuthInfo(self._tokens.id_token)

    def refused(self, login: AuthInfo) -> bool:  # noqa: ARG002  # as the Protocol has it
        return False

    def _take(self, tokens: OidcTokens) -> None:
        left_s = max(0.0, tokens.expires - self._provider.now())
        self._tokens = tokens
        self._renew_at = asyncio.get_running_loop().time() + left_s * RENEW_AFTER

    async def _renew(self) -> None:
        try:
            self._take(await self._provider.renew(self._tokens))
        except TemporaryOidcError as error:
            log.warning("cannot renew an ID token", cause=str(error))
            self._renew_at = asyncio.get_running_loop().time() + RETRY_S
        except OidcError as error:
            log.info("an ID token will not be renewed any more", cause=str(error))
            self._tokens = OidcTokens(self._tokens.id_token, "", self._tokens.subject, self._tokens.expires)
