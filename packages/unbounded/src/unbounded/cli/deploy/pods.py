"""Parts of the project's Pods: security contexts, probes, and volumes."""

from __future__ import annotations

from typing import Any, Final

from unbounded.fetch.store import StoreLimits

Raw = dict[str, Any]

NOBODY: Final = 65532  # a user that owns nothing in any image
_RUN: Final = "1Mi"
_TMP: Final = "64Mi"  # for certificates and tokens that libraries read from a file


def probe(path: str, *, delay_s: int, period_s: int) -> Raw:
    return {
        "httpGet": {"path": path, "port": "health"},
        "initialDelaySeconds": delay_s,
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
    }


def as_nobody() -> Raw:
    return {
        "runAsNonRoot": True,
        "runAsUser": NOBODY,
        "runAsGroup": NOBODY,
        "fsGroup": NOBODY,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def confined(*capabilities: str) -> Raw:
    """Return a security context with these capabilities, without privilege escalation, and with a read-only image."""
    kept: Raw = {"add": list(capabilities)} if capabilities else {}
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], **kept},
    }


def tmp_volume() -> Raw:
    """Return the volume of /tmp; kubelet evicts the Pod that fills it, and no other Pod of the node."""
    return _empty("tmp", _TMP)


def cache_volume() -> Raw:
    """Return metalman's cache, with the size of its full store and of one image that is being unpacked."""
    limits = StoreLimits()
    return _empty("cache", f"{(limits.bytes + limits.image_bytes) >> 30}Gi")


def run_volume() -> Raw:
    """Return the volume of /run/unbounded, with which a container detects that its predecessor in the Pod has ended."""
    return _empty("run", _RUN, medium="Memory")


def _empty(name: str, size: str, **more: str) -> Raw:
    return {"name": name, "emptyDir": {"sizeLimit": size, **more}}
