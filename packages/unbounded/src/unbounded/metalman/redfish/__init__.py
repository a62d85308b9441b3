"""Redfish (DSP0266) client for BMCs: power, resets and the boot override of one system.

`bmc_interface` has the values that calls take and return, and the failures of a BMC; `pool` has the calls, as
`BmcPool.bmc(access)`. The layers inside, from the wire up:

- `http` sends one request.
- `circuit_breaker` admits one request at a time, and none to a dead BMC.
- `session` combines these two, with sessions and basic auth.
- `client` implements the calls to a system, `bmc_services` those to the BMC itself.

`documents` and `quirks` are pure. The executors decide what an operation does with a machine, and no call
in this package waits for its effect.
"""
