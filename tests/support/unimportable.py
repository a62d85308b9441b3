"""A module of somebody else that cannot be imported."""

raise RuntimeError("broken")
