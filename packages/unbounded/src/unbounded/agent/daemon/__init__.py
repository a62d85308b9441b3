"""The agent's long-running process: its identity, its caches, and the controllers that use them.

identity          the agent's certificate, requested with a bootstrap token and then renewed; this host's Machine
cluster_sync      values of the cluster that the host copies: cluster access, registry logins, release key
server_migration  the move to another API server
reporting         the agent's part of the Machine's status, and notifications to systemd
daemon            assembles these and runs until it is stopped
"""
