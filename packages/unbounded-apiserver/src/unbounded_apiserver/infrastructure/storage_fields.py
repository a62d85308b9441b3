"""Fields of storage.k8s.io in the notation of notation.py."""

from typing import Final

FIELDS: Final = """
CSINode: The CSI drivers on a node.
  spec CSINodeSpec!  The drivers.
CSINodeSpec: The CSI drivers on a node.
  drivers [CSINodeDriver]name!  One entry for each driver.
CSINodeDriver: A CSI driver on a node.
  allocatable VolumeNodeResources*  How many volumes it can handle.
  name string!  The name of the driver.
  nodeID string!  The node as the driver calls it.
  topologyKeys [string]!  Labels that say where volumes can be reached.
VolumeNodeResources: Limits of a node.
  count int32*  The most volumes at a time.
CSIDriver: What a CSI driver needs of Kubernetes.
  spec CSIDriverSpec!  The properties of the driver.
CSIDriverSpec: The properties of a CSI driver.
  attachRequired bool*  Whether its volumes are attached before they are mounted.
  fsGroupPolicy string*  Whether ownership of a volume follows fsGroup.
  nodeAllocatableUpdatePeriodSeconds int64*  Seconds between updates of a node's limits.
  podInfoOnMount bool*  Whether the driver is told about the pod.
  preventPodSchedulingIfMissing bool*
  requiresRepublish bool*  Whether volumes are published again from time to time.
  seLinuxMount bool*  Whether mounts take an SELinux context.
  serviceAccountTokenInSecrets bool*  Whether tokens come as secrets.
  storageCapacity bool*  Whether free capacity counts in scheduling.
  tokenRequests [TokenRequest]  Tokens of the pod's account for the driver.
  volumeLifecycleModes set  Persistent, Ephemeral.
TokenRequest: A token of the pod's account.
  audience string!  The audience of the token.
  expirationSeconds int64*  Seconds of its life.
StorageClass: A way to provision volumes.
  allowVolumeExpansion bool*  Whether volumes can grow.
  allowedTopologies [TopologySelectorTerm]  Where volumes may be.
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
  attached bool!  Whether the volume is attached.
  attachmentMetadata {string}  What later calls need to know.
  detachError VolumeError*  The last error of detaching.
VolumeError: An error of a driver.
  errorCode int32*  Its code in gRPC.
  message string  What the driver says.
  time time  When it occurred.
"""
# Types of the core group that other volumes use too.
TOPOLOGY: Final = """
TopologySelectorTerm atomic: Where a volume may be.
  matchLabelExpressions [TopologySelectorLabelRequirement]  Requirements on labels.
TopologySelectorLabelRequirement: A requirement on labels.
  key string!  The key of the label.
  values [string]!  Values, of which one has to match.
"""
