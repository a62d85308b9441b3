"""Shapes of the built-in types: their fields, the merging of their lists, and their descriptions for `explain`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from unbounded.apiserver.shapes import (
    ANYTHING,
    BOOL,
    BYTES,
    INT32,
    INT64,
    MICRO_TIME,
    STRING,
    STRING_MAP,
    STRINGS,
    TIME,
    Field,
    ListOf,
    MapOf,
    Struct,
)

META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"

API_VERSION: Final = Field(STRING, "The group and version of the schema that this object follows.")
KIND: Final = Field(STRING, "The type of this object, in CamelCase; it cannot change.")

OWNER_REFERENCE: Final = Struct(
    "OwnerReference",
    {
        "apiVersion": Field(STRING, "API version of the owner.", always=True),
        "kind": Field(STRING, "Kind of the owner.", always=True),
        "name": Field(STRING, "Name of the owner.", always=True),
        "uid": Field(STRING, "UID of the owner.", always=True),
        "controller": Field(BOOL, "Whether the owner is the managing controller.", keep=True),
        "blockOwnerDeletion": Field(
            BOOL, "Whether a foreground deletion of the owner waits until this is gone.", keep=True
        ),
    },
    "Points to an object that owns this one; when all owners are gone, this is deleted.",
    META,
    atomic=True,
)

OBJECT_META: Final = Struct(
    "ObjectMeta",
    {
        "name": Field(STRING, "Unique within its namespace and kind; it cannot change."),
        "generateName": Field(STRING, "A prefix: with it and without a name, the server makes a unique name."),
        "namespace": Field(STRING, "The space within which the name is unique; empty for cluster-wide objects."),
        "uid": Field(STRING, "Unique in time and space, given by the server."),
        "resourceVersion": Field(STRING, "Opaque; changes with every write. Sent back, it detects conflicts."),
        "generation": Field(INT64, "Counts the changes of the desired state."),
        "creationTimestamp": Field(TIME, "When the object was created."),
        "deletionTimestamp": Field(TIME, "When deletion was asked for; the object goes with its last finalizer."),
        "deletionGracePeriodSeconds": Field(INT64, "Seconds that the object has left when it is deleted.", keep=True),
        "labels": Field(STRING_MAP, "Keys and values to organise and select objects by."),
        "annotations": Field(STRING_MAP, "Keys and values for tools; they cannot be selected by."),
        "ownerReferences": Field(ListOf(OWNER_REFERENCE, "uid"), "Objects that this one depends on."),
        "finalizers": Field(ListOf(STRING, ""), "Who has to act before the object may go."),
        "managedFields": Field(ListOf(ANYTHING), "Which manager set which fields."),
        "selfLink": Field(STRING, "Not used any more."),
    },
    "What every object has: name, labels, versions, owners.",
    META,
)

METADATA: Final = Field(OBJECT_META, "Standard metadata of the object.")


def kind_shape(name: str, about: str, package: str, fields: Mapping[str, Field]) -> Struct:
    """Return the shape of a kind: apiVersion, kind, metadata, and its own fields."""
    return Struct(name, {"apiVersion": API_VERSION, "kind": KIND, "metadata": METADATA, **fields}, about, package)


CORE: Final = "io.k8s.api.core.v1"

OBJECT_REFERENCE: Final = Struct(
    "ObjectReference",
    {
        "kind": Field(STRING, "Kind of the object."),
        "namespace": Field(STRING, "Namespace of the object."),
        "name": Field(STRING, "Name of the object."),
        "uid": Field(STRING, "UID of the object."),
        "apiVersion": Field(STRING, "API version of the object."),
        "resourceVersion": Field(STRING, "The version of the object that is meant, if one is."),
        "fieldPath": Field(STRING, "A part of the object, such as spec.containers[0]."),
    },
    "Points to an object.",
    atomic=True,
)

_LABEL_REQUIREMENT: Final = Struct(
    "LabelSelectorRequirement",
    {
        "key": Field(STRING, "The key of the label.", always=True),
        "operator": Field(STRING, "In, NotIn, Exists or DoesNotExist.", always=True),
        "values": Field(STRINGS, "The values, for In and NotIn."),
    },
    "One requirement on labels.",
    META,
)
LABEL_SELECTOR: Final = Struct(
    "LabelSelector",
    {
        "matchLabels": Field(STRING_MAP, "Labels that have to be there."),
        "matchExpressions": Field(ListOf(_LABEL_REQUIREMENT), "Requirements that all have to hold."),
    },
    "Selects objects by their labels; an empty one selects all.",
    META,
    atomic=True,
)

CONDITION: Final = Struct(
    "Condition",
    {
        "type": Field(STRING, "What is told.", always=True),
        "status": Field(STRING, "True, False or Unknown.", always=True),
        "observedGeneration": Field(INT64, "The generation that is spoken of."),
        "lastTransitionTime": Field(TIME, "When the status last changed.", always=True),
        "reason": Field(STRING, "One word for the last change.", always=True),
        "message": Field(STRING, "A sentence for people.", always=True),
    },
    "One aspect of the object's state.",
    META,
)

NAMESPACE_CONDITION: Final = Struct(
    "NamespaceCondition",
    {
        "type": Field(STRING, "What is told.", always=True),
        "status": Field(STRING, "True, False or Unknown.", always=True),
        "lastTransitionTime": Field(TIME, "When the status last changed."),
        "reason": Field(STRING, "One word for the last change."),
        "message": Field(STRING, "A sentence for people."),
    },
    "The state of a namespace in one respect.",
)

NAMESPACE: Final = kind_shape(
    "Namespace",
    "A scope for names, and what is deleted together.",
    CORE,
    {
        "spec": Field(
            Struct(
                "NamespaceSpec",
                {"finalizers": Field(STRINGS, "Who has to act before the namespace may go.")},
                "The desired state of a namespace.",
            ),
            "The desired state.",
            always=True,
        ),
        "status": Field(
            Struct(
                "NamespaceStatus",
                {
                    "phase": Field(STRING, "Active or Terminating."),
                    "conditions": Field(ListOf(NAMESPACE_CONDITION, "type"), "What its deletion waits for."),
                },
                "The observed state of a namespace.",
            ),
            "The observed state.",
            always=True,
        ),
    },
)

CONFIG_MAP: Final = kind_shape(
    "ConfigMap",
    "Configuration as keys and values.",
    CORE,
    {
        "immutable": Field(BOOL, "When true, data cannot change any more.", keep=True),
        "data": Field(STRING_MAP, "Values that are text."),
        "binaryData": Field(MapOf(BYTES), "Values that are bytes, in base64."),
    },
)

SECRET: Final = kind_shape(
    "Secret",
    "Confidential values by key.",
    CORE,
    {
        "immutable": Field(BOOL, "When true, data cannot change any more.", keep=True),
        "data": Field(MapOf(BYTES), "The values, in base64."),
        "stringData": Field(STRING_MAP, "Values given as text; written into data and never shown."),
        "type": Field(STRING, "What the secret is for; some types require certain keys."),
    },
)

LOCAL_REFERENCE: Final = Struct(
    "LocalObjectReference",
    {"name": Field(STRING, "Name of the object.")},
    "Points to an object of the same namespace.",
    atomic=True,
)

SERVICE_ACCOUNT: Final = kind_shape(
    "ServiceAccount",
    "An identity for programs.",
    CORE,
    {
        "secrets": Field(ListOf(OBJECT_REFERENCE, "name"), "Secrets that belong to the account."),
        "imagePullSecrets": Field(ListOf(LOCAL_REFERENCE), "Secrets for pulling images."),
        "automountServiceAccountToken": Field(BOOL, "Whether pods get a token of the account.", keep=True),
    },
)

EVENT: Final = kind_shape(
    "Event",
    "What happened to an object; kept for an hour.",
    CORE,
    {
        "involvedObject": Field(OBJECT_REFERENCE, "The object that it happened to.", always=True),
        "reason": Field(STRING, "One word for why it happened."),
        "message": Field(STRING, "A sentence for people."),
        "source": Field(
            Struct(
                "EventSource",
                {"component": Field(STRING, "The component."), "host": Field(STRING, "The node.")},
                "Who reports.",
            ),
            "Who reports.",
            always=True,
        ),
        "firstTimestamp": Field(TIME, "When it was seen first.", always=True),
        "lastTimestamp": Field(TIME, "When it was seen last.", always=True),
        "count": Field(INT32, "How often it was seen."),
        "type": Field(STRING, "Normal or Warning."),
        "eventTime": Field(MICRO_TIME, "When it was seen first, to the microsecond.", always=True),
        "series": Field(
            Struct(
                "EventSeries",
                {"count": Field(INT32, "How often."), "lastObservedTime": Field(MICRO_TIME, "When last.")},
                "A series of the same event.",
            ),
            "The series that this event stands for.",
            keep=True,
        ),
        "action": Field(STRING, "What was done about the object."),
        "related": Field(OBJECT_REFERENCE, "A second object that is concerned.", keep=True),
        "reportingComponent": Field(STRING, "Name of the controller that reports.", always=True),
        "reportingInstance": Field(STRING, "Which of its instances.", always=True),
    },
)

LEASE: Final = kind_shape(
    "Lease",
    "Who leads, or is alive, and until when.",
    "io.k8s.api.coordination.v1",
    {
        "spec": Field(
            Struct(
                "LeaseSpec",
                {
                    "holderIdentity": Field(STRING, "Who holds the lease.", keep=True),
                    "leaseDurationSeconds": Field(
                        INT32, "Seconds after renewTime until others may take it.", keep=True
                    ),
                    "acquireTime": Field(MICRO_TIME, "When the holder took it.", keep=True),
                    "renewTime": Field(MICRO_TIME, "When the holder last renewed it.", keep=True),
                    "leaseTransitions": Field(INT32, "How often the holder changed.", keep=True),
                    "strategy": Field(STRING, "How a leader is chosen in coordinated election.", keep=True),
                    "preferredHolder": Field(STRING, "Who should take it next.", keep=True),
                },
                "The state of a lease.",
                "io.k8s.api.coordination.v1",
            ),
            "The state of the lease.",
            always=True,
        )
    },
)
