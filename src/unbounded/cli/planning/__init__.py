"""`kubectl unbounded plan COMMAND…`: what a command would do, to which Machines, in which order, and what would hold it
up. It changes nothing, and decides with the functions that act: ownership, parameters, gates, fan-out, procedures.
"""
