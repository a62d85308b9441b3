"""Shapes and platform images of a fresh tenancy in its region, with Oracle's names."""

from __future__ import annotations

from typing import Final

from unbounded_lab.cloud.oci.model import OciImage, OciShape
from unbounded_lab.cloud.oci.names import ocid

INTEL: Final = "3.0 GHz Intel® Xeon® Platinum 8358 (Ice Lake)"
AMD: Final = "2.4 GHz AMD EPYC™ 9J14 (Genoa)"
AMPERE: Final = "3.0 GHz Ampere® Altra™"

SHAPES: Final = (
    OciShape("VM.Standard3.Flex", INTEL, 1, 16, flexible=True, max_ocpus=32, max_memory_gb=512),
    OciShape("VM.Standard.E5.Flex", AMD, 1, 12, flexible=True, max_ocpus=94, max_memory_gb=1049),
    OciShape("VM.Standard.A1.Flex", AMPERE, 1, 6, arm=True, flexible=True, max_ocpus=80, max_memory_gb=512),
    OciShape("VM.Standard2.2", "2.0 GHz Intel® Xeon® Platinum 8167M (Skylake)", 2, 30, bandwidth_gbps=2.0),
    OciShape(
        "VM.DenseIO.E4.Flex",
        "2.55 GHz AMD EPYC™ 7J13 (Milan)",
        8,
        128,
        flexible=True,
        max_ocpus=32,
        max_memory_gb=512,
        gb_per_ocpu=(16.0, 16.0),
        local_disks=1,
        local_disk_gb=6800,
    ),
    OciShape("VM.GPU.A10.1", INTEL, 15, 240, gpus=1, gpu="NVIDIA® A10", bandwidth_gbps=24.0),
    OciShape("BM.Standard.E5.192", AMD, 192, 2304, bare_metal=True, max_vnics=256, bandwidth_gbps=100.0),
)

UBUNTU: Final = "Canonical Ubuntu"
DAY_S: Final = 86_400.0


def platform_images(now: float) -> tuple[OciImage, ...]:
    """Return Ubuntu for both architectures in two releases of two dates each, and Oracle Linux; the newest is 10 days
    old.
    """
    requested = [
        *((UBUNTU, version, arm, age) for version in ("24.04", "22.04") for arm in (False, True) for age in (10, 40)),
        ("Oracle Linux", "9", False, 12),
        ("Oracle Linux", "9", True, 12),
    ]
    return tuple(_image(system, version, arm=arm, created=now - age * DAY_S) for system, version, arm, age in requested)


def _image(system: str, version: str, *, arm: bool, created: float) -> OciImage:
    build = int(created // DAY_S)
    name = f"{system.replace(' ', '-')}-{version}-{'aarch64-' if arm else ''}{build}-0"
    return OciImage(ocid("image", name), name, None, system, version, arm, created)
