"""A third-party module whose import fails."""

raise RuntimeError("broken")
