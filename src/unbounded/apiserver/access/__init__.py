"""Who may do what: roles and bindings, the reviews that ask about them, tokens, and acting as somebody else."""
