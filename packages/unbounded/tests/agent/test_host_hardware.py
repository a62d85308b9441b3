"""The host's hardware and addresses: on this machine against other programs, and from what older programs print."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.agent.scripted import ScriptedCommands, failed
from tests.support.paths import ROOT
from unbounded.agent.daemon import reporting
from unbounded.agent.daemon.reporting import HostObserver
from unbounded.agent.host import HostCommands
from unbounded.agent.host_hardware import read_addresses, read_hardware
from unbounded.agent.interfaces import HostCommandResult
from unbounded.agent.paths import HostPaths
from unbounded.api.failures import Rejected, Transient
from unbounded.api.hardware import ProcessorFacts, ReportedHardware
from unbounded.api.machine_status import HostAddress

LIB: Final = ROOT / "images" / "installer" / "lib"
INSTALLER: Final = f"""
. {LIB}/base.sh; . {LIB}/disks.sh; . {LIB}/hardware.sh
lldp_facts() {{ :; }}
note_links
printf '{{"disks":['; for one in $(disks); do object disk_facts "$one" ""; echo; done | joined
printf '],"nics":['; for one in $(nics); do object nic_facts "$one"; echo; done | joined
printf ']}}'
"""
SHARED: Final = ("name", "sizeBytes", "sectorBytes", "rotational", "bus", "serialNumber", "mac", "driver", "pciAddress")
LSBLK_2_27: Final = {
    "kname": "cciss/c0d0", "type": "disk", "size": "480103981056", "log-sec": "512", "rota": "1", "rm": "0", "ro": "0",
    "tran": "sas", "vendor": "ACME    ", "model": "D\u0007 480", "serial": "S1", "wwn": "0x5000", "hctl": "0:0:0:0",
}  # fmt: skip


def printed(text: str) -> HostCommandResult:
    return HostCommandResult((), 0, text, "")


def says(**found: Any) -> ScriptedCommands:
    """Programs that print this."""
    blocks = {"blockdevices": found.get("disks", [])}
    return ScriptedCommands(
        {
            ("lsblk",): [printed(json.dumps(blocks))],
            ("lscpu", "--parse=CPU,CORE,SOCKET"): [printed(found.get("cpus", ""))],
            ("lscpu",): [printed(json.dumps({"lscpu": found.get("names", [])}))],
            ("ip",): [printed(json.dumps(found.get("links", [])))],
        }
    )


def run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout


@pytest.mark.slow
async def test_the_hardware_of_this_machine_is_what_other_programs_say() -> None:
    found = await read_hardware(HostPaths(), HostCommands())
    assert found.cpus == int(run("getconf", "_NPROCESSORS_ONLN"))
    fields = dict(line.split(":", 1) for line in run("env", "LC_ALL=C", "lscpu").splitlines() if ":" in line)
    assert found.processor is not None
    assert found.processor.model == fields["Model name"].strip()
    assert found.processor.sockets == int(fields["Socket(s)"])
    assert found.processor.cores == int(fields["Core(s) per socket"]) * int(fields["Socket(s)"])
    (total,) = [line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line]
    assert found.memory_bytes == int(total) * 1024 == int(run("free", "--bytes").split("Mem:")[1].split()[0])
    listed = json.loads(run("lsblk", "--json", "--bytes", "--nodeps", "--output", "NAME,SIZE,TYPE,RO,RM"))
    fixed = [one for one in listed["blockdevices"] if one["type"] == "disk" and not one["ro"] and not one["rm"]]
    fixed = [one for one in fixed if one["size"] and not one["name"].startswith(("zram", "ram", "nbd"))]
    assert {(one.name, one.size_bytes) for one in found.disks} == {(one["name"], one["size"]) for one in fixed}


@pytest.mark.slow
async def test_agent_and_installer_find_the_same_disks_and_cards(tmp_path: Path) -> None:
    script = run("env", f"T={tmp_path}", "sh", "-c", INSTALLER)
    expected = json.loads(script)
    found = msgspec.to_builtins(await read_hardware(HostPaths(), HostCommands()))
    for part in ("disks", "nics"):
        own = [{key: one[key] for key in SHARED if key in one} for one in found.get(part, ())]
        its = [{key: one[key] for key in SHARED if key in one} for one in expected[part]]
        assert sorted(own, key=lambda one: one["name"]) == sorted(its, key=lambda one: one["name"])


@pytest.mark.slow
async def test_the_addresses_of_this_machine_are_those_of_its_cards() -> None:
    found = await read_addresses(HostPaths(), HostCommands())
    lasting = run("hostname", "-I").split()
    assert {one.address for one in found} <= set(lasting)
    for link in json.loads(run("ip", "-j", "addr")):
        globals_ = {one["local"] for one in link["addr_info"] if one["scope"] == "global" and "temporary" not in one}
        if (Path("/sys/class/net") / link["ifname"] / "device").exists():
            assert {one.address for one in found if one.interface == link["ifname"]} == globals_


async def test_what_older_programs_print_is_understood(tmp_path: Path) -> None:
    names = [{"field": "Architecture:", "data": "x86_64", "children": [{"field": "Model name:", "data": "CPU 1"}]}]
    cpus = "# CPU,Core,Socket\n0,0,0\n1,1,0\n2,0,0\n3,1,0\n"
    found = await read_hardware(HostPaths(tmp_path), says(disks=[LSBLK_2_27], names=names, cpus=cpus))
    assert (found.cpus, found.memory_bytes) == (4, None)
    assert found.processor == ProcessorFacts(architecture="x86_64", model="CPU 1", sockets=1, cores=2)
    (disk,) = found.disks
    assert (disk.name, disk.size_bytes, disk.rotational, disk.bus) == ("cciss!c0d0", 480103981056, True, "sas")
    assert (disk.vendor, disk.model, disk.wwn) == ("ACME", "D  480", "0x5000")


async def test_disks_without_a_medium_of_their_own_are_left_out(tmp_path: Path) -> None:
    others: list[dict[str, Any]] = [{"kname": name} for name in ("loop0", "zram0", "nbd1", "mmcblk0boot0")]
    others += [{"size": "0"}, {"rm": "1"}, {"ro": True}, {"type": "rom"}, {"kname": "a name"}]
    found = await read_hardware(HostPaths(tmp_path), says(disks=[LSBLK_2_27 | one for one in others]))
    assert found.disks == ()


async def test_reports_are_small_and_within_the_limits(tmp_path: Path) -> None:
    dev = tmp_path / "dev"
    for kind in ("by-id", "by-path"):
        (dev / "disk" / kind).mkdir(parents=True)
        for number in range(9):
            (dev / "disk" / kind / f"ata-{number}").symlink_to("../../sda")
        (dev / "disk" / kind / "a name").symlink_to("../../sda")
    disks = [LSBLK_2_27 | {"kname": f"sd{number}", "model": "m" * 300} for number in range(70)]
    found = await read_hardware(HostPaths(tmp_path), says(disks=[LSBLK_2_27 | {"kname": "sda"}, *disks]))
    assert len(found.disks) == 64
    assert found.disks[0].by_id == ("ata-0", "ata-1", "ata-2")  # the fourth is no name of udev
    assert found.disks[1].model is not None
    assert len(found.disks[1].model) == 256


async def test_a_missing_program_leaves_its_part_out_and_a_broken_one_is_an_error(tmp_path: Path) -> None:
    missing: list[Any] = [Rejected("no such program")]
    nothing = ScriptedCommands({(name,): list(missing) for name in ("lsblk", "lscpu", "ip")})
    assert await read_hardware(HostPaths(tmp_path), nothing) == ReportedHardware()
    assert await read_addresses(HostPaths(tmp_path), nothing) == ()
    for answer in (failed("no memory"), printed("{"), printed('{"other": []}')):
        with pytest.raises(Transient):
            await read_hardware(HostPaths(tmp_path), ScriptedCommands({("lsblk",): [answer]}))


def interface(root: Path, name: str, *, device: str = "", lower: str = "") -> None:
    folder = root / "sys" / "class" / "net" / name
    folder.mkdir(parents=True)
    if device:
        (root / "sys" / "devices" / device).mkdir(parents=True)
        (folder / "device").symlink_to(root / "sys" / "devices" / device)
    if lower:
        (folder / f"lower_{lower}").symlink_to(folder.parent / lower)


def link(name: str, *addresses: str, **more: Any) -> dict[str, Any]:
    info = [{"family": "inet", "local": one, "scope": "global", **more} for one in addresses]
    return {"ifname": name, "flags": ["UP", "LOWER_UP"], "address": "02:00:00:00:00:01", "addr_info": info}


async def test_addresses_are_those_of_cards_and_what_lies_on_them(tmp_path: Path) -> None:
    interface(tmp_path, "eno1", device="pci0000:00/0000:17:00.1")
    interface(tmp_path, "bond0", lower="eno1")
    interface(tmp_path, "bond0.7", lower="bond0")
    interface(tmp_path, "cni0", lower="veth1")
    for name in ("veth1", "tun0", "kube-ipvs0"):
        interface(tmp_path, name)
    links = [
        *(link("bond0", "192.0.2.7", "2001:db8::7"), link("bond0.7", "198.51.100.7"), link("eno1")),
        *(link("cni0", "10.244.0.1"), link("kube-ipvs0", *(f"10.96.0.{number}" for number in range(200)))),
        *(link("tun0", "203.0.113.9"), link("bond0", "2001:db8::dead", temporary=True)),
    ]
    commands = says(links=links)
    found = await read_addresses(HostPaths(tmp_path), commands)
    assert found == (
        HostAddress(interface="bond0", address="192.0.2.7"),
        HostAddress(interface="bond0", address="2001:db8::7"),
        HostAddress(interface="bond0.7", address="198.51.100.7"),
    )
    through = await read_addresses(HostPaths(tmp_path), commands, "203.0.113.9")
    assert {one.address for one in through} == {one.address for one in found} | {"203.0.113.9"}
    (card,) = (await read_hardware(HostPaths(tmp_path), commands)).nics
    assert (card.name, card.mac, card.pci_address, card.link) == ("eno1", "02:00:00:00:00:01", "0000:17:00.1", True)


async def test_virtual_functions_come_and_go_and_are_no_cards(tmp_path: Path) -> None:
    interface(tmp_path, "eno1v0", device="pci0000:00/0000:17:02.0")
    (tmp_path / "sys" / "devices" / "pci0000:00" / "0000:17:02.0" / "physfn").mkdir()
    found = await read_hardware(HostPaths(tmp_path), says(links=[link("eno1v0", "192.0.2.8")]))
    assert found.nics == ()


async def test_the_hardware_is_read_once_an_hour_and_stays_where_it_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = says(disks=[LSBLK_2_27], links=[link("tun0", "192.0.2.9")])
    observer = HostObserver(HostPaths(tmp_path), commands)
    first = await observer.observe()
    assert first.hardware is not None
    assert [one.name for one in first.hardware.disks] == ["cciss!c0d0"]
    assert await observer.observe() == first
    assert commands.ran("lsblk") == 1
    monkeypatch.setattr(reporting, "HARDWARE_EVERY_S", 0.0)
    commands.answers[("lsblk",)] = [failed("no memory")]
    assert await observer.observe() == first
    commands.answers[("lsblk",)] = [printed('{"blockdevices": []}')]
    later = await observer.observe()
    assert later.hardware is not None
    assert later.hardware.disks == ()
