"""A proxy before an API server that knows no OpenID Connect, as kube-oidc-proxy is one.

It accepts an ID token as kube-apiserver does with `--oidc-issuer-url` and `--oidc-client-id`, and impersonates its
subject. PyJWT validates the token, which the console does not use. A review of the user names the claim
`preferred_username`, as with `--oidc-username-claim`: no header can carry each name. With the claim `email`,
`email_verified` has to be true, as kube-apiserver has it.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import jwt
import trustme
from aiohttp import ClientSession, TCPConnector, web

from unbounded.kube.config import from_kubeconfig

PREFIX: Final = "oidc:"
HOP: Final = ("host", "authorization", "connection", "transfer-encoding", "content-length", "content-encoding")


class User(NamedTuple):
    """A user, as the server knows them, and as a review names them."""

    subject: str
    name: str


class OidcProxy:
    """The proxy.

    Attributes:
        url, ca: of the proxy, for its clients.
        accepted, fresh: the ID tokens that it has accepted, each once.
        refused: why it has refused others.
        claim: names the user.
        accepts: it accepts ID tokens.
    """

    def __init__(self, issuer: str, audience: str) -> None:
        self._issuer, self._audience = issuer, audience
        self.claim = "sub"
        self.accepts = True
        self._keys = jwt.PyJWKClient(f"{issuer}/.well-known/jwks.json")
        self.url = ""
        self.ca = b""
        self.accepted: list[str] = []
        self.refused: list[str] = []
        self.fresh: asyncio.Queue[str] = asyncio.Queue()

    async def user(self, token: str) -> User | None:
        """Return who an ID token is for; None for a token that is none of the provider."""
        try:
            if jwt.decode(token, options={"verify_signature": False}).get("iss") != self._issuer:
                return None
        except jwt.DecodeError:
            return None
        key = await asyncio.to_thread(self._keys.get_signing_key_from_jwt, token)
        claims = jwt.decode(token, key.key, algorithms=["RS256"], audience=self._audience, issuer=self._issuer)
        if not self.accepts or (self.claim == "email" and not claims["email_verified"]):
            raise jwt.InvalidTokenError
        if token not in self.accepted:
            self.accepted.append(token)
            self.fresh.put_nowait(token)
        return User(f"{PREFIX}{claims['sub']}", f"{PREFIX}{claims[self.claim]}")


@asynccontextmanager
async def oidc_proxy(kubeconfig: Path, issuer: str, audience: str) -> AsyncIterator[OidcProxy]:
    """Serve inside of the context, before the server of an administrator's kubeconfig."""
    config = from_kubeconfig(kubeconfig)
    admin = await config.credentials.login()
    proxy = OidcProxy(issuer, audience)
    own, anonymous = config.ssl_context(admin.certificate) or True, config.ssl_context(None) or True
    async with ClientSession(connector=TCPConnector(limit=0), auto_decompress=False) as client:

        async def forward(request: web.Request) -> web.StreamResponse:
            given = request.headers.get("Authorization", "")
            try:
                user = await proxy.user(given.removeprefix("Bearer "))
            except jwt.PyJWTError as error:
                proxy.refused.append(type(error).__name__)
                return _unauthorized()
            headers: list[tuple[str, str]] = [one for one in request.headers.items() if one[0].lower() not in HOP]
            if user is None:
                headers.append(("Authorization", given))
            else:
                headers += [*admin.headers(), ("Impersonate-User", user.subject)]
            async with client.request(
                request.method,
                f"{config.server}{request.raw_path}",
                headers=headers,
                data=await request.read(),
                ssl=own if user is not None else anonymous,
            ) as answer:
                if user is not None and request.path.endswith("/selfsubjectreviews"):
                    return _named(await answer.json(), user)
                response = web.StreamResponse(status=answer.status)
                response.headers.extend({k: v for k, v in answer.headers.items() if k.lower() not in HOP[2:5]})
                await response.prepare(request)
                with suppress(ConnectionError):
                    async for part in answer.content.iter_any():
                        await response.write(part)
                    await response.write_eof()
                return response

        authority = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", forward)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        address: Any = runner.addresses[0]
        proxy.url, proxy.ca = f"https://127.0.0.1:{address[1]}", authority.cert_pem.bytes()
        try:
            yield proxy
        finally:
            await runner.cleanup()


def _named(review: dict[str, Any], user: User) -> web.Response:
    review["status"]["userInfo"]["username"] = user.name
    return web.json_response(review, status=201)


def _unauthorized() -> web.Response:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Unauthorized", "code": 401}
    return web.Response(status=401, text=json.dumps(status), content_type="application/json")
