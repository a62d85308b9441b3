"""The installer's wait for disks: controllers find theirs one after another, and some of them late."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.images.support import Host, needed

pytestmark = pytest.mark.slow

SAS: Final = {"proc_name": "mpt3sas"}
AHCI: Final = {"proc_name": "ahci"}
CLOCK: Final = """
sleep() {
    read -r clock_up _ <"$UPTIME"
    clock_up=$((${clock_up%.*} + $1))
    echo "$clock_up.00 0.00" >"$UPTIME"
    set +f
    for late in "$T"/late/*; do
        [ ! -d "$late" ] || [ "${late##*/}" -gt "$clock_up" ] || { cp -a "$late"/. "$SYS/../" && rm -rf "$late"; }
    done
    set -f
}
udevadm() { [ ! -e "$T/queue" ] || [ "$(seconds)" -ge "$(cat "$T/queue")" ]; }
"""
"""Time passes only where the installer sleeps, and with it comes what was put below `late/SECONDS`."""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    needed("blkid")
    return Host(tmp_path / "host")


def controller(host: Host, name: str, facts: Mapping[str, str]) -> None:
    folder = host.root / "sys/class" / name
    folder.mkdir(parents=True)
    for fact, value in facts.items():
        (folder / fact).write_text(f"{value}\n")


def late(host: Host, after_s: int, name: str) -> None:
    """A disk that is found that many seconds after the installer began to wait."""
    shown = Host(host.root / "tmp/late" / str(after_s))
    shown.disk(name)


async def wait(host: Host) -> tuple[int, set[str]]:
    """Wait: the seconds that it took, and the disks that are there then."""
    host_clock = host.root / "uptime"
    host_clock.write_text("0.00 0.00\n")
    script = f'{CLOCK} wait_for_disks; echo "$(seconds):" $(disks)'
    code, out = await host.parts(script, PAUSE_S="", UPTIME=str(host_clock))
    assert code == 0, out
    seconds, _, names = out.strip().splitlines()[-1].partition(":")
    return int(seconds), set(names.split())


async def test_disks_of_controllers_that_are_done_are_not_waited_for(host: Host) -> None:
    host.disk("sda")
    controller(host, "scsi_host/host0", AHCI)
    controller(host, "nvme/nvme0", {"state": "live"})
    seconds, there = await wait(host)
    assert there == {"sda"}
    assert seconds <= 4


async def test_a_sas_disk_that_comes_long_after_the_first_is_seen(host: Host) -> None:
    """The installer took the only disk that was there after 2 s, which was another one's."""
    host.disk("sda")
    controller(host, "scsi_host/host0", AHCI)
    controller(host, "scsi_host/host1", SAS)
    late(host, 25, "sdb")
    seconds, there = await wait(host)
    assert there == {"sda", "sdb"}
    assert 30 <= seconds <= 34


async def test_a_disk_at_the_last_moment_is_not_the_last_one(host: Host) -> None:
    controller(host, "scsi_host/host1", SAS)
    for number, name in enumerate(("sda", "sdb", "sdc")):
        late(host, 29 + 2 * number, name)
    assert (await wait(host))[1] == {"sda", "sdb", "sdc"}


async def test_an_nvme_controller_that_starts_is_waited_for(host: Host) -> None:
    host.disk("sda")
    controller(host, "nvme/nvme0", {"state": "connecting"})
    assert (await wait(host))[0] >= 30


async def test_drivers_that_udev_still_loads_are_waited_for(host: Host) -> None:
    host.disk("sda")
    (host.root / "tmp/queue").write_text("100")
    late(host, 90, "sdb")
    seconds, there = await wait(host)
    assert there == {"sda", "sdb"}
    assert 100 <= seconds <= 110


async def test_disk_wait_of_a_slow_controller_starts_at_driver_load(host: Host) -> None:
    """Its 30 s were over when its firmware had started, and the disk that came first was taken."""
    controller(host, "scsi_host/host0", SAS)
    (host.root / "tmp/queue").write_text("50")
    late(host, 51, "sda")
    late(host, 70, "sdb")
    seconds, there = await wait(host)
    assert there == {"sda", "sdb"}
    assert 78 <= seconds <= 82


async def test_udev_that_never_settles_does_not_hold_the_installation_for_ever(host: Host) -> None:
    host.disk("sda")
    (host.root / "tmp/queue").write_text("100000")
    assert 180 <= (await wait(host))[0] <= 184


async def test_no_disk_at_all_is_waited_for(host: Host) -> None:
    late(host, 25, "sda")
    assert (await wait(host))[1] == {"sda"}


async def test_no_disk_ever_ends_the_wait(host: Host) -> None:
    assert 30 <= (await wait(host))[0] <= 34
