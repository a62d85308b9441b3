"""The command that serves simulated BMCs until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

from unbounded.kube.version_flag import add_version
from unbounded_lab.bmc.fleet import Fleet, FleetBmc, FleetFailed, start_fleet
from unbounded_lab.bmc.profiles import explain, names
from unbounded_lab.command import check_writable, name, positive, print_table, stop_signal
from unbounded_lab.machines import manifests, to_yaml

DESCRIPTION: Final = "Serve simulated BMCs with hosts behind them on loopback, until Ctrl-C."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=positive, default=1, metavar="N", help="how many BMCs (default 1)")
    parser.add_argument(
        "--name",
        type=name,
        default="sim",
        help="what they are called, with a number behind it, and the site of their Machines (default sim)",
    )
    parser.add_argument(
        "--profile",
        default="ideal",
        metavar="P",
        help="how they misbehave; a+b for both, a*9,b for one in ten (default ideal)",
    )
    parser.add_argument("--list-profiles", action="store_true", help="say which profiles there are, and end")
    parser.add_argument("--processes", type=positive, default=1, metavar="K", help="processes to share the work")
    parser.add_argument("--seed", type=int, default=0, help="passwords, certificates and the mix of `field` follow it")
    parser.add_argument("--shutdown-seconds", type=float, default=5.0, metavar="S", help="an orderly shutdown takes")
    parser.add_argument("--boot-seconds", type=float, default=10.0, metavar="S", help="a boot takes")
    parser.add_argument(
        "--port-base", type=int, default=0, metavar="PORT", help="port of the first BMC (default: free)"
    )
    parser.add_argument("--manifests", type=Path, metavar="FILE", help="write Machines and Secrets for `kubectl apply`")
    parser.add_argument("--control", action="store_true", help="also print where each BMC's dials are turned")


async def run(args: argparse.Namespace, out: TextIO) -> int:
    """Serve until a signal ends it; returns the exit status."""
    if args.list_profiles:
        print_table(out, ("PROFILE", "WHAT IT DOES"), ((each, explain(each)) for each in names()))
        return 0
    stop = stop_signal()
    try:
        check_writable("--manifests", args.manifests)
        async with start_fleet(
            args.count,
            profile=args.profile,
            processes=args.processes,
            seed=args.seed,
            shutdown_s=args.shutdown_seconds,
            boot_s=args.boot_seconds,
            port_base=args.port_base,
            prefix=args.name,
        ) as fleet:
            _show(fleet, args, out)
            await stop.wait()
    except (ValueError, FleetFailed, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m unbounded_lab.bmc", description=DESCRIPTION)
    add_arguments(parser)
    add_version(parser)
    return asyncio.run(run(parser.parse_args(arguments), sys.stdout))


def _show(fleet: Fleet, args: argparse.Namespace, out: TextIO) -> None:
    heads = ("NAME", "URL", "USERNAME", "PASSWORD", "SYSTEMS", "PROFILE", *(("CONTROL",) if args.control else ()))
    print_table(out, heads, (_row(bmc)[: len(heads)] for bmc in fleet))
    if args.manifests is not None:
        args.manifests.write_text(to_yaml(manifests(fleet, site=args.name)))
        print(f"\nManifests are in {args.manifests}: kubectl apply -f {args.manifests}", file=out)
    print("\nCtrl-C ends them.", file=out, flush=True)


def _row(bmc: FleetBmc) -> tuple[str, ...]:
    return (bmc.name, bmc.url, bmc.username, bmc.password, ",".join(bmc.device_ids), bmc.profile, bmc.control)
