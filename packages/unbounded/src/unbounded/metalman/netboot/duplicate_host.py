"""Detection of two hosts that take part in one boot: pure, from the requests that reach the servers of one process.

A host on the segment can forge everything that it sends, so the absence of a second host cannot be proven. This module
detects two hosts that both act. Each of these ends the boot:

- **Another machine id** (DHCP option 97) in packets of the boot's MAC. The packets have to come from where the lease is
  offered (`dhcp.model.Arrival.is_from_own_network`), as otherwise two datagrams from elsewhere would end any boot. They
  count until a kernel was sent. Firmware and iPXE write the same id in either byte order; later stages leave it out,
  which proves nothing.
- **Another MAC behind the boot's address**, in the kernel's table of neighbours, when that address requests a file. All
  MACs in the Machine's leases are its own. The check requires clients on the server's segment: behind a router all
  addresses have the router's MAC. It ends once the image is written, as an installed system may bond its NICs.
- **Another source address that uses the boot's prefix.** All addresses in the Machine's leases are its own, and to the
  installed system those that `spec.network` declares. It may have an address from another source: either that one or
  those of its leases, but not both.
- **An install that continues although the host has begun to boot again**. The host requested loader, its configuration,
  kernel or initrd, and then the earlier installer reports again: before a kernel was sent, or with a percentage that
  continues its own. A host that was reset reports from the beginning.

Not detectable:

- a host that has MAC, address and machine id of the Machine while the Machine is silent;
- two hosts that take turns;
- events that reach different replicas, beyond those in the Machine's status.

Client identifiers (option 61) are not compared, as every stage of one boot has its own. Relays are not compared either,
as two relays may pass one packet on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from unbounded.metalman.netboot.model import BootWindow

NO_IDS: Final = (bytes(16), b"\xff" * 16)  # sent by firmware that has no id
ID_BYTES: Final = 17  # a type, which is 0, and the id
CONCLUSIVE_PERCENT: Final = 10  # below it, a new run whose first reports were lost could seem to continue the old one


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """Identity of the Machine: addresses as texts, MACs in lower case.

    Args:
        addresses: those of the leases.
        declared: static addresses of the installed system.
    """

    addresses: frozenset[str]
    macs: frozenset[str]
    declared: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class MachineIdSent:
    """DHCP packet from one of the Machine's MACs with a machine id (the value of option 97)."""

    option: bytes


@dataclass(frozen=True, slots=True)
class NeighbourFound:
    """MAC that the kernel has for an address that requested a file."""

    address: str
    mac: str


@dataclass(frozen=True, slots=True)
class PrefixUsed:
    """Request under the boot's prefix."""

    address: str
    window: BootWindow


@dataclass(frozen=True, slots=True)
class BootFileSent:
    """The server sent a file of the boot's first stages; `kernel` if the loader starts this file."""

    path: str
    kernel: bool = False


@dataclass(frozen=True, slots=True)
class ProgressReported:
    """Progress report of the installer."""

    percent: int | None = None


BootEvent = MachineIdSent | NeighbourFound | PrefixUsed | BootFileSent | ProgressReported


@dataclass(frozen=True, slots=True)
class BootTrace:
    """Observations of one boot."""

    machine_id: bytes | None = None
    loaded: bool = False  # the server sent a kernel
    returned: bool = False  # the installed system used the prefix from an address in a lease
    other_address: str | None = None  # the other address from which the installed system used the prefix
    installing: bool = False  # an installer has reported since the server sent the last kernel
    reloaded: str = ""  # path of a file of the first stages that the server sent after that report
    percent: int = 0  # last percentage that the installer reported


@dataclass(frozen=True, slots=True)
class DuplicateHost:
    """Two hosts take part in the boot; `why` is the evidence, for the user."""

    why: str


def detect(trace: BootTrace, event: BootEvent, known: HostIdentity) -> BootTrace | DuplicateHost:
    """Add an event to the trace; `DuplicateHost` if the event shows a second host."""
    match event:
        case MachineIdSent(option=option):
            return _on_machine_id(trace, option)
        case NeighbourFound(address=address, mac=mac):
            if mac in known.macs:
                return trace
            return DuplicateHost(f"{address} belongs to the Machine, but a host with MAC {mac} uses it")
        case PrefixUsed(address=address, window=window):
            return _on_prefix_used(trace, address, window, known)
        case BootFileSent(path=path, kernel=kernel):
            return _on_boot_file(trace, path, kernel)
        case ProgressReported(percent=percent):
            return _on_progress(trace, percent)


def normalized_id(option: bytes) -> bytes | None:
    """Return the id in option 97 in one byte order, independent of the client's; None if there is no id."""
    if len(option) != ID_BYTES or option[0] != 0 or option[1:] in NO_IDS:
        return None
    raw_id = option[1:]
    swapped = raw_id[3::-1] + raw_id[5:3:-1] + raw_id[7:5:-1] + raw_id[8:]
    return min(raw_id, swapped)


def _on_machine_id(trace: BootTrace, option: bytes) -> BootTrace | DuplicateHost:
    raw_id = normalized_id(option)
    if raw_id is None or raw_id == trace.machine_id or trace.loaded:
        return trace
    if trace.machine_id is None:
        return replace(trace, machine_id=raw_id)
    return DuplicateHost("two hosts with the same MAC requested a boot: their machine IDs (DHCP option 97) differ")


def _on_prefix_used(
    trace: BootTrace, address: str, window: BootWindow, known: HostIdentity
) -> BootTrace | DuplicateHost:
    if address in known.addresses and trace.other_address is None:
        return replace(trace, returned=trace.returned or window is BootWindow.FINISHING)
    is_declared = window is BootWindow.FINISHING and address in known.declared
    if is_declared or address == trace.other_address:
        return trace
    if window is BootWindow.FINISHING and trace.other_address is None and not trace.returned:
        return replace(trace, other_address=address)
    others = f"so did {trace.other_address}" if trace.other_address else "it is none of the Machine's addresses"
    return DuplicateHost(f"{address} used the URL of this boot, and {others}")


def _on_boot_file(trace: BootTrace, path: str, kernel: bool) -> BootTrace:
    trace = replace(trace, loaded=trace.loaded or kernel)
    if not trace.installing:
        return trace
    if kernel:  # the next report belongs to another run
        return replace(trace, installing=False, reloaded=path)
    return replace(trace, reloaded=path)


def _on_progress(trace: BootTrace, percent: int | None) -> BootTrace | DuplicateHost:
    continues = percent is not None and percent >= trace.percent >= CONCLUSIVE_PERCENT
    if trace.reloaded and (trace.installing or continues):
        return DuplicateHost(f"a host that boots again fetched {trace.reloaded}, while the earlier install continues")
    last = trace.percent if percent is None and trace.installing else percent or 0
    return replace(trace, installing=True, reloaded="", percent=last)
