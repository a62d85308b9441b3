"""`unbounded migrate`: migration of a control plane from `unbounded up` to a cluster.

- `kinds`, `translate`, `copy_plan` and `obstacles` are pure.
- `record` and `marker` store the decision; `freeze` and `lease_hold` stop both control planes.
- `copier` writes the copies, `hand_over` moves the agents, and `steps` runs all of them in order.
"""
