"""Simulators for tests and users: machines without hardware that fail on demand.

`bmc` simulates BMCs with their hosts, and `cloud` clouds with virtual machines. Both write manifests that add the
machines to a cluster. A simulator speaks the protocols of the real thing, and depends on nothing else of the project.
"""
