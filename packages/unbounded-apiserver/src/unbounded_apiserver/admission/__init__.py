"""Admission policies: their kinds, their matching, and the evaluation of their expressions.

- `policy_types` and `rules` define the two resources and validate them.
- `environment` and `expressions` compile and evaluate a policy's expressions.
- `requests` selects requests, and `params` finds the parameters of a binding.
- `policy_index` indexes the policies of a store and reviews requests.
"""
