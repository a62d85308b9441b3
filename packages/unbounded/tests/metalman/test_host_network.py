"""The declared network as cloud-init's: netplan accepts what is rendered, and faults name their field."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.metalman.support.networks import BOND, DIGITS, ONE, TABLE, TWO, Files, network
from tests.support.qemu.tools import built
from unbounded.api.hardware import NICFacts
from unbounded.api.machine import Machine
from unbounded.api.machine_spec import BootMode, DHCPLease, MachineSpec, PXESpec
from unbounded.metalman.host_network import (
    installer_leases,
    installer_network,
    missing_nics,
    network_faults,
    render_network,
)
from unbounded.metalman.netboot.boot_files import check_network_config

NETPLAN = built("bin/netplan-generate")
CLOUD_INIT = built("cloud-init/usr/lib/python3/dist-packages")
with_netplan = pytest.mark.skipif(
    NETPLAN is None or CLOUD_INIT is None, reason="netplan is not there; scripts/cloud-init-tools gets it"
)
MISTAKE: Final = b"version: 2\nbonds: {bond0: {interfaces: [nothing]}}\n"
# cloud-init's own step from network-config to netplan's file; its calls of netplan and udev are left out
RENDER: Final = """
import pathlib, sys
import yaml
from cloudinit.net import netplan, network_state

renderer = netplan.Renderer({"netplan_path": "etc/netplan/50-cloud-init.yaml", "postcmds": False})
for root in sys.argv[1:]:
    state = network_state.parse_net_config_data(yaml.safe_load(pathlib.Path(root, "network-config").read_text()))
    renderer.render_network_state(state, target=root)
"""


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Root file systems in which cloud-init has given each network of the table, and one with a mistake, to netplan."""
    contents = {case: render_network(network(body)) for case, (body, _) in TABLE.items()} | {"mistake": MISTAKE}
    made = {case: tmp_path_factory.mktemp("root") for case in contents}
    for case, root in made.items():
        (root / "etc" / "netplan").mkdir(parents=True)
        (root / "network-config").write_bytes(contents[case])
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CLOUD_INIT)}
    command = [sys.executable, "-c", RENDER, *map(str, made.values())]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return made


def generated(root: Path) -> dict[str, list[str]]:
    """Return systemd-networkd's files, by netplan."""
    command = [str(NETPLAN), "--root-dir", str(root)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "error" not in ran.stderr.lower(), ran.stderr
    return {path.name: path.read_text().splitlines() for path in (root / "run/systemd/network").iterdir()}


@with_netplan
@pytest.mark.parametrize("case", TABLE)
def test_systemd_networkd_gets_what_is_declared(roots: Mapping[str, Path], case: str) -> None:
    _, expected = TABLE[case]
    files = generated(roots[case])
    lacking: Files = {
        name: tuple(line for line in lines if line not in files.get(name, [])) for name, lines in expected.items()
    }
    assert not any(lacking.values()), (lacking, files)


@with_netplan
def test_netplan_refuses_a_network_with_a_mistake(roots: Mapping[str, Path]) -> None:
    """The oracle finds mistakes: a bond of cards that are not there."""
    with pytest.raises(AssertionError, match=r"(?i)error"):
        generated(roots["mistake"])


@pytest.mark.parametrize("case", TABLE)
def test_a_rendered_network_is_valid_and_always_the_same(case: str) -> None:
    declared = network(TABLE[case][0])
    assert network_faults(declared) == ()
    content = render_network(declared)
    assert content == render_network(declared)
    check_network_config(content, "rendered")
    read = yaml.safe_load(content)["ethernets"]
    assert [each["match"]["macaddress"] for each in read.values()] == [each.mac.lower() for each in declared.ethernets]


CARDS: Final = {"ethernets": [ONE, TWO]}
GATEWAY: Final = {"to": "default", "via": "192.0.2.1"}


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (
            {**CARDS, "bonds": [BOND, {**BOND, "name": "bond1", "interfaces": ["two"]}]},
            "spec.network: two is in interfaces of bonds or bridges twice",
        ),
        (
            {"ethernets": [{**ONE, "dhcp4": True}, TWO], "bonds": [BOND]},
            "spec.network.ethernets[one] belongs to a bond or bridge",
        ),
        (
            {**CARDS, "bonds": [BOND], "vlans": [{"name": "v", "id": 3, "link": "one"}]},
            "spec.network.vlans[v].link: one belongs to a bond: name the bond",
        ),
        (
            {**CARDS, "vlans": [{"name": "v", "id": 3, "link": "b"}], "bridges": [{"name": "b", "interfaces": ["v"]}]},
            "spec.network.bridges[b].interfaces: the bridge contains itself",
        ),
        (
            {
                **CARDS,
                "vlans": [{"name": "v", "id": 3, "link": "one"}, {"name": "w", "id": 3, "link": "one"}],
            },
            "spec.network.vlans: id on the same link 3 on one occurs twice",
        ),
        (
            {"ethernets": [{**ONE, "setName": "lan0"}, {**TWO, "setName": "lan0"}]},
            "spec.network.ethernets: setName lan0 occurs twice",
        ),
        (
            {"ethernets": [{**ONE, "setName": "bond0"}, TWO], "bonds": [BOND | {"interfaces": ["two"]}]},
            "spec.network.ethernets[one].setName: bond0 is the name of another interface",
        ),
        (
            {"ethernets": [{**ONE, "addresses": ["198.51.100.5/24"], "routes": [GATEWAY]}]},
            "spec.network.ethernets[one].routes: via 192.0.2.1 is in no subnet of its addresses",
        ),
        (
            {
                "ethernets": [
                    {**ONE, "addresses": ["192.0.2.9/24"], "routes": [{"to": "2001:db8::/32", "via": "192.0.2.1"}]}
                ]
            },
            "spec.network.ethernets[one].routes: to 2001:db8::/32 and via 192.0.2.1 are of different IP versions",
        ),
        (
            {
                "ethernets": [
                    {**ONE, "addresses": ["192.0.2.9/24"], "routes": [{"to": "10.0.0.1/8", "via": "192.0.2.1"}]}
                ]
            },
            "spec.network.ethernets[one].routes: to 10.0.0.1/8 has bits right of its prefix",
        ),
        (
            {"ethernets": [{**ONE, "addresses": ["192.0.2.9/24", "192.0.2.9/24"]}]},
            "spec.network.ethernets[one].addresses: 192.0.2.9/24 occurs twice",
        ),
        (
            {"ethernets": [{**ONE, "addresses": ["2001:db8::9/64"], "mtu": 1279}]},
            "spec.network.ethernets[one].mtu: IPv6 needs at least 1280",
        ),
        (
            {**CARDS, "bonds": [{**BOND, "parameters": {"mode": "active-backup", "lacpRate": "fast"}}]},
            "spec.network.bonds[bond0].parameters.lacpRate: needs mode 802.3ad, not active-backup",
        ),
        (
            {**CARDS, "bonds": [{**BOND, "parameters": {"mode": "802.3ad", "primary": "one"}}]},
            "spec.network.bonds[bond0].parameters.primary: needs mode active-backup or balance-tlb or balance-alb",
        ),
        (
            {
                **CARDS,
                "bonds": [{**BOND, "interfaces": ["two"], "parameters": {"mode": "active-backup", "primary": "one"}}],
            },
            "spec.network.bonds[bond0].parameters.primary: one is not in interfaces",
        ),
        (
            {
                **CARDS,
                "bonds": [{**BOND, "parameters": {"mode": "balance-rr", "miiMonitorInterval": 0, "upDelay": 5}}],
            },
            "spec.network.bonds[bond0].parameters.miiMonitorInterval: upDelay and downDelay need one above 0",
        ),
    ],
)
def test_a_fault_names_its_field(body: dict[str, Any], fault: str) -> None:
    (found,) = network_faults(network(body))
    assert found.startswith(fault)


@pytest.mark.parametrize(
    "interface",
    [
        {"dhcp4": True, "routes": [{"to": "10.0.0.0/8", "via": "192.0.2.1"}]},
        {"routes": [{"to": "default", "via": "192.0.2.1", "onLink": True}]},
        {"addresses": ["2001:db8::9/64"], "routes": [{"to": "default", "via": "fe80::1"}]},
        {"addresses": ["192.0.2.9/24"], "mtu": 576},
    ],
)
def test_a_gateway_may_be_reachable_otherwise(interface: dict[str, Any]) -> None:
    assert network_faults(network({"ethernets": [{**ONE, **interface}]})) == ()


def test_missing_cards_are_named_with_those_that_are_there() -> None:
    declared = network({"ethernets": [ONE, TWO, {"name": "three", "mac": DIGITS}]})
    present = [NICFacts(name="eno1", mac="52:54:00:00:00:0a"), NICFacts(mac="52:54:00:00:00:0C"), NICFacts(name="x")]
    assert missing_nics(declared, present) == (
        "spec.network.ethernets: the machine has no network card two (52:54:00:00:00:0b), three (52:54:00:00:00:10); "
        "its cards: 52:54:00:00:00:0a (eno1), 52:54:00:00:00:0c"
    )
    assert missing_nics(declared, []).endswith("its cards: none")
    many = [NICFacts(mac=f"02:00:00:00:00:{at:02x}") for at in range(10)]
    assert missing_nics(declared, many).endswith(" and 2 more")
    assert missing_nics(network({"ethernets": [ONE]}), present) == ""


def lease(mac: str, ipv4: str, *dns: str) -> DHCPLease:
    return DHCPLease(mac=mac, ipv4=ipv4, subnet_mask="255.255.255.0", gateway="192.0.2.1", dns=dns)


IN_BOND: Final = {**CARDS, "bonds": [BOND]}
MEMBERS: Final = "52:54:00:00:00:0a,52:54:00:00:00:0b"
TAGGED: Final = {"name": "prod", "id": 10, "link": "bond0", "addresses": ["2001:db8::9/64", "198.51.100.5/24"]}
REST: Final = "255.255.255.0,192.0.2.1"


@pytest.mark.parametrize(
    ("body", "address", "expected"),
    [
        (CARDS, "192.0.2.9", [f"lease={TWO['mac']},192.0.2.9,{REST}"]),
        ({"ethernets": [ONE]}, "192.0.2.9", [f"lease={TWO['mac']},192.0.2.9,{REST}"]),
        (IN_BOND, "192.0.2.9", [f"bond=bond0,active-backup,none,{MEMBERS}", f"lease=bond0,192.0.2.9,{REST}"]),
        (
            {**CARDS, "bonds": [{**BOND, "parameters": {"mode": "active-backup", "failOverMacPolicy": "active"}}]},
            "192.0.2.9",
            [f"bond=bond0,active-backup,active,{MEMBERS}", f"lease=bond0,192.0.2.9,{REST}"],
        ),
        (
            {**IN_BOND, "vlans": [TAGGED]},
            "198.51.100.5",
            [
                f"bond=bond0,active-backup,none,{MEMBERS}",
                "vlan=vlan0,bond0,10",
                f"lease=vlan0,198.51.100.5,{REST}",
            ],
        ),
        (  # the network boot is in the untagged network
            {**IN_BOND, "vlans": [TAGGED]},
            "192.0.2.9",
            [f"bond=bond0,active-backup,none,{MEMBERS}", f"lease=bond0,192.0.2.9,{REST}"],
        ),
        (
            {**CARDS, "vlans": [{**TAGGED, "link": "two"}, {**TAGGED, "name": "other", "id": 11, "link": "one"}]},
            "198.51.100.9",
            [f"vlan=vlan0,{TWO['mac']},10", f"lease=vlan0,198.51.100.9,{REST}"],
        ),
        (  # a bridge over the VLAN has its addresses, and one over the bond carries it
            {
                **CARDS,
                "bonds": [{**BOND, "addresses": []}],
                "bridges": [
                    {"name": "br0", "interfaces": ["bond0"]},
                    {"name": "br1", "interfaces": ["prod"], "addresses": ["198.51.100.5/24"]},
                ],
                "vlans": [{"name": "prod", "id": 10, "link": "br0"}],
            },
            "198.51.100.5",
            [
                f"bond=bond0,active-backup,none,{MEMBERS}",
                "vlan=vlan0,bond0,10",
                f"lease=vlan0,198.51.100.5,{REST}",
            ],
        ),
    ],
)
def test_installer_has_its_lease_where_the_network_has_the_card(
    body: dict[str, Any], address: str, expected: list[str]
) -> None:
    declared = network(body)
    assert network_faults(declared) == ()
    words = installer_network([lease(TWO["mac"], address)], declared)
    assert words.split() == [f"unbounded.{word}" for word in expected]


def test_leases_of_one_bond_share_it() -> None:
    words = installer_network([lease(ONE["mac"].lower(), "192.0.2.8", "192.0.2.53"), lease(TWO["mac"], "192.0.2.9")],
                              network(IN_BOND))  # fmt: skip
    assert words.split() == [
        f"unbounded.bond=bond0,active-backup,none,{MEMBERS}",
        f"unbounded.lease=bond0,192.0.2.8,{REST}",
        "unbounded.dns=192.0.2.53",
        f"unbounded.lease=bond0,192.0.2.9,{REST}",
    ]


def test_installer_without_a_declared_network_has_its_leases_alone() -> None:
    assert installer_network([lease(ONE["mac"], "192.0.2.8")], None) == f"unbounded.lease={ONE['mac']},192.0.2.8,{REST}"


def from_media(body: dict[str, Any]) -> Machine:
    """Return a Machine that boots by virtual media, without leases."""
    pxe = PXESpec(image="registry.example.com/host:v1", boot_mode=BootMode.VIRTUAL_MEDIA)
    return Machine(spec=MachineSpec(pxe=pxe, network=network(body)))


def test_installer_from_virtual_media_has_the_static_addresses_of_bonds_and_vlans() -> None:
    by_lacp = {**BOND, "parameters": {"mode": "802.3ad"}, "routes": [GATEWAY]}
    machine = from_media({**CARDS, "bonds": [by_lacp], "vlans": [TAGGED]})
    assert installer_network(installer_leases(machine), machine.spec.network).split() == [
        f"unbounded.bond=bond0,802.3ad,none,{MEMBERS}",
        "unbounded.vlan=vlan0,bond0,10",
        f"unbounded.lease=bond0,192.0.2.10,{REST}",
        "unbounded.lease=vlan0,198.51.100.5,255.255.255.0,",
    ]


def test_bridge_that_contains_itself_has_the_cards_below_it() -> None:
    vlan = {"name": "v", "id": 3, "link": "b", "addresses": ["192.0.2.9/24"]}
    machine = from_media({**CARDS, "vlans": [vlan], "bridges": [{"name": "b", "interfaces": ["v", "one"]}]})
    assert [each.mac for each in installer_leases(machine)] == [ONE["mac"]]
