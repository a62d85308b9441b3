"""Addresses and boot files for machines that boot from the network (DHCP, RFC 2131, and proxyDHCP of PXE 2.1).

`packet` is the wire format, `model` has the frozen data that the other modules exchange. `reply_or_drop` decides on the
answer to a packet: a lease over DHCP, or boot files beside a foreign DHCP server, and the file for a client's
architecture. None of these opens a socket or reads a clock. `server` is the shell on asyncio.

The caller decides which Machines boot from the network and which files they get; the interface for it is
`model.ReservationSource`.
"""
