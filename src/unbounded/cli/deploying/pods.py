"""Parts of the Pods of the project: what they may do on their node, probes, volumes of their own."""

from __future__ import annotations

from typing import Any, Final

from unbounded.fetch.store import StoreLimits

Raw = dict[str, Any]

NOBODY: Final = 65532  # a user that no image has anything of
_RUN: Final = "1Mi"
_TMP: Final = "64Mi"  # certificates and tokens that libraries want in a file


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
    """No right but these, no way to more of them, and nothing of the image can be changed."""
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
    """Return metalman's cache: as large as its store may grow, and one image that is being unpacked."""
    limits = StoreLimits()
    return _empty("cache", f"{(limits.bytes + limits.image_bytes) >> 30}Gi")


def run_volume() -> Raw:
    """Return the volume of /run/unbounded, by which a container knows that the one before it in the Pod has ended."""
    return _empty("run", _RUN, medium="Memory")


def _empty(name: str, size: str, **more: str) -> Raw:
    return {"name": name, "emptyDir": {"sizeLimit": size, **more}}
