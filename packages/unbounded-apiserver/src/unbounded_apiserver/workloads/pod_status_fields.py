"""The fields of a pod's status, which kubelet reports, in the notation of notation.py."""

from typing import Final

FIELDS: Final = """
PodStatus: The observed state of a pod, as kubelet reports it.
  allocatedResources {quantity}
  conditions [PodCondition]type  The state in several respects.
  containerStatuses [ContainerStatus]  The state of each container.
  ephemeralContainerStatuses [ContainerStatus]  The state of each ephemeral container.
  extendedResourceClaimStatus PodExtendedResourceClaimStatus*
  hostIP string  The address of the node.
  hostIPs [HostIP]ip  The addresses of the node.
  initContainerStatuses [ContainerStatus]  The state of each init container.
  message string  A sentence for people.
  nodeAllocatableResourceClaimStatuses [NodeAllocatableResourceClaimStatus]
  nominatedNodeName string  The node that is being made free for the pod.
  observedGeneration int64  The generation that the status is about.
  phase string  Pending, Running, Succeeded, Failed or Unknown.
  podIP string  The address of the pod.
  podIPs [PodIP]ip  The addresses of the pod.
  qosClass string  Guaranteed, Burstable or BestEffort.
  reason string  One word for the phase.
  resize string
  resourceClaimStatuses [PodResourceClaimStatus]name
  resources ResourceRequirements*
  startTime time  When kubelet took the pod on.
  volumeHealth [PodVolumeHealth]
PodCondition: The state of a pod in one respect.
  lastProbeTime time!  When it was last looked at.
  lastTransitionTime time!  When the status last changed.
  message string  A sentence for people.
  observedGeneration int64  The generation that it is about.
  reason string  One word for the last change.
  status string!  True, False or Unknown.
  type string!  What is told, such as Ready.
ContainerStatus: The state of a container.
  allocatedResources {quantity}
  allocatedResourcesStatus [ResourceStatus]
  containerID string  The runtime's name for it.
  image string!  The image that runs.
  imageID string!  The digest of the image.
  lastState ContainerState!  How it was before.
  name string!  The container.
  ready bool!  Whether it passes its readiness probe.
  resources ResourceRequirements*
  restartCount int32!  How often it was restarted.
  started bool*  Whether it has started.
  state ContainerState!  How it is now.
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
ContainerStateTerminated: How it ended.
  containerID string
  exitCode int32!
  finishedAt time!
  message string
  reason string
  signal int32
  startedAt time!
ContainerStateWaiting: What it waits for.
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
