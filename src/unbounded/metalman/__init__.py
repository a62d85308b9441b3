"""Bare metal: what happens to hosts through their BMCs.

`redfish/` speaks to BMCs, `access` finds out how one is reached and trusted, `power` holds the state machines of the
power operations, `replace` and `replace_stages` that of a reimaging, whose facts `replace_sight` makes of what is seen;
`executor` joins them to the engine of `unbounded.operations`, and `boot_order` writes boot overrides for it, of which
`boot_override` says what they come to. `controller` runs all of it for a site, with the counters (`counting`) and the
certificates of new BMCs (`pinning`). `main` is the process.

`dhcp/`, `tftp/` and `http/` are the servers that give machines their addresses and boot files, and take their reports;
`tally` counts what they are asked in vain. None knows the API: leases, wanted boots and files come to them through
ports of their own.

Who owns an operation, when it starts and how it survives a crash is decided in `unbounded.operations`.
"""
