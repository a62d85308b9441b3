"""Settings of the log-in with an OpenID Connect provider."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from unbounded.explain_api.settings import path_or_none
from unbounded.kube.options import Option, OptionValues, SettingsError

OPENID: Final = "openid"


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
    plain = parts.scheme == "http" and _is_loopback(host) if host else False
    if not host or not is_port or parts.username is not None or not (parts.scheme == "https" or plain):
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
    return tuple(dict.fromkeys([OPENID, *scopes])) if scopes else ()


_ISSUER: Final = Option(
    "oidc-issuer-url",
    _issuer,
    "",
    "Offer the log-in with this OpenID Connect provider, whose ID tokens the API server accepts",
    "URL",
)
_CLIENT: Final = Option("oidc-client-id", str, "", "Be this client of the provider", "ID")
_SECRET: Final = Option(
    "oidc-client-secret-file",
    path_or_none,
    "",
    "Read the secret of the client from this file; a public client has none",
    "FILE",
)
_CA: Final = Option(
    "oidc-ca-file",
    path_or_none,
    "",
    "Trust the certificate authorities in this PEM file for the provider, in place of those of the system",
    "FILE",
)
_SCOPES: Final = Option(
    "oidc-scopes",
    _scopes,
    "",
    "Ask for these scopes beside openid (default: offline_access, where the provider lists it)",
    "SCOPE",
    many=True,
)
OIDC_OPTIONS: Final = (_ISSUER, _CLIENT, _SECRET, _CA, _SCOPES)


def oidc_settings(values: OptionValues) -> OidcSettings | None:
    """Return the settings; None where no provider is named.

    Raises:
        SettingsError: a value is invalid, or lacks another one.
    """
    issuer, client = values.value(_ISSUER), values.value(_CLIENT)
    secret, ca, scopes = values.value(_SECRET), values.value(_CA), values.value(_SCOPES)
    if not issuer:
        for option, value in ((_CLIENT, client), (_SECRET, secret), (_CA, ca), (_SCOPES, scopes)):
            if value:
                raise SettingsError(f"{values.given(option)} has no meaning without {_ISSUER.flag}")
        return None
    if not client:
        raise SettingsError(f"{values.given(_ISSUER)} needs {_CLIENT.flag}, the client that the provider knows")
    return OidcSettings(issuer=issuer, client_id=client, client_secret_file=secret, ca_file=ca, scopes=scopes)
