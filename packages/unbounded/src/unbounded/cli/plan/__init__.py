"""`kubectl unbounded plan COMMAND…`: a forecast of a command's effects: Machines, order, and what would block it.

It changes nothing, and decides with the functions of the controllers: ownership, parameters, gates, fan-out,
procedures.
"""
