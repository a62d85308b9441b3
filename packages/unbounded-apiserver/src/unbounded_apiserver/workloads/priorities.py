"""PriorityClass: the importance of a Pod to its node. Nothing is preempted here; kubelet evicts by priority."""

from __future__ import annotations

from typing import Final

from unbounded_apiserver import field_errors, status, type_descriptor_parser
from unbounded_apiserver.builtin_resources import BuiltInType
from unbounded_apiserver.columns import AGE, NAME
from unbounded_apiserver.decoding import normalize
from unbounded_apiserver.options import WriteOptions
from unbounded_apiserver.resource_model import Object, Resource, TableColumn
from unbounded_apiserver.schema import FieldError
from unbounded_apiserver.store import Store
from unbounded_apiserver.writes import Writes

GROUP: Final = "scheduling.k8s.io"
PREEMPT: Final = "PreemptLowerPriority"
POLICIES: Final = ["Never", PREEMPT]
HIGHEST: Final = 1_000_000_000  # limit for classes of users
RESERVED: Final = "system-"
SYSTEM_CLASSES: Final = {
    "system-node-critical": (
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
    "system-cluster-critical": (
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
}


_TYPES: Final = type_descriptor_parser.read(
    """
PriorityClass: The importance of Pods.
  value int32!  The priority; more is more important.
  globalDefault bool  True if Pods without a class get this one.
  description string  The purpose of the class.
  preemptionPolicy string*  Never or PreemptLowerPriority.
""",
    package="io.k8s.api.scheduling.v1",
)


def _default(obj: Object) -> None:
    obj.setdefault("preemptionPolicy", PREEMPT)


def _rules(obj: Object, old: Object | None) -> list[FieldError]:
    name, errors = obj["metadata"].get("name", ""), []
    if name.startswith(RESERVED):
        if why := _why_not_system(name, obj):
            what = f"priority class names with '{RESERVED}' prefix are reserved for system use only. error: {why}"
            errors.append(field_errors.forbidden("metadata.name", what))
    elif obj["value"] > HIGHEST:
        errors.append(field_errors.forbidden("value", f"maximum allowed value of a user defined priority is {HIGHEST}"))
    if obj["preemptionPolicy"] not in POLICIES:
        errors.append(field_errors.unsupported("preemptionPolicy", obj["preemptionPolicy"], POLICIES))
    if old is not None and obj["value"] != old["value"]:
        errors.append(field_errors.forbidden("value", "may not be changed in an update."))
    if old is not None and obj["preemptionPolicy"] != old["preemptionPolicy"]:
        errors.append(field_errors.immutable("preemptionPolicy", obj["preemptionPolicy"]))
    return errors


def _why_not_system(name: str, obj: Object) -> str:
    if name not in SYSTEM_CLASSES:
        return f"{name} is not a known system priority class"
    value = SYSTEM_CLASSES[name][0]
    if obj["value"] != value:
        return f"value of {name} PriorityClass must be {value}"
    return f"globalDefault of {name} PriorityClass must be false" if obj.get("globalDefault") else ""


PRIORITY_CLASSES: Final = Resource(
    GROUP,
    "v1",
    "PriorityClass",
    "priorityclasses",
    "priorityclass",
    False,
    BuiltInType(
        type_descriptor_parser.kind(_TYPES, "PriorityClass"),
        generation=True,
        defaults=_default,
        rules=_rules,
    ),
    short_names=("pc",),
    columns=(
        NAME,
        TableColumn("Value", "integer", description="The priority.", cell=lambda obj: obj["value"]),
        TableColumn(
            "Global-Default",
            "boolean",
            description="True if Pods without a class get this one.",
            cell=lambda obj: bool(obj.get("globalDefault")),
        ),
        AGE,
        TableColumn("PreemptionPolicy", description="Never or PreemptLowerPriority.", path=".preemptionPolicy"),
    ),
)


class PriorityClasses:
    """The priority classes of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find(self, name: str) -> Object | None:
        """Return the class of this name."""
        record = self._store.get(PRIORITY_CLASSES.name, name)
        return None if record is None else record.decode()

    def default(self) -> Object | None:
        """Return the class of Pods without one; the least important of several default ones."""
        stored = self._store.snapshot(PRIORITY_CLASSES.name).with_prefix("")
        found = [record.decode() for record in stored if b'"globalDefault":true' in record.bare]
        return min(found, key=lambda one: int(one["value"]), default=None)

    def admit(self, obj: Object, _old: Object | None) -> None:
        """Reject a second default. Raises StatusError (403)."""
        default = self.default() if obj.get("globalDefault") else None
        if default is not None and default["metadata"]["name"] != (name := obj["metadata"]["name"]):
            other = default["metadata"]["name"]
            why = f"PriorityClass {other} is already marked as default. Only one default can exist"
            raise status.forbidden(GROUP, PRIORITY_CLASSES.plural, name, why)


async def ensure_system_classes(store: Store, writes: Writes) -> None:
    """Create Kubernetes' classes for critical Pods if they are missing."""
    for name, (value, description) in SYSTEM_CLASSES.items():
        if store.get(PRIORITY_CLASSES.name, name) is None:
            obj: Object = {"metadata": {"name": name}, "value": value, "description": description}
            normalize(PRIORITY_CLASSES, obj)
            await writes.create_object(PRIORITY_CLASSES, "", obj, WriteOptions())
