"""The command that serves a simulated cloud until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, TextIO

from aiohttp import web

from unbounded.kube.settings import add_version
from unbounded_lab.bmc.fleet import bmc_names
from unbounded_lab.cloud.control import PREFIX, CloudControl
from unbounded_lab.cloud.local import LabCloud
from unbounded_lab.cloud.offers import AZURE, OCI, CloudOffer, manifests
from unbounded_lab.command import check_writable, name, positive, print_table, stop_signal, whole_number
from unbounded_lab.listener import HOST, PortFailed
from unbounded_lab.machines import to_yaml

DESCRIPTION: Final = "Serve a simulated cloud and its machines on loopback, until Ctrl-C."

MOST_DATA_DISKS: Final = 32  # OCI's maximum for an instance; Azure allows more with its largest sizes

OFFERS: Final[Mapping[str, CloudOffer[Any]]] = {"azure": AZURE, "oci": OCI}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "; ".join(f"{each}: {offer.about}" for each, offer in OFFERS.items())
    parser.add_argument("cloud", choices=tuple(OFFERS), help=about)
    parser.add_argument(
        "--count", type=positive, default=1, metavar="N", help="Serve this number of machines (default 1)"
    )
    parser.add_argument(
        "--name",
        type=name,
        default="sim",
        help="Set the prefix of their names, and the site of their Machines (default sim)",
    )
    parser.add_argument(
        "--data-disks",
        type=whole_number(0, MOST_DATA_DISKS),
        default=0,
        metavar="N",
        help=f"Give each machine this number of data disks, at most {MOST_DATA_DISKS} (default 0)",
    )
    parser.add_argument(
        "--profile",
        default="ideal",
        metavar="P",
        help="Set the misbehaviours of the cloud; a+b sets both (default ideal)",
    )
    parser.add_argument("--list-profiles", action="store_true", help="Print the profiles and exit")
    parser.add_argument(
        "--seed", type=int, default=0, help="Derive names and certificates from this number (default 0)"
    )
    parser.add_argument(
        "--port", type=whole_number(0, 65535), default=0, help="Set the port of the endpoint (default: a free one)"
    )
    parser.add_argument(
        "--ca", type=Path, metavar="FILE", help="Write the CA certificate of the endpoint, for clients to trust"
    )
    parser.add_argument(
        "--manifests", type=Path, metavar="FILE", help="Write Machines and their credential for `kubectl apply`"
    )
    parser.add_argument(
        "--environment", type=Path, metavar="FILE", help="Write the environment of machine-ops-controller, for `. FILE`"
    )


async def run(args: argparse.Namespace, out: TextIO) -> int:
    """Serve until a signal ends it; returns the exit status."""
    offer = OFFERS[args.cloud]
    stop = stop_signal()
    try:
        cloud = offer.start(args.cloud, profile=args.profile, seed=args.seed, port=args.port)
        if args.list_profiles:
            print_table(out, ("PROFILE", "EFFECT"), [(each, cloud.table.explain(each)) for each in cloud.table.names()])
            return 0
        for flag, path in (("--ca", args.ca), ("--manifests", args.manifests), ("--environment", args.environment)):
            check_writable(flag, path)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(cloud)
            machines = {each: offer.add(cloud, each, args.data_disks) for each in bmc_names(args.count, args.name)}
            _show(offer, cloud, machines, await _control(cloud, stack), args, out)
            await stop.wait()
    except PortFailed as error:
        print(f"error: --port: {error}", file=sys.stderr)
        return 1
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m unbounded_lab.cloud", description=DESCRIPTION)
    add_arguments(parser)
    add_version(parser)
    return asyncio.run(run(parser.parse_args(arguments), sys.stdout))


async def _control(cloud: LabCloud[Any], stack: AsyncExitStack) -> str:
    """Serve the control interface until the stack closes; returns its address."""
    runner = web.AppRunner(CloudControl(cloud).application(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, HOST, 0).start()
    host, port = runner.addresses[0][:2]
    return f"http://{host}:{port}{PREFIX}"


def _show(
    offer: CloudOffer[Any],
    cloud: LabCloud[Any],
    machines: Mapping[str, str],
    control: str,
    args: argparse.Namespace,
    out: TextIO,
) -> None:
    rows = {"endpoint": cloud.url, "control": control, "profile": cloud.profile, **offer.shown(cloud)}
    width = max(map(len, rows))
    for what, value in rows.items():
        print(f"{what:{width}}  {value}", file=out)
    print(file=out)
    print_table(out, ("NAME", "PROVIDER ID"), list(machines.items()))
    environment = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in cloud.environment().items())
    print(f"\nEnvironment of machine-ops-controller:\n{environment}", end="", file=out)
    if args.environment is not None:
        args.environment.write_text(environment)
    if args.ca is not None:
        args.ca.write_bytes(cloud.ca)
        print(f"\nThe CA certificate of the endpoint is in {args.ca}.", file=out)
    if args.manifests is not None:
        args.manifests.touch(mode=0o600)  # it contains a key
        args.manifests.write_text(to_yaml(manifests(offer, cloud, machines, site=args.name)))
        print(f"\nManifests are in {args.manifests}: kubectl apply -f {args.manifests}", file=out)
    print("\nCtrl-C stops it.", file=out, flush=True)
