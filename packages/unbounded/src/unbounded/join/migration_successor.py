"""The API server to which a host moves, named by annotation `successor` of its Machine on the present server.

`unbounded migrate` writes it, and agents trust it because they read it from the server that they trust already.
"""

from __future__ import annotations

from typing import Final

import msgspec

from unbounded.api import names
from unbounded.api.failures import Rejected
from unbounded.join.csr import AGENT, KUBELET, RequestedIdentity
from unbounded.kube.settings import endpoint_url

MIGRATE: Final = "`unbounded migrate`"  # the process that approves these certificates


class Successor(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The successor of an API server, for one host.

    Args:
        server: https://…, without a trailing slash.
        ca_pem: CA certificates of the server.
        dns: IP address of its cluster's DNS server; empty for none.
        machine_uid: of the Machine there.
        node_uid: of its Node there; empty where there is none.
    """

    server: str
    ca_pem: str
    dns: str = ""
    machine_uid: str
    node_uid: str = ""


def encoded(successor: Successor) -> str:
    return msgspec.json.encode(successor).decode()


def successor_in(text: str) -> Successor:
    """Parse the annotation.

    Raises:
        Rejected: it is invalid; the message names the field.
    """
    where = f"annotation {names.ANNOTATION_SUCCESSOR}"
    try:
        found = msgspec.json.decode(text, type=Successor)
    except msgspec.DecodeError as error:
        raise Rejected(f"{where}: {error}") from error
    try:
        server = endpoint_url(found.server)
    except ValueError as error:
        raise Rejected(f"{where}, server: {error}") from error
    if not found.machine_uid:
        raise Rejected(f"{where}: machineUid is empty")
    return msgspec.structs.replace(found, server=server.rstrip("/"))


def successor_agent(machine: str) -> RequestedIdentity:
    """Return the agent's identity there, as requested from the present server."""
    return RequestedIdentity(AGENT, machine, names.GROUP_AGENTS, names.SIGNER_SUCCESSOR_AGENT)


def successor_kubelet(machine: str) -> RequestedIdentity:
    """Return kubelet's identity there, as requested from the present server."""
    return RequestedIdentity(KUBELET, machine, names.GROUP_NODES, names.SIGNER_SUCCESSOR_KUBELET)
