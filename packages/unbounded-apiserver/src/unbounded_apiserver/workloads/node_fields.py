"""The fields of a Node, as kubelet of Kubernetes 1.36 reports them, in the notation of notation.py."""

from typing import Final

from unbounded_apiserver import notation
from unbounded_apiserver.type_desc import StructType

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
  unschedulable bool  Whether new pods are kept away (cordon).
Taint: Keeps pods off the node that do not tolerate it.
  effect string!  NoSchedule, PreferNoSchedule or NoExecute.
  key string!  The key of the taint.
  timeAdded time  When a NoExecute taint was added.
  value string  The value that goes with the key.
NodeStatus: The observed state of a node.
  addresses [NodeAddress]type  Addresses at which the node can be reached.
  allocatable {quantity}  The resources that pods can have.
  capacity {quantity}  All resources of the node.
  conditions [NodeCondition]type  The state of the node in several respects.
  config NodeConfigStatus*  Not used any more.
  daemonEndpoints NodeDaemonEndpoints!  Ports of the daemons on the node.
  declaredFeatures [string]  Features of kubelet that pods may need.
  features NodeFeatures*  What the container runtime can do.
  images [ContainerImage]  Images on the node.
  nodeInfo NodeSystemInfo!  Versions and ids.
  phase string  Not used any more.
  runtimeHandlers [NodeRuntimeHandler]  Handlers of the container runtime.
  volumesAttached [AttachedVolume]  Volumes that are attached.
  volumesInUse [string]  Volumes in use.
NodeCondition: The state of a node in one respect.
  lastHeartbeatTime time!  When it was last reported.
  lastTransitionTime time!  When the status last changed.
  message string  A sentence for people.
  reason string  One word for the last change.
  status string!  True, False or Unknown.
  type string!  The respect, such as Ready.
NodeAddress: An address of the node.
  address string!  The address.
  type string!  Hostname, InternalIP, ExternalIP, …
NodeDaemonEndpoints: Ports of the daemons on the node.
  kubeletEndpoint DaemonEndpoint!  Where kubelet listens.
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
  osImage string!  From /etc/os-release.
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
  features NodeRuntimeHandlerFeatures*  What it can do.
  name string!  The handler; empty for the default.
NodeRuntimeHandlerFeatures: What a handler of the container runtime can do.
  recursiveReadOnlyMounts bool*  Whether mounts can be read-only with all below them.
  userNamespaces bool*  Whether pods can have user namespaces.
NodeFeatures: What the container runtime can do.
  supplementalGroupsPolicy bool*  Whether it knows the policies of supplemental groups.
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
NODE: Final[StructType] = notation.kind(notation.read(FIELDS), "Node")
