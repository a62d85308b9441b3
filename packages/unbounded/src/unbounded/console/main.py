"""Entry point of the process `unbounded-console`: the console of a cluster, with a log-in for each user."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from unbounded.console.oidc_settings import OIDC_OPTIONS, OidcSettings, oidc_settings
from unbounded.explain_api.settings import OPTIONS, ExplainSettings, add_arguments, parse_settings, read_authority
from unbounded.kube.options import OptionValues, SettingsError
from unbounded.kube.process_tuning import freeze_imports
from unbounded.kube.settings import add_version

if TYPE_CHECKING:
    from unbounded.console.guard import ConsoleOrigin
    from unbounded.console.oidc_login import OidcLogin
    from unbounded.console.sessions import ConsoleUser

COMPONENT: Final = "unbounded-console"
PREFIX: Final = "UNBOUNDED_CONSOLE"
IDLE_S: Final = 3600.0
ABSOLUTE_S: Final = 12 * 3600.0
DESCRIPTION: Final = (
    "Serve the console of a cluster to browsers. Each session acts with the token of its user, which stays in memory; "
    "the process itself has no credentials."
)


@dataclass(frozen=True)
class ConsoleSettings:
    """Settings of the process.

    Attributes:
        served: its addresses and the API server.
        oidc: the provider of log-ins; None for none.
        allow_operations: it offers actions.
    """

    served: ExplainSettings
    oidc: OidcSettings | None
    allow_operations: bool


def parse(arguments: Sequence[str] | None, environ: Mapping[str, str]) -> ConsoleSettings:
    """Return the settings from arguments (None for those of this process) and variables. Exits where one is invalid."""
    parser = argparse.ArgumentParser(prog=COMPONENT, description=DESCRIPTION)
    add_version(parser)
    try:
        add_arguments(parser, environ, PREFIX, OIDC_OPTIONS)
        parser.add_argument(
            "--allow-operations", action="store_true", help="Offer actions, which users do with their own rights"
        )
        args = parser.parse_args(arguments)
        served = parse_settings(args, environ, PREFIX, OIDC_OPTIONS)
        oidc = oidc_settings(OptionValues(args, PREFIX, environ, (*OPTIONS, *OIDC_OPTIONS)))
    except ValueError as error:
        parser.error(str(error))
    return ConsoleSettings(served, oidc, args.allow_operations)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parse(arguments, dict(os.environ))
    settings = chosen.served
    with freeze_imports():  # only after the arguments were validated
        import unbounded.console.app  # noqa: F401, PLC0415
        from unbounded.kube.logs import configure  # noqa: PLC0415
        from unbounded.kube.process import until_signal  # noqa: PLC0415

    configure(json=settings.log_format == "json", level=settings.log_level)
    try:
        return asyncio.run(until_signal(serve(settings, chosen.oidc, allow_operations=chosen.allow_operations)))
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        where = ", ".join(f"{one.host}:{one.port}" for one in (settings.plain, settings.tls, settings.health) if one)
        print(f"error: {error.strerror or error} (it serves on {where})", file=sys.stderr)
        return 1


async def serve(settings: ExplainSettings, oidc: OidcSettings | None = None, *, allow_operations: bool = False) -> None:
    """Serve until cancelled, with TLS where the settings have a certificate, else on loopback.

    Raises:
        OSError, SettingsError
    """
    from unbounded.console.app import build  # noqa: PLC0415
    from unbounded.console.guard import COOKIE, ConsoleOrigin  # noqa: PLC0415
    from unbounded.console.login import TokenLogin  # noqa: PLC0415
    from unbounded.console.server import listen, serving  # noqa: PLC0415
    from unbounded.console.sessions import BrowserSessions  # noqa: PLC0415
    from unbounded.kube.config import ClientConfig  # noqa: PLC0415
    from unbounded.kube.logs import Log  # noqa: PLC0415
    from unbounded.kube.metrics import ControllerMetrics  # noqa: PLC0415
    from unbounded.kube.process import serving_health  # noqa: PLC0415
    from unbounded.kube.serving_certificate import ServingCertificate, certificate_expiry  # noqa: PLC0415

    authority = read_authority(settings.ca)
    config = ClientConfig(server=settings.api_server, ca=authority, ca_file=settings.ca)
    metrics = ControllerMetrics()
    address = settings.tls or settings.plain
    if address is None:
        raise OSError("nothing is served")
    async with asyncio.TaskGroup() as closing, AsyncExitStack() as stack:

        def forget(user: ConsoleUser) -> None:
            closing.create_task(user.api.close())

        now = asyncio.get_running_loop().time
        sessions = BrowserSessions(idle_s=IDLE_S, absolute_s=ABSOLUTE_S, now=now, forget=forget)
        addresses = () if settings.health is None else (settings.health,)
        health = await stack.enter_async_context(serving_health(metrics, addresses))
        served = asyncio.Event()
        health.check("console", lambda: None if served.is_set() else "it does not serve yet")
        listener = stack.enter_context(listen(address))
        port = listener.getsockname()[1]
        host = f"[{address.host}]" if ":" in address.host else address.host
        hosts = frozenset() if settings.tls else frozenset({f"{host}:{port}", f"localhost:{port}"})
        secure = settings.tls is not None
        # with this prefix, browsers take the cookie from no other host, such as a sibling
        own = ConsoleOrigin(hosts, secure=secure, cookie=f"__Host-{COOKIE}" if secure else COOKIE)
        provider = None if oidc is None else _oidc_login(oidc, own, now)
        login = TokenLogin(sessions, config, metrics, own, provider)
        app = build(sessions=sessions, own=own, login=login, allow_operations=allow_operations)
        Log(COMPONENT).info("serving the console", host=address.host or "*", port=port, tls=own.secure)
        closing.create_task(sessions.end_when_due())
        if settings.tls is None:
            await stack.enter_async_context(serving(app, listener))
            served.set()
            await asyncio.Event().wait()
        elif settings.certificate is not None and settings.key is not None:
            expiry = certificate_expiry(metrics.registry)
            certificate = ServingCertificate(settings.certificate, settings.key, "console", expiry)
            health.check("certificate", certificate.missing)
            await stack.enter_async_context(serving(app, listener, await certificate.wait_usable()))
            served.set()
            await certificate.follow()


def _oidc_login(settings: OidcSettings, own: ConsoleOrigin, now: Callable[[], float]) -> OidcLogin:
    """Return the log-in with a provider, whose libraries only those import who use it."""
    from unbounded.console.oidc_login import OidcLogin  # noqa: PLC0415
    from unbounded.console.oidc_provider import OidcProvider  # noqa: PLC0415

    return OidcLogin(OidcProvider(settings), own, now)


if __name__ == "__main__":
    sys.exit(main())
