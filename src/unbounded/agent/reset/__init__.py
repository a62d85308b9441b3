"""The way back: what makes a host what it was before `start`, for the command and for AgentReset alike.

network   interfaces, policy routing and mounts that a node leaves on its host
parts     what reset takes away, in its order
reset     the whole, with the marker that keeps others away and what is told at the end
"""
