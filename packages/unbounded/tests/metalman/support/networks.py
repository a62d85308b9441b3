"""Declared networks for tests: their manifests, and what systemd-networkd has to be told for each."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from unbounded.api.network import NetworkSpec

ONE: Final = {"name": "one", "mac": "52:54:00:00:00:0A"}
TWO: Final = {"name": "two", "mac": "52:54:00:00:00:0b"}
BOND: Final[dict[str, Any]] = {
    "name": "bond0",
    "interfaces": ["one", "two"],
    "parameters": {"mode": "active-backup"},
    "addresses": ["192.0.2.10/24"],
}
DIGITS: Final = "52:54:00:00:00:10"  # YAML 1.1 reads it as a number unless it is quoted

Files = dict[str, tuple[str, ...]]
# of a network, lines that systemd-networkd's files below /run/systemd/network must have
TABLE: Final[dict[str, tuple[dict[str, Any], Files]]] = {
    "DHCP on one card": (
        {"ethernets": [{**ONE, "dhcp4": True}]},
        {"10-netplan-one.network": ("PermanentMACAddress=52:54:00:00:00:0a", "DHCP=ipv4")},
    ),
    "a MAC of digits, and a name": (
        {"ethernets": [{"name": "lan", "mac": DIGITS, "setName": "lan0", "dhcp4": True, "dhcp6": True}]},
        {
            "10-netplan-lan.link": (f"PermanentMACAddress={DIGITS}", "Name=lan0"),
            "10-netplan-lan.network": ("Name=lan0", "DHCP=yes"),
        },
    ),
    "static addresses": (
        {
            "ethernets": [
                {
                    **ONE,
                    "addresses": ["192.0.2.10/24", "2001:db8::10/64"],
                    "routes": [
                        {"to": "default", "via": "192.0.2.1"},
                        {"to": "default", "via": "2001:db8::1", "metric": 50},
                        {"to": "198.51.100.0/24", "via": "203.0.113.1", "onLink": True},
                    ],
                    "nameservers": {"addresses": ["192.0.2.53", "2001:db8::53"], "search": ["example.com"]},
                    "mtu": 9000,
                }
            ]
        },
        {
            "10-netplan-one.network": (
                "Address=192.0.2.10/24",
                "Address=2001:db8::10/64",
                "Destination=0.0.0.0/0",
                "Gateway=192.0.2.1",
                "Destination=::/0",
                "Gateway=2001:db8::1",
                "Metric=50",
                "Destination=198.51.100.0/24",
                "GatewayOnLink=true",
                "DNS=192.0.2.53",
                "DNS=2001:db8::53",
                "Domains=example.com",
                "MTUBytes=9000",
            )
        },
    ),
    "a bond with a primary card": (
        {
            "ethernets": [ONE, TWO],
            "bonds": [
                {
                    **BOND,
                    "parameters": {
                        "mode": "active-backup",
                        "primary": "one",
                        "primaryReselectPolicy": "better",
                        "failOverMacPolicy": "active",
                        "upDelay": 200,
                        "downDelay": 100,
                    },
                }
            ],
        },
        {
            "10-netplan-bond0.netdev": (
                "Kind=bond",
                "Mode=active-backup",
                "MIIMonitorSec=100ms",
                "UpDelaySec=200ms",
                "DownDelaySec=100ms",
                "FailOverMACPolicy=active",
                "PrimaryReselectPolicy=better",
            ),
            "10-netplan-bond0.network": ("Address=192.0.2.10/24",),
            "10-netplan-one.network": ("Bond=bond0", "PrimarySlave=true"),
            "10-netplan-two.network": ("Bond=bond0",),
        },
    ),
    "a bond by LACP with VLANs": (
        {
            "ethernets": [ONE, TWO],
            "bonds": [
                {
                    "name": "bond0",
                    "interfaces": ["one", "two"],
                    "parameters": {
                        "mode": "802.3ad",
                        "lacpRate": "fast",
                        "minLinks": 1,
                        "miiMonitorInterval": 50,
                        "transmitHashPolicy": "layer3+4",
                    },
                }
            ],
            "vlans": [
                {"name": "vlan10", "id": 10, "link": "bond0", "addresses": ["198.51.100.5/24"]},
                {"name": "vlan20", "id": 20, "link": "bond0", "dhcp4": True},
            ],
        },
        {
            "10-netplan-bond0.netdev": (
                "Mode=802.3ad",
                "LACPTransmitRate=fast",
                "MinLinks=1",
                "MIIMonitorSec=50ms",
                "TransmitHashPolicy=layer3+4",
            ),
            "10-netplan-bond0.network": ("VLAN=vlan10", "VLAN=vlan20"),
            "10-netplan-vlan10.netdev": ("Kind=vlan", "Id=10"),
            "10-netplan-vlan10.network": ("Address=198.51.100.5/24",),
            "10-netplan-vlan20.network": ("DHCP=ipv4",),
        },
    ),
    "a bridge of a card and a VLAN": (
        {
            "ethernets": [ONE, TWO],
            "vlans": [{"name": "v3", "id": 3, "link": "two"}],
            "bridges": [
                {
                    "name": "br0",
                    "interfaces": ["one", "v3"],
                    "parameters": {"stp": False, "forwardDelay": 4, "priority": 4096},
                    "dhcp4": True,
                }
            ],
        },
        {
            "10-netplan-br0.netdev": ("Kind=bridge", "STP=false", "ForwardDelaySec=4", "Priority=4096"),
            "10-netplan-br0.network": ("DHCP=ipv4",),
            "10-netplan-one.network": ("Bridge=br0",),
            "10-netplan-v3.network": ("Bridge=br0",),
            "10-netplan-two.network": ("VLAN=v3",),
        },
    ),
}


def network(body: dict[str, Any]) -> NetworkSpec:
    return msgspec.convert(body, NetworkSpec)
