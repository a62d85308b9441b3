"""Disks that are erased, as QEMU's drives do what they are told: the installer with its own kernel and tools."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.boot.installing import ScsiDisk, installing
from tests.images.support import site
from unbounded.api.machine_status import DiskErasureRecord

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

MIB: Final = 1 << 20
DISK_MIB: Final = 64
DATA: Final = random.Random(1).randbytes(MIB)
ERASES_S: Final = 900.0
SAMPLES: Final = "ERASE_SAMPLES=24"  # each costs an emulated processor a second


@dataclass(frozen=True, slots=True)
class Drive:
    """A drive full of data, and the methods that have to be tried on it, of which the last one erases it."""

    serial: str
    methods: tuple[str, ...]
    device: dict[str, Any]
    discard: str = "ignore"  # what QEMU does with a discard that the drive took

    def made(self, folder: Path) -> tuple[str, ...]:
        file = self.file(folder)
        file.write_bytes(DATA * DISK_MIB)
        backend = f"if=none,id={self.serial},format=raw,discard={self.discard},detect-zeroes=off,file={file}"
        device = {**self.device, "drive": self.serial, "serial": self.serial}
        return ("-drive", backend, "-device", json.dumps(device))

    def file(self, folder: Path) -> Path:
        return folder / f"{self.serial}.img"


SCSI: Final = {"driver": "scsi-hd", "bus": "scsi0.0"}
DRIVES: Final = (
    Drive("fast", ("Sanitize", "Format"), {"driver": "nvme"}),
    Drive("thin", ("Discard",), SCSI, discard="unmap"),
    Drive("lying", ("Discard", "Overwrite"), SCSI),
    Drive("plain", ("Overwrite",), {**SCSI, "discard_granularity": 0}),
)


async def test_each_drive_is_erased_by_the_best_method_that_it_proves(tmp_path: Path) -> None:
    kept = ScsiDisk.made(tmp_path, "kept", size=DISK_MIB * MIB)
    kept.file.write_bytes(DATA * DISK_MIB)
    devices = [part for drive in DRIVES for part in drive.made(tmp_path)]
    async with site() as where:
        where.erases = tuple(drive.serial for drive in DRIVES)
        async with installing(where, tmp_path, (kept,), devices=devices, settings=SAMPLES) as machine:
            await machine.ended(within_s=ERASES_S)
    assert [each for each in where.reports if each["failed"]] == []
    assert sorted(where.begun) == sorted(where.erases)
    records = {record.serial_number: record for record in where.erasures}
    assert records.keys() == set(where.erases)
    for drive in DRIVES:
        assert drive.file(tmp_path).read_bytes() == bytes(DISK_MIB * MIB), drive.serial
        shows(records[drive.serial], drive)
    assert kept.file.read_bytes() == DATA * DISK_MIB


def shows(record: DiskErasureRecord, drive: Drive) -> None:
    assert (record.state, record.method) == ("Erased", drive.methods[-1])
    assert tuple(attempt.method for attempt in record.attempts) == drive.methods
    *refused, erased = record.attempts
    assert all(attempt.failure for attempt in refused)
    assert erased.failure is None
    assert "(each of them was marked before)" in (record.verification or "")
