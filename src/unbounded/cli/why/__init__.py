"""`kubectl unbounded why`: what a Machine or an operation waits for, link by link, down to the first cause.

`read` fetches the facts in a few requests, `chain` follows them, `say` shows what it found. The words are those of the
functions that act (gates, the steward's verdict, procedures, conditions): here they are only put in order.
"""
