"""The login endpoint of a tenant (OAuth 2.0, client credentials) and the tokens that it issues.

An application logs in with its secret, or with a token of another issuer that it is federated with: that of a
Kubernetes cluster, for a service account. Such tokens must be signed with RS256, as the real endpoint requires.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from unbounded_lab.cloud import jwt
from unbounded_lab.cloud.azure.errors import AzureProblem, LoginProblem
from unbounded_lab.http import LabRequest

AUDIENCE: Final = "api://AzureADTokenExchange"
RESOURCE: Final = "https://management.azure.com"
ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


@dataclass(frozen=True, slots=True)
class Federation:
    """An issuer and subject whose tokens an application may log in with."""

    issuer: str
    subject: str
    key: RSAPublicKey


@dataclass(frozen=True, slots=True)
class Application:
    client_id: str
    secret: str = field(repr=False)
    federations: tuple[Federation, ...] = ()


@dataclass(slots=True)
class LoginEndpoint:
    tenant: str
    secret: bytes = field(repr=False)
    applications: dict[str, Application] = field(default_factory=dict)

    def token(self, tenant: str, request: LabRequest, now: float, *, lifetime_s: float) -> dict[str, Any]:
        """Answer a request for a token.

        Raises:
            LoginProblem: it is rejected.
        """
        if tenant.lower() != self.tenant:
            raise LoginProblem("unknown_tenant", tenant)
        form = {name: values[0] for name, values in parse_qs(request.body.decode("utf-8", "replace")).items()}
        for needed in ("grant_type", "client_id", "scope"):
            if needed not in form:
                raise LoginProblem("invalid_request", needed)
        if form["grant_type"] != "client_credentials":
            raise LoginProblem("unsupported_grant_type", form["grant_type"])
        application = self.applications.get(form["client_id"].lower())
        if application is None:
            raise LoginProblem("unknown_client", form["client_id"])
        if not form["scope"].endswith("/.default"):
            raise LoginProblem("invalid_scope")
        _authenticate(application, form, now)
        return self.grant(application, form["scope"], now, lifetime_s=lifetime_s)

    def grant(self, application: Application, scope: str, now: float, *, lifetime_s: float) -> dict[str, Any]:
        """Return the reply with a token for an application."""
        audience = scope.removesuffix("/.default").rstrip("/")
        claims = {
            "aud": audience,
            "tid": self.tenant,
            "appid": application.client_id,
            "iat": int(now),
            "exp": now + lifetime_s,
        }
        token = jwt.signed_by_secret(claims, self.secret)
        lifetime = int(lifetime_s)
        return {"token_type": "Bearer", "expires_in": lifetime, "ext_expires_in": lifetime, "access_token": token}

    def client(self, request: LabRequest, now: float) -> str:
        """Return the client that sends a request.

        Raises:
            AzureProblem: it has no valid token.
        """
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise AzureProblem("AuthenticationFailed")
        try:
            claims = jwt.claims_by_secret(token, self.secret)
        except jwt.InvalidToken as error:
            raise AzureProblem("InvalidAuthenticationToken") from error
        if claims["aud"] not in (RESOURCE, "https://management.core.windows.net"):
            raise AzureProblem("InvalidAuthenticationToken")
        if claims["tid"] != self.tenant:
            raise AzureProblem("InvalidAuthenticationTokenTenant")
        if claims["exp"] <= now:
            raise AzureProblem("ExpiredAuthenticationToken", detail=str(int(claims["exp"])))
        return str(claims["appid"])

    def discovery(self, base: str) -> dict[str, Any]:
        """Return the OpenID configuration, which some clients read before they log in."""
        return {
            "issuer": f"{base}/{self.tenant}/v2.0",
            "token_endpoint": f"{base}/{self.tenant}/oauth2/v2.0/token",
            "authorization_endpoint": f"{base}/{self.tenant}/oauth2/v2.0/authorize",
            "device_authorization_endpoint": f"{base}/{self.tenant}/oauth2/v2.0/devicecode",
            "jwks_uri": f"{base}/{self.tenant}/discovery/v2.0/keys",
            "response_types_supported": ["code"],
            "subject_types_supported": ["pairwise"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "token_endpoint_auth_methods_supported": ["client_secret_post", "private_key_jwt"],
        }


def _authenticate(application: Application, form: Mapping[str, str], now: float) -> None:
    if "client_assertion" not in form:
        if not hmac.compare_digest(form.get("client_secret", "").encode(), application.secret.encode()):
            raise LoginProblem("invalid_client", application.client_id)
        return
    if form.get("client_assertion_type") != ASSERTION_TYPE:
        raise LoginProblem("invalid_request", "client_assertion_type")
    claims = _claims(application, form["client_assertion"])
    if not claims.get("nbf", 0) <= now < claims.get("exp", 0):
        raise LoginProblem("expired_assertion")
    audience = claims.get("aud")
    matches = (claims.get("iss"), claims.get("sub")) in {
        (each.issuer, each.subject) for each in application.federations
    }
    if not matches or AUDIENCE not in (audience if isinstance(audience, list) else [audience]):
        detail = f"Assertion Issuer: '{claims.get('iss')}'. Subject: '{claims.get('sub')}'. Audience: '{audience}'."
        raise LoginProblem("unknown_subject", detail)


def _claims(application: Application, assertion: str) -> dict[str, Any]:
    for federation in application.federations:
        try:
            return jwt.claims(assertion, federation.key)
        except jwt.InvalidToken:
            continue
    raise LoginProblem("bad_assertion")
