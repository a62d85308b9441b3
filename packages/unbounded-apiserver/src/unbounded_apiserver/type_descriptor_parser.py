"""The notation of the built-in types, and the types that all of them share.

    Probe: Check of a container by kubelet.
      exec ExecAction*  Runs a command.
      periodSeconds int32  Seconds from one to the next.

A line without indentation begins a type: its name, modifiers, and its description. Modifiers are:
- `of OTHER`: has all fields of another type,
- `atomic`: has one owner as a whole,
- `meta`: belongs to the package of metadata.

The lines below are its fields: name, type and, after two spaces, a description. A type is one of:
- a scalar,
- `port`: a number or a name,
- `set` of strings, or `mergeset`, which strategic patches merge,
- `any`: kept unchanged,
- another type,
- `[T]`: a list, or `[T]key+key`, whose elements are identified by these fields, and merged by the first; `[T]+key`
  identifies them for server-side apply alone,
- `{T}`: a map.

After a type, `*` marks a pointer in Go, so that an empty value is kept; `!` marks a field that is always printed. Last,
`=` marks an object that strategic patches replace as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from unbounded_apiserver import type_descriptors

META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"
CORE: Final = "io.k8s.api.core.v1"

_SCALARS: Final[Mapping[str, type_descriptors.TypeDesc]] = {
    "any": type_descriptors.ANYTHING,
    "bool": type_descriptors.BOOL,
    "bytes": type_descriptors.BYTES,
    "float": type_descriptors.FLOAT,
    "int32": type_descriptors.INT32,
    "int64": type_descriptors.INT64,
    "mergeset": type_descriptors.ListType(type_descriptors.STRING, ""),
    "microtime": type_descriptors.MICRO_TIME,
    "port": type_descriptors.INT_OR_STRING,
    "quantity": type_descriptors.QUANTITY,
    "set": type_descriptors.ListType(type_descriptors.STRING, as_set=True),
    "string": type_descriptors.STRING,
    "time": type_descriptors.TIME,
}
COMMON: Final[dict[str, type_descriptors.StructType]] = {}  # types that others refer to, from _COMMON
_COMMON: Final = """
ObjectMeta meta: Metadata of every object: name, labels, versions, owners.
  name string  Unique within its namespace and kind; it cannot change.
  generateName string  A prefix: with it and without a name, the server makes a unique name.
  namespace string  The space within which the name is unique; empty for cluster-wide objects.
  uid string  Unique in time and space, given by the server.
  resourceVersion string  Opaque; changes with every write. Sent back, it detects conflicts.
  generation int64  Counts the changes of the desired state.
  creationTimestamp time  Time of the object's creation.
  deletionTimestamp time  Time of the deletion request; the object is removed with its last finalizer.
  deletionGracePeriodSeconds int64*  Grace period of the deletion, in seconds.
  labels {string}  Keys and values to organise and select objects by.
  annotations {string}  Keys and values for tools; they cannot be selected by.
  ownerReferences [OwnerReference]uid  Objects that this one depends on.
  finalizers mergeset  Controllers that must act before the object is removed.
  managedFields [any]  Fields that each manager has set.
  selfLink string  Not used any more.
OwnerReference atomic meta: Points to an object that owns this one; when all owners are gone, this is deleted.
  apiVersion string!  API version of the owner.
  kind string!  Kind of the owner.
  name string!  Name of the owner.
  uid string!  UID of the owner.
  controller bool*  The owner is the managing controller.
  blockOwnerDeletion bool*  A foreground deletion of the owner waits for the removal of this object.
LabelSelector atomic meta: Selects objects by their labels; an empty one selects all.
  matchLabels {string}  Labels that have to be there.
  matchExpressions [LabelSelectorRequirement]  Requirements that all have to hold.
LabelSelectorRequirement meta: One requirement on labels.
  key string!  The key of the label.
  operator string!  In, NotIn, Exists or DoesNotExist.
  values [string]  The values, for In and NotIn.
Condition meta: One aspect of the object's state.
  type string!  Type of the condition.
  status string!  True, False or Unknown.
  observedGeneration int64  Generation that it refers to.
  lastTransitionTime time!  Time of the last change of the status.
  reason string!  Reason of the last change, in one word.
  message string!  Message for users.
ObjectReference atomic: Points to an object.
  kind string  Kind of the object.
  namespace string  Namespace of the object.
  name string  Name of the object.
  uid string  UID of the object.
  apiVersion string  API version of the object.
  resourceVersion string  Version of the object, if it refers to one.
  fieldPath string  A part of the object, such as spec.containers[0].
LocalObjectReference atomic: Points to an object of the same namespace.
  name string  Name of the object.
"""
_HEAD: Final = re.compile(
    r"(?P<name>\w+)(?: of (?P<base>\w+))?(?P<atomic> atomic)?(?P<meta> meta)?(?:: (?P<about>.*))?"
)
_FIELD: Final = re.compile(r"  (?P<name>\S+) (?P<type>\S+?)(?P<mark>[!*]?)(?P<replaced>=?)(?:  (?P<about>.*))?")
_LIST: Final = re.compile(r"\[(?P<item>\w+)\](?P<keys>[\w+]*)")


def read(
    *texts: str, package: str = CORE, known: Mapping[str, type_descriptors.TypeDesc] | None = None
) -> Mapping[str, type_descriptors.StructType]:
    """Return the types of some texts by name; they may reference each other, in any order.

    Args:
        package: the package of the types in OpenAPI.
        known: further types that fields may have.
    """
    last = ""
    members: dict[str, dict[str, type_descriptors.StructField]] = {}
    found: dict[str, type_descriptors.TypeDesc] = {**_SCALARS, **COMMON, **(known or {})}
    pending: list[tuple[str, str]] = []  # a type, and the line of one of its fields
    for line in "\n".join(texts).splitlines():
        if line.startswith("  "):
            pending.append((last, line))
        elif line:
            last, base = _begin(line, members, found, package)
            pending += [(last, inherited) for owner, inherited in pending if owner == base]
    for name, line in pending:
        field = _match(_FIELD, line)
        shape = _shape(field["type"], found)
        mark, replaced = field["mark"], bool(field["replaced"])
        members[name][field["name"]] = type_descriptors.StructField(
            shape, field["about"] or "", keep=mark == "*", always=mark == "!", replaced=replaced
        )
    return {
        name: shape
        for name, shape in found.items()
        if isinstance(shape, type_descriptors.StructType) and name in members
    }


def kind(types: Mapping[str, type_descriptors.StructType], name: str) -> type_descriptors.StructType:
    """Return the shape of a kind: apiVersion, kind, metadata, and its own fields, which the notation gives."""
    own = types[name]
    head = {"apiVersion": API_VERSION, "kind": KIND, "metadata": METADATA}
    return type_descriptors.StructType(name, {**head, **own.fields}, own.about, own.package)


def _begin(
    line: str,
    members: dict[str, dict[str, type_descriptors.StructField]],
    found: dict[str, type_descriptors.TypeDesc],
    package: str,
) -> tuple[str, str]:
    """Add a type without its fields; return its name, and that of the type whose fields it also has."""
    head = _match(_HEAD, line)
    name: str = head["name"]
    members[name] = {}
    where = META if head["meta"] else package
    found[name] = type_descriptors.StructType(
        name, members[name], head["about"] or "", where, atomic=bool(head["atomic"])
    )
    return name, head["base"] or ""


def _shape(text: str, found: Mapping[str, type_descriptors.TypeDesc]) -> type_descriptors.TypeDesc:
    if text.startswith("{"):
        return type_descriptors.MapType(_shape(text[1:-1], found))
    listed = _LIST.fullmatch(text)
    if listed is None:
        return found[text]
    item, keys = found[listed["item"]], tuple(listed["keys"].split("+"))
    if keys[0]:
        return type_descriptors.ListType(item, keys[0], keys if len(keys) > 1 else ())
    return type_descriptors.ListType(item, map_keys=keys[1:])


def _match(pattern: re.Pattern[str], line: str) -> re.Match[str]:
    match = pattern.fullmatch(line)
    if match is None:
        raise ValueError(f"not in the notation of shapes: {line!r}")
    return match


COMMON.update(read(_COMMON))
OBJECT_META: Final = COMMON["ObjectMeta"]
API_VERSION: Final = type_descriptors.StructField(
    type_descriptors.STRING, "The group and version of the schema that this object follows."
)
KIND: Final = type_descriptors.StructField(
    type_descriptors.STRING, "The type of this object, in CamelCase; it cannot change."
)
METADATA: Final = type_descriptors.StructField(OBJECT_META, "Standard metadata of the object.")
