"""A stand-in for kubelet, where the real one cannot be had. It runs no containers.

It reads the flags and files of a real kubelet, asks for its client certificate with the bootstrap kubeconfig, registers
its Node with labels and taints, reports version, boot id and whether containerd answers, renews its Lease, and tells
its health on port 10248. Like the real one it does not register a Node again that was deleted while it ran. It needs
python3 with its standard library, and openssl for keys.

To the API server it says what a real kubelet 1.36 says from its start until its Node is Ready (goldens/kubelet), in
protobuf where kubelet does. Its Node is not Ready as long as anything of that is refused or answered with a Warning:
the Ready condition names what. A Pod of its Node is Running once its ConfigMaps, Secrets and tokens have come. It
leaves out the serving certificate, webhook authorization and static Pods.

/etc/kubelet-standin, or DIALS below, makes it misbehave: ignore-term, not-ready, crash, hang (before it does anything),
unhealthy, no-register.
"""

from .files import read_yaml, seconds

__all__ = ["read_yaml", "seconds"]
