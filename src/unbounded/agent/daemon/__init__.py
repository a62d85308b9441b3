"""What runs all the time: the agent's identity, its caches, and around them all that it carries out.

identity   the agent's certificate, got with a bootstrap token and renewed by itself
register   the Machine that a host is, made where nobody has made it
notify     what systemd hears: that the daemon is up, and that its loop turns
reporting  what the Machine's status says of the agent
daemon     puts everything together, and runs until it is told to stop
"""
