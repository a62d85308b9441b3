"""The operation commands: each module has `run`, and `intend` where a plan can be made."""
