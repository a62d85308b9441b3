"""The fields of a pod's spec, without containers and volumes, in the notation of notation.py."""

from typing import Final

FIELDS: Final = """
Pod: Containers that run together on one node.
  spec PodSpec!  The desired state.
  status PodStatus!  The observed state.
PodSpec: The desired state of a pod.
  activeDeadlineSeconds int64*  Seconds after which the pod is ended.
  affinity Affinity*  Where the pod should run.
  automountServiceAccountToken bool*  Whether a token of the account is mounted.
  containers [Container]name!  The containers; at least one.
  dnsConfig PodDNSConfig*  Further DNS settings.
  dnsPolicy string  ClusterFirst, ClusterFirstWithHostNet, Default or None.
  enableServiceLinks bool*  Whether services stand in the environment.
  ephemeralContainers [EphemeralContainer]name  Containers that were added for debugging.
  evictionResponders [EvictionResponder]
  hostAliases [HostAlias]ip  Lines for /etc/hosts.
  hostIPC bool  Whether it uses the IPC namespace of the node.
  hostNetwork bool  Whether it uses the network of the node.
  hostPID bool  Whether it sees the processes of the node.
  hostUsers bool*  Whether it uses the user namespace of the node.
  hostname string  The hostname of the pod.
  hostnameOverride string
  imagePullSecrets [LocalObjectReference]name  Secrets for pulling images.
  initContainers [Container]name  Containers that run to their end, one after another, before the others start.
  nodeName string  The node that the pod is bound to; kubelet there runs it.
  nodeSelector {string}  Labels that the node must have.
  os PodOS*  The operating system.
  overhead {quantity}  What the pod takes beyond its containers.
  preemptionPolicy string*  PreemptLowerPriority or Never.
  priority int32*  The higher, the sooner it is scheduled.
  priorityClassName string  Names the priority.
  readinessGates [PodReadinessGate]  Conditions that have to be true before the pod is ready.
  resourceClaims [PodResourceClaim]name  Claims for devices.
  resources ResourceRequirements*  What the pod as a whole needs and may take.
  restartPolicy string  Always, OnFailure or Never.
  runtimeClassName string*  The RuntimeClass.
  schedulerName string  Who schedules the pod.
  schedulingGates [PodSchedulingGate]name  Keep the pod from being scheduled.
  schedulingGroup PodSchedulingGroup*
  securityContext PodSecurityContext*  Rights and identity of all containers.
  serviceAccount string  The older name of serviceAccountName.
  serviceAccountName string  The service account under which the pod runs.
  setHostnameAsFQDN bool*  Whether the hostname is the fully qualified name.
  shareProcessNamespace bool*  Whether containers see each other's processes.
  subdomain string  The domain of the pod's hostname.
  terminationGracePeriodSeconds int64*  Seconds between the signal to end and the kill; 30 when left out.
  tolerations [Toleration]  Taints that the pod is allowed on.
  topologySpreadConstraints [TopologySpreadConstraint]topologyKey+whenUnsatisfiable  How it is spread.
  volumes [Volume]name  Storage that containers can mount.
Affinity: Where the pod should run.
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
  tolerationSeconds int64*  How long a NoExecute taint is tolerated.
  value string  The value of the taint.
TopologySpreadConstraint: How pods are spread over zones or nodes.
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
