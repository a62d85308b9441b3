"""Speaking Redfish (DSP0266) with BMCs: power, resets and the boot override of one system.

`ports.py` says what callers get, in their words; `pool.py` hands it out: `BmcPool.bmc(access)`. Inside, from the wire
up: `http.py` one request, `auth.py` sessions and basic auth, `gate.py` one request at a time and none to the dead,
`line.py` the three together, `client.py` what a call means. `answers.py`, `messages.py` and `quirks.py` are pure.

What an operation does with a machine is not decided here, and no call here waits for an effect to come true.
"""
