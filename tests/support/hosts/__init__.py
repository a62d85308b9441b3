"""Hosts with a real systemd, for tests: each a systemd-nspawn container that can hold nspawn machines of its own.

    tools    the parts that `scripts/agent-tools` has made, or why tests on hosts are skipped
    disks    the place of their disks
    cgroup   a host's own, through which the whole host is killed
    host     one host: up, run a command in it, reboot, cut the power, up again, down
    mirror   the agent's downloads, with dials for faults; kubelet_standin replaces kubelet
    images   a registry with the root file system of nodes
    plane    `unbounded up` as a process, and kubectl

A host is on the bridge of the test's own segment (tests.support.qemu.segment). No part of it outlives the process of
the test.
"""

from tests.support.hosts.disks import fast_disk
from tests.support.hosts.host import Ended, Host, HostFailed, booted, until
from tests.support.hosts.tools import AgentTools, agent_tools

__all__ = ["AgentTools", "Ended", "Host", "HostFailed", "agent_tools", "booted", "fast_disk", "until"]
