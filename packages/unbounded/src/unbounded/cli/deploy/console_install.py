"""The console on a cluster: the flags of `install`, the one that runs, and the desired one."""

from __future__ import annotations

import re
from argparse import ArgumentError, ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, Final

from cryptography import x509

from unbounded.api.core import CONFIG_MAPS, SECRETS
from unbounded.api.fields import DATA_KEY, DNS_SUBDOMAIN
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploy import validation
from unbounded.cli.deploy.console_workload import (
    ALLOW_OPERATIONS,
    CONSOLE,
    CONSOLE_TLS,
    OIDC_CA_FILE,
    OIDC_CA_VOLUME,
    OIDC_CLIENT,
    ConsoleOidc,
    ConsoleWorkload,
    SecretKey,
)
from unbounded.cli.deploy.live_machina import args_in, chosen_image, image_in, live_deployment, volumes_in
from unbounded.cli.plugin.command import USAGE, CliError, CommandSession
from unbounded.console.oidc_settings import CLIENT_ID, ISSUER_URL, OIDC_OPTIONS, SCOPES
from unbounded.console.urls import OIDC_CALLBACK
from unbounded.kube.api import Api, Forbidden, NotFound

Raw = dict[str, Any]

OIDC_ISSUER: Final = "--console-oidc-issuer-url"
OIDC_CLIENT_ID: Final = "--console-oidc-client-id"
_CLIENT_ID: Final = re.compile(r"[!-~]([ -~]*[!-~])?")  # RFC 6749, appendix A.1


def require_console(args: Namespace) -> None:
    """Raise CliError where flags of the console are given without it."""
    given = {"--console-image": args.console_image or None}
    given |= {flag: _value(args, flag) for flag in ("--console-allow-operations", *_OIDC_FLAGS)}
    for flag, value in given.items():
        if value is not None and not args.console:
            raise CliError(f"{flag} applies only to the console", next_step="give --console too", status=USAGE)


def oidc_changes(args: Namespace) -> dict[str, Any]:
    """Return the fields of ConsoleOidc that flags set, each as it is to be. Raises CliError."""
    changes: dict[str, Any] = {}
    for flag, (field, check) in _OIDC_FLAGS.items():
        text: str | None = _value(args, flag)
        if text is not None:
            try:
                changes[field] = validation.flagged(flag, check, text)
            except validation.BadFlag as error:
                raise CliError(str(error), status=USAGE) from None
    return changes


def _value(args: Namespace, flag: str) -> Any:
    return getattr(args, flag.removeprefix("--").replace("-", "_"))


def _issuer(text: str) -> str:
    if text and not text.startswith("https://"):
        raise ValueError(f"{text!r} is not https://HOST[:PORT][/PATH], the issuer of the provider's ID tokens")
    return ISSUER_URL.parse(text)


def _client_id(text: str) -> str:
    if text and not _CLIENT_ID.fullmatch(text):
        raise ValueError(f"{text!r} is not the ID of a client, such as kubernetes")
    return text


def _secret_key(text: str) -> SecretKey | None:
    name, _, key = text.partition("/")
    if text and not (re.fullmatch(DNS_SUBDOMAIN, name) and re.fullmatch(DATA_KEY, key)):
        raise ValueError(  # without the text, which may be the secret
            f"must be SECRET/KEY, a Secret of {NAMESPACE} and its key, such as {CONSOLE}-oidc/client-secret; the "
            "secret itself is not accepted on the command line"
        )
    return SecretKey(name, key) if text else None


def _certificates(path: str) -> str:
    if not path:
        return ""
    try:
        pem = Path(path).expanduser().read_bytes()
        x509.load_pem_x509_certificates(pem)
        text = pem.decode()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path}: must contain PEM certificates of authorities: {error}") from error
    try:
        return validation.without_private_key(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


_OIDC_FLAGS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {  # each with its field, and its check
    OIDC_ISSUER: ("issuer", _issuer),
    OIDC_CLIENT_ID: ("client_id", _client_id),
    "--console-oidc-client-secret": ("client_secret", _secret_key),
    "--console-oidc-ca-file": ("ca", _certificates),
    "--console-oidc-scopes": ("scopes", SCOPES.parse),
}


def console_without_cluster(session: CommandSession, machina: str, changes: Mapping[str, Any]) -> ConsoleWorkload:
    """Return the console that the flags request.

    Args:
        machina: image of machina.
        changes: those of `oidc_changes`.
    """
    return _console(session, "", machina, oidc=_desired_oidc(changes, None))


async def desired_console(session: CommandSession, machina: str, changes: Mapping[str, Any]) -> ConsoleWorkload | None:
    """Return the console that runs, as the flags change it, or that the flags request; None for none.

    Raises:
        CliError: a setting of the provider lacks another one.
    """
    deployment = await live_deployment(session.api, CONSOLE)
    running = image_in(deployment, CONSOLE)
    if not (running or session.invocation.args.console):
        return None
    allows = ALLOW_OPERATIONS in args_in(deployment, CONSOLE)
    oidc = _desired_oidc(changes, await live_oidc(session.api, deployment))
    return _console(session, running, machina, allows=allows, oidc=oidc)


def _console(
    session: CommandSession, existing: str, machina: str, *, allows: bool = False, oidc: ConsoleOidc | None
) -> ConsoleWorkload:
    args = session.invocation.args
    return ConsoleWorkload(
        chosen_image(CONSOLE, image=args.console_image, registry=args.image_registry, there=existing, beside=machina),
        allows if args.console_allow_operations is None else args.console_allow_operations,
        oidc,
    )


def _desired_oidc(changes: Mapping[str, Any], live: ConsoleOidc | None) -> ConsoleOidc | None:
    desired = replace(live or ConsoleOidc("", ""), **changes)
    if not desired.issuer:
        for flag, (field, _) in _OIDC_FLAGS.items():
            if changes.get(field):
                raise CliError(f"{flag} needs {OIDC_ISSUER}", status=USAGE)
        return None
    if not desired.client_id:
        raise CliError(f"{OIDC_ISSUER} needs {OIDC_CLIENT_ID}, the client that the provider knows", status=USAGE)
    return desired


async def live_oidc(api: Api, deployment: Raw) -> ConsoleOidc | None:
    """Return the log-in with a provider that a Deployment of the console offers; None for none."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in OIDC_OPTIONS:
        parser.add_argument(option.flag, dest=option.dest, default="")
    try:
        args, _ = parser.parse_known_args(args_in(deployment, CONSOLE))
    except ArgumentError:  # the console does not start with these either
        return None
    if not getattr(args, ISSUER_URL.dest):
        return None
    volumes = {one.get("name"): one for one in volumes_in(deployment)}
    secret: Raw = volumes.get(OIDC_CLIENT, {}).get("secret") or {}
    config_map: Raw = volumes.get(OIDC_CA_VOLUME, {}).get("configMap") or {}
    return ConsoleOidc(
        getattr(args, ISSUER_URL.dest),
        getattr(args, CLIENT_ID.dest),
        next((SecretKey(secret["secretName"], item["key"]) for item in secret.get("items") or ()), None),
        await _ca_in(api, str(config_map.get("name", ""))),
        _valid_scopes(getattr(args, SCOPES.dest)),
    )


def _valid_scopes(text: str) -> tuple[str, ...]:
    try:
        return SCOPES.parse(text)
    except ValueError:  # likewise
        return ()


async def _ca_in(api: Api, config_map: str) -> str:
    if not config_map:
        return ""
    try:
        found = await api.get(CONFIG_MAPS, config_map, namespace=NAMESPACE)
    except NotFound:
        return ""
    return found.data.get(PurePath(OIDC_CA_FILE).name, "")


async def report_next_steps(session: CommandSession, console: ConsoleWorkload, changes: Mapping[str, Any]) -> None:
    """Print how to give the console the Secrets that it lacks, and how to make it known to a new provider."""
    if not await has_certificate(session.api):
        session.printer.info(
            "Next: give the console its certificate, without which its Pod is not ready: "
            f"`kubectl create secret tls {CONSOLE_TLS} -n {NAMESPACE} --cert FILE --key FILE`"
        )
    oidc = console.oidc
    if oidc is None:
        return
    secret = oidc.client_secret
    if secret is not None and await _lacks(session.api, secret.name):
        session.printer.info(
            f"Next: give the console the secret of its client: `kubectl create secret generic {secret.name} "
            f"-n {NAMESPACE} --from-file {secret.key}=FILE`"
        )
    elif secret is not None and await _lacks(session.api, secret.name, secret.key):
        session.printer.warn(
            f"Secret {NAMESPACE}/{secret.name} has no key {secret.key}: the console finds no secret of its client"
        )
    if changes.get("issuer"):
        session.printer.info(
            f"Next: at {oidc.issuer}, register https://HOST[:PORT]{OIDC_CALLBACK} as a redirect URI of the client "
            f"{oidc.client_id}, with the address at which browsers reach the console"
        )


async def has_certificate(api: Api) -> bool:
    """Return whether the Secret of the certificate exists, so that the Pod can become ready."""
    return not await _lacks(api, CONSOLE_TLS)


async def _lacks(api: Api, secret: str, key: str = "") -> bool:
    """Return whether a Secret, or its key, does not exist; False where the user may not read it."""
    try:
        found = await api.get(SECRETS, secret, namespace=NAMESPACE)
    except NotFound:
        return True
    except Forbidden:
        return False
    return bool(key) and key not in found.data
