"""Simulated clouds: HTTPS endpoints on loopback that the official SDKs take for the real thing, and that go wrong on
demand.

For a test in the same process there is a class for each cloud (`azure`, `oci`), for people the command
`unbounded lab cloud`. What a cloud does is pure: time comes in as a value, and `local.py` is the only place that holds
a socket. Here stands what the clouds have in common; what is one cloud's own stands in its folder.
"""
