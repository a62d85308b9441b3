"""`unbounded migrate`: hand a control plane of `unbounded up` over to a cluster.

`kinds`, `translate`, `copies` and `obstacles` are pure. `record` and `marker` hold the decision, `freeze` and `hold`
keep both control planes still, `copying` writes, `hand_over` moves the agents, and `run` puts them in order.
"""
