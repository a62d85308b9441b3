"""The kubelet of a Pod's node: its address, and the container of a request."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from unbounded_apiserver.status import StatusError, bad_request
from unbounded_apiserver.types import Object
from unbounded_apiserver.workloads.defaults import containers

# IP addresses first, as in kubeadm: node names need not resolve where the API server runs. kube-apiserver's own default
# begins with Hostname, and answers 500 if it does not resolve.
ADDRESS_TYPES: Final = ("InternalIP", "ExternalIP", "InternalDNS", "ExternalDNS", "Hostname")
_NAME: Final = re.compile(r"[0-9A-Za-z._-]+", re.ASCII)
_BROADCAST: Final = IPv4Address("255.255.255.255")
KUBELET_PORT: Final = 10250  # if the Node names none


@dataclass(frozen=True)
class KubeletEndpoint:
    """The address of a kubelet."""

    host: str
    port: int

    @property
    def is_host(self) -> bool:
        """Return whether `host` is an IP address or a name.

        A node writes its own addresses: one with a path in it would send the API server's certificate elsewhere.
        """
        if ":" not in self.host:
            return _NAME.fullmatch(self.host) is not None
        try:
            return IPv6Address(self.host).scope_id is None
        except ValueError:
            return False

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def url(self, path: str, query: str) -> str:
        return f"https://{self.address}{path}{'?' if query else ''}{query}"


def endpoint_of(node: Object) -> KubeletEndpoint:
    """Return the address of a Node's kubelet. Raises StatusError (500)."""
    status = node.get("status") or {}
    addresses = status.get("addresses") or []
    for desired in ADDRESS_TYPES:
        for one in addresses:
            if one.get("type") == desired and one.get("address"):
                port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port") or 0
                return KubeletEndpoint(one["address"], port if port > 0 else KUBELET_PORT)
    known = " ".join(f"{{{one.get('type', '')} {one.get('address', '')}}}" for one in addresses)
    raise StatusError(500, "", f"no preferred addresses found; known addresses: [{known}]")


async def check_proxy_target(endpoint: KubeletEndpoint) -> None:
    """Reject the host of no other machine: clients could send any request to services of this machine.

    Raises:
        StatusError (400)
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(endpoint.host, None) if endpoint.is_host else []
    except OSError:
        found = []
    if not found:
        raise bad_request(f"lookup {endpoint.host}: no such host")
    if not all(is_global(str(sockaddr[0])) for *_, sockaddr in found):
        raise bad_request("address not allowed")


def is_global(address: str) -> bool:
    """Return whether an IP address belongs to one machine beyond this one and its links (Go: IsGlobalUnicast)."""
    ip = ip_address(address)
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    special = ip.is_unspecified or ip.is_loopback or ip.is_multicast or ip.is_link_local
    return not special and ip != _BROADCAST


def container_of(pod: Object, desired: str) -> str:
    """Return the requested container, or the only one if the request names none. Raises StatusError (400)."""
    name, names = pod["metadata"]["name"], [container["name"] for container in containers(pod["spec"])]
    if desired:
        if desired not in names:
            raise bad_request(f"container {desired} is not valid for pod {name}")
        return desired
    ordinary = pod["spec"].get("containers") or []
    if len(ordinary) == 1:
        only: str = ordinary[0]["name"]
        return only
    raise bad_request(f"a container name must be specified for pod {name}, choose one of: [{' '.join(names)}]")


def node_of(pod: Object) -> str:
    """Return the node that a Pod is bound to, '' for none."""
    node: str = pod["spec"].get("nodeName") or ""
    return node
