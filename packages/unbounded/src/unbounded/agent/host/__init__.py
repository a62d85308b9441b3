"""Implementations of the agent's ports on the host: commands, and systemd through systemctl."""
