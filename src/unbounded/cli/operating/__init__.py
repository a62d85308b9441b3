"""What the operation commands do: each module has `run`, and `intend` for what a plan can be made of."""
