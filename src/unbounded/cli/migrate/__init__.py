"""`unbounded migrate`: migration of a control plane from `unbounded up` to a cluster.

- `kinds`, `translate`, `copies` and `obstacles` are pure.
- `record` and `marker` store the decision; `freeze` and `hold` stop both control planes.
- `copying` writes the copies, `hand_over` moves the agents, and `run` runs the steps in order.
"""
