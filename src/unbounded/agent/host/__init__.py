"""The real parts behind the agent's ports: commands, and systemd through systemctl."""
