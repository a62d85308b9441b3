"""Admission policies: their kinds, their matching, and the evaluation of their expressions.

- `kinds` and `rules` define the two resources and validate them.
- `environment` and `compiled` compile a policy's expressions.
- `matching` selects requests, and `params` finds the parameters of a binding.
- `book` indexes the policies of a store and reviews requests.
- `typecheck` compares expressions with the schemas of matching resources.
"""
