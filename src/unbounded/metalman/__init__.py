"""Bare metal: what happens to hosts through their BMCs.

`redfish/` speaks to BMCs, `access` finds out how one is reached and trusted, `power` holds the state machines of the
power operations, and `executor` joins them to the engine of `unbounded.operations`. `controller` runs all of it for a
site, with the counters (`counting`) and the certificates of new BMCs (`pinning`). `main` is the process.

`dhcp/` and `tftp/` are the servers that give machines their addresses and boot files; `tally` counts what they are
asked in vain. Neither knows the API: leases, wanted boots and files come to them through ports of their own.

Who owns an operation, when it starts and how it survives a crash is decided in `unbounded.operations`.
"""
