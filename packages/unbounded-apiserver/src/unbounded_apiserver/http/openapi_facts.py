"""OpenAPI facts about fields of built-in types that their shapes lack: required fields and allowed values.

- A field that is always printed is required, except for those in OPTIONAL; so are those in REQUIRED.
- A line of ENUMS has the values of one field, or of its elements if it is a list. An indented line continues the one
  before.
- Types are named by group package and version.

Tests compare all of it with what Kubernetes publishes. Nothing here is enforced: the rules of each kind are, worded as
by Kubernetes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

_GROUPS: Final = "io.k8s.api."
_EXTENSIONS: Final = "io.k8s.apiextensions-apiserver.pkg.apis."
OPTIONAL: Final = """
admissionregistration.v1.ValidatingAdmissionPolicy: spec status
authentication.v1.TokenRequest: spec
authentication.v1.TokenRequestSpec: audiences
authentication.v1.TokenRequestStatus: expirationTimestamp token
authentication.v1.TokenReviewStatus: user
certificates.v1.CertificateSigningRequest: status
certificates.v1.CertificateSigningRequestCondition: lastTransitionTime lastUpdateTime
coordination.v1.Lease: spec
core.v1.Container: image resources
core.v1.ContainerStateRunning: startedAt
core.v1.ContainerStateTerminated: finishedAt startedAt
core.v1.ContainerStatus: lastState state
core.v1.EphemeralContainer: resources
core.v1.Event: eventTime firstTimestamp lastTimestamp reportingComponent reportingInstance source
core.v1.GRPCAction: service
core.v1.Namespace: spec status
core.v1.Node: spec status
core.v1.NodeCondition: lastHeartbeatTime lastTransitionTime
core.v1.NodeDaemonEndpoints: kubeletEndpoint
core.v1.NodeRuntimeHandler: name
core.v1.NodeStatus: daemonEndpoints nodeInfo
core.v1.PersistentVolumeClaimSpec: resources
core.v1.PersistentVolumeClaimTemplate: metadata
core.v1.Pod: spec status
core.v1.PodCondition: lastProbeTime lastTransitionTime
core.v1.ProjectedVolumeSource: sources
core.v1.ResourceFieldSelector: divisor
core.v1.Service: spec status
core.v1.ServicePort: targetPort
core.v1.ServiceStatus: loadBalancer
core.v1.TypedLocalObjectReference: apiGroup
core.v1.TypedObjectReference: apiGroup
events.v1.Event: deprecatedFirstTimestamp deprecatedLastTimestamp deprecatedSource regarding
policy.v1.PodDisruptionBudget: spec status
policy.v1.PodDisruptionBudgetStatus: currentHealthy desiredHealthy disruptionsAllowed expectedPods
rbac.v1.ClusterRole: rules
rbac.v1.Role: rules
rbac.v1.RoleRef: apiGroup
scheduling.v1.PriorityClass: value
storage.v1.CSINodeDriver: topologyKeys
apiextensions.v1.CustomResourceDefinition: status
apiextensions.v1.CustomResourceDefinitionStatus: acceptedNames conditions storedVersions
"""
REQUIRED: Final = """
admissionregistration.v1.ValidatingAdmissionPolicyBindingSpec: policyName validationActions
authentication.v1.TokenReviewSpec: token
core.v1.ContainerExtendedResourceRequest: containerName requestName resourceName
core.v1.ContainerRestartRule: action
core.v1.ContainerRestartRuleOnExitCodes: operator
core.v1.Event: metadata
core.v1.EvictionResponder: name priority
core.v1.FileKeySelector: key path volumeName
core.v1.ImageVolumeStatus: imageRef
core.v1.NodeAllocatableMappedResources: name quantity
core.v1.NodeAllocatableOverheadResources: name
core.v1.NodeAllocatableResourceClaimStatus: resourceClaimName
core.v1.PodCertificateProjection: keyType signerName
core.v1.PodExtendedResourceClaimStatus: requestMappings resourceClaimName
core.v1.PodVolumeHealth: name
core.v1.VolumeHealthCondition: reason status
resource.v1.CapacityRequestPolicyRange: min
resource.v1.CounterSet: counters
resource.v1.DeviceCounterConsumption: counters
"""
_SIGNALS: Final = (
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGRTMAX",
    "SIGRTMIN",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
    *(f"SIGRTMAX-{number}" for number in range(1, 15)),
    *(f"SIGRTMIN+{number}" for number in range(1, 16)),
)
ENUMS: Final = """
admissionregistration.v1.MatchResources.matchPolicy: Equivalent|Exact
admissionregistration.v1.NamedRuleWithOperations.operations: *|CONNECT|CREATE|DELETE|UPDATE
admissionregistration.v1.NamedRuleWithOperations.scope: *|Cluster|Namespaced
admissionregistration.v1.ValidatingAdmissionPolicyBindingSpec.validationActions: Audit|Deny|Warn
admissionregistration.v1.ValidatingAdmissionPolicySpec.failurePolicy: Fail|Ignore
certificates.v1.CertificateSigningRequestSpec.usages: any|cert sign|client auth|code signing|content commitment|
  crl sign|data encipherment|decipher only|digital signature|email protection|encipher only|ipsec end system|
  ipsec tunnel|ipsec user|key agreement|key encipherment|microsoft sgc|netscape sgc|ocsp signing|s/mime|server auth|
  signing|timestamping
core.v1.AppArmorProfile.type: Localhost|RuntimeDefault|Unconfined
core.v1.AzureDiskVolumeSource.cachingMode: None|ReadOnly|ReadWrite
core.v1.AzureDiskVolumeSource.kind: Dedicated|Managed|Shared
core.v1.Container.imagePullPolicy: Always|IfNotPresent|Never
core.v1.Container.terminationMessagePolicy: FallbackToLogsOnError|File
core.v1.ContainerPort.protocol: SCTP|TCP|UDP
core.v1.ContainerStatus.stopSignal: {signals}
core.v1.EphemeralContainer.imagePullPolicy: Always|IfNotPresent|Never
core.v1.EphemeralContainer.terminationMessagePolicy: FallbackToLogsOnError|File
core.v1.HTTPGetAction.scheme: HTTP|HTTPS
core.v1.HostPathVolumeSource.type: |BlockDevice|CharDevice|Directory|DirectoryOrCreate|File|FileOrCreate|Socket
core.v1.ImageVolumeSource.pullPolicy: Always|IfNotPresent|Never
core.v1.Lifecycle.stopSignal: {signals}
core.v1.NamespaceStatus.phase: Active|Terminating
core.v1.NodeSelectorRequirement.operator: DoesNotExist|Exists|Gt|In|Lt|NotIn
core.v1.NodeStatus.phase: Pending|Running|Terminated
core.v1.PersistentVolumeClaimSpec.accessModes: ReadOnlyMany|ReadWriteMany|ReadWriteOnce|ReadWriteOncePod
core.v1.PersistentVolumeClaimSpec.volumeMode: Block|Filesystem
core.v1.PodSecurityContext.fsGroupChangePolicy: Always|OnRootMismatch
core.v1.PodSecurityContext.supplementalGroupsPolicy: Merge|Strict
core.v1.PodSpec.dnsPolicy: ClusterFirst|ClusterFirstWithHostNet|Default|None
core.v1.PodSpec.preemptionPolicy: Never|PreemptLowerPriority
core.v1.PodSpec.restartPolicy: Always|Never|OnFailure
core.v1.PodStatus.phase: Failed|Pending|Running|Succeeded|Unknown
core.v1.PodStatus.qosClass: BestEffort|Burstable|Guaranteed
core.v1.PortStatus.protocol: SCTP|TCP|UDP
core.v1.SeccompProfile.type: Localhost|RuntimeDefault|Unconfined
core.v1.SecurityContext.procMount: Default|Unmasked
core.v1.ServicePort.protocol: SCTP|TCP|UDP
core.v1.ServiceSpec.externalTrafficPolicy: Cluster|Local
core.v1.ServiceSpec.internalTrafficPolicy: Cluster|Local
core.v1.ServiceSpec.ipFamilies: |IPv4|IPv6
core.v1.ServiceSpec.ipFamilyPolicy: PreferDualStack|RequireDualStack|SingleStack
core.v1.ServiceSpec.sessionAffinity: ClientIP|None
core.v1.ServiceSpec.type: ClusterIP|ExternalName|LoadBalancer|NodePort
core.v1.Taint.effect: NoExecute|NoSchedule|PreferNoSchedule
core.v1.Toleration.effect: NoExecute|NoSchedule|PreferNoSchedule
core.v1.Toleration.operator: Equal|Exists|Gt|Lt
core.v1.TopologySpreadConstraint.nodeAffinityPolicy: Honor|Ignore
core.v1.TopologySpreadConstraint.nodeTaintsPolicy: Honor|Ignore
core.v1.TopologySpreadConstraint.whenUnsatisfiable: DoNotSchedule|ScheduleAnyway
core.v1.VolumeMount.mountPropagation: Bidirectional|HostToContainer|None
policy.v1.PodDisruptionBudgetSpec.unhealthyPodEvictionPolicy: AlwaysAllow|IfHealthyBudget
resource.v1.DeviceTaint.effect: NoExecute|NoSchedule|None
scheduling.v1.PriorityClass.preemptionPolicy: Never|PreemptLowerPriority
storage.v1.StorageClass.reclaimPolicy: Delete|Recycle|Retain
storage.v1.StorageClass.volumeBindingMode: Immediate|WaitForFirstConsumer
apiextensions.v1.ValidationRule.reason: FieldValueDuplicate|FieldValueForbidden|
  FieldValueInvalid|FieldValueRequired
""".replace("{signals}", "|".join(_SIGNALS))


def _rows(text: str) -> Iterator[tuple[str, str]]:
    for line in text.replace("\n  ", "").split("\n"):
        name, _, values = line.partition(": ")
        if name:
            yield (_EXTENSIONS if name.startswith("apiextensions.") else _GROUPS) + name, values


def _fields(text: str) -> Mapping[str, frozenset[str]]:
    return {name: frozenset(fields.split()) for name, fields in _rows(text)}


OPTIONAL_FIELDS: Final = _fields(OPTIONAL)
REQUIRED_FIELDS: Final = _fields(REQUIRED)
_ENUMS: Final = {name: tuple(sorted(values.split("|"))) for name, values in _rows(ENUMS)}


def required(type_name: str, always: frozenset[str]) -> list[str]:
    """Return the names of the required fields of a type.

    Args:
        type_name: in OpenAPI, such as `io.k8s.api.core.v1.Pod`.
        always: its fields that are always printed.
    """
    return sorted(always - OPTIONAL_FIELDS.get(type_name, frozenset()) | REQUIRED_FIELDS.get(type_name, frozenset()))


def values(type_name: str, field: str) -> tuple[str, ...]:
    """Return the allowed values of a field; () if any value is allowed."""
    return _ENUMS.get(f"{type_name}.{field}", ())
