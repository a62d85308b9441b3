"""The agent's long-running process: its identity, its caches, and the controllers that use them.

identity   the agent's certificate, requested with a bootstrap token and renewed automatically, and this host's Machine
followers  values of the cluster that the host follows: cluster access, registry logins, release key
succession the move to another API server
reporting  the agent's part of the Machine's status, and notifications to systemd
daemon     assembles these and runs until it is stopped
"""
