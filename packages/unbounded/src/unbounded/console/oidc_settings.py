"""Settings of the log-in with an OpenID Connect provider."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from unbounded.explain_api.settings import path_or_none
from unbounded.kube.options import Option, OptionValues, SettingsError

OPENID: Final = "openid"
_SCOPE: Final = re.compile(r"[!#-\[\]-~]+")  # RFC 6749, section 3.3


@dataclass(frozen=True, kw_only=True)
class OidcSettings:
    """A provider, and the console as its client.

    Attributes:
        issuer: URL, exactly as the provider has it in its ID tokens.
        client_secret_file: read at each use; None for a public client.
        ca_file: authorities of the provider's certificate; None for those of the system.
        scopes: empty for `openid`, and `offline_access` where the provider lists it.
    """

    issuer: str
    client_id: str
    client_secret_file: Path | None = None
    ca_file: Path | None = None
    scopes: tuple[str, ...] = ()


def provider_url(text: str) -> str:
    """Return a URL to which codes and tokens may be sent: with https, or on loopback. Raises ValueError."""
    try:
        parts = urlsplit(text)
        host, is_port = parts.hostname or "", parts.port != 0
    except ValueError:  # the port is no number, or too large
        host, is_port = "", False
    is_url = text.isascii() and text.isprintable() and " " not in text
    plain = parts.scheme == "http" and _is_loopback(host) if host else False
    if not is_url or not host or not is_port or parts.username is not None or not (parts.scheme == "https" or plain):
        raise ValueError(f"{text!r} is not https://HOST[:PORT][/PATH]; http is for loopback alone")
    return text


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _issuer(text: str) -> str:
    if text and ("?" in text or "#" in text):
        raise ValueError(f"{text!r} has a query or a fragment, which no issuer has")
    return provider_url(text) if text else ""


def _scopes(text: str) -> tuple[str, ...]:
    scopes = text.replace(",", " ").split()
    for scope in scopes:
        if not _SCOPE.fullmatch(scope):
            raise ValueError(f"{scope!r} is not a scope, such as groups: a quote, a backslash or no ASCII is in it")
    return tuple(dict.fromkeys([OPENID, *scopes])) if scopes else ()


ISSUER_URL: Final = Option(
    "oidc-issuer-url",
    _issuer,
    "",
    "Offer the log-in with this OpenID Connect provider, whose ID tokens the API server accepts",
    "URL",
)
CLIENT_ID: Final = Option("oidc-client-id", str, "", "Be this client of the provider", "ID")
CLIENT_SECRET_FILE: Final = Option(
    "oidc-client-secret-file",
    path_or_none,
    "",
    "Read the secret of the client from this file; a public client has none",
    "FILE",
)
CA_FILE: Final = Option(
    "oidc-ca-file",
    path_or_none,
    "",
    "Trust the certificate authorities in this PEM file for the provider, in place of those of the system",
    "FILE",
)
SCOPES: Final = Option(
    "oidc-scopes",
    _scopes,
    "",
    "Ask for these scopes beside openid (default: offline_access, where the provider lists it)",
    "SCOPE",
    many=True,
)
OIDC_OPTIONS: Final = (ISSUER_URL, CLIENT_ID, CLIENT_SECRET_FILE, CA_FILE, SCOPES)


def oidc_settings(values: OptionValues) -> OidcSettings | None:
    """Return the settings; None where no provider is named.

    Raises:
        SettingsError: a value is invalid, or lacks another one.
    """
    issuer, client = values.value(ISSUER_URL), values.value(CLIENT_ID)
    secret, ca, scopes = values.value(CLIENT_SECRET_FILE), values.value(CA_FILE), values.value(SCOPES)
    if not issuer:
        for option, value in ((CLIENT_ID, client), (CLIENT_SECRET_FILE, secret), (CA_FILE, ca), (SCOPES, scopes)):
            if value:
                raise SettingsError(f"{values.given(option)} has no meaning without {ISSUER_URL.flag}")
        return None
    if not client:
        raise SettingsError(f"{values.given(ISSUER_URL)} needs {CLIENT_ID.flag}, the client that the provider knows")
    return OidcSettings(issuer=issuer, client_id=client, client_secret_file=secret, ca_file=ca, scopes=scopes)
