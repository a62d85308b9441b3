"""Simulators that tests and users share: machines to try things on, without hardware, that go wrong on demand.

`bmc` simulates BMCs and the hosts behind them, `cloud` clouds with virtual machines; both write the manifests that
make these known to a cluster.
What is simulated is seen through the same protocols as the real thing, and asks nothing of the rest of the project.
"""
