"""Entry point of the process `unbounded-explain`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack

from unbounded.explain_api.settings import (
    COMPONENT,
    ExplainSettings,
    add_arguments,
    parse_settings,
    read_authority,
)
from unbounded.kube.options import SettingsError
from unbounded.kube.process_tuning import freeze_imports
from unbounded.kube.settings import add_version

DESCRIPTION = (
    "Serve explanations and plans over HTTP. Each request is answered with the rights of its bearer token; the process "
    "itself has no credentials."
)


def main(arguments: Sequence[str] | None = None) -> int:
    environ = dict(os.environ)
    parser = argparse.ArgumentParser(prog=COMPONENT, description=DESCRIPTION)
    add_version(parser)
    try:
        add_arguments(parser, environ)
        settings = parse_settings(parser.parse_args(arguments), environ)
    except ValueError as error:
        parser.error(str(error))
    with freeze_imports():  # only after the arguments were validated
        import unbounded.explain_api.server  # noqa: F401, PLC0415
        from unbounded.kube.logs import configure  # noqa: PLC0415
        from unbounded.kube.process import until_signal  # noqa: PLC0415

    configure(json=settings.log_format == "json", level=settings.log_level)
    try:
        return asyncio.run(until_signal(serve(settings)))
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        where = ", ".join(f"{one.host}:{one.port}" for one in (settings.plain, settings.tls, settings.health) if one)
        print(f"error: {error.strerror or error} (it serves on {where})", file=sys.stderr)
        return 1


async def serve(settings: ExplainSettings) -> None:
    """Serve until cancelled. Raises OSError, SettingsError."""
    from unbounded.explain_api.server import ExplainServer  # noqa: PLC0415
    from unbounded.kube.config import ClientConfig  # noqa: PLC0415
    from unbounded.kube.metrics import ControllerMetrics  # noqa: PLC0415
    from unbounded.kube.process import serving_health  # noqa: PLC0415
    from unbounded.kube.serving_certificate import ServingCertificate, certificate_expiry  # noqa: PLC0415

    authority = read_authority(settings.ca)
    config = ClientConfig(server=settings.api_server, ca=authority, ca_file=settings.ca)
    metrics = ControllerMetrics()
    server = ExplainServer(config, metrics)
    async with AsyncExitStack() as stack:
        if settings.plain is not None:
            await stack.enter_async_context(server.serving(settings.plain))
        addresses = () if settings.health is None else (settings.health,)
        await stack.enter_async_context(serving_health(metrics, addresses))
        if settings.tls is not None and settings.certificate is not None and settings.key is not None:
            expiry = certificate_expiry(metrics.registry)
            certificate = ServingCertificate(settings.certificate, settings.key, "explain", expiry)
            await server.serve_tls(settings.tls, certificate)
        await asyncio.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
