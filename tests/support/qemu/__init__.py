"""Machines with real firmware for tests: QEMU without acceleration, behind a simulated BMC, on a segment of their own.

`Segment` is the network, `QemuMachine` the machine, `Hardware` what it is made of; `scripts/boot-tools` gets the parts.
"""

from tests.support.qemu.hardware import Firmware, Hardware
from tests.support.qemu.machine import QemuMachine
from tests.support.qemu.segment import Segment, segment
from tests.support.qemu.tools import found, needed

__all__ = ["Firmware", "Hardware", "QemuMachine", "Segment", "found", "needed", "segment"]
