"""Disruptions of Nodes: cordon, drain, and the proof of return, for operations and for maintenance.

`plan` has the table of stages and decides, `drain` chooses the pods, both without I/O; `controller` observes and
executes. The gate that executors read is in `operations.claim_gates`.
"""
