"""The fields of a container in the notation of notation.py."""

from typing import Final

FIELDS: Final = """
Container: A program that a pod runs.
  args [string]  Arguments of the entry point.
  command [string]  The entry point, in place of that of the image.
  env [EnvVar]name  Variables of the environment.
  envFrom [EnvFromSource]  Variables from ConfigMaps and Secrets.
  image string!  The image.
  imagePullPolicy string  Always, IfNotPresent or Never.
  lifecycle Lifecycle*  What is run at its start and end.
  livenessProbe Probe*  When it fails, the container is restarted.
  name string!  Unique in the pod.
  ports [ContainerPort]containerPort+protocol  Ports that it listens on.
  readinessProbe Probe*  While it fails, services leave the pod out.
  resizePolicy [ContainerResizePolicy]  What happens when its resources change.
  resources ResourceRequirements!  How much it needs and may take.
  restartPolicy string*  Of init containers: Always makes it a sidecar.
  restartPolicyRules [ContainerRestartRule]
  securityContext SecurityContext*  Rights and identity.
  startupProbe Probe*  Until it succeeds, the others wait.
  stdin bool  Whether it has a standard input.
  stdinOnce bool  Whether that is closed after the first client.
  terminationMessagePath string  The file with its last words.
  terminationMessagePolicy string  File or FallbackToLogsOnError.
  tty bool  Whether it has a terminal.
  volumeDevices [VolumeDevice]devicePath  Raw block devices.
  volumeMounts [VolumeMount]mountPath  Volumes in its file system.
  workingDir string  The directory that it starts in.
EphemeralContainer of Container: A container that was added to a running pod, for debugging.
  image string  The image.
  targetContainerName string  The container whose processes it sees.
ResourceRequirements: How much a container needs and may take.
  claims [ResourceClaim]  Claims of the pod that it uses.
  limits {quantity}  The most that it may take.
  requests {quantity}  What it needs.
EnvVar: A variable in the environment of a container.
  name string!  The name.
  value string  The value.
  valueFrom EnvVarSource*  Where the value comes from.
EnvFromSource: Where many variables come from.
  configMapRef ConfigMapEnvSource*
  prefix string
  secretRef SecretEnvSource*
Lifecycle: What is run when a container starts and before it is stopped.
  postStart LifecycleHandler*
  preStop LifecycleHandler*
  stopSignal string
Probe: How kubelet finds out whether a container works.
  exec ExecAction*  Runs a command.
  failureThreshold int32  Failures in a row that count.
  grpc GRPCAction*  Asks the health service of gRPC.
  httpGet HTTPGetAction*  Asks with HTTP.
  initialDelaySeconds int32  Seconds before the first one.
  periodSeconds int32  Seconds from one to the next.
  successThreshold int32  Successes in a row that count.
  tcpSocket TCPSocketAction*  Opens a connection.
  terminationGracePeriodSeconds int64*  In place of that of the pod.
  timeoutSeconds int32  Seconds for an answer.
ContainerPort: A port that a container listens on.
  containerPort int32!  The port.
  hostIP string  The address on the node.
  hostPort int32  The port on the node.
  name string  A name for services.
  protocol string  TCP, UDP or SCTP.
ContainerResizePolicy
  resourceName string!
  restartPolicy string!
ContainerRestartRule
  action string
  exitCodes ContainerRestartRuleOnExitCodes*
SecurityContext: Rights and identity of a container; it goes before that of the pod.
  allowPrivilegeEscalation bool*
  appArmorProfile AppArmorProfile*
  capabilities Capabilities*
  privileged bool*
  procMount string*
  readOnlyRootFilesystem bool*
  runAsGroup int64*
  runAsNonRoot bool*
  runAsUser int64*
  seLinuxOptions SELinuxOptions*
  seccompProfile SeccompProfile*
  windowsOptions WindowsSecurityContextOptions*
VolumeDevice: A raw block device in a container.
  devicePath string!
  name string!
VolumeMount: A volume in the file system of a container.
  bindMountOptions [string]
  mountPath string!  Where it appears.
  mountPropagation string*
  name string!  The volume.
  readOnly bool  Whether it cannot be written.
  recursiveReadOnly string*
  subPath string  The path inside of the volume.
  subPathExpr string
AppArmorProfile: The AppArmor profile.
  localhostProfile string*
  type string!
SELinuxOptions: The SELinux label.
  level string
  role string
  type string
  user string
SeccompProfile: The seccomp profile.
  localhostProfile string*
  type string!
WindowsSecurityContextOptions
  gmsaCredentialSpec string*
  gmsaCredentialSpecName string*
  hostProcess bool*
  runAsUserName string*
EnvVarSource: Where the value of a variable comes from.
  configMapKeyRef ConfigMapKeySelector*  A key of a ConfigMap.
  fieldRef ObjectFieldSelector*  A field of the pod.
  fileKeyRef FileKeySelector*
  resourceFieldRef ResourceFieldSelector*  A resource of a container.
  secretKeyRef SecretKeySelector*  A key of a Secret.
ConfigMapEnvSource
  name string
  optional bool*
SecretEnvSource
  name string
  optional bool*
LifecycleHandler: What is run.
  exec ExecAction*
  httpGet HTTPGetAction*
  sleep SleepAction*
  tcpSocket TCPSocketAction*
ExecAction: Runs a command in the container.
  command [string]
GRPCAction: Asks the health service of gRPC.
  mode string
  port int32!
  service string!
HTTPGetAction: Asks with HTTP.
  host string
  httpHeaders [HTTPHeader]
  path string
  port port!
  protocol string
  scheme string
TCPSocketAction: Opens a connection.
  host string
  port port!
ContainerRestartRuleOnExitCodes
  operator string
  values [int64]
Capabilities: Capabilities of Linux.
  add [string]
  drop [string]
ConfigMapKeySelector atomic: A key of a ConfigMap.
  key string!
  name string
  optional bool*
ObjectFieldSelector atomic: A field of the pod.
  apiVersion string
  fieldPath string!
FileKeySelector atomic
  key string
  optional bool
  path string
  volumeName string
ResourceFieldSelector atomic: A resource of a container.
  containerName string
  divisor quantity!
  resource string!
SecretKeySelector atomic: A key of a Secret.
  key string!
  name string
  optional bool*
SleepAction: Waits.
  seconds int64!
HTTPHeader: A header of a request.
  name string!
  value string!
ResourceClaim: A claim of the pod that a container uses.
  name string!
  request string
"""
