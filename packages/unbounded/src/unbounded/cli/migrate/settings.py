"""Settings of `unbounded migrate`: flags, read once."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from unbounded.cli.settings import UpSettings


@dataclass(frozen=True, kw_only=True)
class MigrateSettings:
    """Settings of one run.

    Args:
        up: the data, and the addresses of its API server.
        to: kubeconfig of the target; None where the target is gone.
        endpoint: of the target's API server, for hosts; empty for what the target publishes.
        plan: show the plan, and end.
        yes: begin without a confirmation.
        finish, take_back: the decision about an interrupted migration.
        without_target: take back on the source alone.
    """

    up: UpSettings
    to: Path | None
    context: str = ""
    endpoint: str = ""
    plan: bool = False
    yes: bool = False
    finish: bool = False
    take_back: bool = False
    without_target: bool = False


def migrate_settings_of(args: argparse.Namespace) -> MigrateSettings:
    """Return the settings that the flags give.

    Raises:
        ValueError: flags contradict each other.
    """
    if args.without_target and not args.take_back:
        raise ValueError("--without-target requires --take-back")
    if args.without_target is (args.to is not None):
        raise ValueError(
            "use either --to KUBECONFIG for the cluster, or --without-target if it does not exist any more"
        )
    if sum((args.plan, args.take_back, args.finish)) > 1:
        raise ValueError("--plan, --take-back and --finish exclude each other")
    return MigrateSettings(
        up=UpSettings(data=args.data, bind=args.bind, port=args.port, advertise_address=args.advertise_address),
        to=args.to,
        context=args.context,
        endpoint=args.api_server_endpoint or "",
        plan=args.plan,
        yes=args.yes,
        finish=args.finish,
        take_back=args.take_back,
        without_target=args.without_target,
    )
