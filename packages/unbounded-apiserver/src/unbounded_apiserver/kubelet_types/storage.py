"""storage.k8s.io: CSINode, which kubelet needs to become Ready, and the objects that CSI drivers read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from unbounded_apiserver import field_errors, name_validation, type_descriptor_parser
from unbounded_apiserver.builtin_resources import BuiltInType
from unbounded_apiserver.columns import AGE, NAME
from unbounded_apiserver.resource_model import STATUS, Object, Resource, TableColumn
from unbounded_apiserver.schema import FieldError

FIELDS: Final = """
CSINode: The CSI drivers on a node.
  spec CSINodeSpec!  The drivers.
CSINodeSpec: The CSI drivers on a node.
  drivers [CSINodeDriver]name!  One entry for each driver.
CSINodeDriver: A CSI driver on a node.
  allocatable VolumeNodeResources*  The number of volumes that it supports.
  name string!  The name of the driver.
  nodeID string!  The node as the driver calls it.
  topologyKeys [string]!  Labels that say where volumes can be reached.
VolumeNodeResources: Limits of a node.
  count int32*  The most volumes at a time.
CSIDriver: The needs of a CSI driver.
  spec CSIDriverSpec!  The properties of the driver.
CSIDriverSpec: The properties of a CSI driver.
  attachRequired bool*  True if its volumes are attached before they are mounted.
  fsGroupPolicy string*  The effect of fsGroup on the ownership of a volume.
  nodeAllocatableUpdatePeriodSeconds int64*  Seconds between updates of a node's limits.
  podInfoOnMount bool*  True if the driver gets facts about the pod.
  preventPodSchedulingIfMissing bool*
  requiresRepublish bool*  True if volumes are published again from time to time.
  seLinuxMount bool*  True if mounts take an SELinux context.
  serviceAccountTokenInSecrets bool*  True if tokens come as secrets.
  storageCapacity bool*  True if free capacity counts in scheduling.
  tokenRequests [TokenRequest]  Tokens of the pod's account for the driver.
  volumeLifecycleModes set  Persistent, Ephemeral.
TokenRequest: A token of the pod's account.
  audience string!  The audience of the token.
  expirationSeconds int64*  Seconds of its life.
StorageClass: A way to provision volumes.
  allowVolumeExpansion bool*  True if volumes can grow.
  allowedTopologies [TopologySelectorTerm]  Topologies of its volumes.
  mountOptions [string]  Options of mount.
  parameters {string}  Settings of the provisioner.
  provisioner string!  The provisioner.
  reclaimPolicy string*  Delete or Retain.
  volumeBindingMode string*  Immediate or WaitForFirstConsumer.
VolumeAttachment: The wish to attach a volume to a node.
  spec VolumeAttachmentSpec!  The desired state.
  status VolumeAttachmentStatus  The observed state.
VolumeAttachmentSpec: The desired state of an attachment.
  attacher string!  The driver that attaches.
  nodeName string!  The node.
  source VolumeAttachmentSource!  The volume.
VolumeAttachmentSource: The volume of an attachment.
  inlineVolumeSpec any*  A volume that is migrated from an in-tree driver.
  persistentVolumeName string*  The PersistentVolume.
VolumeAttachmentStatus: The observed state of an attachment.
  attachError VolumeError*  The last error of attaching.
  attached bool!  True if the volume is attached.
  attachmentMetadata {string}  Facts for later calls.
  detachError VolumeError*  The last error of detaching.
VolumeError: An error of a driver.
  errorCode int32*  Its code in gRPC.
  message string  The driver's message.
  time time  Time of the error.
"""
# Types of the core group that other volumes use too.
TOPOLOGY: Final = """
TopologySelectorTerm atomic: Topology of a volume.
  matchLabelExpressions [TopologySelectorLabelRequirement]  Requirements on labels.
TopologySelectorLabelRequirement: A requirement on labels.
  key string!  The key of the label.
  values [string]!  Values, of which one has to match.
"""


GROUP: Final = "storage.k8s.io"
DRIVER_NAME_BYTES: Final = 63
NODE_ID_BYTES: Final = 256
METADATA_BYTES: Final = 256 * 1024
PARAMETERS: Final = 512
TYPES: Final = type_descriptor_parser.read(
    FIELDS, package="io.k8s.api.storage.v1", known=type_descriptor_parser.read(TOPOLOGY)
)


def immutable(new: Any, old: Any, where: str) -> list[FieldError]:
    """Return the error of a change to an immutable field."""
    return [] if new == old else [field_errors.immutable(where, new)]


def driver_name(name: str, where: str) -> Iterator[FieldError]:
    """Yield the errors of a driver's name."""
    if not name:
        yield field_errors.required(where)
        return
    if len(name.encode()) > DRIVER_NAME_BYTES:
        yield field_errors.too_long(where, DRIVER_NAME_BYTES)
    yield from (field_errors.invalid(where, name, why) for why in name_validation.subdomain(name.lower()))


def _rules_csi_node(obj: Object, old: Object | None) -> list[FieldError]:
    errors: list[FieldError] = []
    names: set[str] = set()
    for index, driver in enumerate(obj["spec"]["drivers"] or ()):
        where = f"spec.drivers[{index}]"
        errors += _csi_node_driver(driver, where)
        if driver["name"] in names:
            errors.append(field_errors.duplicate(f"{where}.name", driver["name"]))
        names.add(driver["name"])
    before = {driver["name"]: driver for driver in ((old or {}).get("spec") or {}).get("drivers") or ()}
    for driver in obj["spec"]["drivers"] or ():
        if driver["name"] in before:
            one, other = ({**d, "allocatable": None} for d in (driver, before[driver["name"]]))
            errors += immutable(one, other, "spec.drivers")
    return errors


def _csi_node_driver(driver: Object, where: str) -> Iterator[FieldError]:
    yield from driver_name(driver["name"], f"{where}.name")
    if not driver["nodeID"]:
        yield field_errors.required(f"{where}.nodeID")
    if len(driver["nodeID"].encode()) > NODE_ID_BYTES:
        yield field_errors.invalid(f"{where}.nodeID", driver["nodeID"], f"must be {NODE_ID_BYTES} characters or less")
    count = (driver.get("allocatable") or {}).get("count")
    if count is not None and count < 0:
        yield field_errors.invalid(f"{where}.allocatable.count", count, "must be greater than or equal to 0")
    keys = driver["topologyKeys"] or []
    for index, key in enumerate(keys):
        if not key:
            yield field_errors.required(where)
        if key in keys[:index]:
            yield field_errors.duplicate(where, key)
        yield from (field_errors.invalid(where, key, why) for why in name_validation.qualified_name(key))


def _default_driver(obj: Object) -> None:
    spec = obj["spec"]
    flags = {"podInfoOnMount": False, "storageCapacity": False, "requiresRepublish": False, "seLinuxMount": False}
    for name, value in {"attachRequired": True, "fsGroupPolicy": "ReadWriteOnceWithFSType", **flags}.items():
        spec.setdefault(name, value)
    spec["volumeLifecycleModes"] = spec.get("volumeLifecycleModes") or ["Persistent"]


def _rules_driver(obj: Object, old: Object | None) -> list[FieldError]:
    spec = obj["spec"]
    policies, modes = ["File", "None", "ReadWriteOnceWithFSType"], ["Persistent", "Ephemeral"]
    errors = []
    if spec["fsGroupPolicy"] not in policies:
        errors.append(field_errors.unsupported("spec.fsGroupPolicy", spec["fsGroupPolicy"], policies))
    errors += _token_requests(spec.get("tokenRequests", ()))
    wrong = (mode for mode in spec["volumeLifecycleModes"] if mode not in modes)
    errors += [field_errors.unsupported("spec.volumeLifecycleModes", mode, modes) for mode in wrong]
    period = spec.get("nodeAllocatableUpdatePeriodSeconds")
    if period is not None and period < 10:
        why = "must be greater than or equal to 10 seconds"
        errors.append(field_errors.invalid("spec.nodeAllocatableUpdatePeriodSeconds", period, why))
    if (inside := spec.get("serviceAccountTokenInSecrets")) is not None and not spec.get("tokenRequests"):
        why = "serviceAccountTokenInSecrets is set but no tokenRequests are specified"
        errors.append(field_errors.invalid("spec.serviceAccountTokenInSecrets", inside, why))
    if old is not None:
        errors += immutable(spec["attachRequired"], old["spec"]["attachRequired"], "spec.attachedRequired")
        modes_before = old["spec"]["volumeLifecycleModes"]
        errors += immutable(spec["volumeLifecycleModes"], modes_before, "spec.volumeLifecycleModes")
    return errors


def _token_requests(requests: Any) -> Iterator[FieldError]:
    audiences = set()
    for index, request in enumerate(requests):
        where = f"spec.tokenRequests[{index}]"
        if request["audience"] in audiences:
            yield field_errors.duplicate(f"{where}.audience", request["audience"])
            continue
        audiences.add(request["audience"])
        seconds = request.get("expirationSeconds")
        if seconds is not None and seconds < 600:
            why = "may not specify a duration less than 10 minutes"
            yield field_errors.invalid(f"{where}.expirationSeconds", seconds, why)
        if seconds is not None and seconds > 1 << 32:
            why = "may not specify a duration larger than 2^32 seconds"
            yield field_errors.invalid(f"{where}.expirationSeconds", seconds, why)


def _default_class(obj: Object) -> None:
    obj.setdefault("reclaimPolicy", "Delete")
    obj.setdefault("volumeBindingMode", "Immediate")


def _rules_class(obj: Object, old: Object | None) -> list[FieldError]:
    errors, parameters = [], obj.get("parameters") or {}
    if not obj["provisioner"]:
        errors.append(field_errors.required("provisioner"))
    else:
        wrong = name_validation.qualified_name(obj["provisioner"].lower())
        errors += [field_errors.invalid("provisioner", obj["provisioner"].lower(), why) for why in wrong]
    if len(parameters) > PARAMETERS:
        errors.append(field_errors.too_long("parameters", PARAMETERS))
    elif sum(len(key.encode()) + len(value.encode()) for key, value in parameters.items()) > METADATA_BYTES:
        errors.append(field_errors.too_long("parameters", METADATA_BYTES))
    if "" in parameters:
        errors.append(field_errors.invalid("parameters", "", "field can not be empty."))
    for name, known in (("reclaimPolicy", ["Delete", "Retain"]), ("volumeBindingMode", _BINDING)):
        if obj[name] not in known:
            errors.append(field_errors.unsupported(name, obj[name], known))
    if old is not None:
        for name in ("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"):
            errors += immutable(obj.get(name), old.get(name), name)
    return errors


_BINDING: Final = ["Immediate", "WaitForFirstConsumer"]


def _decide_attachment(obj: Object, old: Object | None) -> None:
    """Keep the status, which has its own subresource."""
    obj["status"] = {"attached": False} if old is None else old["status"]


def _rules_attachment(obj: Object, old: Object | None) -> list[FieldError]:
    spec, status = obj["spec"], obj.get("status") or {}
    errors = [*driver_name(spec["attacher"], "spec.attacher"), *_attachment_source(spec["source"])]
    errors += [
        field_errors.invalid("spec.nodeName", spec["nodeName"], why)
        for why in name_validation.subdomain(spec["nodeName"])
    ]
    size = sum(len(k.encode()) + len(v.encode()) for k, v in status.get("attachmentMetadata", {}).items())
    if size > METADATA_BYTES:
        errors.append(field_errors.too_long("status.attachmentMetadata", METADATA_BYTES))
    for name in ("attachError", "detachError"):
        if ((status.get(name) or {}).get("errorCode") or 0) < 0:
            why = "must be between 0 and 2147483647, inclusive"
            errors.append(field_errors.invalid(f"status.{name}.errorCode", status[name]["errorCode"], why))
    return errors if old is None else [*errors, *immutable(spec, old["spec"], "spec")]


def _attachment_source(source: Object) -> Iterator[FieldError]:
    where, why = "spec.source", "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
    name, inline = source.get("persistentVolumeName"), source.get("inlineVolumeSpec")
    if name is None and inline is None:
        yield field_errors.required(where, why)
    elif name is not None and inline is not None:
        yield field_errors.forbidden(where, why)
    elif name == "":
        yield field_errors.required(f"{where}.persistentVolumeName", "must specify non empty persistentVolumeName")
    elif name is not None:
        yield from (
            field_errors.invalid(f"{where}.persistentVolumeName", name, why) for why in name_validation.subdomain(name)
        )


def _flag(name: str, *, otherwise: bool = False) -> Callable[[Any], bool]:
    return lambda obj: bool(obj["spec"].get(name, otherwise))


def _audiences(obj: Any) -> str:
    requests = obj["spec"].get("tokenRequests")
    return "<unset>" if requests is None else ",".join(request["audience"] for request in requests)


def _class_name(obj: Any) -> str:
    default = obj["metadata"].get("annotations", {}).get("storageclass.kubernetes.io/is-default-class") == "true"
    return f"{obj['metadata']['name']} (default)" if default else str(obj["metadata"]["name"])


CSI_NODES: Final = Resource(
    GROUP,
    "v1",
    "CSINode",
    "csinodes",
    "csinode",
    False,
    BuiltInType(type_descriptor_parser.kind(TYPES, "CSINode"), unconditional_update=False, rules=_rules_csi_node),
    columns=(NAME, TableColumn("Drivers", "integer", cell=lambda obj: len(obj["spec"]["drivers"] or ())), AGE),
)
CSI_DRIVERS: Final = Resource(
    GROUP,
    "v1",
    "CSIDriver",
    "csidrivers",
    "csidriver",
    False,
    BuiltInType(
        type_descriptor_parser.kind(TYPES, "CSIDriver"),
        unconditional_update=False,
        defaults=_default_driver,
        rules=_rules_driver,
    ),
    columns=(
        NAME,
        TableColumn("AttachRequired", "boolean", cell=_flag("attachRequired", otherwise=True)),
        TableColumn("PodInfoOnMount", "boolean", cell=_flag("podInfoOnMount")),
        TableColumn("StorageCapacity", "boolean", cell=_flag("storageCapacity")),
        TableColumn("TokenRequests", cell=_audiences),
        TableColumn("RequiresRepublish", "boolean", cell=_flag("requiresRepublish")),
        TableColumn("Modes", cell=lambda obj: ",".join(obj["spec"].get("volumeLifecycleModes") or ()) or "<none>"),
        AGE,
    ),
)
STORAGE_CLASSES: Final = Resource(
    GROUP,
    "v1",
    "StorageClass",
    "storageclasses",
    "storageclass",
    False,
    BuiltInType(type_descriptor_parser.kind(TYPES, "StorageClass"), defaults=_default_class, rules=_rules_class),
    short_names=("sc",),
    columns=(
        TableColumn("Name", format="name", cell=_class_name),
        TableColumn("Provisioner", path=".provisioner"),
        TableColumn("ReclaimPolicy", path=".reclaimPolicy"),
        TableColumn("VolumeBindingMode", path=".volumeBindingMode"),
        TableColumn("AllowVolumeExpansion", cell=lambda obj: bool(obj.get("allowVolumeExpansion"))),
        AGE,
    ),
)
VOLUME_ATTACHMENTS: Final = Resource(
    GROUP,
    "v1",
    "VolumeAttachment",
    "volumeattachments",
    "volumeattachment",
    False,
    BuiltInType(
        type_descriptor_parser.kind(TYPES, "VolumeAttachment"),
        unconditional_update=False,
        decide=_decide_attachment,
        rules=_rules_attachment,
    ),
    subresources=STATUS,
    columns=(
        NAME,
        TableColumn("Attacher", format="name", path=".spec.attacher"),
        TableColumn("PV", cell=lambda obj: obj["spec"]["source"].get("persistentVolumeName") or ""),
        TableColumn("Node", path=".spec.nodeName"),
        TableColumn("Attached", "boolean", cell=lambda obj: bool((obj.get("status") or {}).get("attached"))),
        AGE,
    ),
)
RESOURCES: Final = (CSI_DRIVERS, CSI_NODES, STORAGE_CLASSES, VOLUME_ATTACHMENTS)
