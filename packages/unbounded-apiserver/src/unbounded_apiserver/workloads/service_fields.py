"""The fields of a Service in the notation of notation.py."""

from typing import Final

FIELDS: Final = """
ServiceSpec: The desired state of a service.
  allocateLoadBalancerNodePorts bool*  Whether a load balancer gets node ports.
  clusterIP string  Its address; none is given out here, what was written stands.
  clusterIPs [string]  Its addresses.
  externalIPs [string]  Further addresses.
  externalName string  The name that it stands for.
  externalTrafficPolicy string  Cluster or Local, for traffic from outside.
  healthCheckNodePort int32  Where load balancers ask after health.
  internalTrafficPolicy string*  Cluster or Local, for traffic from pods.
  ipFamilies [string]  IPv4, IPv6.
  ipFamilyPolicy string*  SingleStack, PreferDualStack or RequireDualStack.
  loadBalancerClass string*  Who makes the load balancer.
  loadBalancerIP string  The address of the load balancer.
  loadBalancerSourceRanges [string]  Addresses that may use it.
  ports [ServicePort]port+protocol  The ports.
  publishNotReadyAddresses bool  Whether pods count that are not ready.
  selector {string}  The labels of the pods behind it.
  sessionAffinity string  ClientIP or None.
  sessionAffinityConfig SessionAffinityConfig*  Settings of the session affinity.
  trafficDistribution string*  How traffic is spread.
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
