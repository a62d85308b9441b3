"""Authorization and identity: roles and bindings, reviews, tokens, and impersonation."""
