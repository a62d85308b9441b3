"""The resources that are served without a definition, and the rules of each."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from unbounded_apiserver import columns, core_types, field_errors, gojson, metadata, name_validation, type_descriptors
from unbounded_apiserver.core_types import NODE, rules_of_event
from unbounded_apiserver.managed_fields.merge import ObjectKind, of_shape
from unbounded_apiserver.resource_model import (
    ALL_VERBS,
    STATUS,
    Object,
    ProxiedSubresource,
    Resource,
    Subresource,
    keep_all_but_status,
)
from unbounded_apiserver.schema import FieldError
from unbounded_apiserver.type_descriptors import StructType

SECRET_BYTES: Final = 1024 * 1024
HIDDEN: Final = "<secret contents redacted>"
NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"
TAINT_EFFECTS: Final = ["NoSchedule", "PreferNoSchedule", "NoExecute"]


def _nothing(obj: Object, old: Object | None) -> None:
    """Decide nothing: the server sets no field of this type."""


def _no_rules(_obj: Object, _old: Object | None) -> list[FieldError]:
    return []


@dataclass(frozen=True)
class BuiltInType:
    """A type that Kubernetes defines: its shape, and its additions to the common rules."""

    shape: StructType
    generation: bool = False
    name_check: name_validation.Check = name_validation.subdomain
    unconditional_update: bool = True
    create_on_update: bool = False
    tracks_owners: bool = True
    defaults: Callable[[Object], None] | None = None
    decide: Callable[[Object, Object | None], None] = _nothing
    rules: Callable[[Object, Object | None], list[FieldError]] = _no_rules
    advice: Callable[[Object], list[str]] | None = None
    qualified_finalizers: bool = True

    @cached_property
    def merge_fields(self) -> ObjectKind:
        return of_shape(self.shape)

    def empty(self) -> Object:
        return type_descriptors.decode(self.shape, {}, [])

    def decode(self, obj: Object) -> list[str]:
        unknown: list[str] = []
        decoded = type_descriptors.decode(self.shape, obj, unknown)
        meta: Object = {"metadata": decoded.get("metadata", {})}
        metadata.decode(meta, [])
        obj.clear()
        obj.update(decoded | meta)
        return unknown

    def default(self, obj: Object) -> None:
        if self.defaults is not None:
            self.defaults(obj)

    def prepare(self, obj: Object, old: Object | None) -> None:
        self.decide(obj, old)

    def advise(self, obj: Object) -> list[str]:
        return [] if self.advice is None else self.advice(obj)

    def validate(
        self,
        obj: Object,
        old: Object | None,
        warnings: list[str] | None = None,  # noqa: ARG002 - the protocol's
        others: Sequence[FieldError] = (),  # noqa: ARG002
    ) -> list[FieldError]:
        unqualified = metadata.unqualified_finalizers(obj["metadata"]) if self.qualified_finalizers else []
        return [*unqualified, *self.rules(obj, old)]


def _keep_status(obj: Object, old: Object | None) -> None:
    if old is not None:
        obj.pop("status", None)
        if "status" in old:
            obj["status"] = old["status"]


def _default_namespace(obj: Object) -> None:
    if name := obj["metadata"].get("name"):
        obj["metadata"].setdefault("labels", {})[NAMESPACE_LABEL] = name


def _decide_namespace(obj: Object, old: Object | None) -> None:
    if old is None:
        obj["metadata"].setdefault("labels", {})[NAMESPACE_LABEL] = obj["metadata"].get("name", "")
        obj["spec"] = {"finalizers": list(dict.fromkeys([*obj["spec"].get("finalizers", ()), "kubernetes"]))}
        obj["status"] = {"phase": "Active"}
    else:
        obj["spec"] = dict(old["spec"])
        _keep_status(obj, old)
        obj["metadata"].setdefault("labels", {})[NAMESPACE_LABEL] = obj["metadata"].get("name", "")


def _finalize_namespace(obj: Object, old: Object, _now: datetime) -> None:
    """Keep the stored object except for spec.finalizers."""
    desired = (obj.get("spec") or {}).get("finalizers")
    obj.clear()
    obj.update({**old, "metadata": dict(old["metadata"]), "spec": {"finalizers": desired} if desired else {}})


def _rules_namespace(obj: Object, _old: Object | None) -> list[FieldError]:
    return _finalizer_names(obj["spec"].get("finalizers", ()), "spec.finalizers")


def _finalizer_names(names: Sequence[str], where: str) -> list[FieldError]:
    errors = [field_errors.invalid(where, name, why) for name in names for why in name_validation.qualified_name(name)]
    bare = (name for name in names if "/" not in name and name not in metadata.STANDARD_FINALIZERS)
    return errors + [field_errors.invalid(where, name, metadata.UNQUALIFIED) for name in bare]


def _rules_namespace_status(obj: Object, _old: Object) -> list[FieldError]:
    """Check that the phase agrees with deletionTimestamp."""
    going = "deletionTimestamp" in obj["metadata"]
    phase, expected = obj["status"].get("phase", ""), "Terminating" if going else "Active"
    if phase == expected:
        return []
    why = f"may only be '{expected}' if `deletionTimestamp` is {'not ' if going else ''}empty"
    return [field_errors.invalid("status.phase", phase, why)]


def _default_secret(obj: Object) -> None:
    obj["type"] = obj.get("type") or "Opaque"
    given = obj.pop("stringData", None)
    if given:
        encoded = {k: base64.b64encode(v.encode()).decode() for k, v in given.items()}
        obj["data"] = obj.get("data", {}) | encoded


def _rules_secret(obj: Object, old: Object | None) -> list[FieldError]:
    data = obj.get("data", {})
    errors = _data_keys("data", data)
    if sum(map(_decoded_size, data.values())) > SECRET_BYTES:
        errors.append(field_errors.too_long("data", SECRET_BYTES))
    errors += _typed_secret(obj["type"], data, obj["metadata"])
    if old is not None:
        changed = [field_errors.immutable("type", obj["type"])] if obj["type"] != old["type"] else []
        errors = [*changed, *_immutable_data(obj, old, ("data",)), *errors]
    return errors


def _decoded_size(encoded: str) -> int:
    """Return the number of bytes that base64 text encodes; line breaks do not count."""
    letters = len(encoded) - encoded.count("\n") - encoded.count("\r")
    return letters * 3 // 4 - encoded[-8:].count("=")


def _typed_secret(kind: str, data: Mapping[str, str], meta: Mapping[str, Any]) -> list[FieldError]:
    match kind:
        case "kubernetes.io/basic-auth":
            if "username" in data or "password" in data:
                return []
            return [field_errors.required("data[username]"), field_errors.required("data[password]")]
        case "kubernetes.io/ssh-auth":
            return [] if data.get("ssh-privatekey") else [field_errors.required("data[ssh-privatekey]")]
        case "kubernetes.io/tls":
            return [field_errors.required(f"data[{k}]") for k in ("tls.crt", "tls.key") if k not in data]
        case "kubernetes.io/dockerconfigjson":
            return _json_secret(".dockerconfigjson", data)
        case "kubernetes.io/dockercfg":
            return _json_secret(".dockercfg", data)
        case "kubernetes.io/service-account-token":
            name = meta.get("annotations", {}).get("kubernetes.io/service-account.name", "")
            where = "metadata.annotations[kubernetes.io/service-account.name]"
            return [] if name else [field_errors.required(where)]
    return []


def _json_secret(key: str, data: Mapping[str, str]) -> list[FieldError]:
    if key not in data:
        return [field_errors.required(f"data[{key}]")]
    try:
        content = gojson.decode(base64.b64decode(data[key]))
    except (gojson.MalformedJson, binascii.Error) as error:
        return [field_errors.invalid(f"data[{key}]", HIDDEN, str(error))]
    if isinstance(content, dict | None):
        return []
    what = {list: "array", str: "string", bool: "bool"}.get(type(content), "number")
    why = f"json: cannot unmarshal {what} into Go value of type map[string]interface {{}}"
    return [field_errors.invalid(f"data[{key}]", HIDDEN, why)]


def _data_keys(where: str, data: Mapping[str, Any]) -> list[FieldError]:
    return [field_errors.invalid(f"{where}[{k}]", k, why) for k in data for why in name_validation.config_key(k)]


def _immutable_data(obj: Object, old: Object, keys: tuple[str, ...]) -> list[FieldError]:
    if not old.get("immutable"):
        return []
    why = "field is immutable when `immutable` is set"
    errors = [] if obj.get("immutable") else [field_errors.forbidden("immutable", why)]
    return errors + [field_errors.forbidden(k, why) for k in keys if obj.get(k, {}) != old.get(k, {})]


def _rules_config_map(obj: Object, old: Object | None) -> list[FieldError]:
    data, binary = obj.get("data", {}), obj.get("binaryData", {})
    errors: list[FieldError] = []
    for key in data:
        errors += [field_errors.invalid(f"data[{key}]", key, why) for why in name_validation.config_key(key)]
        if key in binary:
            errors.append(field_errors.invalid(f"data[{key}]", key, "duplicate of key present in binaryData"))
    errors += _data_keys("binaryData", binary)
    size = sum(len(v.encode()) for v in data.values()) + sum(map(_decoded_size, binary.values()))
    if size > SECRET_BYTES:
        errors.append(field_errors.too_long("[]", SECRET_BYTES))  # Go reports the path of the whole object for this
    return errors if old is None else [*_immutable_data(obj, old, ("data", "binaryData")), *errors]


def _decide_node(obj: Object, old: Object | None) -> None:
    _keep_status(obj, old)


def _repeated_taint(where: str, taint: Mapping[str, Any]) -> FieldError:
    names = {"Key": "key", "Value": "value", "Effect": "effect"}
    shown = {name: taint.get(key, "") for name, key in names.items()} | {"TimeAdded": taint.get("timeAdded")}
    error = field_errors.duplicate(where, shown)
    return replace(error, message=f"{error.message}: taints must be unique by key and effect pair")


def _rules_node(obj: Object, old: Object | None) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(obj["spec"].get("taints", ())):
        where = f"metadata.taints[{index}]"
        errors += [
            field_errors.invalid(f"{where}.key", taint["key"], why)
            for why in name_validation.qualified_name(taint["key"])
        ]
        value = taint.get("value", "")
        errors += [field_errors.invalid(f"{where}.value", value, why) for why in name_validation.label_value(value)]
        if not taint["effect"]:
            errors.append(field_errors.required(f"{where}.effect"))
        elif taint["effect"] not in TAINT_EFFECTS:
            errors.append(field_errors.unsupported(f"{where}.effect", taint["effect"], TAINT_EFFECTS))
        if (taint["key"], taint["effect"]) in seen:
            errors.append(_repeated_taint(where, taint))
        seen.add((taint["key"], taint["effect"]))
    before = (old or {}).get("spec", {}).get("providerID", "")
    if before and obj["spec"].get("providerID", "") != before:
        errors.append(
            field_errors.forbidden("spec.providerID", 'node updates may not change providerID except from "" to valid')
        )
    # Kubernetes validates an update of a Node twice and reports each error twice
    return errors if old is None else errors * 2


def _rules_lease(obj: Object, _old: Object | None) -> list[FieldError]:
    spec = obj["spec"]
    errors = []
    if (seconds := spec.get("leaseDurationSeconds")) is not None and seconds <= 0:
        errors.append(field_errors.invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0"))
    if (transitions := spec.get("leaseTransitions")) is not None and transitions < 0:
        errors.append(field_errors.invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0"))
    strategy = spec.get("strategy")
    if strategy is not None:
        errors += _strategy(strategy)
    if spec.get("preferredHolder") and not strategy:
        errors.append(field_errors.forbidden("spec.preferredHolder", "may only be specified if `strategy` is defined"))
    return errors


def _strategy(strategy: str) -> list[FieldError]:
    where = "spec.strategy"
    if "/" in strategy:
        return [field_errors.invalid(where, strategy, why) for why in name_validation.qualified_name(strategy)]
    known = ["OldestEmulationVersion"]
    return [] if strategy in known else [field_errors.unsupported(f"{where}.strategy", strategy, known)]


def _rules_event(obj: Object, _old: Object | None) -> list[FieldError]:
    return rules_of_event(obj, "reportingComponent")


_EVENT_FIELDS: Final = {
    f"involvedObject.{name}": f"involvedObject.{name}"
    for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
} | {"reason": "reason", "reportingComponent": "reportingComponent", "source": "source.component", "type": "type"}

NAMESPACES: Final = Resource(
    "",
    "v1",
    "Namespace",
    "namespaces",
    "namespace",
    False,
    BuiltInType(
        core_types.NAMESPACE,
        name_check=name_validation.label_1123,
        defaults=_default_namespace,
        decide=_decide_namespace,
        rules=_rules_namespace,
    ),
    short_names=("ns",),
    verbs=tuple(v for v in ALL_VERBS if v != "deletecollection"),
    subresources={
        "finalize": Subresource(_finalize_namespace, ("update",)),
        "status": Subresource(keep_all_but_status, rules=_rules_namespace_status),
    },
    selectable={"status.phase": "status.phase"},
    columns=columns.NAMESPACE,
)
CONFIG_MAPS: Final = Resource(
    "",
    "v1",
    "ConfigMap",
    "configmaps",
    "configmap",
    True,
    BuiltInType(core_types.CONFIG_MAP, rules=_rules_config_map),
    short_names=("cm",),
    columns=columns.CONFIG_MAP,
)
SECRETS: Final = Resource(
    "",
    "v1",
    "Secret",
    "secrets",
    "secret",
    True,
    BuiltInType(core_types.SECRET, defaults=_default_secret, rules=_rules_secret),
    selectable={"type": "type"},
    columns=columns.SECRET,
)
SERVICE_ACCOUNTS: Final = Resource(
    "",
    "v1",
    "ServiceAccount",
    "serviceaccounts",
    "serviceaccount",
    True,
    BuiltInType(core_types.SERVICE_ACCOUNT, unconditional_update=False),
    short_names=("sa",),
    columns=columns.SERVICE_ACCOUNT,
)
NODES: Final = Resource(
    "",
    "v1",
    "Node",
    "nodes",
    "node",
    False,
    BuiltInType(NODE, decide=_decide_node, rules=_rules_node),
    short_names=("no",),
    subresources=STATUS,
    proxied={
        "proxy": ProxiedSubresource(
            "NodeProxyOptions", ("create", "delete", "get", "patch", "update"), passes_path=True
        )
    },
    selectable={"spec.unschedulable": "spec.unschedulable"},
    columns=columns.NODE,
)
EVENTS: Final = Resource(
    "",
    "v1",
    "Event",
    "events",
    "event",
    True,
    BuiltInType(
        core_types.EVENT,
        name_check=name_validation.path_segment,
        create_on_update=True,
        rules=_rules_event,
        qualified_finalizers=False,
    ),
    short_names=("ev",),
    selectable=_EVENT_FIELDS,
    columns=columns.EVENT,
)
LEASES: Final = Resource(
    "coordination.k8s.io",
    "v1",
    "Lease",
    "leases",
    "lease",
    True,
    BuiltInType(
        core_types.LEASE,
        unconditional_update=False,
        create_on_update=True,
        rules=_rules_lease,
        qualified_finalizers=False,
    ),
    columns=columns.LEASE,
)
RESOURCES: Final = (CONFIG_MAPS, EVENTS, NAMESPACES, NODES, SECRETS, SERVICE_ACCOUNTS, LEASES)
