"""Bodies in the protobuf form of Kubernetes, which kubectl uses for some built-in kinds, into plain JSON values.

Only reading: answers are JSON, which every client accepts. The field numbers are those of Kubernetes' generated.proto.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

MAGIC: Final = b"k8s\x00"
MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"
MAX_DEPTH: Final = 32

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

# Message -> field number -> (JSON name, how it is read). A `*` before means repeated, `%` a map from strings.
_META: Final = (1, "metadata", "ObjectMeta")
_ASKED: Final = (
    (1, "resourceAttributes", "ResourceAttributes"),
    (2, "nonResourceAttributes", "NonResourceAttributes"),
)
_BINDING: Final = (_META, (2, "subjects", "*Subject"), (3, "roleRef", "RoleRef"))
_MESSAGES: Final[Mapping[str, tuple[tuple[int, str, str], ...]]] = {
    "ObjectMeta": (
        (1, "name", "string"),
        (2, "generateName", "string"),
        (3, "namespace", "string"),
        (5, "uid", "string"),
        (6, "resourceVersion", "string"),
        (7, "generation", "int"),
        (8, "creationTimestamp", "time"),
        (9, "deletionTimestamp", "time"),
        (10, "deletionGracePeriodSeconds", "int"),
        (11, "labels", "%string"),
        (12, "annotations", "%string"),
        (13, "ownerReferences", "*OwnerReference"),
        (14, "finalizers", "*string"),
    ),
    "OwnerReference": (
        (1, "kind", "string"),
        (3, "name", "string"),
        (4, "uid", "string"),
        (5, "apiVersion", "string"),
        (6, "controller", "bool"),
        (7, "blockOwnerDeletion", "bool"),
    ),
    "Namespace": (_META, (2, "spec", "NamespaceSpec"), (3, "status", "NamespaceStatus")),
    "NamespaceSpec": ((1, "finalizers", "*string"),),
    "NamespaceStatus": ((1, "phase", "string"),),
    "ConfigMap": (_META, (2, "data", "%string"), (3, "binaryData", "%bytes"), (4, "immutable", "bool")),
    "Secret": (
        _META,
        (2, "data", "%bytes"),
        (3, "type", "string"),
        (4, "stringData", "%string"),
        (5, "immutable", "bool"),
    ),
    "ServiceAccount": (
        _META,
        (2, "secrets", "*ObjectReference"),
        (3, "imagePullSecrets", "*LocalObjectReference"),
        (4, "automountServiceAccountToken", "bool"),
    ),
    "LocalObjectReference": ((1, "name", "string"),),
    "ObjectReference": (
        (1, "kind", "string"),
        (2, "namespace", "string"),
        (3, "name", "string"),
        (4, "uid", "string"),
        (5, "apiVersion", "string"),
        (6, "resourceVersion", "string"),
        (7, "fieldPath", "string"),
    ),
    "Event": (
        _META,
        (2, "involvedObject", "ObjectReference"),
        (3, "reason", "string"),
        (4, "message", "string"),
        (5, "source", "EventSource"),
        (6, "firstTimestamp", "time"),
        (7, "lastTimestamp", "time"),
        (8, "count", "int"),
        (9, "type", "string"),
        (10, "eventTime", "microtime"),
        (11, "series", "EventSeries"),
        (12, "action", "string"),
        (13, "related", "ObjectReference"),
        (14, "reportingComponent", "string"),
        (15, "reportingInstance", "string"),
    ),
    "EventSource": ((1, "component", "string"), (2, "host", "string")),
    "EventSeries": ((1, "count", "int"), (2, "lastObservedTime", "microtime")),
    "Lease": (_META, (2, "spec", "LeaseSpec")),
    "LeaseSpec": (
        (1, "holderIdentity", "string"),
        (2, "leaseDurationSeconds", "int"),
        (3, "acquireTime", "microtime"),
        (4, "renewTime", "microtime"),
        (5, "leaseTransitions", "int"),
        (6, "strategy", "string"),
        (7, "preferredHolder", "string"),
    ),
    "DeleteOptions": (
        (1, "gracePeriodSeconds", "int"),
        (2, "preconditions", "Preconditions"),
        (3, "orphanDependents", "bool"),
        (4, "propagationPolicy", "string"),
        (5, "dryRun", "*string"),
    ),
    "Preconditions": ((1, "uid", "string"), (2, "resourceVersion", "string")),
    "PolicyRule": (
        (1, "verbs", "*string"),
        (2, "apiGroups", "*string"),
        (3, "resources", "*string"),
        (4, "resourceNames", "*string"),
        (5, "nonResourceURLs", "*string"),
    ),
    "Role": (_META, (2, "rules", "*PolicyRule")),
    "ClusterRole": (_META, (2, "rules", "*PolicyRule"), (3, "aggregationRule", "AggregationRule")),
    "AggregationRule": ((1, "clusterRoleSelectors", "*LabelSelector"),),
    "LabelSelector": ((1, "matchLabels", "%string"), (2, "matchExpressions", "*LabelSelectorRequirement")),
    "LabelSelectorRequirement": ((1, "key", "string"), (2, "operator", "string"), (3, "values", "*string")),
    "Subject": ((1, "kind", "string"), (2, "apiGroup", "string"), (3, "name", "string"), (4, "namespace", "string")),
    "RoleRef": ((1, "apiGroup", "string"), (2, "kind", "string"), (3, "name", "string")),
    "RoleBinding": _BINDING,
    "ClusterRoleBinding": _BINDING,
    "ResourceAttributes": (
        (1, "namespace", "string"),
        (2, "verb", "string"),
        (3, "group", "string"),
        (4, "version", "string"),
        (5, "resource", "string"),
        (6, "subresource", "string"),
        (7, "name", "string"),
    ),
    "NonResourceAttributes": ((1, "path", "string"), (2, "verb", "string")),
    "SelfSubjectAccessReview": (_META, (2, "spec", "SelfSubjectAccessReviewSpec")),
    "SelfSubjectAccessReviewSpec": _ASKED,
    "SubjectAccessReview": (_META, (2, "spec", "SubjectAccessReviewSpec")),
    "LocalSubjectAccessReview": (_META, (2, "spec", "SubjectAccessReviewSpec")),
    "SubjectAccessReviewSpec": (
        *_ASKED,
        (3, "user", "string"),
        (4, "groups", "*string"),
        (5, "extra", "%items"),
        (6, "uid", "string"),
    ),
    "SelfSubjectRulesReview": (_META, (2, "spec", "SelfSubjectRulesReviewSpec")),
    "SelfSubjectRulesReviewSpec": ((1, "namespace", "string"),),
    "SelfSubjectReview": (_META,),
    "TokenReview": (_META, (2, "spec", "TokenReviewSpec")),
    "TokenReviewSpec": ((1, "token", "string"), (2, "audiences", "*string")),
    "TokenRequest": (_META, (2, "spec", "TokenRequestSpec")),
    "TokenRequestSpec": (
        (1, "audiences", "*string"),
        (3, "boundObjectRef", "BoundObjectReference"),
        (4, "expirationSeconds", "int"),
    ),
    "BoundObjectReference": (
        (1, "kind", "string"),
        (2, "apiVersion", "string"),
        (3, "name", "string"),
        (4, "uid", "string"),
    ),
    "CertificateSigningRequest": (
        _META,
        (2, "spec", "CertificateSigningRequestSpec"),
        (3, "status", "CertificateSigningRequestStatus"),
    ),
    "CertificateSigningRequestSpec": (
        (1, "request", "bytes"),
        (2, "username", "string"),
        (3, "uid", "string"),
        (4, "groups", "*string"),
        (5, "usages", "*string"),
        (6, "extra", "%items"),
        (7, "signerName", "string"),
        (8, "expirationSeconds", "int"),
    ),
    "CertificateSigningRequestStatus": (
        (1, "conditions", "*CertificateSigningRequestCondition"),
        (2, "certificate", "bytes"),
    ),
    "CertificateSigningRequestCondition": (
        (1, "type", "string"),
        (2, "reason", "string"),
        (3, "message", "string"),
        (4, "lastUpdateTime", "time"),
        (5, "lastTransitionTime", "time"),
        (6, "status", "string"),
    ),
    "Items": ((1, "items", "*string"),),
    "Service": (_META, (2, "spec", "ServiceSpec")),
    "ServiceSpec": (
        (1, "ports", "*ServicePort"),
        (2, "selector", "%string"),
        (3, "clusterIP", "string"),
        (4, "type", "string"),
        (5, "externalIPs", "*string"),
        (7, "sessionAffinity", "string"),
        (8, "loadBalancerIP", "string"),
        (9, "loadBalancerSourceRanges", "*string"),
        (10, "externalName", "string"),
        (11, "externalTrafficPolicy", "string"),
        (12, "healthCheckNodePort", "int"),
        (13, "publishNotReadyAddresses", "bool"),
        (14, "sessionAffinityConfig", "SessionAffinityConfig"),
        (17, "ipFamilyPolicy", "string"),
        (18, "clusterIPs", "*string"),
        (19, "ipFamilies", "*string"),
        (20, "allocateLoadBalancerNodePorts", "bool"),
        (21, "loadBalancerClass", "string"),
        (22, "internalTrafficPolicy", "string"),
        (23, "trafficDistribution", "string"),
    ),
    "ServicePort": (
        (1, "name", "string"),
        (2, "protocol", "string"),
        (3, "port", "int"),
        (4, "targetPort", "port"),
        (5, "nodePort", "int"),
        (6, "appProtocol", "string"),
    ),
    "IntOrString": ((1, "type", "int"), (2, "intVal", "int"), (3, "strVal", "string")),
    "SessionAffinityConfig": ((1, "clientIP", "ClientIPConfig"),),
    "ClientIPConfig": ((1, "timeoutSeconds", "int"),),
    "Eviction": (_META, (2, "deleteOptions", "DeleteOptions")),
    "Time": ((1, "seconds", "int"), (2, "nanos", "int")),
    "TypeMeta": ((1, "apiVersion", "string"), (2, "kind", "string")),
    "Unknown": ((1, "typeMeta", "TypeMeta"), (2, "raw", "raw"), (3, "contentEncoding", "string")),
}
_FIELDS: Final = {name: {number: (key, how) for number, key, how in rows} for name, rows in _MESSAGES.items()}


class Unreadable(Exception):
    """Not protobuf, or of a kind that is not read in this form."""


def readable(kind: str) -> bool:
    return kind in _FIELDS


def decode(data: bytes, expected: str) -> dict[str, Any]:
    """The object in an envelope, with apiVersion and kind. Raises Unreadable."""
    if not data.startswith(MAGIC):
        raise Unreadable("provided data does not appear to be a protobuf message, expected prefix k8s")
    envelope = _message("Unknown", memoryview(data)[len(MAGIC) :], 0)
    meta = envelope.get("typeMeta", {})
    kind = meta.get("kind") or expected
    if not readable(kind):
        raise Unreadable(f"{kind} is not read as protobuf; send JSON")
    return {**meta, **_message(kind, memoryview(envelope.get("raw", b"")), 0)}


def _message(name: str, data: memoryview, depth: int) -> dict[str, Any]:
    if depth > MAX_DEPTH:
        raise Unreadable("exceeded max depth")
    fields = _FIELDS[name]
    result: dict[str, Any] = {}
    for number, wire, value in _parts(data):
        key, how = fields.get(number, ("", ""))
        if not key:
            continue
        if how.startswith("%"):
            entry_key, entry = _entry(how[1:], value, wire, depth)
            result.setdefault(key, {})[entry_key] = entry
        elif how.startswith("*"):
            result.setdefault(key, []).append(_value(how[1:], value, wire, depth))
        else:
            result[key] = _value(how, value, wire, depth)
    return result


def _entry(how: str, value: Any, wire: int, depth: int) -> tuple[str, Any]:
    """An entry of a map: a message with key 1 and value 2."""
    key, item = "", "" if how == "string" else _value(how, memoryview(b""), _BYTES, depth)
    for number, inner_wire, inner in _parts(_bytes(value, wire)):
        if number == 1:
            key = _value("string", inner, inner_wire, depth)
        elif number == 2:
            item = _value(how, inner, inner_wire, depth)
    return key, item


def _value(how: str, value: Any, wire: int, depth: int) -> Any:
    match how:
        case "int" | "bool":
            if wire != _VARINT:
                raise Unreadable("a number has the wrong wire type")
            return bool(value) if how == "bool" else value - (1 << 64) if value >> 63 else value
        case "string":
            try:
                return str(_bytes(value, wire), "utf-8")
            except UnicodeDecodeError as error:
                raise Unreadable("a string is not UTF-8") from error
        case "bytes":
            return base64.b64encode(_bytes(value, wire)).decode()
        case "items":  # a list that is a message of its own
            return _message("Items", _bytes(value, wire), depth + 1).get("items", [])
        case "raw":
            return bytes(_bytes(value, wire))
        case "port":
            either = _message("IntOrString", _bytes(value, wire), depth + 1)
            return either.get("strVal", "") if either.get("type") else either.get("intVal", 0)
        case "time" | "microtime":
            return _time(_message("Time", _bytes(value, wire), depth + 1), micro=how == "microtime")
    return _message(how, _bytes(value, wire), depth + 1)


def _bytes(value: Any, wire: int) -> memoryview:
    if wire != _BYTES:
        raise Unreadable("a field has the wrong wire type")
    return memoryview(value)


def _time(parts: Mapping[str, int], *, micro: bool) -> str | None:
    """RFC 3339; the zero time of Go is null."""
    if not parts:
        return None
    try:
        moment = datetime.fromtimestamp(parts.get("seconds", 0), UTC)
    except (ValueError, OverflowError, OSError):
        return None
    text = moment.strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{parts.get('nanos', 0) // 1000:06d}Z" if micro else f"{text}Z"


def _parts(data: memoryview) -> Iterator[tuple[int, int, Any]]:
    """Field number, wire type and value (a number or bytes) of each field, in order."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        if wire == _BYTES:
            size, at = _varint(data, at)
        elif wire in {_FIXED64, _FIXED32}:
            size = 8 if wire == _FIXED64 else 4
        else:
            raise Unreadable(f"wire type {wire} is not known")
        if at + size > len(data):
            raise Unreadable("unexpected EOF")
        yield number, wire, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(data):
            raise Unreadable("unexpected EOF")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), at
    raise Unreadable("integer overflow")
