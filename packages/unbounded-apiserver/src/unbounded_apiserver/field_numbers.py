"""Field numbers of the protobuf form of built-in types, from the generated.proto of Kubernetes 1.36.

    Volume: name=1 *VolumeSource=2

A line begins a type; `name=number` is a field by its name in JSON. The shapes have the types of fields. A `*` marks a
message whose fields are the type's own in JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from unbounded_apiserver.type_descriptor_parser import CORE as CORE_PACKAGE

GROUPS: Final = {
    "io.k8s.api.authentication.v1": """
BoundObjectReference: kind=1 apiVersion=2 name=3 uid=4
SelfSubjectReview: metadata=1 status=2
SelfSubjectReviewStatus: userInfo=1
TokenRequest: metadata=1 spec=2 status=3
TokenRequestSpec: audiences=1 boundObjectRef=3 expirationSeconds=4
TokenRequestStatus: token=1 expirationTimestamp=2
TokenReview: metadata=1 spec=2 status=3
TokenReviewSpec: token=1 audiences=2
TokenReviewStatus: authenticated=1 user=2 error=3 audiences=4
UserInfo: username=1 uid=2 groups=3 extra=4
""",
    "io.k8s.api.authorization.v1": """
LocalSubjectAccessReview: metadata=1 spec=2 status=3
NonResourceAttributes: path=1 verb=2
ResourceAttributes: namespace=1 verb=2 group=3 version=4 resource=5 subresource=6 name=7 fieldSelector=8
  labelSelector=9
SelfSubjectAccessReview: metadata=1 spec=2 status=3
SelfSubjectAccessReviewSpec: resourceAttributes=1 nonResourceAttributes=2
SelfSubjectRulesReview: metadata=1 spec=2 status=3
SelfSubjectRulesReviewSpec: namespace=1
SubjectAccessReview: metadata=1 spec=2 status=3
SubjectAccessReviewSpec: resourceAttributes=1 nonResourceAttributes=2 user=3 groups=4 extra=5 uid=6
SubjectAccessReviewStatus: allowed=1 reason=2 evaluationError=3 denied=4
SubjectRulesReviewStatus: resourceRules=1 nonResourceRules=2 incomplete=3 evaluationError=4
""",
    "io.k8s.api.certificates.v1": """
CertificateSigningRequest: metadata=1 spec=2 status=3
CertificateSigningRequestCondition: type=1 reason=2 message=3 lastUpdateTime=4 lastTransitionTime=5 status=6
CertificateSigningRequestSpec: request=1 username=2 uid=3 groups=4 usages=5 extra=6 signerName=7 expirationSeconds=8
CertificateSigningRequestStatus: conditions=1 certificate=2
""",
    "io.k8s.api.coordination.v1": """
Lease: metadata=1 spec=2
LeaseSpec: holderIdentity=1 leaseDurationSeconds=2 acquireTime=3 renewTime=4 leaseTransitions=5 strategy=6
  preferredHolder=7
""",
    "io.k8s.api.events.v1": """
Event: metadata=1 eventTime=2 series=3 reportingController=4 reportingInstance=5 action=6 reason=7 regarding=8
  related=9 note=10 type=11 deprecatedSource=12 deprecatedFirstTimestamp=13 deprecatedLastTimestamp=14
  deprecatedCount=15
EventSeries: count=1 lastObservedTime=2
""",
    "io.k8s.api.node.v1": """
Overhead: podFixed=1
RuntimeClass: metadata=1 handler=2 overhead=3 scheduling=4
Scheduling: nodeSelector=1 tolerations=2
""",
    "io.k8s.api.policy.v1": """
Eviction: metadata=1 deleteOptions=2
PodDisruptionBudget: metadata=1 spec=2 status=3
PodDisruptionBudgetSpec: minAvailable=1 selector=2 maxUnavailable=3 unhealthyPodEvictionPolicy=4
PodDisruptionBudgetStatus: observedGeneration=1 disruptedPods=2 disruptionsAllowed=3 currentHealthy=4 desiredHealthy=5
  expectedPods=6 conditions=7
""",
    "io.k8s.api.rbac.v1": """
AggregationRule: clusterRoleSelectors=1
ClusterRole: metadata=1 rules=2 aggregationRule=3
ClusterRoleBinding: metadata=1 subjects=2 roleRef=3
PolicyRule: verbs=1 apiGroups=2 resources=3 resourceNames=4 nonResourceURLs=5
Role: metadata=1 rules=2
RoleBinding: metadata=1 subjects=2 roleRef=3
RoleRef: apiGroup=1 kind=2 name=3
Subject: kind=1 apiGroup=2 name=3 namespace=4
""",
    "io.k8s.api.resource.v1": """
CapacityRequestPolicy: default=1 validValues=3 validRange=4
CapacityRequestPolicyRange: min=1 max=2 step=3
Counter: value=1
CounterSet: name=1 counters=2
Device: name=1 attributes=2 capacity=3 consumesCounters=4 nodeName=5 nodeSelector=6 allNodes=7 taints=8 bindsToNode=9
  bindingConditions=10 bindingFailureConditions=11 allowMultipleAllocations=12 nodeAllocatableResourceMappings=13
DeviceAttribute: int=2 bool=3 string=4 version=5 ints=6 bools=7 strings=8 versions=9
DeviceCapacity: value=1 requestPolicy=2
DeviceCounterConsumption: counterSet=1 counters=2
DeviceTaint: key=1 value=2 effect=3 timeAdded=4
NodeAllocatableResourceMapping: capacityKey=1 allocationMultiplier=2
ResourcePool: name=1 generation=2 resourceSliceCount=3
ResourceSlice: metadata=1 spec=2
ResourceSliceSpec: driver=1 pool=2 nodeName=3 nodeSelector=4 allNodes=5 devices=6 perDeviceNodeSelection=7
  sharedCounters=8
""",
    "io.k8s.api.scheduling.v1": """
PriorityClass: metadata=1 value=2 globalDefault=3 description=4 preemptionPolicy=5
""",
    "io.k8s.api.storage.v1": """
CSIDriver: metadata=1 spec=2
CSIDriverSpec: attachRequired=1 podInfoOnMount=2 volumeLifecycleModes=3 storageCapacity=4 fsGroupPolicy=5
  tokenRequests=6 requiresRepublish=7 seLinuxMount=8 nodeAllocatableUpdatePeriodSeconds=9
  serviceAccountTokenInSecrets=10 preventPodSchedulingIfMissing=11
CSINode: metadata=1 spec=2
CSINodeDriver: name=1 nodeID=2 topologyKeys=3 allocatable=4
CSINodeSpec: drivers=1
StorageClass: metadata=1 provisioner=2 parameters=3 reclaimPolicy=4 mountOptions=5 allowVolumeExpansion=6
  volumeBindingMode=7 allowedTopologies=8
TokenRequest: audience=1 expirationSeconds=2
VolumeAttachment: metadata=1 spec=2 status=3
VolumeAttachmentSource: persistentVolumeName=1 inlineVolumeSpec=2
VolumeAttachmentSpec: attacher=1 source=2 nodeName=3
VolumeAttachmentStatus: attached=1 attachmentMetadata=2 attachError=3 detachError=4
VolumeError: time=1 message=2 errorCode=3
VolumeNodeResources: count=1
""",
    "io.k8s.apimachinery.pkg.apis.meta.v1": """
Condition: type=1 status=2 observedGeneration=3 lastTransitionTime=4 reason=5 message=6
DeleteOptions: gracePeriodSeconds=1 preconditions=2 orphanDependents=3 propagationPolicy=4 dryRun=5
  ignoreStoreReadErrorWithClusterBreakingPotential=6
LabelSelector: matchLabels=1 matchExpressions=2
LabelSelectorRequirement: key=1 operator=2 values=3
ObjectMeta: name=1 generateName=2 namespace=3 selfLink=4 uid=5 resourceVersion=6 generation=7 creationTimestamp=8
  deletionTimestamp=9 deletionGracePeriodSeconds=10 labels=11 annotations=12 ownerReferences=13 finalizers=14
  managedFields=17
OwnerReference: kind=1 name=3 uid=4 apiVersion=5 controller=6 blockOwnerDeletion=7
Preconditions: uid=1 resourceVersion=2
""",
}


CORE: Final = """
AWSElasticBlockStoreVolumeSource: volumeID=1 fsType=2 partition=3 readOnly=4
Affinity: nodeAffinity=1 podAffinity=2 podAntiAffinity=3
AppArmorProfile: type=1 localhostProfile=2
AttachedVolume: name=1 devicePath=2
AzureDiskVolumeSource: diskName=1 diskURI=2 cachingMode=3 fsType=4 readOnly=5 kind=6
AzureFileVolumeSource: secretName=1 shareName=2 readOnly=3
CSIVolumeSource: driver=1 readOnly=2 fsType=3 volumeAttributes=4 nodePublishSecretRef=5
Capabilities: add=1 drop=2
CephFSVolumeSource: monitors=1 path=2 user=3 secretFile=4 secretRef=5 readOnly=6
CinderVolumeSource: volumeID=1 fsType=2 readOnly=3 secretRef=4
ClientIPConfig: timeoutSeconds=1
ClusterTrustBundleProjection: name=1 signerName=2 labelSelector=3 path=4 optional=5
ConfigMap: metadata=1 data=2 binaryData=3 immutable=4
ConfigMapEnvSource: *LocalObjectReference=1 optional=2
ConfigMapKeySelector: *LocalObjectReference=1 key=2 optional=3
ConfigMapNodeConfigSource: namespace=1 name=2 uid=3 resourceVersion=4 kubeletConfigKey=5
ConfigMapProjection: *LocalObjectReference=1 items=2 optional=4
ConfigMapVolumeSource: *LocalObjectReference=1 items=2 defaultMode=3 optional=4
Container: name=1 image=2 command=3 args=4 workingDir=5 ports=6 env=7 resources=8 volumeMounts=9 livenessProbe=10
  readinessProbe=11 lifecycle=12 terminationMessagePath=13 imagePullPolicy=14 securityContext=15 stdin=16 stdinOnce=17
  tty=18 envFrom=19 terminationMessagePolicy=20 volumeDevices=21 startupProbe=22 resizePolicy=23 restartPolicy=24
  restartPolicyRules=25
ContainerExtendedResourceRequest: containerName=1 resourceName=2 requestName=3
ContainerImage: names=1 sizeBytes=2
ContainerPort: name=1 hostPort=2 containerPort=3 protocol=4 hostIP=5
ContainerResizePolicy: resourceName=1 restartPolicy=2
ContainerRestartRule: action=1 exitCodes=2
ContainerRestartRuleOnExitCodes: operator=1 values=2
ContainerState: waiting=1 running=2 terminated=3
ContainerStateRunning: startedAt=1
ContainerStateTerminated: exitCode=1 signal=2 reason=3 message=4 startedAt=5 finishedAt=6 containerID=7
ContainerStateWaiting: reason=1 message=2
ContainerStatus: name=1 state=2 lastState=3 ready=4 restartCount=5 image=6 imageID=7 containerID=8 started=9
  allocatedResources=10 resources=11 volumeMounts=12 user=13 allocatedResourcesStatus=14 stopSignal=15
ContainerUser: linux=1
DaemonEndpoint: Port=1
DownwardAPIProjection: items=1
DownwardAPIVolumeFile: path=1 fieldRef=2 resourceFieldRef=3 mode=4
DownwardAPIVolumeSource: items=1 defaultMode=2
EmptyDirVolumeSource: medium=1 sizeLimit=2
EnvFromSource: prefix=1 configMapRef=2 secretRef=3
EnvVar: name=1 value=2 valueFrom=3
EnvVarSource: fieldRef=1 resourceFieldRef=2 configMapKeyRef=3 secretKeyRef=4 fileKeyRef=5
EphemeralContainer: *EphemeralContainerCommon=1 targetContainerName=2
EphemeralContainerCommon: name=1 image=2 command=3 args=4 workingDir=5 ports=6 env=7 resources=8 volumeMounts=9
  livenessProbe=10 readinessProbe=11 lifecycle=12 terminationMessagePath=13 imagePullPolicy=14 securityContext=15
  stdin=16 stdinOnce=17 tty=18 envFrom=19 terminationMessagePolicy=20 volumeDevices=21 startupProbe=22 resizePolicy=23
  restartPolicy=24 restartPolicyRules=25
EphemeralVolumeSource: volumeClaimTemplate=1
Event: metadata=1 involvedObject=2 reason=3 message=4 source=5 firstTimestamp=6 lastTimestamp=7 count=8 type=9
  eventTime=10 series=11 action=12 related=13 reportingComponent=14 reportingInstance=15
EventSeries: count=1 lastObservedTime=2
EventSource: component=1 host=2
ExecAction: command=1
FCVolumeSource: targetWWNs=1 lun=2 fsType=3 readOnly=4 wwids=5
FileKeySelector: volumeName=1 path=2 key=3 optional=4
FlexVolumeSource: driver=1 fsType=2 secretRef=3 readOnly=4 options=5
FlockerVolumeSource: datasetName=1 datasetUUID=2
GCEPersistentDiskVolumeSource: pdName=1 fsType=2 partition=3 readOnly=4
GRPCAction: port=1 service=2
GitRepoVolumeSource: repository=1 revision=2 directory=3
GlusterfsVolumeSource: endpoints=1 path=2 readOnly=3
HTTPGetAction: path=1 port=2 host=3 scheme=4 httpHeaders=5
HTTPHeader: name=1 value=2
HostAlias: ip=1 hostnames=2
HostIP: ip=1
HostPathVolumeSource: path=1 type=2
ISCSIVolumeSource: targetPortal=1 iqn=2 lun=3 iscsiInterface=4 fsType=5 readOnly=6 portals=7 chapAuthDiscovery=8
  secretRef=10 chapAuthSession=11 initiatorName=12
ImageVolumeSource: reference=1 pullPolicy=2
ImageVolumeStatus: imageRef=1
KeyToPath: key=1 path=2 mode=3
Lifecycle: postStart=1 preStop=2 stopSignal=3
LifecycleHandler: exec=1 httpGet=2 tcpSocket=3 sleep=4
LinuxContainerUser: uid=1 gid=2 supplementalGroups=3
LoadBalancerIngress: ip=1 hostname=2 ipMode=3 ports=4
LoadBalancerStatus: ingress=1
LocalObjectReference: name=1
NFSVolumeSource: server=1 path=2 readOnly=3
Namespace: metadata=1 spec=2 status=3
NamespaceCondition: type=1 status=2 lastTransitionTime=4 reason=5 message=6
NamespaceSpec: finalizers=1
NamespaceStatus: phase=1 conditions=2
Node: metadata=1 spec=2 status=3
NodeAddress: type=1 address=2
NodeAffinity: requiredDuringSchedulingIgnoredDuringExecution=1 preferredDuringSchedulingIgnoredDuringExecution=2
NodeAllocatableResourceClaimStatus: resourceClaimName=1 containers=2 resources=3
NodeCondition: type=1 status=2 lastHeartbeatTime=3 lastTransitionTime=4 reason=5 message=6
NodeConfigSource: configMap=2
NodeConfigStatus: assigned=1 active=2 lastKnownGood=3 error=4
NodeDaemonEndpoints: kubeletEndpoint=1
NodeFeatures: supplementalGroupsPolicy=1
NodeRuntimeHandler: name=1 features=2
NodeRuntimeHandlerFeatures: recursiveReadOnlyMounts=1 userNamespaces=2
NodeSelector: nodeSelectorTerms=1
NodeSelectorRequirement: key=1 operator=2 values=3
NodeSelectorTerm: matchExpressions=1 matchFields=2
NodeSpec: podCIDR=1 externalID=2 providerID=3 unschedulable=4 taints=5 configSource=6 podCIDRs=7
NodeStatus: capacity=1 allocatable=2 phase=3 conditions=4 addresses=5 daemonEndpoints=6 nodeInfo=7 images=8
  volumesInUse=9 volumesAttached=10 config=11 runtimeHandlers=12 features=13 declaredFeatures=14
NodeSwapStatus: capacity=1
NodeSystemInfo: machineID=1 systemUUID=2 bootID=3 kernelVersion=4 osImage=5 containerRuntimeVersion=6 kubeletVersion=7
  kubeProxyVersion=8 operatingSystem=9 architecture=10 swap=11
ObjectFieldSelector: apiVersion=1 fieldPath=2
ObjectReference: kind=1 namespace=2 name=3 uid=4 apiVersion=5 resourceVersion=6 fieldPath=7
PersistentVolumeClaimSpec: accessModes=1 resources=2 volumeName=3 selector=4 storageClassName=5 volumeMode=6
  dataSource=7 dataSourceRef=8 volumeAttributesClassName=9
PersistentVolumeClaimTemplate: metadata=1 spec=2
PersistentVolumeClaimVolumeSource: claimName=1 readOnly=2
PhotonPersistentDiskVolumeSource: pdID=1 fsType=2
Pod: metadata=1 spec=2 status=3
PodAffinity: requiredDuringSchedulingIgnoredDuringExecution=1 preferredDuringSchedulingIgnoredDuringExecution=2
PodAffinityTerm: labelSelector=1 namespaces=2 topologyKey=3 namespaceSelector=4 matchLabelKeys=5 mismatchLabelKeys=6
PodAntiAffinity: requiredDuringSchedulingIgnoredDuringExecution=1 preferredDuringSchedulingIgnoredDuringExecution=2
PodCertificateProjection: signerName=1 keyType=2 maxExpirationSeconds=3 credentialBundlePath=4 keyPath=5
  certificateChainPath=6 userAnnotations=7
PodCondition: type=1 status=2 lastProbeTime=3 lastTransitionTime=4 reason=5 message=6 observedGeneration=7
PodDNSConfig: nameservers=1 searches=2 options=3
PodDNSConfigOption: name=1 value=2
PodExtendedResourceClaimStatus: requestMappings=1 resourceClaimName=2
PodIP: ip=1
PodOS: name=1
PodReadinessGate: conditionType=1
PodResourceClaim: name=1 resourceClaimName=3 resourceClaimTemplateName=4
PodResourceClaimStatus: name=1 resourceClaimName=2
PodSchedulingGate: name=1
PodSchedulingGroup: podGroupName=1
PodSecurityContext: seLinuxOptions=1 runAsUser=2 runAsNonRoot=3 supplementalGroups=4 fsGroup=5 runAsGroup=6 sysctls=7
  windowsOptions=8 fsGroupChangePolicy=9 seccompProfile=10 appArmorProfile=11 supplementalGroupsPolicy=12
  seLinuxChangePolicy=13
PodSpec: volumes=1 containers=2 restartPolicy=3 terminationGracePeriodSeconds=4 activeDeadlineSeconds=5 dnsPolicy=6
  nodeSelector=7 serviceAccountName=8 serviceAccount=9 nodeName=10 hostNetwork=11 hostPID=12 hostIPC=13
  securityContext=14 imagePullSecrets=15 hostname=16 subdomain=17 affinity=18 schedulerName=19 initContainers=20
  automountServiceAccountToken=21 tolerations=22 hostAliases=23 priorityClassName=24 priority=25 dnsConfig=26
  shareProcessNamespace=27 readinessGates=28 runtimeClassName=29 enableServiceLinks=30 preemptionPolicy=31 overhead=32
  topologySpreadConstraints=33 ephemeralContainers=34 setHostnameAsFQDN=35 os=36 hostUsers=37 schedulingGates=38
  resourceClaims=39 resources=40 hostnameOverride=41 schedulingGroup=43
PodStatus: phase=1 conditions=2 message=3 reason=4 hostIP=5 podIP=6 startTime=7 containerStatuses=8 qosClass=9
  initContainerStatuses=10 nominatedNodeName=11 podIPs=12 ephemeralContainerStatuses=13 resize=14
  resourceClaimStatuses=15 hostIPs=16 observedGeneration=17 extendedResourceClaimStatus=18 allocatedResources=19
  resources=20 nodeAllocatableResourceClaimStatuses=21
PortStatus: port=1 protocol=2 error=3
PortworxVolumeSource: volumeID=1 fsType=2 readOnly=3
PreferredSchedulingTerm: weight=1 preference=2
Probe: *ProbeHandler=1 initialDelaySeconds=2 timeoutSeconds=3 periodSeconds=4 successThreshold=5 failureThreshold=6
  terminationGracePeriodSeconds=7
ProbeHandler: exec=1 httpGet=2 tcpSocket=3 grpc=4
ProjectedVolumeSource: sources=1 defaultMode=2
QuobyteVolumeSource: registry=1 volume=2 readOnly=3 user=4 group=5 tenant=6
RBDVolumeSource: monitors=1 image=2 fsType=3 pool=4 user=5 keyring=6 secretRef=7 readOnly=8
ResourceClaim: name=1 request=2
ResourceFieldSelector: containerName=1 resource=2 divisor=3
ResourceHealth: resourceID=1 health=2 message=6
ResourceRequirements: limits=1 requests=2 claims=3
ResourceStatus: name=1 resources=2
SELinuxOptions: user=1 role=2 type=3 level=4
ScaleIOVolumeSource: gateway=1 system=2 secretRef=3 sslEnabled=4 protectionDomain=5 storagePool=6 storageMode=7
  volumeName=8 fsType=9 readOnly=10
SeccompProfile: type=1 localhostProfile=2
Secret: metadata=1 data=2 type=3 stringData=4 immutable=5
SecretEnvSource: *LocalObjectReference=1 optional=2
SecretKeySelector: *LocalObjectReference=1 key=2 optional=3
SecretProjection: *LocalObjectReference=1 items=2 optional=4
SecretVolumeSource: secretName=1 items=2 defaultMode=3 optional=4
SecurityContext: capabilities=1 privileged=2 seLinuxOptions=3 runAsUser=4 runAsNonRoot=5 readOnlyRootFilesystem=6
  allowPrivilegeEscalation=7 runAsGroup=8 procMount=9 windowsOptions=10 seccompProfile=11 appArmorProfile=12
Service: metadata=1 spec=2 status=3
ServiceAccount: metadata=1 secrets=2 imagePullSecrets=3 automountServiceAccountToken=4
ServiceAccountTokenProjection: audience=1 expirationSeconds=2 path=3
ServicePort: name=1 protocol=2 port=3 targetPort=4 nodePort=5 appProtocol=6
ServiceSpec: ports=1 selector=2 clusterIP=3 type=4 externalIPs=5 sessionAffinity=7 loadBalancerIP=8
  loadBalancerSourceRanges=9 externalName=10 externalTrafficPolicy=11 healthCheckNodePort=12
  publishNotReadyAddresses=13 sessionAffinityConfig=14 ipFamilyPolicy=17 clusterIPs=18 ipFamilies=19
  allocateLoadBalancerNodePorts=20 loadBalancerClass=21 internalTrafficPolicy=22 trafficDistribution=23
ServiceStatus: loadBalancer=1 conditions=2
SessionAffinityConfig: clientIP=1
SleepAction: seconds=1
StorageOSVolumeSource: volumeName=1 volumeNamespace=2 fsType=3 readOnly=4 secretRef=5
Sysctl: name=1 value=2
TCPSocketAction: port=1 host=2
Taint: key=1 value=2 effect=3 timeAdded=4
Toleration: key=1 operator=2 value=3 effect=4 tolerationSeconds=5
TopologySpreadConstraint: maxSkew=1 topologyKey=2 whenUnsatisfiable=3 labelSelector=4 minDomains=5
  nodeAffinityPolicy=6 nodeTaintsPolicy=7 matchLabelKeys=8
TypedLocalObjectReference: apiGroup=1 kind=2 name=3
TypedObjectReference: apiGroup=1 kind=2 name=3 namespace=4
Volume: name=1 *VolumeSource=2
VolumeDevice: name=1 devicePath=2
VolumeMount: name=1 readOnly=2 mountPath=3 subPath=4 mountPropagation=5 subPathExpr=6 recursiveReadOnly=7
VolumeMountStatus: name=1 mountPath=2 readOnly=3 recursiveReadOnly=4 volumeStatus=5
VolumeProjection: secret=1 downwardAPI=2 configMap=3 serviceAccountToken=4 clusterTrustBundle=5 podCertificate=6
VolumeResourceRequirements: limits=1 requests=2
VolumeSource: hostPath=1 emptyDir=2 gcePersistentDisk=3 awsElasticBlockStore=4 gitRepo=5 secret=6 nfs=7 iscsi=8
  glusterfs=9 persistentVolumeClaim=10 rbd=11 flexVolume=12 cinder=13 cephfs=14 flocker=15 downwardAPI=16 fc=17
  azureFile=18 configMap=19 vsphereVolume=20 quobyte=21 azureDisk=22 photonPersistentDisk=23 portworxVolume=24
  scaleIO=25 projected=26 storageos=27 csi=28 ephemeral=29 image=30
VolumeStatus: image=1
VsphereVirtualDiskVolumeSource: volumePath=1 fsType=2 storagePolicyName=3 storagePolicyID=4
WeightedPodAffinityTerm: weight=1 podAffinityTerm=2
WindowsSecurityContextOptions: gmsaCredentialSpecName=1 gmsaCredentialSpec=2 runAsUserName=3 hostProcess=4
"""


INLINE: Final = "*"
Numbers: TypeAlias = Mapping[int, str]  # the name of a field, or `*` and the name of a type


def _read(package: str, text: str) -> Iterator[tuple[tuple[str, str], Numbers]]:
    for line in text.replace("\n  ", " ").split("\n"):
        name, _, given = line.partition(":")
        if name:
            pairs = (pair.rpartition("=") for pair in given.split())
            yield (package, name), {int(number): field for field, _, number in pairs}


NUMBERS: Final[Mapping[tuple[str, str], Numbers]] = dict(
    row for package, text in {CORE_PACKAGE: CORE, **GROUPS}.items() for row in _read(package, text)
)
