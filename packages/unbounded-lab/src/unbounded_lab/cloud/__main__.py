"""`python -m unbounded_lab.cloud`: serve a simulated cloud until Ctrl-C. How to fill each cloud, and how to log in.

Its control interface is plain HTTP on loopback, on a port of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Generic, TextIO, TypeVar

from aiohttp import web

from unbounded.api.names import API_VERSION, LABEL_SITE, NAMESPACE
from unbounded.kube.settings import add_version
from unbounded_lab.bmc.fleet import bmc_names
from unbounded_lab.cloud.azure.local import GROUP, LabAzure
from unbounded_lab.cloud.azure.seeding import VmShape
from unbounded_lab.cloud.local import LabCloud
from unbounded_lab.cloud.oci.local import LabOci
from unbounded_lab.cloud.oci.seeding import Disks
from unbounded_lab.command import (
    answer_errors,
    check_writable,
    json_response,
    name,
    positive,
    print_table,
    read_object,
    stop_signal,
    whole_number,
)
from unbounded_lab.faults import non_default
from unbounded_lab.listener import HOST, PortFailed
from unbounded_lab.machines import Manifest, to_yaml

AGENT: Final = "https://releases.invalid/unbounded-agent.tar.gz"  # for replacements; a simulated VM runs nothing

C = TypeVar("C", bound=LabCloud[Any])
PREFIX: Final = "/lab/cloud"
DESCRIPTION: Final = "Serve a simulated cloud and its machines on loopback, until Ctrl-C."
MOST_DATA_DISKS: Final = 32  # OCI's maximum for an instance; Azure allows more with its largest sizes


@dataclass(frozen=True)
class CloudOffer(Generic[C]):
    """A cloud for the command.

    Args:
        about: one line.
        provider: `spec.provider` of its Machines.
        start: creates the cloud; takes the arguments of LabCloud.
        add: adds a machine with this number of data disks, returns its provider ID.
        secret: content of a MachineOperationCredential's Secret; None: the controller logs in with its own identity.
        shown: further properties for users, by name.
    """

    about: str
    provider: str
    start: Callable[..., C]
    add: Callable[[C, str, int], str]
    secret: Callable[[C], Mapping[str, str]] | None
    shown: Callable[[C], Mapping[str, str]]


def manifests(offer: CloudOffer[C], cloud: C, machines: Mapping[str, str], *, site: str) -> Iterator[Manifest]:
    """Yield the objects to apply: the credential of a site and its Secret, and a Machine for each provider ID by its
    name.
    """
    auth: dict[str, Any] = {"mode": "WorkloadIdentity"}
    if offer.secret is not None:
        name = f"{site}-auth"
        auth = {"mode": "ExternalPlugin", "secretRef": {"namespace": NAMESPACE, "name": name}}
        yield {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "type": "Opaque",
            "stringData": dict(offer.secret(cloud)),
        }
    spec = {"siteName": site, "provider": offer.provider, "auth": auth}
    yield _object("MachineOperationCredential", {"name": site}, spec)
    for name, provider_id in machines.items():
        metadata = {"name": name, "labels": {LABEL_SITE: site}}
        machine = {"provider": offer.provider, "providerID": provider_id, "kubernetes": {}, "agent": {"url": AGENT}}
        yield _object("Machine", metadata, machine)


def _object(kind: str, metadata: Manifest, spec: Manifest) -> Manifest:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def _add_vm(cloud: LabAzure, name: str, data_disks: int) -> str:
    return f"azure://{cloud.add_machine(name, VmShape(data_disks=data_disks))}"


def _add_instance(cloud: LabOci, name: str, data_disks: int) -> str:
    return f"oci://{cloud.add_instance(name, data_volumes=Disks(count=data_disks)).id}"


def _azure_properties(cloud: LabAzure) -> Mapping[str, str]:
    """Return the properties of an Azure, with the content of the Secret of an ExternalPlugin credential."""
    secret = {"tenantID": cloud.tenant, "clientID": cloud.client_id, "clientSecret": cloud.client_secret}
    return {"subscription": cloud.subscription, "resource group": GROUP, **secret}


def _oci_properties(cloud: LabOci) -> Mapping[str, str]:
    tenancy = cloud.tenancy
    return {
        "tenancy": tenancy.id,
        "compartment": tenancy.compartment_id,
        "user": cloud.api_key.user,
        "key fingerprint": cloud.api_key.fingerprint,
    }


AZURE: Final = CloudOffer(
    about="Azure Resource Manager and login, for workload identities and client secrets",
    provider="AzureVM",
    start=LabAzure,
    add=_add_vm,
    secret=None,
    shown=_azure_properties,
)
OCI: Final = CloudOffer(
    about="Oracle Compute, with API keys and instance principals",
    provider="OCIInstance",
    start=LabOci,
    add=_add_instance,
    secret=lambda cloud: cloud.secret_data,
    shown=_oci_properties,
)


class CloudControl:
    def __init__(self, cloud: LabCloud[Any]) -> None:
        self._cloud = cloud

    def application(self) -> web.Application:
        app = web.Application(middlewares=[answer_errors])
        app.add_routes(
            [
                web.get("/lab/profiles", self._profiles),
                web.get(PREFIX, self._describe),
                web.get(f"{PREFIX}/history", self._history),
                web.get(f"{PREFIX}/journal", self._journal),
                web.put(f"{PREFIX}/profile", self._set_profile),
                web.patch(f"{PREFIX}/faults", self._set_faults),
                web.patch(f"{PREFIX}/dials", self._set_faults),  # the former path, for one release
            ]
        )
        return app

    async def _profiles(self, _request: web.Request) -> web.Response:
        table = self._cloud.table
        return json_response({name: table.explain(name) for name in table.names()})

    async def _describe(self, _request: web.Request) -> web.Response:
        cloud = self._cloud
        return json_response(
            {
                "name": cloud.name,
                "url": cloud.url,
                "now": cloud.now,
                "profile": cloud.profile,
                "faults": non_default(cloud.faults),
                "requests": len(cloud.journal),
                "concurrent": cloud.concurrent,
                "mostConcurrent": cloud.most_concurrent,
            }
        )

    async def _history(self, _request: web.Request) -> web.Response:
        return json_response([asdict(event) for event in self._cloud.history.events])

    async def _journal(self, _request: web.Request) -> web.Response:
        return json_response([asdict(exchange) for exchange in self._cloud.journal])

    async def _set_profile(self, request: web.Request) -> web.Response:
        self._cloud.set_profile(str((await read_object(request)).get("profile", "")))
        return await self._describe(request)

    async def _set_faults(self, request: web.Request) -> web.Response:
        self._cloud.set_faults(**await read_object(request))
        return await self._describe(request)


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


if __name__ == "__main__":
    raise SystemExit(main())
