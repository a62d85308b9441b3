"""The hardware of a host in the form of metal3, from the inventory of its Machine. Pure."""

from __future__ import annotations

from typing import Final

from unbounded.api.container_cloud.host import HostCPU, HostHardware, HostNIC, HostStorage, HostSystemVendor
from unbounded.api.hardware import DiskFacts, HardwareSource, HardwareStatus

MIB: Final = 1 << 20


def host_hardware(facts: HardwareStatus) -> HostHardware:
    """Return the facts of an inspection in the form of metal3."""
    system, processor = facts.system, facts.processor
    vendor = None
    if system is not None:
        vendor = HostSystemVendor(
            manufacturer=system.manufacturer, product_name=system.product, serial_number=system.serial_number
        )
    cpu = HostCPU(
        arch=processor.architecture if processor is not None else None,
        model=processor.model if processor is not None else None,
        count=facts.cpus,
    )
    return HostHardware(
        system_vendor=vendor,
        cpu=cpu,
        ram_mebibytes=None if facts.memory_bytes is None else facts.memory_bytes // MIB,
        nics=tuple(
            HostNIC(name=nic.name, mac=nic.mac, speed_gbps=None if nic.speed_mbps is None else nic.speed_mbps // 1000)
            for nic in facts.nics
        ),
        storage=tuple(_storage(disk, facts.source) for disk in facts.disks),
    )


def _storage(disk: DiskFacts, source: str) -> HostStorage:
    kind = "NVME" if disk.bus == "nvme" else {True: "HDD", False: "SSD"}.get(bool(disk.rotational))
    return HostStorage(
        name=f"/dev/{disk.name.replace('!', '/')}" if source == HardwareSource.INSTALLER else disk.name,
        size_bytes=disk.size_bytes,
        type=kind if disk.bus == "nvme" or disk.rotational is not None else None,
        wwn=disk.wwn,
        model=disk.model,
        vendor=disk.vendor,
        serial_number=disk.serial_number,
        by_id=f"/dev/disk/by-id/{disk.by_id[0]}" if disk.by_id else None,
        by_path=f"/dev/disk/by-path/{disk.by_path[0]}" if disk.by_path else None,
    )
