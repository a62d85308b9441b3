"""The netplan of a host from its template: macros, mapping, and errors with the line."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.containercloud.network.support import CARDS, EXAMPLE, LCM, MACS, NAMESPACE, host_network, subnet
from tests.support.qemu.tools import built
from unbounded.api.hardware import NICFacts
from unbounded.containercloud.network.rendering import (
    NetworkCard,
    NetworkReason,
    TemplateNetworkFault,
    TemplateSubnet,
    check_template,
    map_cards,
    render_network,
    services,
    systemd_names,
)
from unbounded.containercloud.network.subnets import AddressPool

NETPLAN = built("bin/netplan-generate")
BOND: Final = """\
version: 2
ethernets:
  {{nic 0}}: {match: {macaddress: "{{mac 0}}"}, set-name: {{nic 0}}}
  {{nic 1}}: {match: {macaddress: "{{mac 1}}"}, set-name: {{nic 1}}}
bonds:
  bond0: {interfaces: [{{nic 0}}, {{nic 1}}], parameters: {mode: active-backup, mii-monitor-interval: 100}}
vlans:
  k8s-lcm: {id: 20, link: bond0, addresses: [{{ip "k8s-lcm:lcm"}}]}
"""


def test_the_example_of_the_reference_is_rendered() -> None:
    network = host_network()
    rendered = render_network(network)
    assert yaml.safe_load(rendered.config) == {
        "version": 2,
        "ethernets": {"eno1": {"dhcp4": False, "match": {"macaddress": MACS[0]}, "set-name": "eno1"}},
        "bridges": {
            "k8s-lcm": {
                "interfaces": ["eno1"],
                "addresses": ["10.0.0.100/24"],
                "routes": [{"to": "default", "via": "10.0.0.1"}],
                "nameservers": {"addresses": ["10.0.0.2", "10.0.0.3"]},
            }
        },
    }
    assert yaml.safe_load(rendered.netplan) == {"network": yaml.safe_load(rendered.config)}
    found = services(network, rendered.used)["ipam/SVC-k8s-lcm"]
    assert [(one.if_name, one.ip_address) for one in found] == [("k8s-lcm", "10.0.0.100/24")]


@pytest.mark.skipif(NETPLAN is None, reason="netplan is not there; scripts/cloud-init-tools gets it")
@pytest.mark.parametrize("text", [EXAMPLE, BOND], ids=["bridge", "bond and VLAN"])
def test_netplan_takes_the_rendered_file(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "etc" / "netplan"
    folder.mkdir(parents=True)
    (folder / "60-kaas-lcm-netplan.yaml").write_text(render_network(host_network(text)).netplan)
    ran = subprocess.run(
        [str(NETPLAN), "--root-dir", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, "error" in ran.stderr.lower()) == (0, False), ran.stderr
    files = {path.name: path.read_text() for path in (tmp_path / "run/systemd/network").iterdir()}
    assert "Address=10.0.0.100/24" in files["10-netplan-k8s-lcm.network"]
    assert f"PermanentMACAddress={MACS[0]}" in files["10-netplan-eno1.link"]


def test_an_address_that_is_not_allocated_is_named() -> None:
    rendered = render_network(host_network(addresses={}))
    assert (rendered.config, rendered.missing) == ("", (("lcm", "k8s-lcm"),))
    by_number = host_network(EXAMPLE.replace("k8s-lcm:lcm", "1:lcm"), {})
    assert render_network(by_number).missing == (("lcm", MACS[1].replace(":", "-")),)


def test_cards_that_are_not_reported_are_awaited() -> None:
    waiting = render_network(host_network(cards=None))
    assert (waiting.config, waiting.missing, waiting.awaits_cards) == ("", (), True)
    assert [one.address for one in waiting.used] == ["10.0.0.100/24"]
    fresh = render_network(host_network(addresses={}, cards=None))
    assert (fresh.missing, fresh.awaits_cards) == ((("lcm", "k8s-lcm"),), True)
    names_only = EXAMPLE.replace('match: {macaddress: "{{mac 0}}"}, set-name: {{nic 0}}', "optional: true")
    rendered = render_network(host_network(names_only, cards=None))
    assert (bool(rendered.config), rendered.uses_cards) == (True, False)


@pytest.mark.parametrize(
    ("priorities", "boots", "expected"),
    [
        (["eno", "enp"], "", "eno1 eno2 enp3s0f0 enp3s0f1 enp4s0 enp12s0"),
        (["enp", "eno"], "", "enp3s0f0 enp3s0f1 enp4s0 enp12s0 eno1 eno2"),
        (["provision", "eno", "enp"], "enp4s0", "enp4s0 eno1 eno2 enp3s0f0 enp3s0f1 enp12s0"),
        (["eno", "provision", "enp"], "enp4s0", "eno1 eno2 enp4s0 enp3s0f0 enp3s0f1 enp12s0"),
        (["eno", "provision"], "wlan0", "eno1 eno2 wlan0"),
        (["eno"], "enp4s0", "eno1 eno2"),
    ],
)
def test_cards_are_mapped_by_prefix_bus_and_slot(priorities: list[str], boots: str, expected: str) -> None:
    names = ["enp12s0", "wlan0", "enp3s0f1", "eno2", "enp4s0", "eno1", "enp3s0f0"]
    cards = [NetworkCard(name, f"52:54:00:00:01:{at:02x}", name == boots) for at, name in enumerate(names)]
    assert map_cards(host_network(if_mapping=(), priorities=priorities, cards=cards)) == tuple(expected.split())
    assert map_cards(host_network(if_mapping=(), priorities=priorities, cards=None)) is None


def test_automatic_mapping_knows_cards_by_the_names_of_systemd() -> None:
    cards = [NetworkCard("eth0", MACS[0], aliases=("enp4s0",)), NetworkCard("eth1", MACS[1], aliases=("enp3s0",))]
    network = host_network(if_mapping=(), priorities=["eno", "enp"], cards=cards)
    assert map_cards(network) == ("enp3s0", "enp4s0")
    assert yaml.safe_load(render_network(network).config)["ethernets"]["enp3s0"]["match"] == {"macaddress": MACS[1]}


@pytest.mark.parametrize(
    ("address", "index", "names"),
    [
        ("0000:03:00.0", None, ("enp3s0", "enp3s0f0")),
        ("0000:03:00.1", None, ("enp3s0f1",)),
        ("0001:0a:1f.0", None, ("enP1p10s31", "enP1p10s31f0")),
        ("0000:03:00.1", 2, ("eno2", "enp3s0f1")),
        (None, None, ()),
        ("virtio0", None, ()),
    ],
)
def test_a_card_has_the_names_of_systemd(address: str | None, index: int | None, names: tuple[str, ...]) -> None:
    assert systemd_names(NICFacts(pci_address=address, onboard_index=index)) == names


def test_a_card_is_found_by_the_name_that_systemd_gives_it() -> None:
    cards = (NetworkCard("eth0", MACS[0], aliases=("enp3s0",)), CARDS[1])
    rendered = render_network(host_network(if_mapping=("enp3s0",), cards=cards))
    assert yaml.safe_load(rendered.config)["ethernets"]["enp3s0"]["match"] == {"macaddress": MACS[0]}


@pytest.mark.parametrize(
    ("text", "reason", "fault"),
    [
        ("version: 2\na: {{foo 1}}", NetworkReason.TEMPLATE_INVALID, r'npTemplate:2: function "foo" not defined'),
        ("version: 2\na: {{nic", NetworkReason.TEMPLATE_INVALID, "npTemplate:2: unclosed action"),
        ("a: {{nic 7}}", NetworkReason.CARD_MISSING, r"npTemplate:1:.*nic 7: the mapping has 2 .*: eno1, enp0s0"),
        ('a: {{ip "lcm"}}', NetworkReason.TEMPLATE_INVALID, 'must be "NUMBER:SUBNET" or "INTERFACE:SUBNET"'),
        ('a: {{ip "0:storage"}}', NetworkReason.SUBNET_MISSING, r"storage is not in spec.l3Layout, which has: lcm"),
        ('a: {{cidr_from_subnet "x"}}', NetworkReason.SUBNET_MISSING, "subnet x is not in spec.l3Layout"),
        (
            "a: {{cluster_api_lb_ip}}",
            NetworkReason.SUBNET_MISSING,
            "no Subnet of the Cluster has the label ipam/SVC-LB",
        ),
        (EXAMPLE.replace("version: 2", "version: 1"), NetworkReason.TEMPLATE_INVALID, "version must be 2"),
        ("network: {version: 2}", NetworkReason.TEMPLATE_INVALID, "remove network:"),
        ("- version", NetworkReason.TEMPLATE_INVALID, "must be a mapping with version: 2"),
        ("version: [", NetworkReason.TEMPLATE_INVALID, "not YAML"),
        ("version: 2\na: " + "[" * 5000, NetworkReason.TEMPLATE_INVALID, "not YAML: nested more than 16 deep"),
        (EXAMPLE.replace("  k8s-lcm:", "  br0:"), NetworkReason.TEMPLATE_INVALID, "no bond, bridge or VLAN k8s-lcm"),
        (
            EXAMPLE + "vlans: {a-name-of-16-long: {id: 2, link: eno1}}",
            NetworkReason.TEMPLATE_INVALID,
            "'a-name-of-16-long' is no name of an interface",
        ),
        (EXAMPLE.replace('{{ip "k8s-lcm:lcm"}}', "192.0.2.1/24"), NetworkReason.TEMPLATE_INVALID, "this has none"),
        ("version: 2\na: {{range 100000}}{{.}}{{range 9}}x{{end}}{{end}}", NetworkReason.TEMPLATE_INVALID, "more than"),
    ],
)
def test_what_is_wrong_in_a_template_is_named(text: str, reason: NetworkReason, fault: str) -> None:
    with pytest.raises(TemplateNetworkFault, match=fault) as raised:
        render_network(host_network(text))
    assert raised.value.reason is reason
    assert str(raised.value).startswith(f"L2Template {NAMESPACE}/one-nic: ")


def test_a_card_that_the_host_does_not_have_lists_its_cards() -> None:
    with pytest.raises(TemplateNetworkFault, match=rf"no network card eno1; its cards: eth0 \({MACS[2]}\)\. Correct"):
        render_network(host_network(cards=(NetworkCard("eth0", MACS[2]),)))


def test_a_host_has_one_address_of_the_management_network() -> None:
    second = TemplateSubnet(
        "x/lcm2",
        AddressPool.of(subnet(cidr="10.1.0.0/24", includeRanges=[], gateway="10.1.0.1").spec),
        LCM,
        {"k8s-lcm": "10.1.0.5"},
    )
    known: dict[str, Any] = dict(host_network().subnets) | {"other": second}
    text = EXAMPLE.replace('"k8s-lcm:lcm"}}', '"k8s-lcm:lcm"}}, {{ip "k8s-lcm:other"}}')
    with pytest.raises(TemplateNetworkFault, match=r"this has 10\.0\.0\.100/24 of k8s-lcm, 10\.1\.0\.5/24 of k8s-lcm"):
        render_network(host_network(text, subnets=known))


def test_macros_of_a_subnet_and_the_load_balancer() -> None:
    text = EXAMPLE + 'renderer: networkd\n# {{cidr_from_subnet "lcm"}} {{cluster_api_lb_ip}}\n'
    assert render_network(host_network(text, load_balancer="10.0.0.90")).config.endswith("# 10.0.0.0/24 10.0.0.90\n")


def test_the_syntax_of_a_template_is_checked_without_a_host() -> None:
    check_template("x/y", EXAMPLE)
    with pytest.raises(
        TemplateNetworkFault, match="macros: cidr_from_subnet, cluster_api_lb_ip, gateway_from_subnet, ip, mac"
    ):
        check_template("x/y", "{{ips}}")
