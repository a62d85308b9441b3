"""A Pod's containers: their fields for `type_descriptor_parser`, and their validation, worded as by Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from unbounded_apiserver import field_errors, name_validation, quantity
from unbounded_apiserver.schema import FieldError

FIELDS: Final = """
Container: A program that a pod runs.
  args [string]  Arguments of the entry point.
  command [string]  The entry point, in place of that of the image.
  env [EnvVar]name  Variables of the environment.
  envFrom [EnvFromSource]  Variables from ConfigMaps and Secrets.
  image string!  The image.
  imagePullPolicy string  Always, IfNotPresent or Never.
  lifecycle Lifecycle*  Handlers at its start and end.
  livenessProbe Probe*  Probe whose failure restarts the container.
  name string!  Unique in the pod.
  ports [ContainerPort]containerPort+protocol  Ports that it listens on.
  readinessProbe Probe*  While it fails, services leave the pod out.
  resizePolicy [ContainerResizePolicy]  Effect of a change of its resources.
  resources ResourceRequirements!  Requests and limits.
  restartPolicy string*  Restart policy of an init container: Always makes it a sidecar.
  restartPolicyRules [ContainerRestartRule]
  securityContext SecurityContext*  Rights and identity.
  startupProbe Probe*  Probe that must succeed before the others start.
  stdin bool  It has a standard input.
  stdinOnce bool  The standard input is closed after the first client.
  terminationMessagePath string  The file with its last words.
  terminationMessagePolicy string  File or FallbackToLogsOnError.
  tty bool  It has a terminal.
  volumeDevices [VolumeDevice]devicePath  Raw block devices.
  volumeMounts [VolumeMount]mountPath  Volumes in its file system.
  workingDir string  The directory that it starts in.
EphemeralContainer of Container: A container that was added to a running pod, for debugging.
  image string  The image.
  targetContainerName string  The container whose processes it sees.
ResourceRequirements: Requests and limits of a container.
  claims [ResourceClaim]  Claims of the pod that it uses.
  limits {quantity}  The most that it may take.
  requests {quantity}  Requested amounts.
EnvVar: A variable in the environment of a container.
  name string!  The name.
  value string  The value.
  valueFrom EnvVarSource*  Source of the value.
EnvFromSource: Source of many variables.
  configMapRef ConfigMapEnvSource*
  prefix string
  secretRef SecretEnvSource*
Lifecycle: Handlers that run when a container has started and before it is stopped.
  postStart LifecycleHandler*
  preStop LifecycleHandler*
  stopSignal string
Probe: Check of a container by kubelet.
  exec ExecAction*  Runs a command.
  failureThreshold int32  Failures in a row that count.
  grpc GRPCAction*  Asks the health service of gRPC.
  httpGet HTTPGetAction*  Asks with HTTP.
  initialDelaySeconds int32  Seconds before the first one.
  periodSeconds int32  Seconds from one to the next.
  successThreshold int32  Successes in a row that count.
  tcpSocket TCPSocketAction*  Opens a connection.
  terminationGracePeriodSeconds int64*  Grace period, in place of that of the pod.
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
  mountPath string!  Path in the container.
  mountPropagation string*
  name string!  The volume.
  readOnly bool  It cannot be written.
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
EnvVarSource: Source of the value of a variable.
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
LifecycleHandler: Action of a handler.
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
Object = Mapping[str, Any]

PROTOCOLS: Final = ["SCTP", "TCP", "UDP"]
PULL_POLICIES: Final = ["Always", "IfNotPresent", "Never"]
MESSAGE_POLICIES: Final = ["File", "FallbackToLogsOnError"]
_HANDLERS: Final = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_VALUE_SOURCES: Final = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")
_COUNTS: Final = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
# whether successThreshold must be 1
_PROBES: Final = {"livenessProbe": True, "readinessProbe": False, "startupProbe": True}
_PORT_RANGE: Final = "must be between 1 and 65535, inclusive"
_NOT_NEGATIVE: Final = "must be greater than or equal to 0"


def of_container(at: str, container: Object, volumes: frozenset[str]) -> list[FieldError]:
    """Return the errors of one container; `volumes` are the names of the pod's volumes."""
    errors = label(f"{at}.name", container["name"])
    if not container.get("image"):
        errors.append(field_errors.required(f"{at}.image"))
    elif container["image"].strip() != container["image"]:
        why = "must not have leading or trailing whitespace"
        errors.append(field_errors.invalid(f"{at}.image", container["image"], why))
    for key, known in (("terminationMessagePolicy", MESSAGE_POLICIES), ("imagePullPolicy", PULL_POLICIES)):
        if container[key] not in known:
            errors.append(field_errors.unsupported(f"{at}.{key}", container[key], known))
    errors += _ports(f"{at}.ports", container.get("ports", ()))
    for index, variable in enumerate(container.get("env", ())):
        errors += _variable(f"{at}.env[{index}]", variable)
    errors += _mounts(f"{at}.volumeMounts", container.get("volumeMounts", ()), volumes)
    for name, once in _PROBES.items():
        if name in container:
            errors += _probe(f"{at}.{name}", container[name], once=once)
    lifecycle = container.get("lifecycle", {})
    for name in ("postStart", "preStop"):
        if name in lifecycle:
            errors += _handler(f"{at}.lifecycle.{name}", lifecycle[name])
    return errors + _resources(f"{at}.resources", container["resources"])


def label(at: str, name: str) -> list[FieldError]:
    """Check a required name that must be a DNS label."""
    if not name:
        return [field_errors.required(at)]
    return [field_errors.invalid(at, name, why) for why in name_validation.label_1123(name)]


def port_number(at: str, value: Any) -> list[FieldError]:
    return [] if 1 <= value <= 65535 else [field_errors.invalid(at, value, _PORT_RANGE)]


def port_name(value: str) -> list[str]:
    """Return the errors of a port's name (RFC 6335)."""
    wrong = []
    if len(value) > 15:
        wrong.append("must be no more than 15 characters")
    if not re.fullmatch(r"[-a-z0-9]+", value):
        wrong.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not re.search(r"[a-z]", value):
        wrong.append("must contain at least one letter (a-z)")
    if "--" in value:
        wrong.append("must not contain consecutive hyphens")
    if value.startswith("-") or value.endswith("-"):
        wrong.append("must not begin or end with a hyphen")
    return wrong


def number_or_name(at: str, value: Any) -> list[FieldError]:
    if isinstance(value, int):
        return port_number(at, value)
    return [field_errors.invalid(at, value, why) for why in port_name(value)]


def _ports(at: str, ports: Any) -> list[FieldError]:
    errors: list[FieldError] = []
    names: set[str] = set()
    for index, port in enumerate(ports):
        here = f"{at}[{index}]"
        if name := port.get("name"):
            wrong = port_name(name)
            errors += [field_errors.invalid(f"{here}.name", name, why) for why in wrong]
            if not wrong and name in names:
                errors.append(field_errors.duplicate(f"{here}.name", name))
            names.add(name)
        if not port["containerPort"]:
            errors.append(field_errors.required(f"{here}.containerPort"))
        else:
            errors += port_number(f"{here}.containerPort", port["containerPort"])
        if port.get("hostPort"):
            errors += port_number(f"{here}.hostPort", port["hostPort"])
        if port["protocol"] not in PROTOCOLS:
            errors.append(field_errors.unsupported(f"{here}.protocol", port["protocol"], PROTOCOLS))
    return errors


def _variable(at: str, variable: Object) -> list[FieldError]:
    name = variable["name"]
    if not name:
        errors = [field_errors.required(f"{at}.name")]
    elif not re.fullmatch(r"[ -<>-~]+", name):
        rule = "a valid environment variable name must consist only of printable ASCII characters other than '='"
        errors = [field_errors.invalid(f"{at}.name", name, rule)]
    else:
        errors = []
    source = variable.get("valueFrom")
    if source is None:
        return errors
    given = [key for key in _VALUE_SOURCES if key in source]
    if variable.get("value"):
        why = "may not be specified when `value` is not empty"
        errors.append(field_errors.invalid(f"{at}.valueFrom", "", why))
    elif not given:
        why = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"
        errors.append(field_errors.invalid(f"{at}.valueFrom", "", why))
    elif len(given) > 1:
        why = "may not have more than one field specified at a time"
        errors.append(field_errors.invalid(f"{at}.valueFrom", "", why))
    return errors + [
        field_errors.required(f"{at}.valueFrom.{key}.key")
        for key in ("configMapKeyRef", "secretKeyRef")
        if key in source and not source[key]["key"]
    ]


def _mounts(at: str, mounts: Any, volumes: frozenset[str]) -> list[FieldError]:
    errors: list[FieldError] = []
    paths: set[str] = set()
    for index, mount in enumerate(mounts):
        here = f"{at}[{index}]"
        if not mount["name"]:
            errors.append(field_errors.required(f"{here}.name"))
        if mount["name"] not in volumes:
            errors.append(field_errors.not_found(f"{here}.name", mount["name"]))
        if not mount["mountPath"]:
            errors.append(field_errors.required(f"{here}.mountPath"))
        if mount["mountPath"] in paths:
            errors.append(field_errors.invalid(f"{here}.mountPath", mount["mountPath"], "must be unique"))
        paths.add(mount["mountPath"])
    return errors


def _probe(at: str, probe: Object, *, once: bool) -> list[FieldError]:
    errors = _handler(at, probe)
    errors += [
        field_errors.invalid(f"{at}.{key}", probe[key], _NOT_NEGATIVE) for key in _COUNTS if probe.get(key, 0) < 0
    ]
    if once and probe["successThreshold"] != 1:
        errors.append(field_errors.invalid(f"{at}.successThreshold", probe["successThreshold"], "must be 1"))
    return errors


def _handler(at: str, handler: Object) -> list[FieldError]:
    given = [name for name in _HANDLERS if name in handler]
    if not given:
        return [field_errors.required(at, "must specify a handler type")]
    errors = [field_errors.forbidden(f"{at}.{name}", "may not specify more than 1 handler type") for name in given[1:]]
    match given[0]:
        case "exec":
            if not handler["exec"].get("command"):
                errors.append(field_errors.required(f"{at}.exec.command"))
        case "httpGet" | "tcpSocket" as kind:
            errors += number_or_name(f"{at}.{kind}.port", handler[kind]["port"])
            scheme = handler[kind].get("scheme", "HTTP")
            if scheme not in {"HTTP", "HTTPS"}:
                errors.append(field_errors.unsupported(f"{at}.httpGet.scheme", scheme, ["HTTP", "HTTPS"]))
        case "grpc":
            errors += port_number(f"{at}.grpc.port", handler["grpc"]["port"])
    return errors


def _resources(at: str, resources: Object) -> list[FieldError]:
    errors: list[FieldError] = []
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    for what, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            if (quantity.parse(amount) or 0) < 0:
                errors.append(field_errors.invalid(f"{at}.{what}[{name}]", amount, _NOT_NEGATIVE))
    for name, amount in requests.items():
        limit = limits.get(name)
        if limit is not None and (quantity.parse(amount) or 0) > (quantity.parse(limit) or 0):
            why = f"must be less than or equal to {name} limit of {limit}"
            errors.append(field_errors.invalid(f"{at}.requests", amount, why))
    return errors
