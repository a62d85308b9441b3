"""Shapes of the built-in types: their fields, the merging of their lists, and their descriptions for `explain`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from unbounded_apiserver.type_desc import (
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
    ListType,
    MapType,
    StructField,
    StructType,
)

META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"

API_VERSION: Final = StructField(STRING, "The group and version of the schema that this object follows.")
KIND: Final = StructField(STRING, "The type of this object, in CamelCase; it cannot change.")

OWNER_REFERENCE: Final = StructType(
    "OwnerReference",
    {
        "apiVersion": StructField(STRING, "API version of the owner.", always=True),
        "kind": StructField(STRING, "Kind of the owner.", always=True),
        "name": StructField(STRING, "Name of the owner.", always=True),
        "uid": StructField(STRING, "UID of the owner.", always=True),
        "controller": StructField(BOOL, "Whether the owner is the managing controller.", keep=True),
        "blockOwnerDeletion": StructField(
            BOOL, "Whether a foreground deletion of the owner waits until this is gone.", keep=True
        ),
    },
    "Points to an object that owns this one; when all owners are gone, this is deleted.",
    META,
    atomic=True,
)

OBJECT_META: Final = StructType(
    "ObjectMeta",
    {
        "name": StructField(STRING, "Unique within its namespace and kind; it cannot change."),
        "generateName": StructField(STRING, "A prefix: with it and without a name, the server makes a unique name."),
        "namespace": StructField(STRING, "The space within which the name is unique; empty for cluster-wide objects."),
        "uid": StructField(STRING, "Unique in time and space, given by the server."),
        "resourceVersion": StructField(STRING, "Opaque; changes with every write. Sent back, it detects conflicts."),
        "generation": StructField(INT64, "Counts the changes of the desired state."),
        "creationTimestamp": StructField(TIME, "When the object was created."),
        "deletionTimestamp": StructField(TIME, "When deletion was asked for; the object goes with its last finalizer."),
        "deletionGracePeriodSeconds": StructField(
            INT64, "Seconds that the object has left when it is deleted.", keep=True
        ),
        "labels": StructField(STRING_MAP, "Keys and values to organise and select objects by."),
        "annotations": StructField(STRING_MAP, "Keys and values for tools; they cannot be selected by."),
        "ownerReferences": StructField(ListType(OWNER_REFERENCE, "uid"), "Objects that this one depends on."),
        "finalizers": StructField(ListType(STRING, ""), "Who has to act before the object may go."),
        "managedFields": StructField(ListType(ANYTHING), "Which manager set which fields."),
        "selfLink": StructField(STRING, "Not used any more."),
    },
    "What every object has: name, labels, versions, owners.",
    META,
)

METADATA: Final = StructField(OBJECT_META, "Standard metadata of the object.")


def kind_shape(name: str, about: str, package: str, fields: Mapping[str, StructField]) -> StructType:
    """Return the shape of a kind: apiVersion, kind, metadata, and its own fields."""
    return StructType(name, {"apiVersion": API_VERSION, "kind": KIND, "metadata": METADATA, **fields}, about, package)


CORE: Final = "io.k8s.api.core.v1"

OBJECT_REFERENCE: Final = StructType(
    "ObjectReference",
    {
        "kind": StructField(STRING, "Kind of the object."),
        "namespace": StructField(STRING, "Namespace of the object."),
        "name": StructField(STRING, "Name of the object."),
        "uid": StructField(STRING, "UID of the object."),
        "apiVersion": StructField(STRING, "API version of the object."),
        "resourceVersion": StructField(STRING, "The version of the object that is meant, if one is."),
        "fieldPath": StructField(STRING, "A part of the object, such as spec.containers[0]."),
    },
    "Points to an object.",
    atomic=True,
)

_LABEL_REQUIREMENT: Final = StructType(
    "LabelSelectorRequirement",
    {
        "key": StructField(STRING, "The key of the label.", always=True),
        "operator": StructField(STRING, "In, NotIn, Exists or DoesNotExist.", always=True),
        "values": StructField(STRINGS, "The values, for In and NotIn."),
    },
    "One requirement on labels.",
    META,
)
LABEL_SELECTOR: Final = StructType(
    "LabelSelector",
    {
        "matchLabels": StructField(STRING_MAP, "Labels that have to be there."),
        "matchExpressions": StructField(ListType(_LABEL_REQUIREMENT), "Requirements that all have to hold."),
    },
    "Selects objects by their labels; an empty one selects all.",
    META,
    atomic=True,
)

CONDITION: Final = StructType(
    "Condition",
    {
        "type": StructField(STRING, "What is told.", always=True),
        "status": StructField(STRING, "True, False or Unknown.", always=True),
        "observedGeneration": StructField(INT64, "The generation that is spoken of."),
        "lastTransitionTime": StructField(TIME, "When the status last changed.", always=True),
        "reason": StructField(STRING, "One word for the last change.", always=True),
        "message": StructField(STRING, "A sentence for people.", always=True),
    },
    "One aspect of the object's state.",
    META,
)

NAMESPACE_CONDITION: Final = StructType(
    "NamespaceCondition",
    {
        "type": StructField(STRING, "What is told.", always=True),
        "status": StructField(STRING, "True, False or Unknown.", always=True),
        "lastTransitionTime": StructField(TIME, "When the status last changed."),
        "reason": StructField(STRING, "One word for the last change."),
        "message": StructField(STRING, "A sentence for people."),
    },
    "The state of a namespace in one respect.",
)

NAMESPACE: Final = kind_shape(
    "Namespace",
    "A scope for names, and what is deleted together.",
    CORE,
    {
        "spec": StructField(
            StructType(
                "NamespaceSpec",
                {"finalizers": StructField(STRINGS, "Who has to act before the namespace may go.")},
                "The desired state of a namespace.",
            ),
            "The desired state.",
            always=True,
        ),
        "status": StructField(
            StructType(
                "NamespaceStatus",
                {
                    "phase": StructField(STRING, "Active or Terminating."),
                    "conditions": StructField(ListType(NAMESPACE_CONDITION, "type"), "What its deletion waits for."),
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
        "immutable": StructField(BOOL, "When true, data cannot change any more.", keep=True),
        "data": StructField(STRING_MAP, "Values that are text."),
        "binaryData": StructField(MapType(BYTES), "Values that are bytes, in base64."),
    },
)

SECRET: Final = kind_shape(
    "Secret",
    "Confidential values by key.",
    CORE,
    {
        "immutable": StructField(BOOL, "When true, data cannot change any more.", keep=True),
        "data": StructField(MapType(BYTES), "The values, in base64."),
        "stringData": StructField(STRING_MAP, "Values given as text; written into data and never shown."),
        "type": StructField(STRING, "What the secret is for; some types require certain keys."),
    },
)

LOCAL_REFERENCE: Final = StructType(
    "LocalObjectReference",
    {"name": StructField(STRING, "Name of the object.")},
    "Points to an object of the same namespace.",
    atomic=True,
)

SERVICE_ACCOUNT: Final = kind_shape(
    "ServiceAccount",
    "An identity for programs.",
    CORE,
    {
        "secrets": StructField(ListType(OBJECT_REFERENCE, "name"), "Secrets that belong to the account."),
        "imagePullSecrets": StructField(ListType(LOCAL_REFERENCE), "Secrets for pulling images."),
        "automountServiceAccountToken": StructField(BOOL, "Whether pods get a token of the account.", keep=True),
    },
)

EVENT: Final = kind_shape(
    "Event",
    "What happened to an object; kept for an hour.",
    CORE,
    {
        "involvedObject": StructField(OBJECT_REFERENCE, "The object that it happened to.", always=True),
        "reason": StructField(STRING, "One word for why it happened."),
        "message": StructField(STRING, "A sentence for people."),
        "source": StructField(
            StructType(
                "EventSource",
                {"component": StructField(STRING, "The component."), "host": StructField(STRING, "The node.")},
                "Who reports.",
            ),
            "Who reports.",
            always=True,
        ),
        "firstTimestamp": StructField(TIME, "When it was seen first.", always=True),
        "lastTimestamp": StructField(TIME, "When it was seen last.", always=True),
        "count": StructField(INT32, "How often it was seen."),
        "type": StructField(STRING, "Normal or Warning."),
        "eventTime": StructField(MICRO_TIME, "When it was seen first, to the microsecond.", always=True),
        "series": StructField(
            StructType(
                "EventSeries",
                {"count": StructField(INT32, "How often."), "lastObservedTime": StructField(MICRO_TIME, "When last.")},
                "A series of the same event.",
            ),
            "The series that this event stands for.",
            keep=True,
        ),
        "action": StructField(STRING, "What was done about the object."),
        "related": StructField(OBJECT_REFERENCE, "A second object that is concerned.", keep=True),
        "reportingComponent": StructField(STRING, "Name of the controller that reports.", always=True),
        "reportingInstance": StructField(STRING, "Which of its instances.", always=True),
    },
)

LEASE: Final = kind_shape(
    "Lease",
    "Who leads, or is alive, and until when.",
    "io.k8s.api.coordination.v1",
    {
        "spec": StructField(
            StructType(
                "LeaseSpec",
                {
                    "holderIdentity": StructField(STRING, "Who holds the lease.", keep=True),
                    "leaseDurationSeconds": StructField(
                        INT32, "Seconds after renewTime until others may take it.", keep=True
                    ),
                    "acquireTime": StructField(MICRO_TIME, "When the holder took it.", keep=True),
                    "renewTime": StructField(MICRO_TIME, "When the holder last renewed it.", keep=True),
                    "leaseTransitions": StructField(INT32, "How often the holder changed.", keep=True),
                    "strategy": StructField(STRING, "How a leader is chosen in coordinated election.", keep=True),
                    "preferredHolder": StructField(STRING, "Who should take it next.", keep=True),
                },
                "The state of a lease.",
                "io.k8s.api.coordination.v1",
            ),
            "The state of the lease.",
            always=True,
        )
    },
)
