"""Tests of any Kubernetes API server: ours, or the cluster that UNBOUNDED_TEST_KUBECONFIG names.

Each test has a namespace of its own, and the definitions are of a group of its own; both are removed afterwards.
"""
