"""A stand-in for kubelet, which runs no containers.

It reads the flags and files of a real kubelet and requests its client certificate with the bootstrap kubeconfig. It
registers its Node with labels and taints, reports version, boot id and whether containerd answers, and renews its
Lease. Its health is on port 10248. Like the real one it does not register a Node again that was deleted while it ran.
It needs python3 with its standard library, and openssl for keys.

Its requests are those of a real kubelet 1.36 from its start until its Node is Ready (goldens/kubelet), in protobuf
where kubelet uses it. Its Node is not Ready while any of these is refused or answered with a Warning: the Ready
condition names it. A Pod of its Node is Running once its ConfigMaps, Secrets and tokens have come. It omits the serving
certificate, webhook authorization and static Pods.

/etc/kubelet-standin, or DIALS below, makes it misbehave: ignore-term, not-ready, crash, hang (before it does anything),
unhealthy, no-register. With `@NAME` behind it, a dial counts on the host of this name alone.
"""

from .files import read_yaml, seconds

__all__ = ["read_yaml", "seconds"]
