"""`unbounded migrate`: migration of a control plane from `unbounded up` to a cluster.

- `copied_objects` and `copy_plan` are pure; `sides` observes both servers and finds obstacles.
- `migration_record` stores the decision on both sides; `steps` and `lease_hold` stop both control planes.
- `copier` writes the copies, `hand_over` moves the agents, and `steps` runs all of them in order.
"""
