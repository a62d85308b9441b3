"""Controllers of Nodes and of the Pods on them: health, taints, evictions, and Pods whose Node is gone.

They follow kube-controller-manager (node-lifecycle, taint-eviction, pod-garbage-collector), with its default times.
Changes and timers drive them: a healthy fleet causes no writes.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class NodeTimes:
    """Times in seconds.

    Args:
        grace_s: time without a sign of life after which a Node turns Unknown.
        startup_s: the same for a Node whose kubelet has not reported a status yet.
        quarantine_s: time between the loss of a Node and the deletion of its Pods.
        taint_interval_s: time between two Nodes of a zone from which Pods are evicted.
        slow_interval_s: the same in a large zone of which more than half is unhealthy.
    """

    grace_s: float = 50.0
    startup_s: float = 60.0
    quarantine_s: float = 40.0
    taint_interval_s: float = 10.0
    slow_interval_s: float = 100.0


DEFAULT_TIMES = NodeTimes()
