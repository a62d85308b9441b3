"""The command that serves simulated BMCs until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, TextIO

from unbounded.lab.bmc.fleet import Fleet, FleetBmc, FleetFailed, start_fleet
from unbounded.lab.bmc.profiles import explain, names
from unbounded.lab.machines import manifests, to_yaml

DESCRIPTION: Final = "Serve simulated BMCs with hosts behind them on loopback, until Ctrl-C."

NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=_positive, default=1, metavar="N", help="how many BMCs (default 1)")
    parser.add_argument(
        "--name",
        type=_name,
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
    parser.add_argument("--processes", type=_positive, default=1, metavar="K", help="processes to share the work")
    parser.add_argument("--seed", type=int, default=0, help="passwords, certificates and the mix of `field` follow it")
    parser.add_argument("--shutdown-seconds", type=float, default=5.0, metavar="S", help="an orderly shutdown takes")
    parser.add_argument("--boot-seconds", type=float, default=10.0, metavar="S", help="a boot takes")
    parser.add_argument(
        "--port-base", type=int, default=0, metavar="PORT", help="port of the first BMC (default: free)"
    )
    parser.add_argument("--manifests", type=Path, metavar="FILE", help="write Machines and Secrets for `kubectl apply`")
    parser.add_argument("--control", action="store_true", help="also print where each BMC's dials are turned")


async def run(args: argparse.Namespace, out: TextIO) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit status."""
    if args.list_profiles:
        _print_table(out, ("PROFILE", "WHAT IT DOES"), ((name, explain(name)) for name in names()))
        return 0
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
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
    parser = argparse.ArgumentParser(prog="python -m unbounded.lab.bmc", description=DESCRIPTION)
    add_arguments(parser)
    return asyncio.run(run(parser.parse_args(arguments), sys.stdout))


def _show(fleet: Fleet, args: argparse.Namespace, out: TextIO) -> None:
    heads = ("NAME", "URL", "USERNAME", "PASSWORD", "SYSTEMS", "PROFILE", *(("CONTROL",) if args.control else ()))
    _print_table(out, heads, (_row(bmc)[: len(heads)] for bmc in fleet))
    if args.manifests is not None:
        args.manifests.write_text(to_yaml(manifests(fleet, site=args.name)))
        print(f"\nManifests are in {args.manifests}: kubectl apply -f {args.manifests}", file=out)
    print("\nCtrl-C ends them.", file=out, flush=True)


def _row(bmc: FleetBmc) -> tuple[str, ...]:
    return (bmc.name, bmc.url, bmc.username, bmc.password, ",".join(bmc.device_ids), bmc.profile, bmc.control)


def _print_table(out: TextIO, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    lines = [heads, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip(), file=out)


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            "has to be lower case letters, digits and '-', at most 40, beginning with a letter"
        )
    return text


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("has to be 1 or more")
    return number
