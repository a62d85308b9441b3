"""The kinds of the core group that have no workload, and Lease: their fields, and descriptions for `explain`."""

from __future__ import annotations

from typing import Final

from unbounded_apiserver import notation

_TYPES: Final = notation.read(
    """
Namespace: A scope for names, and what is deleted together.
  spec NamespaceSpec!  The desired state.
  status NamespaceStatus!  The observed state.
NamespaceSpec: The desired state of a namespace.
  finalizers [string]  The controllers that have to act before the namespace is deleted.
NamespaceStatus: The observed state of a namespace.
  phase string  Active or Terminating.
  conditions [NamespaceCondition]type  The blockers of its deletion.
NamespaceCondition: The state of a namespace in one respect.
  type string!  What is told.
  status string!  True, False or Unknown.
  lastTransitionTime time  When the status last changed.
  reason string  One word for the last change.
  message string  A sentence for people.
ConfigMap: Configuration as keys and values.
  immutable bool*  When true, data cannot change any more.
  data {string}  Values that are text.
  binaryData {bytes}  Values that are bytes, in base64.
Secret: Confidential values by key.
  immutable bool*  When true, data cannot change any more.
  data {bytes}  The values, in base64.
  stringData {string}  Values given as text; written into data and never shown.
  type string  The purpose of the secret; some types require certain keys.
ServiceAccount: An identity for programs.
  secrets [ObjectReference]name  Secrets that belong to the account.
  imagePullSecrets [LocalObjectReference]  Secrets for pulling images.
  automountServiceAccountToken bool*  True if pods get a token of the account.
Event: An event of an object; kept for an hour.
  involvedObject ObjectReference!  The object that it happened to.
  reason string  One word for why it happened.
  message string  A sentence for people.
  source EventSource!  The reporter.
  firstTimestamp time!  When it was seen first.
  lastTimestamp time!  When it was seen last.
  count int32  The number of its occurrences.
  type string  Normal or Warning.
  eventTime microtime!  When it was seen first, to the microsecond.
  series EventSeries*  The series that this event represents.
  action string  The action on the object.
  related ObjectReference*  A second object that is concerned.
  reportingComponent string!  Name of the controller that reports.
  reportingInstance string!  Which of its instances.
EventSource: The reporter of an event.
  component string  The component.
  host string  The node.
EventSeries: A series of the same event.
  count int32  The number of occurrences.
  lastObservedTime microtime  When last.
"""
)
_LEASES: Final = notation.read(
    """
Lease: The leader, or a sign of life, with its time limit.
  spec LeaseSpec!  The state of the lease.
LeaseSpec: The state of a lease.
  holderIdentity string*  The holder of the lease.
  leaseDurationSeconds int32*  Seconds after renewTime until others may take it.
  acquireTime microtime*  When the holder took it.
  renewTime microtime*  When the holder last renewed it.
  leaseTransitions int32*  The number of changes of the holder.
  strategy string*  The strategy of a coordinated election.
  preferredHolder string*  The preferred next holder.
""",
    package="io.k8s.api.coordination.v1",
)
NAMESPACE: Final = notation.kind(_TYPES, "Namespace")
CONFIG_MAP: Final = notation.kind(_TYPES, "ConfigMap")
SECRET: Final = notation.kind(_TYPES, "Secret")
SERVICE_ACCOUNT: Final = notation.kind(_TYPES, "ServiceAccount")
EVENT: Final = notation.kind(_TYPES, "Event")
LEASE: Final = notation.kind(_LEASES, "Lease")
