"""State of this host for a local user: without the API server, and mostly without root.

state    the state, as data
reader   reads it from files and from systemd
show     as text and as JSON
"""
