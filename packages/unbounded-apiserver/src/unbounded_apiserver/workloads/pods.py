"""Pods: stored as written; kubelets run them and report their status.

`FIELDS` has a Pod's fields without those of containers and volumes, in the notation of `type_descriptor_parser`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from unbounded_apiserver import quantity, type_descriptor_parser
from unbounded_apiserver.builtin_resources import BuiltInType
from unbounded_apiserver.resource_model import Object, ProxiedSubresource, Resource, Subresource, keep_all_but_status
from unbounded_apiserver.workloads import columns, volume_fields
from unbounded_apiserver.workloads.containers import FIELDS as CONTAINER_FIELDS
from unbounded_apiserver.workloads.defaults import containers, default_pod
from unbounded_apiserver.workloads.pod_rules import rules_of_pod

FIELDS: Final = """
Pod: Containers that run together on one node.
  spec PodSpec!  The desired state.
  status PodStatus!  The observed state.
PodSpec: The desired state of a pod.
  activeDeadlineSeconds int64*  Seconds after which the pod is ended.
  affinity Affinity*  Rules for the choice of its node.
  automountServiceAccountToken bool*  A token of the account is mounted.
  containers [Container]name!  The containers; at least one.
  dnsConfig PodDNSConfig*  Further DNS settings.
  dnsPolicy string  ClusterFirst, ClusterFirstWithHostNet, Default or None.
  enableServiceLinks bool*  Services are in the environment of its containers.
  ephemeralContainers [EphemeralContainer]name  Containers that were added for debugging.
  evictionResponders [EvictionResponder]
  hostAliases [HostAlias]ip  Lines for /etc/hosts.
  hostIPC bool  It uses the IPC namespace of the node.
  hostNetwork bool  It uses the network of the node.
  hostPID bool  It uses the PID namespace of the node.
  hostUsers bool*  It uses the user namespace of the node.
  hostname string  The hostname of the pod.
  hostnameOverride string
  imagePullSecrets [LocalObjectReference]name  Secrets for pulling images.
  initContainers [Container]name  Containers that run to their end, one after another, before the others start.
  nodeName string  The node that the pod is bound to; kubelet there runs it.
  nodeSelector {string}  Labels that the node must have.
  os PodOS*  The operating system.
  overhead {quantity}  Resources of the pod beyond its containers.
  preemptionPolicy string*  PreemptLowerPriority or Never.
  priority int32*  Priority; pods with a higher one are scheduled first.
  priorityClassName string  Names the priority.
  readinessGates [PodReadinessGate]  Conditions that have to be true before the pod is ready.
  resourceClaims [PodResourceClaim]name  Claims for devices.
  resources ResourceRequirements*  Requests and limits of the pod as a whole.
  restartPolicy string  Always, OnFailure or Never.
  runtimeClassName string*  The RuntimeClass.
  schedulerName string  Scheduler of the pod.
  schedulingGates [PodSchedulingGate]name  Keep the pod from being scheduled.
  schedulingGroup PodSchedulingGroup*
  securityContext PodSecurityContext*  Rights and identity of all containers.
  serviceAccount string  The older name of serviceAccountName.
  serviceAccountName string  The service account under which the pod runs.
  setHostnameAsFQDN bool*  The hostname is the fully qualified name.
  shareProcessNamespace bool*  Its containers share a PID namespace.
  subdomain string  The domain of the pod's hostname.
  terminationGracePeriodSeconds int64*  Seconds between the signal to end and the kill; 30 when left out.
  tolerations [Toleration]  Taints that the pod is allowed on.
  topologySpreadConstraints [TopologySpreadConstraint]topologyKey+whenUnsatisfiable  Its spread over zones or nodes.
  volumes [Volume]name  Storage that containers can mount.
Affinity: Rules for the choice of its node.
  nodeAffinity NodeAffinity*
  podAffinity PodAffinity*
  podAntiAffinity PodAntiAffinity*
PodDNSConfig: Further DNS settings.
  nameservers [string]
  options [PodDNSConfigOption]
  searches [string]
EvictionResponder
  name string
  priority int64
HostAlias: Names for an address in /etc/hosts.
  hostnames [string]
  ip string!
PodOS: The operating system of the pod.
  name string!
PodReadinessGate: A condition that has to be true before the pod is ready.
  conditionType string!
PodResourceClaim
  name string!
  resourceClaimName string*
  resourceClaimTemplateName string*
PodSchedulingGate: Keeps the pod from being scheduled.
  name string!
PodSchedulingGroup
  podGroupName string
PodSecurityContext: Rights and identity of all containers of a pod.
  appArmorProfile AppArmorProfile*
  fsGroup int64*
  fsGroupChangePolicy string*
  runAsGroup int64*
  runAsNonRoot bool*
  runAsUser int64*
  seLinuxChangePolicy string*
  seLinuxOptions SELinuxOptions*
  seccompProfile SeccompProfile*
  supplementalGroups [int64]
  supplementalGroupsPolicy string*
  sysctls [Sysctl]
  windowsOptions WindowsSecurityContextOptions*
Toleration: A taint that the pod is allowed on.
  effect string  The effect of the taint; empty is all.
  key string  The key of the taint; empty is all.
  operator string  Exists or Equal.
  tolerationSeconds int64*  Time for which a NoExecute taint is tolerated.
  value string  The value of the taint.
TopologySpreadConstraint: Rule of the spread of pods over zones or nodes.
  labelSelector LabelSelector*
  matchLabelKeys [string]
  maxSkew int32!
  minDomains int32*
  nodeAffinityPolicy string*
  nodeTaintsPolicy string*
  topologyKey string!
  whenUnsatisfiable string!
NodeAffinity: Nodes that the pod prefers or needs.
  preferredDuringSchedulingIgnoredDuringExecution [PreferredSchedulingTerm]
  requiredDuringSchedulingIgnoredDuringExecution NodeSelector*
PodAffinity: Pods that it should be near to.
  preferredDuringSchedulingIgnoredDuringExecution [WeightedPodAffinityTerm]
  requiredDuringSchedulingIgnoredDuringExecution [PodAffinityTerm]
PodAntiAffinity: Pods that it should be away from.
  preferredDuringSchedulingIgnoredDuringExecution [WeightedPodAffinityTerm]
  requiredDuringSchedulingIgnoredDuringExecution [PodAffinityTerm]
PodDNSConfigOption
  name string
  value string*
Sysctl
  name string!
  value string!
PreferredSchedulingTerm
  preference NodeSelectorTerm!
  weight int32!
NodeSelector atomic: Nodes by their labels; one of the terms has to match.
  nodeSelectorTerms [NodeSelectorTerm]!  One of these has to match.
WeightedPodAffinityTerm
  podAffinityTerm PodAffinityTerm!
  weight int32!
PodAffinityTerm
  labelSelector LabelSelector*
  matchLabelKeys [string]
  mismatchLabelKeys [string]
  namespaceSelector LabelSelector*
  namespaces [string]
  topologyKey string!
NodeSelectorTerm atomic: All of these have to match.
  matchExpressions [NodeSelectorRequirement]
  matchFields [NodeSelectorRequirement]
NodeSelectorRequirement: A key, an operator and values.
  key string!
  operator string!
  values [string]
"""


STATUS_FIELDS: Final = """
PodStatus: The observed state of a pod, as kubelet reports it.
  allocatedResources {quantity}
  conditions [PodCondition]type  The state in several respects.
  containerStatuses [ContainerStatus]  The state of each container.
  ephemeralContainerStatuses [ContainerStatus]  The state of each ephemeral container.
  extendedResourceClaimStatus PodExtendedResourceClaimStatus*
  hostIP string  The address of the node.
  hostIPs [HostIP]ip  The addresses of the node.
  initContainerStatuses [ContainerStatus]  The state of each init container.
  message string  Message for users.
  nodeAllocatableResourceClaimStatuses [NodeAllocatableResourceClaimStatus]
  nominatedNodeName string  Node on which pods are preempted for it.
  observedGeneration int64  The generation that the status is about.
  phase string  Pending, Running, Succeeded, Failed or Unknown.
  podIP string  The address of the pod.
  podIPs [PodIP]ip  The addresses of the pod.
  qosClass string  Guaranteed, Burstable or BestEffort.
  reason string  One word for the phase.
  resize string
  resourceClaimStatuses [PodResourceClaimStatus]name
  resources ResourceRequirements*
  startTime time  Time at which kubelet accepted the pod.
  volumeHealth [PodVolumeHealth]
PodCondition: The state of a pod in one respect.
  lastProbeTime time!  Time of the last probe.
  lastTransitionTime time!  Time of the last change of the status.
  message string  Message for users.
  observedGeneration int64  Generation that it refers to.
  reason string  Reason of the last change, in one word.
  status string!  True, False or Unknown.
  type string!  Type of the condition, such as Ready.
ContainerStatus: The state of a container.
  allocatedResources {quantity}
  allocatedResourcesStatus [ResourceStatus]
  containerID string  The runtime's name for it.
  image string!  The image that runs.
  imageID string!  The digest of the image.
  lastState ContainerState!  State before the last restart.
  name string!  The container.
  ready bool!  It passes its readiness probe.
  resources ResourceRequirements*
  restartCount int32!  Number of restarts.
  started bool*  It has started.
  state ContainerState!  Present state.
  stopSignal string
  user ContainerUser*
  volumeMounts [VolumeMountStatus]
PodExtendedResourceClaimStatus
  requestMappings [ContainerExtendedResourceRequest]
  resourceClaimName string
HostIP: An address of the node.
  ip string!
NodeAllocatableResourceClaimStatus
  containers [string]
  mapping [NodeAllocatableMappedResources]
  overhead [NodeAllocatableOverheadResources]
  resourceClaimName string
  resources {quantity}
PodIP: An address of the pod.
  ip string!
PodResourceClaimStatus
  name string!
  resourceClaimName string*
PodVolumeHealth
  healthConditions [VolumeHealthCondition]
  lastTransitionTime time
  name string
ResourceStatus
  name string!
  resources [ResourceHealth]
ContainerState: Waiting, running or terminated.
  running ContainerStateRunning*
  terminated ContainerStateTerminated*
  waiting ContainerStateWaiting*
ContainerUser
  linux LinuxContainerUser*
VolumeMountStatus
  mountPath string!
  name string!
  readOnly bool
  recursiveReadOnly string*
  volumeStatus VolumeStatus*
ContainerExtendedResourceRequest
  containerName string
  requestName string
  resourceName string
NodeAllocatableMappedResources
  name string
  quantity string
NodeAllocatableOverheadResources
  name string
  perContainer string
  perPod string
VolumeHealthCondition
  message string
  reason string
  status string
ResourceHealth
  health string
  message string
  resourceID string!
ContainerStateRunning: Since when it runs.
  startedAt time!
ContainerStateTerminated: End of a container.
  containerID string
  exitCode int32!
  finishedAt time!
  message string
  reason string
  signal int32
  startedAt time!
ContainerStateWaiting: Reason for which a container waits.
  message string
  reason string
LinuxContainerUser
  gid int64!
  supplementalGroups [int64]
  uid int64!
VolumeStatus
  image ImageVolumeStatus*
ImageVolumeStatus
  imageRef string
"""
ENDED: Final = frozenset({"Succeeded", "Failed"})
_COMPUTED: Final = frozenset({"cpu", "memory"})  # the resources that determine the QoS class

TYPES: Final = type_descriptor_parser.read(FIELDS, CONTAINER_FIELDS, volume_fields.FIELDS, STATUS_FIELDS)
POD: Final = type_descriptor_parser.kind(TYPES, "Pod")
_OPTIONS: Final = type_descriptor_parser.read(
    """
Preconditions meta: Conditions that the object must meet.
  uid string*  Its UID.
  resourceVersion string*  Its version.
DeleteOptions meta: Options of a deletion.
  apiVersion string  Version of the options.
  kind string  DeleteOptions.
  gracePeriodSeconds int64*  Seconds that the object is given.
  preconditions Preconditions*  Conditions that it must meet.
  orphanDependents bool*  An older form of propagationPolicy.
  propagationPolicy string*  The treatment of dependents.
  dryRun [string]  All: check everything and delete nothing.
  ignoreStoreReadErrorWithClusterBreakingPotential bool*
"""
)
DELETE_OPTIONS: Final = _OPTIONS["DeleteOptions"]
EVICTION: Final = type_descriptor_parser.kind(
    type_descriptor_parser.read(
        """
Eviction: Requests that a pod leaves its node.
  deleteOptions DeleteOptions*  Options of the deletion of the pod.
""",
        package="io.k8s.api.policy.v1",
        known=_OPTIONS,
    ),
    "Eviction",
)


def service_class(spec: Object) -> str:
    """Return the QoS class Guaranteed, Burstable or BestEffort, by which a node evicts Pods when memory runs out."""
    amounts = [container["resources"] for container in containers({**spec, "ephemeralContainers": ()})]
    computed = [{what: _computed(amount.get(what, {})) for what in ("requests", "limits")} for amount in amounts]
    if not any(amount["requests"] or amount["limits"] for amount in computed):
        return "BestEffort"
    if all(a["limits"].keys() == _COMPUTED and a["requests"] == a["limits"] for a in computed):
        return "Guaranteed"
    return "Burstable"


def _computed(amounts: Object) -> Object:
    return {name: amount for name, amount in amounts.items() if name in _COMPUTED and quantity.parse(amount)}


def seconds_left(pod: Object, requested: int | None) -> int:
    """Return the grace period of a deletion in seconds; the kubelet deletes the Pod with 0 after it has ended.

    Args:
        requested: the grace period of the deletion's options, None if they have none.
    """
    spec = pod["spec"]
    if not spec.get("nodeName") or pod["status"].get("phase") in ENDED:
        return 0
    seconds = spec.get("terminationGracePeriodSeconds", 0) if requested is None else requested
    return seconds if seconds >= 0 else 1


def _decide(pod: Object, old: Object | None) -> None:
    if old is None:
        pod["status"] = {"phase": "Pending", "qosClass": service_class(pod["spec"])}
        if pod["spec"].get("schedulingGates"):
            why = {"reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates"}
            gated = {"type": "PodScheduled", "status": "False", "lastProbeTime": None, "lastTransitionTime": None}
            pod["status"]["conditions"] = [{**gated, **why}]
        return
    pod["status"] = old["status"]
    if pod["spec"] != old["spec"]:
        pod["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1


def _prepare_status(pod: Object, old: Object, now: datetime) -> None:
    """Keep the fields that a kubelet leaves out of a status, and those that it may not change, as Kubernetes does."""
    keep_all_but_status(pod, old, now)
    meta, status, before = pod["metadata"], pod.setdefault("status", {}), old.get("status") or {}
    meta.pop("ownerReferences", None)
    if "ownerReferences" in old["metadata"]:
        meta["ownerReferences"] = old["metadata"]["ownerReferences"]
    for key in ("qosClass", "observedGeneration"):
        if not status.get(key) and before.get(key):
            status[key] = before[key]
    observed = {one["type"]: one.get("observedGeneration") for one in before.get("conditions") or ()}
    for condition in status.get("conditions") or ():
        if not condition.get("observedGeneration") and observed.get(condition["type"]):
            condition["observedGeneration"] = observed[condition["type"]]


EVICTIONS: Final = Resource(
    "policy", "v1", "Eviction", "evictions", "eviction", True, BuiltInType(EVICTION), verbs=("create",)
)
PODS: Final = Resource(
    "",
    "v1",
    "Pod",
    "pods",
    "pod",
    True,
    BuiltInType(POD, generation=True, defaults=default_pod, decide=_decide, rules=rules_of_pod),
    short_names=("po",),
    categories=("all",),
    subresources={"status": Subresource(_prepare_status)},
    selectable={
        path: path
        for path in (
            "spec.hostNetwork",
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.nominatedNodeName",
            "status.phase",
            "status.podIP",
        )
    }
    | {"spec.host": "spec.nodeName"},  # an early name
    columns=columns.POD,
    transient={"eviction": EVICTIONS},
    proxied={
        "attach": ProxiedSubresource("PodAttachOptions", ("create", "get")),
        "exec": ProxiedSubresource("PodExecOptions", ("create", "get")),
        "log": ProxiedSubresource("Pod", ("get",)),
        "portforward": ProxiedSubresource("PodPortForwardOptions", ("create", "get")),
    },
    grace=seconds_left,
    shows_deleted=True,
)
