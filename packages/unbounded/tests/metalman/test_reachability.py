"""metalman's addresses for booting machines, from its settings and the network of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from unbounded.kube.process import StartupError
from unbounded.metalman.dhcp.model import DhcpServerMode, address_octets
from unbounded.metalman.reachability import KernelNetwork, Reachability, reach
from unbounded.metalman.settings import DhcpMode, FlagNames, NetbootSettings


@dataclass(frozen=True)
class Links:
    has: Mapping[str, str] = field(default_factory=lambda: {"lo": "127.0.0.1", "eth0": "10.0.0.5", "br0": "10.66.0.1"})
    bare: frozenset[str] = frozenset({"eth9"})
    route: str | None = "10.0.0.5"

    def addresses(self) -> Mapping[str, str]:
        return self.has

    def interfaces(self) -> frozenset[str]:
        return frozenset(self.has) | self.bare

    def outbound(self) -> str | None:
        return self.route


@pytest.mark.parametrize(
    ("said", "server", "mode", "interface", "url"),
    [
        ({}, "10.0.0.5", DhcpServerMode.RELAY, None, "http://10.0.0.5:8880"),
        ({"bind_address": "10.66.0.1"}, "10.66.0.1", DhcpServerMode.RELAY, None, "http://10.66.0.1:8880"),
        ({"interface": "br0"}, "10.66.0.1", DhcpServerMode.INTERFACE, "br0", "http://10.66.0.1:8880"),
        (
            {"interface": "br0", "bind_address": "10.66.0.2"},
            "10.66.0.2",
            DhcpServerMode.INTERFACE,
            "br0",
            "http://10.66.0.2:8880",
        ),
        ({"auto_interface": True}, "10.0.0.5", DhcpServerMode.INTERFACE, "eth0", "http://10.0.0.5:8880"),
        (
            {"auto_interface": True, "bind_address": "10.66.0.1"},
            "10.66.0.1",
            DhcpServerMode.INTERFACE,
            "br0",
            "http://10.66.0.1:8880",
        ),
        (
            {"interface": "br0", "dhcp_mode": DhcpMode.PROXY},
            "10.66.0.1",
            DhcpServerMode.PROXY,
            "br0",
            "http://10.66.0.1:8880",
        ),
        ({"dhcp_mode": DhcpMode.NONE}, "10.0.0.5", None, None, "http://10.0.0.5:8880"),
        ({"serve_url": "http://boot", "http_port": 80}, "10.0.0.5", DhcpServerMode.RELAY, None, "http://boot"),
        ({"http_port": 80}, "10.0.0.5", DhcpServerMode.RELAY, None, "http://10.0.0.5:80"),
    ],
)
def test_what_is_not_said_follows_from_the_network(
    said: dict[str, Any], server: str, mode: DhcpServerMode | None, interface: str | None, url: str
) -> None:
    assert reach(NetbootSettings(**said), Links()) == Reachability(address_octets(server), mode, interface, url)


@pytest.mark.parametrize(
    ("said", "links", "words"),
    [
        ({"interface": "eth7"}, Links(), "--pxe-interface: interface eth7 does not exist; available: br0, eth0, eth9"),
        ({"interface": "eth9"}, Links(), "--pxe-interface: eth9 has no IPv4 address: assign one"),
        (
            {},
            Links(route=None),
            "cannot determine the address of this machine "
            "without a default route: set --bind-address or --pxe-interface",
        ),
        (
            {"auto_interface": True, "bind_address": "10.9.9.9"},
            Links(),
            "--dhcp-auto-interface: no interface has the address 10.9.9.9; name one",
        ),
    ],
)
def test_what_cannot_be_reached_is_refused_with_the_flag_and_a_remedy(
    said: dict[str, Any], links: Links, words: str
) -> None:
    flags = FlagNames(interface="--pxe-interface")
    with pytest.raises(StartupError) as refused:
        reach(NetbootSettings(flags=flags, **said), links)
    assert words in str(refused.value)


def test_the_network_of_this_machine_has_a_loopback() -> None:
    links = KernelNetwork()
    assert "lo" in links.interfaces()
    assert links.addresses()["lo"] == "127.0.0.1"
