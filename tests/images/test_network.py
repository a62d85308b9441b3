"""The installer's own network: bonds and VLANs of its command line.

The kernel's part is recorded; tests/boot has a real one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from tests.images.support import UID, Host, needed

pytestmark = pytest.mark.slow

MACS: Final = ("52:54:00:00:00:01", "52:54:00:00:00:02")
BOND: Final = f"bond0,active-backup,none,{MACS[0]},{MACS[1]}"
SETTINGS: Final = "192.0.2.10,255.255.255.0,192.0.2.1"
IP: Final = """#!/bin/sh
echo "ip $*" >>"$T/calls"
[ -z "$REFUSED" ] || exit 2
[ "$2" != del ] || { [ ! -d "$SYS/class/net/$3/bonding" ] || rm -r "$SYS/class/net/$3"; exit; }
case $3 in link) new=$6 ;; *) new=$3 ;; esac
mkdir -p "$SYS/class/net/$new/bonding"
echo 1 >"$SYS/class/net/$new/carrier"
"""
RECORDED: Final = '#!/bin/sh\necho "${0##*/} $*" >>"$T/calls"\n'


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host with two cards, whose kernel makes what it is told to."""
    needed("blkid")
    made = Host(tmp_path / "host")
    for name in ("ip", "ifconfig", "modprobe", "route"):
        place = made.command(name)
        place.unlink()
        place.write_text(IP if name == "ip" else RECORDED)
        place.chmod(0o755)
    for number, mac in enumerate(MACS):
        card(made, f"eth{number}", mac)
    return made


def card(host: Host, name: str, mac: str) -> Path:
    folder = host.root / "sys/class/net" / name
    (folder / "device").mkdir(parents=True)
    (folder / "address").write_text(f"{mac}\n")
    return folder


def enslave(host: Host, name: str, mac: str) -> None:
    """Show a card as the kernel does when it is in a bond, whose address is that of the first card."""
    folder = host.root / "sys/class/net" / name
    (folder / "bonding_slave").mkdir()
    (folder / "bonding_slave/perm_hwaddr").write_text(f"{mac}\n")
    (folder / "address").write_text(f"{MACS[0]}\n")


async def ran(host: Host, script: str, **environment: str) -> list[str]:
    """Run functions of network.sh; return the calls of the kernel's tools."""
    calls = host.root / "tmp/calls"
    calls.unlink(missing_ok=True)
    code, out = await host.parts(f". $INSTALLER/network.sh; listen_for_neighbours() {{ :; }}; {script}", **environment)
    assert code == 0, out
    return calls.read_text().splitlines() if calls.exists() else []


async def test_lease_goes_onto_a_vlan_of_a_bond(host: Host) -> None:
    host.arguments = {"bond": BOND, "vlan": "vlan0,bond0,10", "lease": f"vlan0,{SETTINGS}"}
    assert await ran(host, "bring_up_network") == [
        "modprobe bonding max_bonds=0",
        "ip link add bond0 type bond",
        "ifconfig eth0 down",
        "ifconfig eth1 down",
        "ifconfig bond0 up",
        "modprobe 8021q",
        "ip link add link bond0 name vlan0 type vlan id 10",
        "ifconfig vlan0 up",
        "ifconfig eth0 up",
        "ifconfig eth1 up",
        "ifconfig vlan0 192.0.2.10 netmask 255.255.255.0 up",
        "route add default gw 192.0.2.1 dev vlan0",
    ]
    bonding = host.root / "sys/class/net/bond0/bonding"
    assert {file.name: file.read_text().strip() for file in bonding.iterdir()} == {
        "mode": "active-backup",
        "fail_over_mac": "none",
        "miimon": "100",
        "slaves": "+eth1",  # the last that was written
    }


async def test_card_that_comes_late_joins_its_bond(host: Host) -> None:
    host.arguments = {"bond": BOND.replace(MACS[1], "52:54:00:00:00:03")}
    assert "ifconfig eth0 down" in await ran(host, "make_links")
    enslave(host, "eth0", MACS[0])
    card(host, "eth2", "52:54:00:00:00:03")
    assert await ran(host, "make_links") == ["ifconfig eth2 down", "ifconfig bond0 up"]


async def test_card_in_a_bond_keeps_its_own_address_in_the_report(host: Host) -> None:
    for number, mac in enumerate(MACS):
        enslave(host, f"eth{number}", mac)
    code, out = await host.parts(f"hardware {UID}")
    assert code == 0, out
    assert [nic["mac"] for nic in json.loads(out)["nics"]] == list(MACS)
    assert await ran(host, f"interface {MACS[1]} >$T/found") == []
    assert (host.root / "tmp/found").read_text() == "eth1\n"


async def test_lease_of_a_card_needs_no_tools_of_bonds(host: Host) -> None:
    (host.root / "sys/class/net/eth1/carrier").write_text("1\n")
    host.arguments = {"lease": f"{MACS[1].upper()},{SETTINGS}"}
    assert await ran(host, "bring_up_network") == [
        "ifconfig eth0 up",
        "ifconfig eth1 up",
        "ifconfig eth1 192.0.2.10 netmask 255.255.255.0 up",
        "route add default gw 192.0.2.1 dev eth1",
    ]


@pytest.mark.parametrize(
    ("argument", "why"),
    [
        ({"bond": BOND}, "the bond bond0 of mode active-backup could not be made"),
        ({"vlan": f"vlan0,{MACS[1]},10"}, "the VLAN 10 on eth1 could not be made"),
    ],
)
async def test_kernel_without_bonds_or_vlans_is_said(host: Host, argument: dict[str, str], why: str) -> None:
    host.arguments = argument
    await ran(host, "make_links", REFUSED="1")
    assert (host.root / "said").read_text().endswith(f": {why}\n")


def words(**named: str) -> str:
    return " ".join(f"unbounded.{name}={value}" for name, value in named.items())


ASKS: Final = """
request() { echo "request $2" >>"$T/calls"; STATUS=200; cp "$SIGNED" "$T/body"; }
"""
URL: Final = "http://192.0.2.1:8880/boot/secret"


@pytest.mark.parametrize("link", ["bond0", "vlan0"])
async def test_network_of_virtual_media_leads_to_the_statement_and_is_left(
    host: Host, tmp_path: Path, link: str
) -> None:
    """A bond of the attacker's words, over the cards that are here, would pass for one of another Machine."""
    media, signed = tmp_path / "boot.cred", tmp_path / "signed"
    links = {"bond": BOND, "vlan": "vlan0,bond0,10"}
    media.write_text(words(serve_url=URL, lease=f"{link},{SETTINGS}", **links) + "\n")
    others = BOND.replace(MACS[0], "52:54:00:00:00:0a").replace(MACS[1], "52:54:00:00:00:0b")
    signed.write_text(words(serve_url=URL, machine="m2", lease=f"{link},{SETTINGS}", bond=others, vlan=links["vlan"]))
    paths = {"MEDIA_WORDS": str(media), "SIGNED": str(signed)}
    calls = await ran(host, f"{ASKS} take_statement && echo $CMDLINE >>$T/calls", **paths)
    assert calls[-5:] == [
        f"request {URL}/statement",
        f"ifconfig {link} 0.0.0.0",
        "ip link del vlan0",
        "ip link del bond0",
        signed.read_text(),
    ]
    assert {path.name for path in (host.root / "sys/class/net").iterdir()} == {"eth0", "eth1"}


@pytest.mark.parametrize(("machine", "number"), [("x86_64", "00016"), ("aarch64", "00019")])
async def test_boot_file_is_requested_for_the_architecture_of_the_machine(
    host: Host, machine: str, number: str
) -> None:
    commands = f'uname() {{ echo {machine}; }}; udhcpc() {{ echo "$*" >>"$T/calls"; }};'
    (request,) = await ran(host, f"{commands} ! ask_statement eth0")
    assert request.endswith(f" -V HTTPClient:Arch:{number}:UNDI:003001")


@pytest.mark.parametrize(
    "text",
    [
        words(serve_url=URL, lease="$(reboot)"),
        words(serve_url="https://192.0.2.1/boot"),
        words(serve_url="http://192.0.2.1"),
        words(lease=f"{MACS[0]},{SETTINGS}"),
        "",
    ],
)
async def test_words_of_virtual_media_that_are_no_boot_are_refused(host: Host, tmp_path: Path, text: str) -> None:
    media = tmp_path / "boot.cred"
    media.write_text(text)
    assert await ran(host, f"{ASKS} ! take_statement", MEDIA_WORDS=str(media)) == []
    assert "virtual media has words that are none of a boot" in (host.root / "said").read_text()
