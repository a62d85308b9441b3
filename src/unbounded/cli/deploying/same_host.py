"""Finding the Machine that is of a host already: two would install over one another."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from unbounded.api.machine import MACHINES, Machine, SSHSpec
from unbounded.cli.plugin.command import CliError, Session
from unbounded.kube.errors import Forbidden
from unbounded.machina.ssh.model import host_port

Way = tuple[tuple[str, int], ...]


async def require_own_host(session: Session, machine: Machine) -> None:
    """Refuse a Machine whose host is another one's. A user who may not list Machines is warned.

    Raises:
        CliError: naming the other Machine.
    """
    try:
        there = (await session.api.list(MACHINES)).items
    except Forbidden:
        session.printer.warn("whether another Machine is of this host cannot be seen by this user")
        return
    other = of_same_host(machine, there)
    if other is None:
        return
    going = " (being deleted)" if other.metadata.deletion_timestamp is not None else ""
    host = other.spec.ssh.host if other.spec.ssh is not None else ""
    raise CliError(
        f"--host: Machine {other.name}{going} is of this host already: its spec.ssh.host is {host}",
        next_step=f"`{session.told.program} why machine/{other.name}` says how it is;"
        f" `kubectl delete machine {other.name}` ends it, and this one can be registered once it is gone",
    )


def of_same_host(machine: Machine, others: Iterable[Machine]) -> Machine | None:
    """Return the first of other Machines that is reached at the same address, by the same bastion.

    Private addresses repeat, so what stands behind different bastions is taken for different hosts.
    """
    way = _way(machine.spec.ssh)
    if way is None:
        return None
    return next((one for one in others if one.name != machine.name and _way(one.spec.ssh) == way), None)


def _way(ssh: SSHSpec | None) -> Way | None:
    """Return the addresses on the way to a host, in one spelling; None where they cannot be meant."""
    if ssh is None:
        return None
    try:
        return tuple(_spelled(text) for text in (ssh.host, *([ssh.bastion.host] if ssh.bastion is not None else [])))
    except ValueError:
        return None


def _spelled(text: str) -> tuple[str, int]:
    at = host_port(text)
    try:
        return str(ip_address(at.host)), at.port
    except ValueError:
        return at.host.lower().rstrip("."), at.port
