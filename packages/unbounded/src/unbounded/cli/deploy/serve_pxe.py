"""`kubectl unbounded site serve-pxe`: metalman on this machine."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace

from unbounded.cli.plugin.command import USAGE, CliError, CommandSession
from unbounded.kube.options import add_options
from unbounded.kube.settings import add_log_arguments
from unbounded.metalman.flags import OPTIONS, PREFIX


async def serve_pxe(session: CommandSession) -> int:
    """Replace this process by metalman."""
    args = session.invocation.args
    if args.as_user or args.as_groups or args.as_uid:
        text = "--as: metalman does not impersonate a user"
        raise CliError(text, next_step="use a kubeconfig whose user has `as`", status=USAGE)
    given = pxe_arguments(args)
    sys.stdout.flush()
    os.execve(  # noqa: S606 - this process has nothing left to do, and signals are for the other one
        sys.executable,
        [sys.executable, "-m", "unbounded.metalman.main", "serve-pxe", *given],
        dict(session.invocation.environ),
    )


def pxe_arguments(args: Namespace) -> list[str]:
    """Return the given flags in the form of metalman."""
    found: list[str] = []
    for option in OPTIONS:
        value = getattr(args, option.dest)
        values = value if isinstance(value, list) else [] if value is None else [value]
        found += [f"{option.flag}={one}" for one in values]
    named = {"--kubeconfig": args.kubeconfig, "--context": args.context}
    found += [f"{flag}={value}" for flag, value in named.items() if value]
    return [*found, f"--log-format={args.log_format}", f"--log-level={args.log_level}"]


def add_pxe_arguments(parser: ArgumentParser) -> None:
    """Add metalman's own flags, without those that all commands have."""
    add_options(parser, PREFIX, OPTIONS)
    add_log_arguments(parser, os.environ, level="info", log_format="text")
