"""Forecasts of the effects of writes: Machines, order, and what would block it.

It changes nothing, and decides with the functions of the controllers: ownership, parameters, gates, fan-out,
procedures.
"""
