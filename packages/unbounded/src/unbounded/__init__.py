"""Unbounded: the control plane for the life of machines that become Kubernetes nodes."""
