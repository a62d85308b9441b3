"""`python -m unbounded_lab.bmc`: serve simulated BMCs until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

from unbounded.kube.settings import add_version
from unbounded_lab.bmc.fleet import Fleet, FleetBmc, FleetFailed, start_fleet
from unbounded_lab.bmc.profiles import explain, names
from unbounded_lab.command import check_writable, name, positive, print_table, stop_signal
from unbounded_lab.machines import manifests, to_yaml

DESCRIPTION: Final = "Serve simulated BMCs and their hosts on loopback, until Ctrl-C."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=positive, default=1, metavar="N", help="Serve this number of BMCs (default 1)")
    parser.add_argument(
        "--name",
        type=name,
        default="sim",
        help="Set the prefix of their names, and the site of their Machines (default sim)",
    )
    parser.add_argument(
        "--profile",
        default="ideal",
        metavar="P",
        help="Set their misbehaviours; a+b sets both, a*9,b sets b for one in ten (default ideal)",
    )
    parser.add_argument(
        "--recording",
        type=Path,
        metavar="FILE",
        help="Replay the BMC of this file, which `unbounded bmc certify --profile` has written",
    )
    parser.add_argument("--list-profiles", action="store_true", help="Print the profiles and exit")
    parser.add_argument(
        "--processes", type=positive, default=1, metavar="K", help="Serve with this number of processes (default 1)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="Derive passwords, certificates and the mix of `field` from this number (default 0)",
    )
    parser.add_argument(
        "--shutdown-seconds",
        type=float,
        default=5.0,
        metavar="S",
        help="Set the time of an orderly shutdown (default 5)",
    )
    parser.add_argument(
        "--boot-seconds", type=float, default=10.0, metavar="S", help="Set the time of a boot (default 10)"
    )
    parser.add_argument(
        "--port-base", type=int, default=0, metavar="PORT", help="Set the port of the first BMC (default: a free one)"
    )
    parser.add_argument(
        "--boots",
        action="store_true",
        help="Let the hosts run what they boot: installers from virtual media, with leases in 127.0.0.0/8, and Nodes; "
        "each BMC has an address of its own there",
    )
    parser.add_argument(
        "--media-ca",
        type=Path,
        metavar="FILE",
        help="Trust servers of virtual media whose certificates chain to this PEM file (default: the system's roots)",
    )
    parser.add_argument("--manifests", type=Path, metavar="FILE", help="Write Machines and Secrets for `kubectl apply`")
    parser.add_argument("--control", action="store_true", help="Print the address of each BMC's control interface, too")


async def run(args: argparse.Namespace, out: TextIO) -> int:
    """Serve until a signal ends it; returns the exit status."""
    if args.list_profiles:
        print_table(out, ("PROFILE", "EFFECT"), ((each, explain(each)) for each in names()))
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
            recording=args.recording,
            media_ca="" if args.media_ca is None else args.media_ca.read_text(),
            boots=args.boots,
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
    print("\nCtrl-C stops them.", file=out, flush=True)


def _row(bmc: FleetBmc) -> tuple[str, ...]:
    return (bmc.name, bmc.url, bmc.username, bmc.password, ",".join(bmc.device_ids), bmc.profile, bmc.control)


if __name__ == "__main__":
    raise SystemExit(main())
