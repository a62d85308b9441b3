"""The fields of a pod's volumes in the notation of `type_descriptor_parser`."""

from typing import Final

FIELDS: Final = """
Volume: Storage that containers of a pod can mount.
  awsElasticBlockStore AWSElasticBlockStoreVolumeSource*
  azureDisk AzureDiskVolumeSource*
  azureFile AzureFileVolumeSource*
  cephfs CephFSVolumeSource*
  cinder CinderVolumeSource*
  configMap ConfigMapVolumeSource*  The keys of a ConfigMap as files.
  csi CSIVolumeSource*  A volume of a CSI driver.
  downwardAPI DownwardAPIVolumeSource*  Facts about the pod as files.
  emptyDir EmptyDirVolumeSource*  A directory that lives as long as the pod.
  ephemeral EphemeralVolumeSource*  A PersistentVolumeClaim that lives as long as the pod.
  fc FCVolumeSource*
  flexVolume FlexVolumeSource*
  flocker FlockerVolumeSource*
  gcePersistentDisk GCEPersistentDiskVolumeSource*
  gitRepo GitRepoVolumeSource*
  glusterfs GlusterfsVolumeSource*
  hostPath HostPathVolumeSource*  A path of the node.
  image ImageVolumeSource*  An OCI image or artifact.
  iscsi ISCSIVolumeSource*
  name string!  Unique in the pod.
  nfs NFSVolumeSource*  An NFS export.
  persistentVolumeClaim PersistentVolumeClaimVolumeSource*  The volume of a PersistentVolumeClaim.
  photonPersistentDisk PhotonPersistentDiskVolumeSource*
  portworxVolume PortworxVolumeSource*
  projected ProjectedVolumeSource*  Several sources in one directory.
  quobyte QuobyteVolumeSource*
  rbd RBDVolumeSource*
  scaleIO ScaleIOVolumeSource*
  secret SecretVolumeSource*  The keys of a Secret as files.
  storageos StorageOSVolumeSource*
  vsphereVolume VsphereVirtualDiskVolumeSource*
AWSElasticBlockStoreVolumeSource
  fsType string
  partition int32
  readOnly bool
  volumeID string!
AzureDiskVolumeSource
  cachingMode string*
  diskName string!
  diskURI string!
  fsType string*
  kind string*
  readOnly bool*
AzureFileVolumeSource
  readOnly bool
  secretName string!
  shareName string!
CephFSVolumeSource
  monitors [string]!
  path string
  readOnly bool
  secretFile string
  secretRef LocalObjectReference*
  user string
CinderVolumeSource
  fsType string
  readOnly bool
  secretRef LocalObjectReference*
  volumeID string!
ConfigMapVolumeSource: The keys of a ConfigMap as files.
  defaultMode int32*
  defaultUser int64
  items [KeyToPath]
  name string
  optional bool*
CSIVolumeSource: A volume of a CSI driver.
  driver string!
  fsType string*
  nodePublishSecretRef LocalObjectReference*
  readOnly bool*
  volumeAttributes {string}
DownwardAPIVolumeSource: Facts about the pod as files.
  defaultMode int32*
  defaultUser int64
  items [DownwardAPIVolumeFile]
EmptyDirVolumeSource: A directory that lives as long as the pod.
  medium string
  mode int64
  sizeLimit quantity*
EphemeralVolumeSource: A PersistentVolumeClaim that lives as long as the pod.
  volumeClaimTemplate PersistentVolumeClaimTemplate*
FCVolumeSource
  fsType string
  lun int32*
  readOnly bool
  targetWWNs [string]
  wwids [string]
FlexVolumeSource
  driver string!
  fsType string
  options {string}
  readOnly bool
  secretRef LocalObjectReference*
FlockerVolumeSource
  datasetName string
  datasetUUID string
GCEPersistentDiskVolumeSource
  fsType string
  partition int32
  pdName string!
  readOnly bool
GitRepoVolumeSource
  directory string
  repository string!
  revision string
GlusterfsVolumeSource
  endpoints string!
  path string!
  readOnly bool
HostPathVolumeSource: A path of the node.
  path string!
  type string*
ImageVolumeSource: An OCI image or artifact.
  pullPolicy string
  reference string
ISCSIVolumeSource
  chapAuthDiscovery bool
  chapAuthSession bool
  fsType string
  initiatorName string*
  iqn string!
  iscsiInterface string
  lun int32!
  portals [string]
  readOnly bool
  secretRef LocalObjectReference*
  targetPortal string!
NFSVolumeSource: An NFS export.
  path string!
  readOnly bool
  server string!
PersistentVolumeClaimVolumeSource: The volume of a PersistentVolumeClaim.
  claimName string!
  readOnly bool
PhotonPersistentDiskVolumeSource
  fsType string
  pdID string!
PortworxVolumeSource
  fsType string
  readOnly bool
  volumeID string!
ProjectedVolumeSource: Several sources in one directory.
  defaultMode int32*
  defaultUser int64
  sources [VolumeProjection]!
QuobyteVolumeSource
  group string
  readOnly bool
  registry string!
  tenant string
  user string
  volume string!
RBDVolumeSource
  fsType string
  image string!
  keyring string
  monitors [string]!
  pool string
  readOnly bool
  secretRef LocalObjectReference*
  user string
ScaleIOVolumeSource
  fsType string
  gateway string!
  protectionDomain string
  readOnly bool
  secretRef LocalObjectReference!
  sslEnabled bool
  storageMode string
  storagePool string
  system string!
  volumeName string
SecretVolumeSource: The keys of a Secret as files.
  defaultMode int32*
  defaultUser int64
  items [KeyToPath]
  optional bool*
  secretName string
StorageOSVolumeSource
  fsType string
  readOnly bool
  secretRef LocalObjectReference*
  volumeName string
  volumeNamespace string
VsphereVirtualDiskVolumeSource
  fsType string
  storagePolicyID string
  storagePolicyName string
  volumePath string!
KeyToPath: A key as a file.
  key string!
  mode int32*
  path string!
  user int64
DownwardAPIVolumeFile
  fieldRef ObjectFieldSelector*
  mode int32*
  path string!
  resourceFieldRef ResourceFieldSelector*
  user int64
PersistentVolumeClaimTemplate
  metadata ObjectMeta!
  spec PersistentVolumeClaimSpec!
VolumeProjection: One of the sources.
  clusterTrustBundle ClusterTrustBundleProjection*
  configMap ConfigMapProjection*
  downwardAPI DownwardAPIProjection*
  podCertificate PodCertificateProjection*
  secret SecretProjection*
  serviceAccountToken ServiceAccountTokenProjection*
PersistentVolumeClaimSpec
  accessModes [string]
  dataSource TypedLocalObjectReference*
  dataSourceRef TypedObjectReference*
  resources VolumeResourceRequirements!
  selector LabelSelector*
  storageClassName string*
  volumeAttributesClassName string*
  volumeMode string*
  volumeName string
ClusterTrustBundleProjection
  labelSelector LabelSelector*
  name string*
  optional bool*
  path string!
  signerName string*
  user int64
ConfigMapProjection
  items [KeyToPath]
  name string
  optional bool*
DownwardAPIProjection
  items [DownwardAPIVolumeFile]
PodCertificateProjection
  certificateChainPath string
  credentialBundlePath string
  keyPath string
  keyType string
  maxExpirationSeconds int64
  signerName string
  user int64
  userAnnotations {string}
SecretProjection
  items [KeyToPath]
  name string
  optional bool*
ServiceAccountTokenProjection: A token of the pod's service account.
  audience string
  expirationSeconds int64*
  path string!
  user int64
TypedLocalObjectReference atomic
  apiGroup string!
  kind string!
  name string!
TypedObjectReference
  apiGroup string!
  kind string!
  name string!
  namespace string*
VolumeResourceRequirements
  limits {quantity}
  requests {quantity}
"""
