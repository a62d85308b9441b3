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
from unbounded.metalman.host_network import missing_nics, network_faults, render_network
from unbounded.metalman.netboot.network_config import check_network_config

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
