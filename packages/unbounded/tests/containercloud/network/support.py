"""Objects of a network: those around seed 4's example, and parts of them to vary."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from unbounded.api.container_cloud.network import IpamHost, L2Template, Subnet
from unbounded.containercloud.network.rendering import NetworkCard, NetworkInputs, TemplateSubnet
from unbounded.containercloud.network.subnets import AddressPool

NAMESPACE: Final = "example-ns"
CLUSTER: Final = "example-cluster"
MACS: Final = ("52:54:00:00:00:01", "52:54:00:00:00:02", "52:54:00:00:00:03")
LCM: Final = {"ipam/SVC-k8s-lcm": "1"}
EXAMPLE: Final = """\
version: 2
ethernets:
  {{nic 0}}: {dhcp4: false, match: {macaddress: "{{mac 0}}"}, set-name: {{nic 0}}}
bridges:
  k8s-lcm:
    interfaces: [{{nic 0}}]
    addresses: [{{ip "k8s-lcm:lcm"}}]
    routes: [{to: default, via: {{gateway_from_subnet "lcm"}}}]
    nameservers: {addresses: {{nameservers_from_subnet "lcm"}}}
"""
LCM_SPEC: Final = {
    "cidr": "10.0.0.0/24",
    "includeRanges": ["10.0.0.100-10.0.0.103"],
    "gateway": "10.0.0.1",
    "nameservers": ["10.0.0.2", "10.0.0.3"],
}


def subnet(name: str = "lcm", *allocated: str, labels: dict[str, str] | None = None, **spec: Any) -> Subnet:
    body = {
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": LCM if labels is None else labels},
        "spec": LCM_SPEC | spec,
        "status": {"allocatedIPs": list(allocated)},
    }
    return msgspec.convert(body, Subnet)


def template(
    text: str = EXAMPLE, *, name: str = "one-nic", labels: dict[str, str] | None = None, **spec: Any
) -> L2Template:
    known = {"ifMapping": ["eno1", "enp0s0"], "l3Layout": [{"subnetName": "lcm", "scope": "namespace"}]}
    marks = {"cluster.sigs.k8s.io/cluster-name": CLUSTER} if labels is None else labels
    body = {
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": marks},
        "spec": {**known, "npTemplate": text, **spec},
    }
    return msgspec.convert(body, L2Template)


def ipam_host(**spec: Any) -> IpamHost:
    return msgspec.convert({"metadata": {"name": "m", "namespace": NAMESPACE, "uid": "u-1"}, "spec": spec}, IpamHost)


CARDS: Final = (NetworkCard("eno1", MACS[0], boots=True), NetworkCard("enp0s0", MACS[1]))


def host_network(text: str = EXAMPLE, addresses: dict[str, str] | None = None, **given: Any) -> NetworkInputs:
    """The network of a host with two cards; by default its address in the example is allocated."""
    used = {"k8s-lcm": "10.0.0.100"} if addresses is None else addresses
    lcm = TemplateSubnet(f"{NAMESPACE}/lcm", AddressPool.of(subnet().spec), LCM, used)
    known: dict[str, Any] = {
        "template": f"{NAMESPACE}/one-nic",
        "if_mapping": ("eno1", "enp0s0"),
        "priorities": (),
        "cards": CARDS,
        "subnets": {"lcm": lcm},
    }
    return NetworkInputs(text=text, **known | given)
