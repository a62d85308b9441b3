"""The agent's long-running process: its identity, its caches, and the controllers that use them.

identity   the agent's certificate, requested with a bootstrap token and renewed automatically
register   the Machine of this host, created where there is none
notify     notifications to systemd: readiness, and a watchdog for the event loop
reporting  the agent's part of the Machine's status
daemon     assembles these and runs until it is stopped
"""
