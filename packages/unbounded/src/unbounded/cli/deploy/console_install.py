"""The console on a cluster: the flags of `install`, the one that runs, and the desired one."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from unbounded.api.core import SECRETS
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploy.console_workload import (
    ALLOW_OPERATIONS,
    CONSOLE,
    CONSOLE_TLS,
    ConsoleWorkload,
    console_objects,
)
from unbounded.cli.deploy.live_machina import chosen_image, live_args, live_image
from unbounded.cli.plugin.command import USAGE, CliError, CommandSession
from unbounded.kube.api import Forbidden, NotFound

Raw = dict[str, Any]


def require_console(args: Namespace) -> None:
    """Raise CliError where flags of the console are given without it."""
    given = {"--console-image": args.console_image, "--console-allow-operations": args.console_allow_operations}
    for flag, value in given.items():
        if value not in ("", None) and not args.console:
            raise CliError(f"{flag} applies only to the console", next_step="give --console too", status=USAGE)


def objects_without_cluster(session: CommandSession, machina: str) -> tuple[Raw, ...]:
    """Return the objects of the console that the flags request; empty for none.

    Args:
        machina: image of machina.
    """
    return console_objects(_console(session, "", machina)) if session.invocation.args.console else ()


async def desired_objects(session: CommandSession, machina: str) -> tuple[Raw, ...]:
    """Return the objects of the console: of the one that runs, or that the flags request; empty for none."""
    running = await live_image(session.api, CONSOLE, CONSOLE)
    if not (running or session.invocation.args.console):
        return ()
    allows = ALLOW_OPERATIONS in await live_args(session.api, CONSOLE, CONSOLE)
    return console_objects(_console(session, running, machina, allows=allows))


def _console(session: CommandSession, existing: str, machina: str, *, allows: bool = False) -> ConsoleWorkload:
    args = session.invocation.args
    return ConsoleWorkload(
        chosen_image(CONSOLE, image=args.console_image, registry=args.image_registry, there=existing, beside=machina),
        allows if args.console_allow_operations is None else args.console_allow_operations,
    )


async def report_next_steps(session: CommandSession) -> None:
    """Print how to give the console its certificate, without which it serves nobody."""
    try:
        await session.api.get(SECRETS, CONSOLE_TLS, namespace=NAMESPACE)
    except NotFound:
        session.printer.info(
            f"Next: give the console its certificate: `kubectl create secret tls {CONSOLE_TLS} -n {NAMESPACE} "
            "--cert FILE --key FILE`"
        )
    except Forbidden:
        return
