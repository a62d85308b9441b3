"""What runs on this host, for a person who stands before it: without the API server, and mostly without root.

state    what is told, as data
look     reads it from files and from systemd
show     as text and as JSON
"""
