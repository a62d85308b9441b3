"""Settings of `unbounded-explain`: flags, then environment, then file; read once."""

from __future__ import annotations

import argparse
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from unbounded.kube.options import Option, OptionValues, SettingsError, add_options
from unbounded.kube.settings import Address, add_log_arguments, endpoint_url, parse_address

PREFIX: Final = "UNBOUNDED_EXPLAIN"
COMPONENT: Final = "unbounded-explain"
IN_CLUSTER_CA: Final = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"


@dataclass(frozen=True, kw_only=True)
class ExplainSettings:
    """Settings of the process.

    Attributes:
        plain: address without TLS, on loopback; None for none.
        tls: address with TLS; None for none.
        certificate, key: files of the TLS listener, which may appear later; None without TLS.
        api_server, ca: of the API server.
        health: address of /healthz, /readyz and /metrics; None for none.
    """

    plain: Address | None
    tls: Address | None
    certificate: Path | None
    key: Path | None
    api_server: str
    ca: Path | None
    health: Address | None
    log_format: str
    log_level: str


def loopback_address(text: str) -> Address | None:
    """Parse an address of this machine alone: tokens cross no network without TLS."""
    address = parse_address(text)
    if address is None or address.host == "localhost":
        return address
    try:
        is_loopback = ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise ValueError(f"{text!r} is not on loopback, such as 127.0.0.1:8090: use --tls-addr for others")
    return address


def path_or_none(text: str) -> Path | None:
    return Path(text) if text else None


def url_or_none(text: str) -> str:
    return endpoint_url(text) if text else ""


_PLAIN: Final = Option(
    "plain-addr",
    loopback_address,
    "127.0.0.1:8090",
    "Serve without TLS on this loopback address; 0 disables it",
    "ADDRESS",
)
_TLS: Final = Option("tls-addr", parse_address, ":8443", "Serve with TLS on this address; 0 disables it", "ADDRESS")
_CERTIFICATE: Final = Option(
    "tls-cert-file", path_or_none, "", "Read the certificate chain of --tls-addr from this PEM file", "FILE"
)
_KEY: Final = Option(
    "tls-private-key-file", path_or_none, "", "Read the private key of --tls-addr from this PEM file", "FILE"
)
_SERVER: Final = Option("api-server", url_or_none, "", "Read from this API server (default: that of the Pod)", "URL")
_CA: Final = Option(
    "api-server-ca", path_or_none, IN_CLUSTER_CA, "Trust the certificate authorities in this PEM file", "FILE"
)
_HEALTH: Final = Option(
    "health-addr",
    parse_address,
    ":8082",
    "Serve /metrics, /healthz and /readyz on this address; 0 disables it",
    "ADDRESS",
)
OPTIONS: Final = (_PLAIN, _TLS, _CERTIFICATE, _KEY, _SERVER, _CA, _HEALTH)


def add_arguments(
    parser: argparse.ArgumentParser,
    environ: Mapping[str, str],
    prefix: str = PREFIX,
    others: Sequence[Option[Any]] = (),
) -> None:
    """Add the flags of a process that serves with its callers' rights alone.

    Args:
        prefix: of its environment variables.
        others: options of its own.
    """
    add_options(parser, prefix, (*OPTIONS, *others))
    add_log_arguments(parser, environ, level="info", log_format="json")


def parse_settings(
    args: argparse.Namespace,
    environ: Mapping[str, str],
    prefix: str = PREFIX,
    others: Sequence[Option[Any]] = (),
) -> ExplainSettings:
    """Return the settings.

    Args:
        others: options that may be in the file, too.

    Raises:
        SettingsError: a value is invalid, or does not fit another one.
    """
    values = OptionValues(args, prefix, environ, (*OPTIONS, *others))
    certificate, key = values.value(_CERTIFICATE), values.value(_KEY)
    if (certificate is None) != (key is None):
        raise SettingsError(f"{_CERTIFICATE.flag} and {_KEY.flag} belong together: give both, or none")
    tls, plain = values.value(_TLS), values.value(_PLAIN)
    if certificate is None:
        if tls not in (None, parse_address(_TLS.default)):
            raise SettingsError(f"{values.given(_TLS)} needs {_CERTIFICATE.flag} and {_KEY.flag}")
        tls = None
    if tls is None and plain is None:
        raise SettingsError(f"nothing is served: {_PLAIN.flag} is 0, and there is no {_CERTIFICATE.flag}")
    return ExplainSettings(
        plain=plain,
        tls=tls,
        certificate=certificate,
        key=key,
        api_server=values.value(_SERVER) or _of_pod(environ),
        ca=values.value(_CA),
        health=values.value(_HEALTH),
        log_format=args.log_format,
        log_level=args.log_level,
    )


def read_authority(ca: Path | None) -> bytes | None:
    """Return the authorities of the API server's certificate; None for those of the system. Raises SettingsError."""
    from cryptography import x509  # noqa: PLC0415  # only after the arguments were validated

    if ca is None:
        return None
    try:
        pem = ca.read_bytes()
        x509.load_pem_x509_certificates(pem)
    except OSError as error:
        raise SettingsError(f"{_CA.flag}: {ca}: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(f"{_CA.flag}: {ca} has no PEM certificates of authorities") from error
    return pem


def _of_pod(environ: Mapping[str, str]) -> str:
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise SettingsError(
            f"{_SERVER.flag}: this is no Pod ($KUBERNETES_SERVICE_HOST is not set): name the API server"
        )
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
