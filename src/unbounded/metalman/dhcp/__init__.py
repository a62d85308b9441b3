"""Addresses and boot files for machines that boot from the network (DHCP, RFC 2131, and proxyDHCP of PXE 2.1).

`options` and `packet` are the wire format, `model` says what is asked of a server and what it answers. `lease` (a
lease over DHCP) and `proxy` (boot files beside a foreign DHCP server) decide, `boot` chooses the file for a client's
architecture, and `register` keeps the static leases, refusing those that two Machines claim. None of these knows a
socket or a clock. `frames` addresses a client that cannot answer ARP yet, and `server` is the shell on asyncio.

Whether a boot is wanted, and which files a Machine has, comes from outside, through `model.Book`.
"""
