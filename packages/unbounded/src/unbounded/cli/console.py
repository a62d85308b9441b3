"""`console`: the console on loopback, with the rights of the kubeconfig."""

from __future__ import annotations

import asyncio
from functools import partial
from importlib.util import find_spec
from typing import Final

from unbounded.cli.plugin.command import CliError, CommandSession, Printer
from unbounded.kube.logs import configure

LIBRARY: Final = "nicegui"
EXTRA: Final = "unbounded[console]"


async def run(session: CommandSession) -> int:
    """Serve until cancelled."""
    if find_spec(LIBRARY) is None:
        raise CliError(
            f"the console needs the package {LIBRARY}, which is not installed", next_step=f"pip install '{EXTRA}'"
        )
    from unbounded.console.loopback import serving_loopback  # noqa: PLC0415  # an extra

    configure(json=False, level="ERROR")  # a page that fails names its line of the log
    port: int = session.invocation.args.port
    allows: bool = session.invocation.args.allow_operations
    issued = partial(_print_url, session.printer)
    try:
        async with serving_loopback(session.api, port=port, issued=issued, allow_operations=allows):
            await asyncio.Event().wait()
    except OSError as error:
        raise CliError(f"--port {port}: {error.strerror or error}", next_step="choose another port") from error
    return 0


def _print_url(printer: Printer, url: str) -> None:
    printer.info(f"The console is at {url} for one browser; then another address is printed here. Ctrl-C ends it.")
