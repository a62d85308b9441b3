"""Preflight: checks before any change that a host can become a node, and reports for users and programs.

report         findings, verdict, and output as text and JSON: pure
observations   of the host and of network services, as data
checks         checks of the host, and of the configuration's values and services: pure
observe        reads the host, and sends requests to the network
run            the whole preflight, and its command

A report contains no secret and no address, as users paste reports into tickets.
"""
