"""Field numbers of the other API groups, and of metadata. See the package for how to read it."""

from typing import Final

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
