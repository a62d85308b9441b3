"""`kubectl unbounded why`: the blockers of a Machine or an operation, link by link, down to the first cause.

`facts_reader` fetches the facts in a few requests, `run` follows the chain, `links` renders it. The texts come
from the functions that decide (gates, the supervisor's verdict, procedures, conditions); this package only orders them.
"""
