"""Preflight: checks before any change that a host can become a node, and reports for users and programs.

report   findings, verdict, and output as text and JSON: pure
seen     observations, as data
host     checks of the host: pure
wanted   checks of the configuration's values, such as URLs: pure
look     reads the host
reach    sends requests to the network
run      the whole preflight: `run_preflight`

A report contains no secret and no address, as users paste reports into tickets.
"""
