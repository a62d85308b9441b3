"""Simulated clouds: HTTPS endpoints on loopback that official SDKs accept as the real thing, and that fail on demand.

- A class for each cloud (`azure`, `oci`) runs one in the process of a test; `unbounded lab cloud` is the command for
  users.
- A cloud's behaviour is pure: time comes in as a value. Only `local.py` uses sockets.
- This folder has what the clouds share; each cloud's own parts are in its folder.
"""
