"""Bare metal: host operations through BMCs, and network boot.

- `redfish/` is the client for BMCs, and `bmc_access` supplies credentials and certificate pins, also for new BMCs.
- `power` has the state machines of the power operations.
- `replace_table` and `replace_stages` have that of HostReplace, and `replace_observation` turns observations into its
  facts.
- `executor` connects them to the engine of `unbounded.operations`.
- `boot_override` writes boot overrides, and computes their effect.
- `controller` runs everything for a site, with the counters (`counter_controller`).
- `main` is the process.

`dhcp/`, `tftp/` and `http/` are the servers that give machines their addresses and boot files, and receive their
reports. `packet_counters` counts the requests that they do not serve. None of them knows the API: leases, requested
boots and files come through their own interfaces.

`unbounded.operations` decides on the ownership of an operation, its start, and its recovery after a crash.
"""
