"""Resources that nodes offer to Pods: handlers of the container runtime (RuntimeClass) and devices (ResourceSlice).

Drivers of kubelet publish the devices. Nothing is allocated here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from unbounded_apiserver import field_errors, name_validation, type_descriptor_parser
from unbounded_apiserver.builtin_resources import BuiltInType
from unbounded_apiserver.columns import AGE, NAME
from unbounded_apiserver.kubelet_types.storage import driver_name, immutable
from unbounded_apiserver.resource_model import Object, Resource, TableColumn
from unbounded_apiserver.schema import FieldError
from unbounded_apiserver.schema.errors import too_many
from unbounded_apiserver.workloads.pods import TYPES as POD_TYPES

RUNTIME_GROUP: Final = "node.k8s.io"
_CLASS_TYPES: Final = type_descriptor_parser.read(
    """
RuntimeClass: A handler of the container runtime that pods can name.
  handler string!  The handler as the runtime calls it.
  overhead Overhead*  The resources of each of its pods beyond its containers.
  scheduling Scheduling*  The nodes that have the handler.
Overhead: The resources of a pod beyond its containers.
  podFixed {quantity}  Resources of each pod.
Scheduling: Nodes and tolerations of pods of the class.
  nodeSelector {string}  Labels that the node must have.
  tolerations [Toleration]  Taints that these pods are allowed on.
""",
    package="io.k8s.api.node.v1",
    known={"Toleration": POD_TYPES["Toleration"]},
)


def _class_rules(obj: Object, old: Object | None) -> list[FieldError]:
    handler, scheduling = obj["handler"], obj.get("scheduling") or {}
    errors = (
        [field_errors.invalid("handler", handler, why) for why in name_validation.label_1123(handler)]
        if handler
        else []
    )
    if not handler:
        errors.append(field_errors.required("handler"))
    for key, value in (scheduling.get("nodeSelector") or {}).items():
        where = "scheduling.nodeSelector"
        errors += [field_errors.invalid(where, key, why) for why in name_validation.qualified_name(key)]
        errors += [field_errors.invalid(where, value, why) for why in name_validation.label_value(value)]
    seen: list[tuple[Any, ...]] = []
    for index, toleration in enumerate(scheduling.get("tolerations") or ()):
        identity = tuple(toleration.get(name, "") for name in ("key", "operator", "value", "effect"))
        if identity in seen:
            errors.append(field_errors.duplicate(f"scheduling.tolerations[{index}]", toleration))
        seen.append(identity)
    return errors if old is None else [*errors, *immutable(handler, old["handler"], "handler")]


RUNTIME_CLASSES: Final = Resource(
    RUNTIME_GROUP,
    "v1",
    "RuntimeClass",
    "runtimeclasses",
    "runtimeclass",
    False,
    BuiltInType(
        type_descriptor_parser.kind(_CLASS_TYPES, "RuntimeClass"), unconditional_update=False, rules=_class_rules
    ),
    columns=(NAME, TableColumn("Handler", path=".handler"), AGE),
)


GROUP: Final = "resource.k8s.io"
NAME_BYTES: Final = 253
DEVICES: Final = 128
ONE_OF: Final = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
TYPES: Final = type_descriptor_parser.read(
    """
ResourceSlice: Devices of one pool, as a driver publishes them.
  spec ResourceSliceSpec!  The devices.
ResourceSliceSpec: The devices of a slice, and where they can be reached.
  allNodes bool*  All nodes reach them.
  devices [Device]  The devices.
  driver string!  The driver that published them.
  nodeName string*  The only node that reaches them.
  nodeSelector NodeSelector*  The nodes that reach them.
  perDeviceNodeSelection bool*  Each device names the nodes that reach it.
  pool ResourcePool!  The pool that they belong to.
  sharedCounters [CounterSet]  Amounts that devices share.
Device: A device.
  allNodes bool*
  allowMultipleAllocations bool*  Several claims can have it.
  attributes {DeviceAttribute}  Properties that claims select by.
  bindingConditions [string]
  bindingFailureConditions [string]
  bindsToNode bool*
  capacity {DeviceCapacity}  Amounts of the device.
  consumesCounters [DeviceCounterConsumption]  Its share of shared counters.
  name string!  The device in its pool.
  nodeAllocatableResourceMappings {NodeAllocatableResourceMapping}
  nodeName string*
  nodeSelector NodeSelector*
  taints [DeviceTaint]  Keep claims off the device.
ResourcePool: A pool of devices.
  generation int64!  Counts the changes of the pool.
  name string!  The pool of the driver.
  resourceSliceCount int64!  Slices of the pool in this generation.
CounterSet: Amounts that devices share.
  counters {Counter}  The amounts by name.
  name string!  The set.
DeviceAttribute: A property of a device; one of its fields is set.
  bool bool*
  bools [bool]
  int int64*
  ints [int64]
  string string*
  strings [string]
  version string*
  versions [string]
DeviceCapacity: An amount of a device.
  requestPolicy CapacityRequestPolicy*  Amounts of it that a claim can request.
  value quantity!  The amount.
DeviceCounterConsumption: Share of a device in a set of counters.
  counterSet string!  The set.
  counters {Counter}  The amounts by name.
NodeAllocatableResourceMapping
  allocationMultiplier quantity*
  capacityKey string*
DeviceTaint: Keeps claims off a device that do not tolerate it.
  effect string!  NoSchedule or NoExecute.
  key string!  The key of the taint.
  timeAdded time  Time at which it was added.
  value string  Value of the key.
Counter: A shared amount.
  value quantity!  The amount.
CapacityRequestPolicy: Amounts of a capacity that a claim can request.
  default quantity*
  validRange CapacityRequestPolicyRange*
  validValues [quantity]
CapacityRequestPolicyRange
  max quantity*
  min quantity*
  step quantity*
""",
    package="io.k8s.api.resource.v1",
    known={"NodeSelector": POD_TYPES["NodeSelector"]},
)


def _decide(obj: Object, old: Object | None) -> None:
    if old is not None and obj["spec"] != old["spec"]:
        obj["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1


def _rules(obj: Object, old: Object | None) -> list[FieldError]:
    spec = obj["spec"]
    errors = [*driver_name(spec["driver"], "spec.driver"), *_pool(spec["pool"]), *_nodes(spec), *_devices(spec)]
    if old is not None:
        before = old["spec"]
        errors += immutable(spec["pool"]["name"], before["pool"]["name"], "spec.pool.name")
        errors += immutable(spec["driver"], before["driver"], "spec.driver")
        errors += immutable(spec.get("nodeName"), before.get("nodeName"), "spec.nodeName")
    return errors


def _pool(pool: Object) -> Iterator[FieldError]:
    where, name = "spec.pool", pool["name"]
    if not name:
        yield field_errors.required(f"{where}.name")
    else:
        if len(name.encode()) > NAME_BYTES:
            yield field_errors.too_long(f"{where}.name", NAME_BYTES)
        parts = name.split("/")
        yield from (
            field_errors.invalid(f"{where}.name", part, why)
            for part in parts
            for why in name_validation.subdomain(part)
        )
    if pool["resourceSliceCount"] <= 0:
        yield field_errors.invalid(
            f"{where}.resourceSliceCount", pool["resourceSliceCount"], "must be greater than zero"
        )
    if pool["generation"] < 0:
        why = "must be greater than or equal to zero"
        yield field_errors.invalid(f"{where}.generation", pool["generation"], why)


def _nodes(spec: Object) -> Iterator[FieldError]:
    node, selector = spec.get("nodeName"), spec.get("nodeSelector")
    if node == "":
        yield field_errors.invalid("spec.nodeName", node, "must be either unset or set to a non-empty string")
    elif node is not None:
        yield from (field_errors.invalid("spec.nodeName", node, why) for why in name_validation.subdomain(node))
    if selector is not None and len(terms := selector.get("nodeSelectorTerms") or ()) != 1:
        why = "must have exactly one node selector term"
        yield field_errors.invalid("spec.nodeSelector.nodeSelectorTerms", list(terms), why)
    flags = ("allNodes", "perDeviceNodeSelection")
    for name in flags:
        if spec.get(name) is False:
            yield field_errors.invalid(f"spec.{name}", False, "must be either unset or set to true")
    given = [*(["nodeName"] if node else []), *(["nodeSelector"] if selector is not None else [])]
    given += [name for name in flags if spec.get(name)]
    if not given:
        yield field_errors.required("spec", ONE_OF)
    elif len(given) > 1:
        shown = ", ".join(f"`{name}`" for name in given)
        yield field_errors.invalid("spec", f"{{{shown}}}", f"{ONE_OF}, but multiple fields are set")


def _devices(spec: Object) -> Iterator[FieldError]:
    devices, names = spec.get("devices") or (), set()
    if devices and spec.get("sharedCounters"):
        yield field_errors.invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    if len(devices) > DEVICES:
        yield too_many("spec.devices", len(devices), DEVICES)
    for index, device in enumerate(devices):
        where, name = f"spec.devices[{index}]", device["name"]
        if not name:
            yield field_errors.required(f"{where}.name")
        else:
            yield from (field_errors.invalid(f"{where}.name", name, why) for why in name_validation.label_1123(name))
        if name in names:
            yield field_errors.duplicate(where, name)
        names.add(name)


RESOURCE_SLICES: Final = Resource(
    GROUP,
    "v1",
    "ResourceSlice",
    "resourceslices",
    "resourceslice",
    False,
    BuiltInType(type_descriptor_parser.kind(TYPES, "ResourceSlice"), generation=True, decide=_decide, rules=_rules),
    selectable={"spec.driver": "spec.driver", "spec.nodeName": "spec.nodeName"},
    columns=(
        NAME,
        TableColumn("Node", cell=lambda obj: obj["spec"].get("nodeName") or ""),
        TableColumn("Driver", path=".spec.driver"),
        TableColumn("Pool", path=".spec.pool.name"),
        AGE,
    ),
)
