"""Addresses and boot files for machines that boot from the network (DHCP, RFC 2131, and proxyDHCP of PXE 2.1).

`options` and `packet` are the wire format, `model` has the frozen data that the other modules exchange. `lease` (a
lease over DHCP) and `proxy` (boot files beside a foreign DHCP server) decide on the answer to a packet. `boot` chooses
the file for a client's architecture. `reservations` turns the static leases of Machines into reservations and reports
conflicts. None of these opens a socket or reads a clock. `server` is the shell on asyncio.

The caller decides which Machines boot from the network and which files they get; the port for it is
`model.ReservationSource`.
"""
