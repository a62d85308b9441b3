"""Redfish (DSP0266) client for BMCs: power, resets and the boot override of one system.

`ports` is the interface for callers; `pool` implements it with `BmcPool.bmc(access)`. The layers inside, from the wire
up:

- `http` sends one request.
- `auth` manages sessions and basic auth.
- `gate` admits one request at a time, and none to a dead BMC.
- `channel` combines these three.
- `client` implements the calls.

`documents`, `messages` and `quirks` are pure. The executors decide what an operation does with a machine, and no call
in this package waits for its effect.
"""
