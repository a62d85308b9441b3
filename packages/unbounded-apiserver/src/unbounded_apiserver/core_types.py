"""Kinds of the core group that have no workload, and Lease: their fields, and the validation of Events.

Descriptions are for `explain`. events.k8s.io has more rules for Events than the core group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from unbounded_apiserver import field_errors, name_validation, type_descriptor_parser
from unbounded_apiserver.resource_model import Object
from unbounded_apiserver.schema import FieldError
from unbounded_apiserver.type_descriptors import StructType

_DEFAULT_NAMESPACE: Final = "default"  # of Events about cluster-scoped objects
_SYSTEM_NAMESPACE: Final = "kube-system"  # also allowed for such Events if they have an eventTime
_EVENT_LIMITS: Final = {"action": 128, "reason": 128, "message": 1024}
_INSTANCE_CHARACTERS: Final = 128
_EVENT_TYPES: Final = ("Normal", "Warning")
_LEASES: Final = type_descriptor_parser.read(
    """
Lease: The leader, or a sign of life, with its time limit.
  spec LeaseSpec!  The state of the lease.
LeaseSpec: The state of a lease.
  holderIdentity string*  The holder of the lease.
  leaseDurationSeconds int32*  Seconds after renewTime until others may take it.
  acquireTime microtime*  Time at which the holder acquired it.
  renewTime microtime*  Time of the last renewal.
  leaseTransitions int32*  The number of changes of the holder.
  strategy string*  The strategy of a coordinated election.
  preferredHolder string*  The preferred next holder.
""",
    package="io.k8s.api.coordination.v1",
)
LEASE: Final = type_descriptor_parser.kind(_LEASES, "Lease")


FIELDS: Final = """
Node: A machine that runs pods.
  spec NodeSpec!  The desired state.
  status NodeStatus!  The observed state.
NodeSpec: The desired state of a node.
  configSource NodeConfigSource*  Not used any more.
  externalID string  Not used any more.
  podCIDR string  Addresses for pods.
  podCIDRs mergeset  Addresses for pods, by family.
  providerID string  The provider's name for the machine.
  taints [Taint]  Taints of the node.
  unschedulable bool  No new pods are scheduled to it (cordon).
Taint: Keeps pods off the node that do not tolerate it.
  effect string!  NoSchedule, PreferNoSchedule or NoExecute.
  key string!  The key of the taint.
  timeAdded time  Time at which a NoExecute taint was added.
  value string  Value of the key.
NodeStatus: The observed state of a node.
  addresses [NodeAddress]type  Addresses at which the node can be reached.
  allocatable {quantity}  The resources that pods can have.
  capacity {quantity}  All resources of the node.
  conditions [NodeCondition]type  The state of the node in several respects.
  config NodeConfigStatus*  Not used any more.
  daemonEndpoints NodeDaemonEndpoints!  Ports of the daemons on the node.
  declaredFeatures [string]  Features of kubelet that pods may need.
  features NodeFeatures*  Features of the container runtime.
  images [ContainerImage]  Images on the node.
  nodeInfo NodeSystemInfo!  Versions and ids.
  phase string  Not used any more.
  runtimeHandlers [NodeRuntimeHandler]  Handlers of the container runtime.
  volumesAttached [AttachedVolume]  Volumes that are attached.
  volumesInUse [string]  Volumes in use.
NodeCondition: The state of a node in one respect.
  lastHeartbeatTime time!  Time of the last report.
  lastTransitionTime time!  Time of the last change of the status.
  message string  Message for users.
  reason string  Reason of the last change, in one word.
  status string!  True, False or Unknown.
  type string!  The respect, such as Ready.
NodeAddress: An address of the node.
  address string!  The address.
  type string!  Hostname, InternalIP, ExternalIP, …
NodeDaemonEndpoints: Ports of the daemons on the node.
  kubeletEndpoint DaemonEndpoint!  Port of kubelet.
DaemonEndpoint: A port.
  Port int32!  The port.
NodeSystemInfo: Versions and ids of a node.
  architecture string!  Such as amd64.
  bootID string!  Changes with every boot.
  containerRuntimeVersion string!  Such as containerd://1.4.2.
  kernelVersion string!  As `uname -r` says.
  kubeProxyVersion string!  Not used any more.
  kubeletVersion string!  Version of kubelet.
  machineID string!  The machine id that the node reports.
  operatingSystem string!  Such as linux.
  osImage string!  Operating system, from /etc/os-release.
  swap NodeSwapStatus*  Swap.
  systemUUID string!  The system UUID that the node reports.
NodeSwapStatus: Swap of a node.
  capacity int64*  Bytes of swap.
ContainerImage: An image on the node.
  names [string]  Names of the image.
  sizeBytes int64  Its size.
AttachedVolume: A volume that is attached to the node.
  devicePath string!  The device of the volume.
  name string!  The volume.
NodeRuntimeHandler: A handler of the container runtime.
  features NodeRuntimeHandlerFeatures*  Features of the handler.
  name string!  The handler; empty for the default.
NodeRuntimeHandlerFeatures: Features of a handler of the container runtime.
  recursiveReadOnlyMounts bool*  Mounts can be read-only with all below them.
  userNamespaces bool*  Pods can have user namespaces.
NodeFeatures: Features of the container runtime.
  supplementalGroupsPolicy bool*  It supports the policies of supplemental groups.
NodeConfigStatus: The state of the dynamic configuration; not used any more.
  active NodeConfigSource*
  assigned NodeConfigSource*
  error string
  lastKnownGood NodeConfigSource*
NodeConfigSource: A source of the dynamic configuration; not used any more.
  configMap ConfigMapNodeConfigSource*
ConfigMapNodeConfigSource: A ConfigMap with the dynamic configuration; not used any more.
  kubeletConfigKey string!
  name string!
  namespace string!
  resourceVersion string
  uid string
"""
NODE: Final[StructType] = type_descriptor_parser.kind(type_descriptor_parser.read(FIELDS), "Node")


_TYPES: Final = type_descriptor_parser.read(
    """
Namespace: A scope for names, whose objects are deleted with it.
  spec NamespaceSpec!  The desired state.
  status NamespaceStatus!  The observed state.
NamespaceSpec: The desired state of a namespace.
  finalizers [string]  The controllers that have to act before the namespace is deleted.
NamespaceStatus: The observed state of a namespace.
  phase string  Active or Terminating.
  conditions [NamespaceCondition]type  The blockers of its deletion.
NamespaceCondition: The state of a namespace in one respect.
  type string!  Type of the condition.
  status string!  True, False or Unknown.
  lastTransitionTime time  Time of the last change of the status.
  reason string  Reason of the last change, in one word.
  message string  Message for users.
ConfigMap: Configuration as keys and values.
  immutable bool*  True if data cannot change.
  data {string}  Values that are text.
  binaryData {bytes}  Values that are bytes, in base64.
Secret: Confidential values by key.
  immutable bool*  True if data cannot change.
  data {bytes}  The values, in base64.
  stringData {string}  Values given as text; written into data and never shown.
  type string  The purpose of the secret; some types require certain keys.
ServiceAccount: An identity for programs.
  secrets [ObjectReference]name  Secrets that belong to the account.
  imagePullSecrets [LocalObjectReference]  Secrets for pulling images.
  automountServiceAccountToken bool*  True if pods get a token of the account.
Event: An event of an object; kept for an hour.
  involvedObject ObjectReference!  The object that it happened to.
  reason string  One word for why it happened.
  message string  Message for users.
  source EventSource!  The reporter.
  firstTimestamp time!  Time of the first occurrence.
  lastTimestamp time!  Time of the last occurrence.
  count int32  The number of its occurrences.
  type string  Normal or Warning.
  eventTime microtime!  Time of the first occurrence, in microseconds.
  series EventSeries*  The series that this event represents.
  action string  The action on the object.
  related ObjectReference*  A second object that is concerned.
  reportingComponent string!  Name of the controller that reports.
  reportingInstance string!  Instance of the controller.
EventSource: The reporter of an event.
  component string  The component.
  host string  The node.
EventSeries: A series of the same event.
  count int32  The number of occurrences.
  lastObservedTime microtime  Time of the last occurrence.
"""
)
NAMESPACE: Final = type_descriptor_parser.kind(_TYPES, "Namespace")
CONFIG_MAP: Final = type_descriptor_parser.kind(_TYPES, "ConfigMap")
SECRET: Final = type_descriptor_parser.kind(_TYPES, "Secret")
SERVICE_ACCOUNT: Final = type_descriptor_parser.kind(_TYPES, "ServiceAccount")
EVENT: Final = type_descriptor_parser.kind(_TYPES, "Event")


def rules_of_event(event: Object, controller_field: str) -> list[FieldError]:
    """Return the errors of an Event in the form of the core group.

    Args:
        controller_field: the name that the client's version has for reportingComponent.
    """
    about = event["involvedObject"].get("namespace", "")
    where = event["metadata"].get("namespace", "")
    timed = bool(event.get("eventTime"))
    agrees = (
        bool(about) or where in {_DEFAULT_NAMESPACE, _SYSTEM_NAMESPACE}
        if timed
        else where == (about or _DEFAULT_NAMESPACE)
    )
    errors = (
        [] if agrees else [field_errors.invalid("involvedObject.namespace", about, "does not match event.namespace")]
    )
    return [*errors, *_reported(event, controller_field)] if timed else errors


def _reported(event: Object, controller_field: str) -> Iterator[FieldError]:
    """Yield the fields that an Event with an eventTime lacks."""
    controller, instance = event["reportingComponent"], event["reportingInstance"]
    if not controller:
        yield field_errors.required(controller_field)
    yield from (
        field_errors.invalid(controller_field, controller, why) for why in name_validation.qualified_name(controller)
    )
    if not instance:
        yield field_errors.required("reportingInstance")
    if len(instance.encode()) > _INSTANCE_CHARACTERS:
        yield field_errors.invalid("reportingInstance", "", f"can have at most {_INSTANCE_CHARACTERS} characters")
    for name, limit in _EVENT_LIMITS.items():
        value = event.get(name, "")
        if not value and name != "message":
            yield field_errors.required(name)
        if len(value.encode()) > limit:
            yield field_errors.invalid(name, "", f"can have at most {limit} characters")


def rules_of_new_event(event: Object) -> Iterator[FieldError]:
    """Yield the further errors of a new Event of events.k8s.io. The Event is in the form of the core group."""
    yield from _series(event)
    if not event.get("eventTime"):
        yield field_errors.required("eventTime")
    if event.get("type", "") not in _EVENT_TYPES:
        yield field_errors.invalid("type", "", f"has invalid value: {event.get('type', '')}")
    for name in ("firstTimestamp", "lastTimestamp", "count", "source"):
        if event.get(name):
            yield field_errors.invalid(name, "", "needs to be unset")


def rules_of_changed_event(event: Object, old: Object) -> Iterator[FieldError]:
    """Yield the errors of a changed Event of events.k8s.io: only the series may change."""
    if event.get("series") != old.get("series"):
        yield from _series(event)
    for name in (
        *("involvedObject", "reason", "message", "source", "firstTimestamp", "lastTimestamp", "count", "type"),
        *("eventTime", "action", "related"),
    ):
        if event.get(name) != old.get(name):
            yield field_errors.immutable(name, event.get(name))
    for name, shown in (("reportingComponent", "reportingController"), ("reportingInstance", "reportingInstance")):
        if event.get(name) != old.get(name):
            yield field_errors.immutable(shown, event.get(name))


def _series(event: Object) -> Iterator[FieldError]:
    series = event.get("series")
    if series is None:
        return
    if series.get("count", 0) < 2:
        yield field_errors.invalid("series.count", "", "should be at least 2")
    if not series.get("lastObservedTime"):
        yield field_errors.required("series.lastObservedTime")
