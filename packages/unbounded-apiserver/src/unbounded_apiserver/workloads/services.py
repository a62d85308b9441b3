"""Services: stored as written. Nothing assigns addresses or node ports, and nothing routes traffic."""

from __future__ import annotations

from typing import Final

from unbounded_apiserver import field_errors, name_validation, type_descriptor_parser
from unbounded_apiserver.builtin_resources import BuiltInType
from unbounded_apiserver.resource_model import STATUS, Object, Resource
from unbounded_apiserver.schema import FieldError
from unbounded_apiserver.workloads import columns
from unbounded_apiserver.workloads.containers import PROTOCOLS, label, number_or_name, port_number
from unbounded_apiserver.workloads.defaults import default_service
from unbounded_apiserver.workloads.pod_rules import is_address, not_an_address

SERVICE_TYPES: Final = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]
AFFINITIES: Final = ["ClientIP", "None"]
POLICIES: Final = ["Cluster", "Local"]
HEADLESS: Final = "None"
LONGEST_AFFINITY_S: Final = 86400
_FAMILIES: Final = ("ipFamilies", "ipFamilyPolicy")


FIELDS: Final = """
Service: A name, and in a cluster an address, for pods that do the same.
  spec ServiceSpec!  The desired state.
  status ServiceStatus!  The observed state.
ServiceSpec: The desired state of a service.
  allocateLoadBalancerNodePorts bool*  True if a load balancer gets node ports.
  clusterIP string  Its address; the server assigns none, and keeps a written one.
  clusterIPs [string]  Its addresses.
  externalIPs [string]  Further addresses.
  externalName string  The name that it represents.
  externalTrafficPolicy string  Cluster or Local, for traffic from outside.
  healthCheckNodePort int32  The port of load balancers' health checks.
  internalTrafficPolicy string*  Cluster or Local, for traffic from pods.
  ipFamilies [string]  IPv4, IPv6.
  ipFamilyPolicy string*  SingleStack, PreferDualStack or RequireDualStack.
  loadBalancerClass string*  The implementation of the load balancer.
  loadBalancerIP string  The address of the load balancer.
  loadBalancerSourceRanges [string]  Addresses that may use it.
  ports [ServicePort]port+protocol  The ports.
  publishNotReadyAddresses bool  True if pods count that are not ready.
  selector {string}  The labels of the pods behind it.
  sessionAffinity string  ClientIP or None.
  sessionAffinityConfig SessionAffinityConfig*  Settings of the session affinity.
  trafficDistribution string*  The distribution of traffic.
  type string  ClusterIP, NodePort, LoadBalancer or ExternalName.
ServiceStatus: The observed state of a service.
  conditions [Condition]type  The state in several respects.
  loadBalancer LoadBalancerStatus!  Addresses of the load balancer.
ServicePort: A port of a service.
  appProtocol string*  The protocol above it.
  name string  The name of the port.
  nodePort int32  The port on every node.
  port int32!  The port of the service.
  protocol string  TCP, UDP or SCTP.
  targetPort port!  The port of the pods, by number or name.
SessionAffinityConfig: Settings of the session affinity.
  clientIP ClientIPConfig*
LoadBalancerStatus: Addresses of the load balancer.
  ingress [LoadBalancerIngress]  Its addresses.
ClientIPConfig: Affinity by the address of the client.
  timeoutSeconds int32*
LoadBalancerIngress: An address of the load balancer.
  hostname string
  ip string
  ipMode string*
  ports [PortStatus]
PortStatus: The state of a port.
  error string*
  port int32!
  protocol string!
"""


TYPES: Final = type_descriptor_parser.read(FIELDS)
SERVICE: Final = type_descriptor_parser.kind(TYPES, "Service")


def rules_of_service(service: Object, old: Object | None) -> list[FieldError]:
    spec = service["spec"]
    errors = _ports(spec)
    for key, known in (("type", SERVICE_TYPES), ("sessionAffinity", AFFINITIES)):
        if spec[key] not in known:
            errors.append(field_errors.unsupported(f"spec.{key}", spec[key], known))
    for key in ("externalTrafficPolicy", "internalTrafficPolicy"):
        if spec.get(key, "Cluster") not in POLICIES:
            errors.append(field_errors.unsupported(f"spec.{key}", spec[key], POLICIES))
    for key, value in spec.get("selector", {}).items():
        errors += [field_errors.invalid("spec.selector", key, why) for why in name_validation.qualified_name(key)]
        errors += [field_errors.invalid("spec.selector", value, why) for why in name_validation.label_value(value)]
    errors += _addresses(spec) + _affinity(spec)
    return errors if old is None else errors + _update(spec, old["spec"])


def _ports(spec: Object) -> list[FieldError]:
    ports = spec.get("ports", [])
    headless = spec.get("clusterIP") == HEADLESS
    if not ports and not headless and spec["type"] != "ExternalName":
        return [field_errors.required("spec.ports")]
    errors: list[FieldError] = []
    names: set[str] = set()
    served: set[tuple[str, int]] = set()
    for index, port in enumerate(ports):
        at = f"spec.ports[{index}]"
        name = port.get("name", "")
        if name or len(ports) > 1:
            errors += label(f"{at}.name", name)
        if name and name in names:
            errors.append(field_errors.duplicate(f"{at}.name", name))
        names.add(name)
        errors += port_number(f"{at}.port", port["port"])
        if port["protocol"] not in PROTOCOLS:
            errors.append(field_errors.unsupported(f"{at}.protocol", port["protocol"], PROTOCOLS))
        errors += number_or_name(f"{at}.targetPort", port["targetPort"])
        if port.get("nodePort") and spec["type"] not in {"NodePort", "LoadBalancer"}:
            errors.append(field_errors.forbidden(f"{at}.nodePort", "may not be used when `type` is 'ClusterIP'"))
        if (port["protocol"], port["port"]) in served:
            errors.append(field_errors.duplicate(at, {"protocol": port["protocol"], "port": port["port"]}))
        served.add((port["protocol"], port["port"]))
    return errors


def _addresses(spec: Object) -> list[FieldError]:
    errors: list[FieldError] = []
    if spec["type"] == "ExternalName":
        name = spec.get("externalName", "").removesuffix(".")
        if not name:
            errors.append(field_errors.required("spec.externalName"))
        errors += [
            field_errors.invalid("spec.externalName", name, why) for why in name_validation.subdomain(name) if name
        ]
        if spec.get("clusterIPs"):
            errors.append(field_errors.forbidden("spec.clusterIPs", "may not be set when `type` is 'ExternalName'"))
        return errors
    given = spec.get("clusterIPs", [])
    if given and given[0] != spec.get("clusterIP"):
        why = "first value must match `clusterIP`"
        errors.append(field_errors.invalid("spec.clusterIPs[0]", given, why))
    for index, address in enumerate(given):
        if address == HEADLESS and index == 0 and len(given) == 1:
            continue
        if not is_address(address):
            errors.append(not_an_address(f"spec.clusterIPs[{index}]", address))
    for index, address in enumerate(spec.get("externalIPs", ())):
        if not is_address(address):
            errors.append(not_an_address(f"spec.externalIPs[{index}]", address))
    return errors


def _affinity(spec: Object) -> list[FieldError]:
    if spec["sessionAffinity"] != "ClientIP":
        return []
    seconds = spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"]
    if 0 < seconds <= LONGEST_AFFINITY_S:
        return []
    why = f"must be greater than 0 and less than {LONGEST_AFFINITY_S}"
    return [field_errors.invalid("spec.sessionAffinityConfig.clientIP.timeoutSeconds", seconds, why)]


def _update(spec: Object, old: Object) -> list[FieldError]:
    """Reject a change of the address, unless the type changes to one without an address."""
    before, now = old.get("clusterIPs", []), spec.get("clusterIPs", [])
    if not before or spec["type"] == "ExternalName" or old["type"] == "ExternalName" or before[:1] == now[:1]:
        return []
    return [field_errors.invalid("spec.clusterIPs[0]", now, "may not change once set")]


def _decide(service: Object, old: Object | None) -> None:
    """Keep the address of a Service when an update leaves it out, as clients do that do not know it."""
    spec = service["spec"]
    service["status"] = {"loadBalancer": {}} if old is None else old["status"]
    if spec["type"] == "ExternalName":
        for key in _FAMILIES:
            spec.pop(key, None)
        return
    for key in (*(("clusterIP", "clusterIPs") if not spec.get("clusterIP") else ()), *_FAMILIES):
        if old is not None and key in old["spec"] and not spec.get(key):
            spec[key] = old["spec"][key]
    _choose_families(spec)


def _choose_families(spec: Object) -> None:
    """Set the IP families of a Service, as a cluster with IPv4 does, in place."""
    addresses = [address for address in spec.get("clusterIPs", ()) if is_address(address)]
    both = spec.get("clusterIP") == HEADLESS and not spec.get("selector") and not spec.get("ipFamilies")
    if not spec.get("ipFamilyPolicy"):
        dual = both or len(addresses) > 1 or len(spec.get("ipFamilies", ())) > 1
        spec["ipFamilyPolicy"] = "RequireDualStack" if dual else "SingleStack"
    if not spec.get("ipFamilies"):
        families = ["IPv6" if ":" in address else "IPv4" for address in addresses] or ["IPv4"]
        spec["ipFamilies"] = ["IPv4", "IPv6"] if both and not addresses else families


SERVICES: Final = Resource(
    "",
    "v1",
    "Service",
    "services",
    "service",
    True,
    BuiltInType(
        SERVICE, name_check=name_validation.label_1035, defaults=default_service, decide=_decide, rules=rules_of_service
    ),
    short_names=("svc",),
    categories=("all",),
    subresources=STATUS,
    selectable={"spec.clusterIP": "spec.clusterIP", "spec.type": "spec.type"},
    columns=columns.SERVICE,
    shows_deleted=True,
)
