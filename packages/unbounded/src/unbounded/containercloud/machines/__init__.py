"""Machines of cluster.k8s.io: their life, their deletion and their status."""
