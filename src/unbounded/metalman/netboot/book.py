"""What the DHCP server knows: static leases always, boot files only while a boot is wanted and its image is there."""

from __future__ import annotations

from typing import Protocol

from unbounded.metalman.dhcp import options as opt
from unbounded.metalman.dhcp.model import Arrival, Boot, Client, Reply, Withheld
from unbounded.metalman.dhcp.packet import REQUEST_OP, Packet
from unbounded.metalman.netboot.model import Wanted, Window
from unbounded.metalman.netboot.ports import Served
from unbounded.metalman.netboot.roll import Roll


class Boots(Protocol):
    """Who keeps track of boots."""

    def served(self, wanted: Wanted) -> Served | None: ...  # the images of a boot, if they are there

    def identified(self, wanted: Wanted, machine_id: bytes) -> None: ...  # option 97 of a packet of its MAC

    def offered(self, wanted: Wanted) -> None: ...  # a reply with a boot file goes out


class NetbootBook:
    """A `Book` and `Listener` of the DHCP server.

    URLs in it have no prefix: option 67 can be read by the whole segment, and who fetches the loader is known by its
    address. The prefix is only in what the loader's configuration is rendered to.

    Args:
        server: its own address, as clients reach it; four octets.
        serve_url: where the HTTP server is, as machines reach it.
    """

    def __init__(self, roll: Roll, boots: Boots, *, server: bytes, serve_url: str) -> None:
        self.server = server
        self._roll = roll
        self._boots = boots
        self._serve_url = serve_url

    def client(self, mac: str) -> Client | Withheld | None:
        """The Machine with this MAC (lower case, with colons)."""
        entry = self._roll.by_mac(mac)
        if entry is None or isinstance(entry, Withheld):
            return entry
        return Client(entry.machine, entry.lease, self._boot(entry.machine))

    def heard(self, packet: Packet, arrival: Arrival) -> None:
        """A packet came in; this is before it is decided upon."""
        machine_id = packet.options.get(opt.MACHINE_ID)
        if machine_id is None or packet.op != REQUEST_OP or not arrival.is_of_segment(packet):
            return
        wanted = self._of(packet)
        if wanted is not None:
            self._boots.identified(wanted, machine_id)

    def answered(self, packet: Packet, reply: Reply) -> None:
        """A reply goes out."""
        if opt.BOOT_FILE in reply.packet.options:
            wanted = self._of(packet)
            if wanted is not None:
                self._boots.offered(wanted)

    def _of(self, packet: Packet) -> Wanted | None:
        """The boot that is being installed on the Machine whose MAC a packet has."""
        entry = self._roll.by_mac(packet.mac or "")
        wanted = None if entry is None or isinstance(entry, Withheld) else self._roll.wanted(entry.machine)
        return wanted if wanted is not None and wanted.window is Window.INSTALLING else None

    def _boot(self, machine: str) -> Boot | None:
        wanted = self._roll.wanted(machine)
        if wanted is None or wanted.window is not Window.INSTALLING:
            return None
        served = self._boots.served(wanted)
        return None if served is None else Boot(served.loaders, self._serve_url)
