"""Whether two hosts take part in one boot: pure, from what reaches the servers of one process.

What a host on the segment says of itself can be forged, so this cannot prove that there is one; it notices two that
both act. Every one of these ends the boot:

- **Another machine id** (DHCP option 97) in packets of the boot's MAC, from where the lease is offered
  (`dhcp.model.Arrival.is_of_segment`) and before a kernel went out: two datagrams from elsewhere would end any boot.
  Firmware and iPXE write the same id in either byte order, and later stages leave it out, which says nothing.
- **Another MAC behind the boot's address**, in the kernel's table of neighbours, when a file is asked for from that
  address. All MACs in the Machine's leases are its own. Only where clients are on the server's segment: behind a router
  all addresses have that one's MAC. And only until the image is written, as an installed system may bond its NICs.
- **Another source address that uses the boot's prefix.** All addresses in the Machine's leases are its own. The
  installed system may have its address from elsewhere: that one or those of its leases, but not both.
- **An install that goes on although the host has begun to boot anew**: loader, its configuration, kernel or initrd were
  asked for, and then the installer that ran before reports again: before a kernel went out, or with a percentage that
  continues its own. A host that was reset reports from the beginning.

What cannot be noticed: a host that has MAC, address and machine id of the Machine while that one is silent; two that
take turns; what reaches different replicas, beyond what is written in the Machine's status. Client identifiers (option
61) are not compared, as every stage of one boot has its own; nor are relays, as two of them may pass one packet on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from unbounded.metalman.netboot.model import Window

NO_IDS: Final = (bytes(16), b"\xff" * 16)  # what firmware without an id sends
ID_BYTES: Final = 17  # a type, which is 0, and the id
TELLING_PERCENT: Final = 10  # a run whose first reports were lost may seem to continue from less


@dataclass(frozen=True, slots=True)
class Known:
    """What is the Machine's own: addresses as texts, MACs in lower case."""

    addresses: frozenset[str]
    macs: frozenset[str]


@dataclass(frozen=True, slots=True)
class Identified:
    """A DHCP packet of one of the Machine's MACs said its machine id (the value of option 97)."""

    option: bytes


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The MAC that the kernel knows behind an address that asked for a file."""

    address: str
    mac: str


@dataclass(frozen=True, slots=True)
class PrefixUsed:
    """A request under the boot's prefix."""

    address: str
    window: Window


@dataclass(frozen=True, slots=True)
class Loading:
    """A file of the boot's first stages went out; `kernel` when it is what the loader starts."""

    path: str
    kernel: bool = False


@dataclass(frozen=True, slots=True)
class Reported:
    """The installer said how far it is."""

    percent: int | None = None


Event = Identified | Neighbour | PrefixUsed | Loading | Reported


@dataclass(frozen=True, slots=True)
class Trace:
    """What was seen of one boot."""

    machine_id: bytes | None = None
    loaded: bool = False  # a kernel went out
    returned: bool = False  # the installed system has used the prefix from an address in a lease
    other_address: str | None = None  # or from this one
    installing: bool = False  # an installer has reported since the last kernel went out
    reloaded: str = ""  # a file of the first stages that went out after that
    percent: int = 0  # how far the installer said it was


@dataclass(frozen=True, slots=True)
class Contested:
    """Two hosts were seen; `why` is for a person."""

    why: str


def saw(trace: Trace, event: Event, known: Known) -> Trace | Contested:
    """The trace with one more event, or that there are two hosts."""
    match event:
        case Identified(option=option):
            return _identified(trace, option)
        case Neighbour(address=address, mac=mac):
            if mac in known.macs:
                return trace
            return Contested(f"{address} belongs to the Machine, and a host with MAC {mac} has it")
        case PrefixUsed(address=address, window=window):
            return _prefix_used(trace, address, window, known)
        case Loading(path=path, kernel=kernel):
            return _loading(trace, path, kernel)
        case Reported(percent=percent):
            return _reported(trace, percent)


def plain_id(option: bytes) -> bytes | None:
    """The id in option 97, whichever byte order it came in; None where there is none."""
    if len(option) != ID_BYTES or option[0] != 0 or option[1:] in NO_IDS:
        return None
    told = option[1:]
    swapped = told[3::-1] + told[5:3:-1] + told[7:5:-1] + told[8:]
    return min(told, swapped)


def _identified(trace: Trace, option: bytes) -> Trace | Contested:
    told = plain_id(option)
    if told is None or told == trace.machine_id or trace.loaded:
        return trace
    if trace.machine_id is None:
        return replace(trace, machine_id=told)
    return Contested("two hosts with one MAC ask for a boot: their machine ids (DHCP option 97) differ")


def _prefix_used(trace: Trace, address: str, window: Window, known: Known) -> Trace | Contested:
    if address in known.addresses and trace.other_address is None:
        return replace(trace, returned=trace.returned or window is Window.FINISHING)
    if address == trace.other_address:
        return trace
    if window is Window.FINISHING and trace.other_address is None and not trace.returned:
        return replace(trace, other_address=address)
    others = f"{trace.other_address} did, too" if trace.other_address else "is none of the Machine's addresses"
    return Contested(f"{address} used the URL of this boot, and {others}")


def _loading(trace: Trace, path: str, kernel: bool) -> Trace:
    trace = replace(trace, loaded=trace.loaded or kernel)
    if not trace.installing:
        return trace
    if kernel:  # the next report is of another run
        return replace(trace, installing=False, reloaded=path)
    return replace(trace, reloaded=path)


def _reported(trace: Trace, percent: int | None) -> Trace | Contested:
    continues = percent is not None and percent >= trace.percent >= TELLING_PERCENT
    if trace.reloaded and (trace.installing or continues):
        return Contested(f"{trace.reloaded} went out to a host that boots anew, and the install before that goes on")
    last = trace.percent if percent is None and trace.installing else percent or 0
    return replace(trace, installing=True, reloaded="", percent=last)
