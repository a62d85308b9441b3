"""`kubectl unbounded why`: the blockers of a Machine or an operation, link by link, down to the first cause.

`read` fetches the facts in a few requests, `chain` follows them, `say` renders the result. The texts come from the
functions that decide (gates, the supervisor's verdict, procedures, conditions); this package only orders them.
"""
