"""Services: stored as written. Nothing assigns addresses or node ports, and nothing routes traffic."""

from __future__ import annotations

from typing import Final

from unbounded_apiserver import name_validation, notation
from unbounded_apiserver.builtin import BuiltInType
from unbounded_apiserver.types import STATUS, Object, Resource
from unbounded_apiserver.workloads import columns
from unbounded_apiserver.workloads.defaults import default_service
from unbounded_apiserver.workloads.pod_rules import is_address
from unbounded_apiserver.workloads.service_rules import HEADLESS, rules_of_service

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
  loadBalancer LoadBalancerStatus!  Where the load balancer listens.
ServicePort: A port of a service.
  appProtocol string*  The protocol above it.
  name string  The name of the port.
  nodePort int32  The port on every node.
  port int32!  The port of the service.
  protocol string  TCP, UDP or SCTP.
  targetPort port!  The port of the pods, by number or name.
SessionAffinityConfig: Settings of the session affinity.
  clientIP ClientIPConfig*
LoadBalancerStatus: Where the load balancer listens.
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


_FAMILIES: Final = ("ipFamilies", "ipFamilyPolicy")
TYPES: Final = notation.read(FIELDS)
SERVICE: Final = notation.kind(TYPES, "Service")


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
