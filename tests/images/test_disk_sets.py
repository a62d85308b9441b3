"""No set of disks leads to a wrong write: the installer on loop devices, and metalman's own HTTP side, which chooses.

A set has its order, sizes, sectors, content, late disks, and one that is swapped while the installer runs. The bytes of
every disk are compared with those before; `disk_sets` judges which one may differ.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import pytest

from tests.images.content import MIB, TABLE
from tests.images.disk_set_host import LoopHost, Recorder, content, netbooted
from tests.images.disk_sets import (
    CONTENTS,
    KINDS,
    REFUSED,
    WAITS,
    WAITS_S,
    DiskSet,
    SetDisk,
    State,
    first_set,
    random_set,
    renamed,
    verdict,
)
from tests.images.loops import system
from tests.images.support import needed
from tests.metalman.support.netboot_site import World
from tests.support.seeds import first_seed
from unbounded.metalman.http.server import HttpServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="loop devices and mounts need root"),
]

SETS: Final = 1000
AT_ONCE: Final = 50
MARK: Final = slice(MIB // 2, MIB // 2 + 4096)
EDGE: Final = 16 * MIB  # of a disk counts as its start
REMEDIES: Final = ("erase", "name one in", "name another", "name it in", "connect", "add a hint")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The disk image, unpacked."""
    for tool in ("blkid", "zstd", "mke2fs"):
        needed(tool)
    needed("nc.openbsd", "scripts/net-tools gets it")
    return system(tmp_path_factory.mktemp("image"))


@pytest.mark.parametrize("kind", KINDS)
async def test_no_disk_is_written_that_no_rule_permits(plain: bytes, tmp_path: Path, kind: str) -> None:
    await judge(first_set(kind, first_seed()), plain, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(7200)  # on a busy machine; alone it takes two minutes
@pytest.mark.parametrize("begin", range(0, SETS, AT_ONCE))
async def test_no_disk_of_a_thousand_sets_is_written_that_no_rule_permits(
    plain: bytes, tmp_path: Path, begin: int
) -> None:
    for seed in range(first_seed() + begin, first_seed() + begin + AT_ONCE):
        await judge(random_set(seed), plain, tmp_path / str(seed))
        shutil.rmtree(tmp_path / str(seed))  # 13 MB


async def judge(of: DiskSet, plain: bytes, folder: Path) -> None:
    """Install a machine with a set of disks, and once more after its kernel has found them in another order."""
    async with machine(of, plain, folder) as installed:
        written = await installed.boot(of)
        if written is None or of.swapped is not None:
            return
        recorded = (await installed.world.status()).status.target_disk or ""
        assert recorded in {*written.paths, of.recorded}
        disks = {device: replace(disk, content="own") if disk is written else disk
                 for device, disk in installed.disks.items()}  # fmt: skip
        later = renamed(replace(of, disks=tuple(disks.values())), recorded)
        by_place = {disk.by_path: disk for disk in later.disks}
        installed.disks = {device: by_place[disk.by_path] for device, disk in disks.items()}
        await installed.world.stage("WaitingLoader", phase="Complete")
        await installed.boot(later, operation="again")


@dataclass
class InstalledMachine:
    """A machine with its disks, and the metalman that it boots from.

    Args:
        disks: those that were there at its start, by device.
    """

    uid: str
    world: World
    host: LoopHost
    server: HttpServer
    recorder: Recorder
    plain: bytes
    disks: dict[Path, SetDisk]
    swaps: list[tuple[int, str, SetDisk]] = field(default_factory=list)  # before which report

    async def boot(self, of: DiskSet, operation: str = "replace") -> SetDisk | None:
        """Run the installer, and check all that it did; return the written disk."""
        stage = "WaitingReport" if of.kind == "HostInspect" else "WaitingLoader"
        await self.world.replace(kind=of.kind, stage=stage, name=operation, erase=",".join(of.erase))
        self.host.start(self.disks)
        if of.swapped is not None:
            self._swap_later(*of.swapped)
        before = {device: content(device, self.host.file(device)) for device in self.host.devices}
        self.recorder.reports.clear()
        self.recorder.failures.clear()
        code = await self.host.install(self.world.prefix(), self.uid, self.server.port)
        try:
            return self._judge(of, code, before)
        except AssertionError as error:
            error.add_note(f"{of}\n{[(one.at_s, one.answer) for one in self.recorder.reports]}")
            raise

    def _judge(self, of: DiskSet, code: int, before: Mapping[Path, Mapping[int, bytes]]) -> SetDisk | None:
        after = {device: content(device, self.host.file(device)) for device in self.host.devices}
        changed = [device for device in after if after[device] != before[device]]
        expected = self._expected(of)
        if expected is None:
            assert changed == []
            assert code == (3 if of.kind == "HostInspect" else 1)
            return None
        assert (code, self.recorder.failures) == (0, [])
        device, disk = expected
        assert changed == [device]
        self._check_installed(device)
        return disk

    def _swap_later(self, name: str, other: SetDisk, after: int) -> None:
        other = replace(other, name=name)
        device = self.host.made(other, self.uid)

        def chosen(count: int) -> None:
            if count == after and (self.host.host.root / "sys/block" / name).exists():
                self.host.replace(name, other, device)
                self.swaps.append((len(self.recorder.reports), name, other))
                self.disks = {was: disk for was, disk in self.disks.items() if disk.name != name} | {device: other}

        self.recorder.on_choice = chosen

    def _expected(self, of: DiskSet) -> tuple[Path, SetDisk] | None:
        """Check the answer to each report; return the disk that has to be written."""
        reports = self.recorder.reports
        erased = None
        for number, report in enumerate(reports):
            assert report.report.final == (report.at_s >= WAITS_S) or not report.report.final
            body = report.answer.body
            if of.kind == "HostInspect":
                assert body == {"status": "ok", "action": "PowerOff"}
                continue
            there = self._there(of, number, report.at_s)
            image_bytes = report.report.image_bytes
            assert image_bytes in {0, len(self.plain)}
            right = verdict(there, of, image_bytes, final=report.report.final, erased=erased)
            if right.disk is not None:
                assert body.get("action") == "Write", body
                assert body["disk"] in right.disk.paths
                is_foreign = right.disk.state is State.FOREIGN
                assert body.get("erase") == (right.disk.serial if is_foreign else None)
                erased = right.disk if is_foreign else erased
            else:
                assert right in (WAITS, REFUSED)
                assert body.get("action") == ("Wait" if right == WAITS else None), body
                check_reason(str(body["message"] if right == WAITS else body["error"]), there)
        return None if of.kind == "HostInspect" else self._taken(of)

    def _taken(self, of: DiskSet) -> tuple[Path, SetDisk] | None:
        """Return the disk that the last answer named, if it is still what was reported."""
        last = self.recorder.reports[-1]
        if last.answer.code == 409:
            assert self.recorder.failures == [f"ChoosingDisk: {last.answer.body['error']}".replace('"', "'")]
            return None
        assert last.report.image_bytes == len(self.plain)
        path = str(last.answer.body["disk"])
        there = self._there(of, len(self.recorder.reports), last.at_s)
        reported = {one.name: one for one in self._there(of, len(self.recorder.reports) - 1, last.at_s)}
        found = [one for one in there if path in one.paths]
        if found and (found[0] == reported[found[0].name] or _is_alike(found[0], reported[found[0].name])):
            return next((device, disk) for device, disk in self.disks.items() if disk == found[0])
        (failure,) = self.recorder.failures
        why = "which was reported " if found else "which is no disk here"
        assert failure.startswith(f"ChoosingDisk: metalman chose {path}, {why}"), failure
        return None

    def _there(self, of: DiskSet, number: int, at_s: int) -> list[SetDisk]:
        """Return the disks that a report had."""
        there = {disk.name: disk for disk in of.disks if disk.arrives_s <= at_s}
        there |= {name: other for before, name, other in self.swaps if before <= number}
        return list(there.values())

    def _check_installed(self, device: Path) -> None:
        with device.open("rb") as file:
            start = file.read(MIB)
        assert start[: MARK.start] == self.plain[: MARK.start]
        assert f"machine={self.uid}\nname=m1\nstate=installed\ntable={TABLE}\n".encode() in start[MARK]
        assert start[MARK.stop :] == self.plain[MARK.stop : MIB]


def _is_alike(found: SetDisk, reported: SetDisk) -> bool:
    """Return whether a disk that took the path of another cannot be told from it by state, size and sectors."""
    is_same_size = (found.size, found.sector) == (reported.size, reported.sector)
    return found.state is reported.state and found.state is not State.FOREIGN and is_same_size


def check_reason(message: str, there: list[SetDisk]) -> None:
    if message.endswith("is not here yet"):
        return
    assert any(remedy in message for remedy in REMEDIES), message
    for one in there:
        assert f"{one.name} (" in message
        words = CONTENTS[one.content].words
        if one.size <= EDGE:
            words = words.removesuffix(" at its end")
        assert words in message or one.sector != 512


@asynccontextmanager
async def machine(of: DiskSet, plain: bytes, folder: Path) -> AsyncIterator[InstalledMachine]:
    async with netbooted(of, plain, folder) as at:
        yield InstalledMachine(at.uid, at.world, at.host, at.server, at.recorder, plain, at.disks)
