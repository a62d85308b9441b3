"""Explanations: the blockers of a Machine or an operation, link by link, down to the first cause.

`facts_reader` fetches the facts in a few requests, `chain` follows the links, `links` has their form. The texts come
from the functions that decide (gates, the supervisor's verdict, procedures, conditions); this package only orders them.
"""
