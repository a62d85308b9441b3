"""The host agent: makes a host a node, keeps the node running, and removes it again.

It owns the nspawn machines kube1 and kube2, the changes of `start` to the host, and its own binary. It leaves Pods to
kubelet and the host's power to others. The one exception is a HostReboot from inside a host that has no BMC and no
provider.

    paths     paths of all files on a host
    model     the two slots, the goal of a node, and the observed state of a slot
    interfaces   what the agent needs from the host, as protocols
    node_spec the goal of a node, from the configuration or the Machine
    host      implementations of these interfaces: commands, systemd, mounts
    artifact_sources, artifact_cache   files that a node is built from, besides its image
    node/     one slot: building, starting, stopping, removing it
    steps/    changes of `start` to the host; each step can be reverted
    daemon/   identity, caches and the long-running process
    operations/   kinds of MachineOperation that the agent executes
    upgrade/  blue and green releases of the agent's own binary
    recreation/   replacement of the node by a new one in the other slot
    reset, reset_parts   removal of node and agent from the host
    host_status   state of the host for a local user
    preflight/    checks that a host can become a node
"""

from __future__ import annotations

from typing import Final

INTERRUPTED: Final = 130  # by a signal
