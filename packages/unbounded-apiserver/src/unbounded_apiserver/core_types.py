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
  finalizers [string]  Who has to act before the namespace may go.
NamespaceStatus: The observed state of a namespace.
  phase string  Active or Terminating.
  conditions [NamespaceCondition]type  What its deletion waits for.
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
  type string  What the secret is for; some types require certain keys.
ServiceAccount: An identity for programs.
  secrets [ObjectReference]name  Secrets that belong to the account.
  imagePullSecrets [LocalObjectReference]  Secrets for pulling images.
  automountServiceAccountToken bool*  Whether pods get a token of the account.
Event: What happened to an object; kept for an hour.
  involvedObject ObjectReference!  The object that it happened to.
  reason string  One word for why it happened.
  message string  A sentence for people.
  source EventSource!  Who reports.
  firstTimestamp time!  When it was seen first.
  lastTimestamp time!  When it was seen last.
  count int32  How often it was seen.
  type string  Normal or Warning.
  eventTime microtime!  When it was seen first, to the microsecond.
  series EventSeries*  The series that this event stands for.
  action string  What was done about the object.
  related ObjectReference*  A second object that is concerned.
  reportingComponent string!  Name of the controller that reports.
  reportingInstance string!  Which of its instances.
EventSource: Who reports.
  component string  The component.
  host string  The node.
EventSeries: A series of the same event.
  count int32  How often.
  lastObservedTime microtime  When last.
"""
)
_LEASES: Final = notation.read(
    """
Lease: Who leads, or is alive, and until when.
  spec LeaseSpec!  The state of the lease.
LeaseSpec: The state of a lease.
  holderIdentity string*  Who holds the lease.
  leaseDurationSeconds int32*  Seconds after renewTime until others may take it.
  acquireTime microtime*  When the holder took it.
  renewTime microtime*  When the holder last renewed it.
  leaseTransitions int32*  How often the holder changed.
  strategy string*  How a leader is chosen in coordinated election.
  preferredHolder string*  Who should take it next.
""",
    package="io.k8s.api.coordination.v1",
)
NAMESPACE: Final = notation.kind(_TYPES, "Namespace")
CONFIG_MAP: Final = notation.kind(_TYPES, "ConfigMap")
SECRET: Final = notation.kind(_TYPES, "Secret")
SERVICE_ACCOUNT: Final = notation.kind(_TYPES, "ServiceAccount")
EVENT: Final = notation.kind(_TYPES, "Event")
LEASE: Final = notation.kind(_LEASES, "Lease")
