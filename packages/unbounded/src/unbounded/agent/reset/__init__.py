"""Reset: restores a host to its state before `start`, for the command and for AgentReset.

network   interfaces, policy routing and mounts that a node leaves on its host
parts     the parts that a reset removes, in order
reset     the whole reset, with the marker that excludes other commands, and the final report
"""
