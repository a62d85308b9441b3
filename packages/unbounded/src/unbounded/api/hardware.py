"""The hardware of a machine as an inspection reported it: `Machine.status.hardware`, and an installer's report.

Every field but a disk's name is optional: what an inspection could not read is absent, and zero is zero.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from unbounded.api.fields import SHA256, ApiStruct, Count, Field, Time

Text = Annotated[str, Field(max_length=256)]
PCIAddress = Annotated[str, Field("PCI address, such as 0000:17:00.0.", max_length=32)]
# becomes a word of a shell command, below /dev/disk/by-id or by-path
LinkName = Annotated[str, Field(pattern=r"^[A-Za-z0-9#+.:=@_-]+$", min_length=1, max_length=200)]
# a kernel name has a ! for each / of the file below /dev: cciss!c0d0
DiskName = Annotated[str, Field(pattern=r"^[A-Za-z0-9#+.:=@_!-]+$", min_length=1, max_length=200)]
MAX_LINKS: Final = 32  # of one disk
# of an agent's report, which is smaller than an installer's: a host may write it at any time
MAX_HOST_NICS: Final = 32
MAX_HOST_DISKS: Final = 64
MAX_HOST_LINKS: Final = 4  # of one disk, below by-id and below by-path; the policy of agents has it, too


class HardwareSource(StrEnum):
    """The inspector of a machine."""

    REDFISH = "Redfish"
    INSTALLER = "Installer"


class FirmwareMode(StrEnum):
    UEFI = "UEFI"
    BIOS = "BIOS"


class DiskState(StrEnum):
    """The content of a disk, to an installer that may write it."""

    BLANK = "Blank"
    OWN = "Own"  # an earlier install of this Machine
    FOREIGN = "Foreign"


class SystemIdentity(ApiStruct, frozen=True, kw_only=True):
    """The maker's identity of a machine, as SMBIOS or the BMC has it."""

    manufacturer: Annotated[Text | None, Field("Manufacturer.")] = None
    product: Annotated[Text | None, Field("Product name.")] = None
    serial_number: Annotated[Text | None, Field("Serial number of the system.")] = None
    uuid: Annotated[Text | None, Field("UUID of the system, as SMBIOS has it.")] = None


class SystemFirmware(ApiStruct, frozen=True, kw_only=True):
    """The firmware that starts a machine."""

    vendor: Annotated[Text | None, Field("Vendor of the firmware.")] = None
    version: Annotated[Text | None, Field("Version of the firmware.")] = None
    date: Annotated[Text | None, Field("Release date, in the vendor's form.")] = None
    mode: Annotated[str | None, Field("How the firmware started the installer.", enum=tuple(FirmwareMode))] = None
    secure_boot: Annotated[bool | None, Field("Secure Boot is enforced.")] = None


class ProcessorFacts(ApiStruct, frozen=True, kw_only=True):
    """The processors of a machine."""

    architecture: Annotated[Text | None, Field("Architecture, such as x86_64.")] = None
    model: Annotated[Text | None, Field("Model name.")] = None
    sockets: Annotated[Count | None, Field("Number of populated sockets.")] = None
    cores: Annotated[Count | None, Field("Number of cores in all sockets.")] = None


class LLDPNeighbour(ApiStruct, frozen=True, kw_only=True):
    """The switch port at the other end of a cable, as it announces itself (IEEE 802.1AB)."""

    chassis_id: Annotated[Text | None, Field("Chassis ID of the switch.")] = None
    port_id: Annotated[Text | None, Field("Port ID.")] = None
    port_description: Annotated[Text | None, Field("Description of the port.")] = None
    system_name: Annotated[Text | None, Field("Name of the switch.")] = None


class NICFacts(ApiStruct, frozen=True, kw_only=True):
    """A network interface."""

    name: Annotated[Text | None, Field("Name that the kernel gave it, such as eth0.")] = None
    mac: Annotated[str | None, Field("Permanent hardware address.", max_length=64)] = None
    driver: Annotated[Text | None, Field("Kernel driver.")] = None
    link: Annotated[bool | None, Field("A cable is connected, and the other end is up.")] = None
    speed_mbps: Annotated[Count | None, Field("Speed of the link in Mbit/s; absent without a link.")] = None
    pci_address: PCIAddress | None = None
    onboard_index: Annotated[
        Count | None, Field("Number that the firmware gives a card of the board: the 1 of systemd's name eno1.")
    ] = None
    lldp: Annotated[LLDPNeighbour | None, Field("Switch port, if it announced itself during the inspection.")] = None


class DiskFacts(ApiStruct, frozen=True, kw_only=True):
    """A fixed and writable disk."""

    name: Annotated[DiskName, Field("Name that the kernel gave it, such as sda or cciss!c0d0. It may change.")]
    size_bytes: Annotated[Count | None, Field("Size in bytes.")] = None
    sector_bytes: Annotated[Count | None, Field("Logical sector size in bytes: 512, or 4096 of a 4Kn disk.")] = None
    rotational: Annotated[bool | None, Field("True for a hard disk, false for flash.")] = None
    bus: Annotated[str | None, Field("Attachment: nvme, ata, scsi, sas, usb, virtio or mmc.", max_length=16)] = None
    transport: Annotated[
        str | None,
        Field(
            "Transport of the commands: pcie, ata, sas, usb, virtio, mmc or raid (a volume of a RAID controller), "
            "which are local; fc, fcoe, iscsi, tcp or rdma, which are not. Absent if unknown.",
            max_length=16,
        ),
    ] = None
    multipath: Annotated[bool | None, Field("A multipath device holds this disk.")] = None
    vendor: Annotated[Text | None, Field("Vendor, as the disk reports it.")] = None
    model: Annotated[Text | None, Field("Model, as the disk reports it.")] = None
    serial_number: Annotated[Text | None, Field("Serial number.")] = None
    wwn: Annotated[Text | None, Field("World Wide Name or EUI.")] = None
    hctl: Annotated[str | None, Field("SCSI address host:channel:target:lun.", max_length=64)] = None
    by_id: Annotated[tuple[LinkName, ...], Field("Names below /dev/disk/by-id.", max_items=MAX_LINKS)] = ()
    by_path: Annotated[tuple[LinkName, ...], Field("Names below /dev/disk/by-path.", max_items=MAX_LINKS)] = ()
    state: Annotated[
        str | None,
        Field(
            "Blank, Own (an earlier install of this Machine) or Foreign: data of others, which no install overwrites.",
            enum=tuple(DiskState),
        ),
    ] = None
    contents: Annotated[str | None, Field("Contents of a foreign disk.", max_length=512)] = None
    health: Annotated[Text | None, Field("Health, as the BMC reports it.")] = None


class TPMFacts(ApiStruct, frozen=True, kw_only=True):
    """A TPM, as an inspection found it. `status.tpm` has the key that the machine has proved."""

    version: Annotated[str | None, Field("Version of the specification.", enum=("2.0", "1.2"))] = None
    ek_certificate: Annotated[
        str | None, Field("Certificate of the endorsement key, as PEM. Reported, not proved.", max_length=16384)
    ] = None


class AcceleratorFacts(ApiStruct, frozen=True, kw_only=True):
    """A GPU or another accelerator."""

    name: Annotated[Text | None, Field("Name that the BMC gave it.")] = None
    model: Annotated[Text | None, Field("Model, as the BMC reports it.")] = None
    serial_number: Annotated[Text | None, Field("Serial number, as the BMC reports it.")] = None
    pci_address: PCIAddress | None = None
    vendor_id: Annotated[str | None, Field("PCI vendor ID, such as 10de.", max_length=8)] = None
    device_id: Annotated[str | None, Field("PCI device ID, such as 2330.", max_length=8)] = None
    class_: Annotated[str | None, Field("PCI class, such as 0302.", max_length=8)] = None
    driver: Annotated[Text | None, Field("Kernel driver.")] = None
    health: Annotated[Text | None, Field("Health, as the BMC reports it.")] = None


class FirmwareVersion(ApiStruct, frozen=True, kw_only=True):
    """The version of one component's firmware."""

    name: Annotated[Text, Field("Component.")]
    version: Annotated[Text | None, Field("Version.")] = None


class PowerSupplyFacts(ApiStruct, frozen=True, kw_only=True):
    """A power supply."""

    name: Annotated[Text, Field("Name.")]
    health: Annotated[Text | None, Field("Health, as the BMC reports it.")] = None


class HardwareFacts(ApiStruct, frozen=True, kw_only=True):
    """The parts of a machine, as one inspection found them."""

    system: Annotated[SystemIdentity | None, Field("Maker's identity of the machine.")] = None
    firmware: Annotated[SystemFirmware | None, Field("Firmware that starts the machine.")] = None
    cpus: Annotated[Count | None, Field("Number of logical CPUs.")] = None
    processor: Annotated[ProcessorFacts | None, Field("Processors.")] = None
    memory_bytes: Annotated[Count | None, Field("Memory in bytes.")] = None
    numa_nodes: Annotated[Count | None, Field("Number of NUMA nodes.")] = None
    nics: Annotated[tuple[NICFacts, ...], Field("Network interfaces.", max_items=64)] = ()
    disks: Annotated[tuple[DiskFacts, ...], Field("Fixed and writable disks.", max_items=128)] = ()
    tpm: Annotated[TPMFacts | None, Field("TPM; absent where the machine has none.")] = None
    accelerators: Annotated[tuple[AcceleratorFacts, ...], Field("GPUs and other accelerators.", max_items=64)] = ()
    firmware_inventory: Annotated[
        tuple[FirmwareVersion, ...], Field("Firmware of the components, from the BMC.", max_items=64)
    ] = ()
    power_supplies: Annotated[tuple[PowerSupplyFacts, ...], Field("Power supplies, from the BMC.", max_items=16)] = ()


class ReportedHardware(ApiStruct, frozen=True, kw_only=True):
    """The parts of a host, as its agent finds them in the system that it runs in."""

    cpus: Annotated[Count | None, Field("Number of logical CPUs that are online.")] = None
    processor: Annotated[ProcessorFacts | None, Field("Processors.")] = None
    memory_bytes: Annotated[Count | None, Field("Memory in bytes, without what firmware and kernel reserve.")] = None
    nics: Annotated[tuple[NICFacts, ...], Field("Network interfaces.", max_items=MAX_HOST_NICS)] = ()
    disks: Annotated[tuple[DiskFacts, ...], Field("Fixed and writable disks.", max_items=MAX_HOST_DISKS)] = ()


class BMCPart(ApiStruct, frozen=True, kw_only=True):
    """A part that the BMC lists."""

    kind: Annotated[str, Field("Kind: disk, NIC, accelerator, TPM or power supply.", max_length=32)]
    name: Annotated[Text, Field("Name, as messages have it.")]
    identities: Annotated[tuple[Text, ...], Field("All that identifies the part.", max_items=4)] = ()
    health: Annotated[Text | None, Field("Health, as the BMC reports it.")] = None


class BMCReading(ApiStruct, frozen=True, kw_only=True):
    """The parts that the BMC listed at its last reading. The next reading is compared with them."""

    at: Annotated[Time, Field("Time of the first reading that listed them.")]
    cpus: Annotated[Count | None, Field("Number of logical CPUs.")] = None
    memory_bytes: Annotated[Count | None, Field("Memory in bytes.")] = None
    parts: Annotated[tuple[BMCPart, ...], Field("Parts.", max_items=288)] = ()


class HardwareStatus(HardwareFacts, frozen=True, kw_only=True):
    """The last inspection of the machine: its parts as they were then."""

    source: Annotated[
        str, Field("Inspector: Installer (before it writes a disk) or Redfish.", enum=tuple(HardwareSource))
    ]
    boot: Annotated[
        str | None, Field("Boot that reported, as in status.netboot.boot; absent for Redfish.", max_length=128)
    ] = None
    at: Annotated[Time, Field("Time of the inspection.")]
    digest: Annotated[
        str,
        Field(
            "SHA-256 digest of the facts. It stays while every fact stays. source, boot and at do not count.",
            pattern=SHA256,
            max_length=64,
        ),
    ]
    bmc: Annotated[
        BMCReading | None, Field("Parts that the BMC listed at its last reading; absent where none was read.")
    ] = None
