"""Admission policies: their kinds, what they match, and what their expressions say of a request.

`kinds` and `rules` are the two resources and what may be written there; `environment` and `compiled` turn a policy's
expressions into code; `matching` says whom it concerns, `params` finds what a binding gives it, and `book` holds the
policies of a store and reviews requests. `typecheck` compares expressions with the schemas of what they match.
"""
