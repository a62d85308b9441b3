"""Hosts with a real systemd, for tests: each a systemd-nspawn container that can hold nspawn machines of its own.

    tools    what `scripts/agent-tools` has made, or why tests on hosts are skipped
    disks    where their disks lie
    cgroup   a host's own, through which the whole host is killed
    host     one host: up, run something in it, reboot, cut the power, up again, down
    mirror   what the agent downloads, with dials for what goes wrong; kubelet_standin is in the place of kubelet
    images   a registry with the root file system of nodes
    plane    `unbounded up` as a process, and kubectl

A host stands on the bridge of the segment (tests.support.qemu.segment) that the test lives in. Nothing of it outlives
the process of the test, however that ends.
"""

from tests.support.hosts.disks import fast_disk
from tests.support.hosts.host import Ended, Host, HostFailed, booted, until
from tests.support.hosts.tools import AgentTools, agent_tools

__all__ = ["AgentTools", "Ended", "Host", "HostFailed", "agent_tools", "booted", "fast_disk", "until"]
