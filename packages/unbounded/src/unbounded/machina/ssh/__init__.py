"""SSH to hosts, through bastions, with pinned host keys."""
