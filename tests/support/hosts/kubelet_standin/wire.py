"""kubelet's requests in protobuf, with the standard library alone.

Numbers of fields are those of Kubernetes' generated.proto files. As in Go, fields that are no pointers are present even
when they are empty. A test compares the bytes with those of a real kubelet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
Value = str | bytes | int
_CONDITION = ("type", "status", "lastHeartbeatTime", "lastTransitionTime", "reason", "message")
_NODE_INFO = (
    *("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion"),
    *("kubeletVersion", "kubeProxyVersion", "operatingSystem", "architecture"),
)
DELETE_OPTIONS = ("resource.k8s.io/v1", "DeleteOptions", b"")


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def message(*fields: tuple[int, Value]) -> bytes:
    """Return the fields by their numbers, in this order."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += _varint(number << 3) + _varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += _varint(number << 3 | 2) + _varint(len(data)) + data
    return out


def envelope(api_version: str, kind: str, raw: bytes) -> bytes:
    """Return an object as it is sent."""
    return b"k8s\0" + message((1, message((1, api_version), (2, kind))), (2, raw), (3, ""), (4, ""))


def time(seconds: int, nanos: int = 0) -> bytes:
    return message((1, seconds), (2, nanos))


def meta(
    name: str = "",
    *,
    generate: str = "",
    namespace: str = "",
    uid: str = "",
    version: str = "",
    created: int | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    node: tuple[str, str, str] | None = None,
) -> bytes:
    """Args: node: name, UID and apiVersion of the Node that owns the object."""
    fields: list[tuple[int, Value]] = [(1, name), (2, generate), (3, namespace), (4, ""), (5, uid), (6, version)]
    fields += [(7, 0), (8, b"" if created is None else time(created))]
    fields += [(11, message((1, key), (2, value))) for key, value in sorted((labels or {}).items())]
    fields += [(12, message((1, key), (2, value))) for key, value in sorted((annotations or {}).items())]
    if node is not None:
        owner, owner_uid, api_version = node
        fields.append((13, message((1, "Node"), (3, owner), (4, owner_uid), (5, api_version))))
    return message(*fields)


def signing_request(request: bytes, signer: str, usages: Sequence[str]) -> bytes:
    spec = message((1, request), (2, ""), (3, ""), *((5, usage) for usage in usages), (7, signer))
    return envelope(
        "certificates.k8s.io/v1", "CertificateSigningRequest", message((1, meta(generate="csr-")), (2, spec), (3, ""))
    )


def node(metadata: bytes, taints: Sequence[Mapping[str, str]], status: Mapping[str, Any], when: int) -> bytes:
    """Args: when: seconds since the epoch, for the times of the conditions."""
    keys = [message((1, one["key"]), (2, one.get("value", "")), (3, one["effect"])) for one in taints]
    spec = message((1, ""), (2, ""), (3, ""), (4, 0), *((5, taint) for taint in keys))
    return envelope("v1", "Node", message((1, metadata), (2, spec), (3, _node_status(status, when))))


def _node_status(status: Mapping[str, Any], when: int) -> bytes:
    fields: list[tuple[int, Value]] = []
    for number, name in ((1, "capacity"), (2, "allocatable")):
        amounts = sorted(status[name].items())
        fields += [(number, message((1, key), (2, message((1, amount))))) for key, amount in amounts]
    fields.append((3, ""))
    times = {"lastHeartbeatTime": time(when), "lastTransitionTime": time(when)}
    for one in status["conditions"]:
        values = [(number, {**one, **times}[name]) for number, name in enumerate(_CONDITION, 1)]
        fields.append((4, message(*values)))
    fields += [(5, message((1, one["type"]), (2, one["address"]))) for one in status["addresses"]]
    fields.append((6, message((1, message((1, status["daemonEndpoints"]["kubeletEndpoint"]["Port"]))))))
    info = status["nodeInfo"]
    fields.append((7, message(*((number, info[name]) for number, name in enumerate(_NODE_INFO, 1)))))
    for image in status.get("images", ()):
        fields.append((8, message(*((1, name) for name in image["names"]), (2, image["sizeBytes"]))))
    return message(*fields, *((14, feature) for feature in status.get("declaredFeatures", ())))


def csi_node(name: str, uid: str, annotations: Mapping[str, str]) -> bytes:
    metadata = meta(name, annotations=annotations, node=(name, uid, "v1"))
    return envelope("storage.k8s.io/v1", "CSINode", message((1, metadata), (2, "")))


def lease(metadata: bytes, holder: str, seconds: int, when: tuple[int, int]) -> bytes:
    spec = message((1, holder), (2, seconds), (4, time(*when)))
    return envelope("coordination.k8s.io/v1", "Lease", message((1, metadata), (2, spec)))


def event(name: str, node_name: str, reason: str, text: str, when: int) -> bytes:
    """Return an Event of the Node, in namespace default."""
    about = message((1, "Node"), (2, ""), (3, node_name), (4, ""), (5, "v1"), (6, ""), (7, ""))
    source = message((1, "kubelet"), (2, node_name))
    raw = message(
        *((1, meta(name, namespace="default")), (2, about), (3, reason), (4, text), (5, source)),
        *(
            (6, time(when)),
            (7, time(when)),
            (8, 1),
            (9, "Normal"),
            (10, ""),
            (12, ""),
            (14, "kubelet"),
            (15, node_name),
        ),
    )
    return envelope("v1", "Event", raw)


def token_request(audiences: Sequence[str], seconds: int, pod: str, uid: str) -> bytes:
    about = message((1, "Pod"), (2, "v1"), (3, pod), (4, uid))
    spec = message(*((1, one) for one in audiences), (3, about), (4, seconds))
    raw = message((1, meta()), (2, spec), (3, message((1, ""), (2, ""))))
    return envelope("authentication.k8s.io/v1", "TokenRequest", raw)


def pod_deletion(uid: str) -> bytes:
    """Return the DeleteOptions with which kubelet removes a Pod that has ended."""
    return envelope("v1", "DeleteOptions", message((1, 0), (2, message((1, uid)))))
