"""Addresses of a host: other Machines with the same host, and how the API server's address reaches the host.

Two Machines with one host would overwrite each other's installation. Reachability is checked as far as it shows from
here.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from unbounded.api.core import CONFIG_MAPS
from unbounded.api.machine import MACHINES, Machine
from unbounded.cli.deploy.live_machina import LiveMachina
from unbounded.cli.plugin.command import CliError, CommandSession
from unbounded.join.cluster_facts import CLUSTER_INFO, CLUSTER_INFO_NAMESPACE, endpoint_of
from unbounded.kube.api import Api, Forbidden, NotFound
from unbounded.kube.settings import endpoint_url
from unbounded.kube.tasks import DaemonThreads
from unbounded.machina.machines.eligibility import HostAddress, host_address

RESOLVE_S: Final = 2.0  # for all names together
RESOLVERS: Final = 32

Addresses = Mapping[str, frozenset[str]]  # by name; an unknown name has none
Resolver = Callable[[str], Awaitable[frozenset[str]]]


async def require_own_host(session: CommandSession, machine: Machine) -> None:
    """Reject a Machine whose host another Machine has. Warns a user who may not list Machines.

    Raises:
        CliError: naming the other Machine.
    """
    try:
        existing = (await session.api.list(MACHINES)).items
    except Forbidden:
        session.printer.warn("this user may not list Machines: a second Machine of the same host is not detected")
        return
    others = [one for one in existing if one.name != machine.name]
    known: Addresses = {}
    other = of_same_host(machine, others)
    if other is None:
        known = await resolved(names_to_compare(machine, others), system_resolver())
        other = of_same_host(machine, others, known)
    if other is not None:
        raise same_host(machine, other, known, session.invocation.program)


def same_host(machine: Machine, other: Machine, known: Addresses, program: str) -> CliError:
    """Return the error of a Machine whose host another one has."""
    common = _common(machine, other, known) if known else ""
    addresses = f", which has the same address: {common}" if common else ""
    going = " (being deleted)" if other.metadata.deletion_timestamp is not None else ""
    host = other.spec.ssh.host if other.spec.ssh is not None else ""
    return CliError(
        f"--host: Machine {other.name}{going} has this host already: its spec.ssh.host is {host}{addresses}",
        next_step=f"`{program} why machine/{other.name}` shows its state; to register this one, "
        f"delete the other with `kubectl delete mach {other.name}`",
    )


def of_same_host(machine: Machine, others: Iterable[Machine], known: Addresses | None = None) -> Machine | None:
    """Return the first of other Machines that is reached at the same address, through the same bastion.

    Args:
        known: addresses of names. Behind a bastion, the bastion resolves the host, so that only the names are compared.
    """
    way = host_address(machine)
    if way is None:
        return None
    addresses = known or {}
    return next(
        (one for one in others if one.name != machine.name and _is_same(way, host_address(one), addresses)), None
    )


def names_to_compare(machine: Machine, others: Iterable[Machine]) -> frozenset[str]:
    """Return the names whose addresses decide whether two Machines have one host; empty where none can."""
    way = host_address(machine)
    if way is None:
        return frozenset()
    reached = [other[-1] for one in others if (other := host_address(one)) is not None and _may_be_same(way, other)]
    names = {at.host for at in (way[-1], *reached) if not _is_address(at.host)}
    return frozenset(names) if reached else frozenset()


def _may_be_same(way: HostAddress, other: HostAddress) -> bool:
    """Return whether two routes differ at most in the name of the server that is reached directly."""
    return len(way) == len(other) and way[:-1] == other[:-1] and way[-1].port == other[-1].port


def _is_same(way: HostAddress, other: HostAddress | None, known: Addresses) -> bool:
    if other is None or way == other:
        return other is not None
    return _may_be_same(way, other) and bool(_of(way, known) & _of(other, known))


def _of(way: HostAddress, known: Addresses) -> frozenset[str]:
    host = way[-1].host
    return frozenset({host}) if _is_address(host) else known.get(host, frozenset())


def _common(machine: Machine, other: Machine, known: Addresses) -> str:
    one, two = host_address(machine), host_address(other)
    return "" if one is None or two is None else min(_of(one, known) & _of(two, known), default="")


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


async def resolved(names: Iterable[str], find: Resolver, *, within_s: float = RESOLVE_S) -> Addresses:
    """Return the addresses of names that resolve in time."""
    lookups = {name: asyncio.ensure_future(find(name)) for name in names}
    if not lookups:
        return {}
    _done, late = await asyncio.wait(lookups.values(), timeout=within_s)
    for one in late:
        one.cancel()
    found = {name: one for name, one in lookups.items() if one not in late and one.exception() is None}
    return {name: one.result() for name, one in found.items()}


def system_resolver() -> Resolver:
    """Return a resolver with this machine's settings."""
    threads = DaemonThreads(RESOLVERS, "names")

    async def find(name: str) -> frozenset[str]:
        found = await threads.run(partial(socket.getaddrinfo, name, None, type=socket.SOCK_STREAM))
        return frozenset(str(ip_address(str(one[4][0]).partition("%")[0])) for one in found)

    return find


def is_local(endpoint: str) -> bool:
    """Return whether an address, as HOST:PORT or as a URL, means each machine itself."""
    host = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}").hostname or ""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")  # RFC 6761 section 6.3
    return address.is_loopback or address.is_unspecified


async def published_endpoint(api: Api, config: Mapping[str, Any]) -> str:
    """Return the URL of the API server that hosts get; empty where none is configured or published.

    Args:
        config: keys and values of machina's file, overridden by its flags.
    """
    try:
        if given := str(config.get("apiServerEndpoint") or ""):
            return endpoint_url(given)
        return endpoint_of(await api.get(CONFIG_MAPS, CLUSTER_INFO, namespace=CLUSTER_INFO_NAMESPACE)).url
    except (NotFound, ValueError):  # machina sets a condition on a Machine for an endpoint that is missing or wrong
        return ""


def warn_unreachable(session: CommandSession, url: str, live: LiveMachina, *, unless: str = "") -> None:
    """Warn where a host gets an address of the API server that it reaches only if that runs on the host.

    Args:
        unless: a reservation in the message, for settings that cannot be read from here.
    """
    if is_local(url):
        session.printer.warn(
            f"the host gets {url} as the API server's address, which works only on the API server's own "
            f"host{unless}: set another one with `{live.endpoint_command(session.invocation.program)}`"
        )


def is_own_address(host: str) -> bool:
    """Return whether a socket can be bound to an address, so that it is one of this machine. Names are not resolved."""
    try:
        family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except (ValueError, OSError):
        return False
    return True


def is_on_server_host(host: str, server: str, *, is_own: Callable[[str], bool] = is_own_address) -> bool:
    """Return whether a host is the machine that the API server runs on, judged by its address.

    Args:
        host: name or address, without a port.
        server: the API server's URL as used from here.
    """
    return is_local(f"[{host}]" if ":" in host else host) or (is_local(server) and is_own(host))
