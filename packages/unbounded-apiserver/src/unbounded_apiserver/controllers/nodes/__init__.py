"""Controllers of Nodes and of the Pods on them: health, taints, evictions, and Pods whose Node is gone.

They follow kube-controller-manager (node-lifecycle, taint-eviction, pod-garbage-collector). Changes and timers drive
them: a healthy fleet causes no writes.
"""
