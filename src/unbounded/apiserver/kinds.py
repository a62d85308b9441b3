"""The built-in types as shapes: what they hold, how their lists merge, and what `explain` says of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from unbounded.apiserver.shapes import (
    ANYTHING,
    BOOL,
    BYTES,
    FLOAT,
    INT32,
    INT64,
    MICRO_TIME,
    QUANTITY,
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
EXTENSIONS: Final = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1"

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


def _kind(name: str, about: str, package: str, fields: Mapping[str, Field]) -> Struct:
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

NAMESPACE: Final = _kind(
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

CONFIG_MAP: Final = _kind(
    "ConfigMap",
    "Configuration as keys and values.",
    CORE,
    {
        "immutable": Field(BOOL, "When true, data cannot change any more.", keep=True),
        "data": Field(STRING_MAP, "Values that are text."),
        "binaryData": Field(MapOf(BYTES), "Values that are bytes, in base64."),
    },
)

SECRET: Final = _kind(
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
    "LocalObjectReference", {"name": Field(STRING, "Name of the object.")}, "Points to an object of the same namespace."
)

SERVICE_ACCOUNT: Final = _kind(
    "ServiceAccount",
    "An identity for programs.",
    CORE,
    {
        "secrets": Field(ListOf(OBJECT_REFERENCE, "name"), "Secrets that belong to the account."),
        "imagePullSecrets": Field(ListOf(LOCAL_REFERENCE, "name"), "Secrets for pulling images."),
        "automountServiceAccountToken": Field(BOOL, "Whether pods get a token of the account.", keep=True),
    },
)

TAINT: Final = Struct(
    "Taint",
    {
        "key": Field(STRING, "The key of the taint.", always=True),
        "value": Field(STRING, "The value that goes with the key."),
        "effect": Field(STRING, "NoSchedule, PreferNoSchedule or NoExecute.", always=True),
        "timeAdded": Field(TIME, "When a NoExecute taint was added."),
    },
    "Keeps pods off the node that do not tolerate it.",
)

NODE_CONDITION: Final = Struct(
    "NodeCondition",
    {
        "type": Field(STRING, "What is told, such as Ready.", always=True),
        "status": Field(STRING, "True, False or Unknown.", always=True),
        "lastHeartbeatTime": Field(TIME, "When it was last reported.", always=True),
        "lastTransitionTime": Field(TIME, "When the status last changed.", always=True),
        "reason": Field(STRING, "One word for the last change."),
        "message": Field(STRING, "A sentence for people."),
    },
    "The state of a node in one respect.",
)

_SYSTEM_INFO: Final = (
    ("machineID", "The machine id that the node reports."),
    ("systemUUID", "The system UUID that the node reports."),
    ("bootID", "Changes with every boot."),
    ("kernelVersion", "As `uname -r` says."),
    ("osImage", "From /etc/os-release."),
    ("containerRuntimeVersion", "Such as containerd://1.4.2."),
    ("kubeletVersion", "Version of kubelet."),
    ("kubeProxyVersion", "Not used any more."),
    ("operatingSystem", "Such as linux."),
    ("architecture", "Such as amd64."),
)

NODE_STATUS: Final = Struct(
    "NodeStatus",
    {
        "capacity": Field(MapOf(QUANTITY), "All resources of the node."),
        "allocatable": Field(MapOf(QUANTITY), "The resources that pods can have."),
        "phase": Field(STRING, "Not used any more."),
        "conditions": Field(ListOf(NODE_CONDITION, "type"), "The state of the node in several respects."),
        "addresses": Field(
            ListOf(
                Struct(
                    "NodeAddress",
                    {
                        "type": Field(STRING, "Hostname, InternalIP, ExternalIP, …", always=True),
                        "address": Field(STRING, "The address.", always=True),
                    },
                    "An address of the node.",
                ),
                "type",
            ),
            "Addresses at which the node can be reached.",
        ),
        "daemonEndpoints": Field(
            Struct(
                "NodeDaemonEndpoints",
                {
                    "kubeletEndpoint": Field(
                        Struct("DaemonEndpoint", {"Port": Field(INT32, "The port.", always=True)}, "A port."),
                        "Where kubelet listens.",
                        always=True,
                    )
                },
                "Ports of the daemons on the node.",
            ),
            "Ports of the daemons on the node.",
            always=True,
        ),
        "nodeInfo": Field(
            Struct(
                "NodeSystemInfo",
                {
                    **{name: Field(STRING, about, always=True) for name, about in _SYSTEM_INFO},
                    "swap": Field(Struct("NodeSwapStatus", {"capacity": Field(INT64, "Bytes of swap.")}), "Swap."),
                },
                "Versions and ids of a node.",
            ),
            "Versions and ids.",
            always=True,
        ),
        "images": Field(
            ListOf(
                Struct(
                    "ContainerImage",
                    {"names": Field(STRINGS, "Names of the image."), "sizeBytes": Field(INT64, "Its size.")},
                    "An image on the node.",
                )
            ),
            "Images on the node.",
        ),
        "volumesInUse": Field(STRINGS, "Volumes in use."),
        "volumesAttached": Field(ListOf(ANYTHING), "Volumes that are attached."),
        "config": Field(ANYTHING, "Status of the dynamic kubelet configuration."),
        "runtimeHandlers": Field(ListOf(ANYTHING), "Handlers of the container runtime."),
        "features": Field(ANYTHING, "What the runtime can do."),
    },
    "The observed state of a node.",
)

NODE: Final = _kind(
    "Node",
    "A machine that runs pods.",
    CORE,
    {
        "spec": Field(
            Struct(
                "NodeSpec",
                {
                    "podCIDR": Field(STRING, "Addresses for pods."),
                    "podCIDRs": Field(ListOf(STRING, ""), "Addresses for pods, by family."),
                    "providerID": Field(STRING, "The provider's name for the machine."),
                    "unschedulable": Field(BOOL, "Whether new pods are kept away (cordon)."),
                    "taints": Field(ListOf(TAINT), "Taints of the node."),
                    "configSource": Field(ANYTHING, "Not used any more."),
                    "externalID": Field(STRING, "Not used any more."),
                },
                "The desired state of a node.",
            ),
            "The desired state.",
            always=True,
        ),
        "status": Field(NODE_STATUS, "The observed state.", always=True),
    },
)

EVENT: Final = _kind(
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

LEASE: Final = _kind(
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


def _schema_fields() -> Mapping[str, Field]:
    """JSONSchemaProps contains itself."""
    schemas = ListOf(SCHEMA_PROPS)
    strings = {"id", "$schema", "$ref", "description", "type", "format", "title", "pattern"}
    integers = {"maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"}
    return {
        **{name: Field(STRING) for name in sorted(strings)},
        **{name: Field(INT64, keep=True) for name in sorted(integers)},
        **{name: Field(FLOAT, keep=True) for name in ("maximum", "minimum", "multipleOf")},
        **{name: Field(BOOL) for name in ("exclusiveMaximum", "exclusiveMinimum", "uniqueItems", "nullable")},
        **{name: Field(schemas) for name in ("allOf", "oneOf", "anyOf")},
        **{name: Field(MapOf(SCHEMA_PROPS)) for name in ("properties", "patternProperties", "definitions")},
        "default": Field(ANYTHING, keep=True),
        "example": Field(ANYTHING, keep=True),
        "enum": Field(ListOf(ANYTHING)),
        "required": Field(STRINGS),
        "items": Field(ANYTHING, keep=True),
        "additionalItems": Field(ANYTHING, keep=True),
        "additionalProperties": Field(ANYTHING, keep=True),
        "dependencies": Field(MapOf(ANYTHING)),
        "not": Field(SCHEMA_PROPS, keep=True),
        "externalDocs": Field(ANYTHING),
        "x-kubernetes-preserve-unknown-fields": Field(BOOL, keep=True),
        "x-kubernetes-embedded-resource": Field(BOOL),
        "x-kubernetes-int-or-string": Field(BOOL),
        "x-kubernetes-list-map-keys": Field(STRINGS),
        "x-kubernetes-list-type": Field(STRING, keep=True),
        "x-kubernetes-map-type": Field(STRING, keep=True),
        "x-kubernetes-validations": Field(ListOf(VALIDATION_RULE, "rule")),
    }


VALIDATION_RULE: Final = Struct(
    "ValidationRule",
    {
        "rule": Field(STRING, "A CEL expression that has to be true.", always=True),
        "message": Field(STRING, "What is said when it is not."),
        "messageExpression": Field(STRING, "A CEL expression that makes the message."),
        "reason": Field(STRING, "The machine-readable reason.", keep=True),
        "fieldPath": Field(STRING, "The field that the error is put on."),
        "optionalOldSelf": Field(BOOL, "Whether the rule runs on creation too, with an optional oldSelf.", keep=True),
    },
    "A rule in CEL.",
    EXTENSIONS,
)
SCHEMA_PROPS: Final = Struct("JSONSchemaProps", {}, "A JSON schema (OpenAPI v3).", EXTENSIONS, later=_schema_fields)

_NAMES: Final = Struct(
    "CustomResourceDefinitionNames",
    {
        "plural": Field(STRING, "The name in URLs.", always=True),
        "singular": Field(STRING, "The name on the command line; the kind in lower case by default."),
        "shortNames": Field(STRINGS, "Short names for the command line."),
        "kind": Field(STRING, "The kind, in CamelCase.", always=True),
        "listKind": Field(STRING, "The kind of lists; kind and List by default."),
        "categories": Field(STRINGS, "Groups of resources such as `all`."),
    },
    "Names of a resource.",
    EXTENSIONS,
)

_COLUMN: Final = Struct(
    "CustomResourceColumnDefinition",
    {
        "name": Field(STRING, "The heading.", always=True),
        "type": Field(STRING, "string, integer, number, boolean or date.", always=True),
        "format": Field(STRING, "Such as int32 or date-time."),
        "description": Field(STRING, "What the column shows."),
        "priority": Field(INT32, "Columns above 0 are shown with -o wide."),
        "jsonPath": Field(STRING, "Where the value is.", always=True),
    },
    "A column that kubectl prints.",
    EXTENSIONS,
)

_VERSION: Final = Struct(
    "CustomResourceDefinitionVersion",
    {
        "name": Field(STRING, "Such as v1alpha3.", always=True),
        "served": Field(BOOL, "Whether this version can be used.", always=True),
        "storage": Field(BOOL, "Whether objects are stored in this version.", always=True),
        "deprecated": Field(BOOL, "Whether its use is warned of."),
        "deprecationWarning": Field(STRING, "The words of that warning.", keep=True),
        "schema": Field(
            Struct(
                "CustomResourceValidation",
                {"openAPIV3Schema": Field(SCHEMA_PROPS, "The schema.", keep=True)},
                "How objects are validated.",
                EXTENSIONS,
            ),
            "How objects are validated, pruned and defaulted.",
            keep=True,
        ),
        "subresources": Field(
            Struct(
                "CustomResourceSubresources",
                {
                    "status": Field(Struct("CustomResourceSubresourceStatus", {}, package=EXTENSIONS), keep=True),
                    "scale": Field(
                        Struct(
                            "CustomResourceSubresourceScale",
                            {
                                "specReplicasPath": Field(STRING, always=True),
                                "statusReplicasPath": Field(STRING, always=True),
                                "labelSelectorPath": Field(STRING, keep=True),
                            },
                            package=EXTENSIONS,
                        ),
                        keep=True,
                    ),
                },
                "Subresources of the resource.",
                EXTENSIONS,
            ),
            "Subresources.",
            keep=True,
        ),
        "additionalPrinterColumns": Field(ListOf(_COLUMN), "Columns that kubectl prints."),
        "selectableFields": Field(
            ListOf(
                Struct("SelectableField", {"jsonPath": Field(STRING, "The field.", always=True)}, package=EXTENSIONS)
            ),
            "Fields that can be selected by.",
        ),
    },
    "A version of the resource.",
    EXTENSIONS,
)

CUSTOM_RESOURCE_DEFINITION: Final = _kind(
    "CustomResourceDefinition",
    "A resource that the API server learns to serve.",
    EXTENSIONS,
    {
        "spec": Field(
            Struct(
                "CustomResourceDefinitionSpec",
                {
                    "group": Field(STRING, "The API group.", always=True),
                    "names": Field(_NAMES, "Names of the resource.", always=True),
                    "scope": Field(STRING, "Cluster or Namespaced.", always=True),
                    "versions": Field(ListOf(_VERSION), "The versions.", always=True),
                    "conversion": Field(
                        Struct(
                            "CustomResourceConversion",
                            {
                                "strategy": Field(STRING, "None or Webhook.", always=True),
                                "webhook": Field(ANYTHING, "The webhook.", keep=True),
                            },
                            "How versions are converted.",
                            EXTENSIONS,
                        ),
                        "How versions are converted.",
                        keep=True,
                    ),
                    "preserveUnknownFields": Field(BOOL, "Not supported; see the schema."),
                },
                "What the resource is.",
                EXTENSIONS,
            ),
            "What the resource is.",
            always=True,
        ),
        "status": Field(
            Struct(
                "CustomResourceDefinitionStatus",
                {
                    "conditions": Field(
                        ListOf(
                            Struct(
                                "CustomResourceDefinitionCondition",
                                {
                                    "type": Field(STRING, "What is told.", always=True),
                                    "status": Field(STRING, "True, False or Unknown.", always=True),
                                    "lastTransitionTime": Field(TIME, "When the status last changed."),
                                    "reason": Field(STRING, "One word for the last change."),
                                    "message": Field(STRING, "A sentence for people."),
                                },
                                package=EXTENSIONS,
                            )
                        ),
                        "Whether names are accepted and the resource is served.",
                        always=True,
                    ),
                    "acceptedNames": Field(_NAMES, "The names in use.", always=True),
                    "storedVersions": Field(STRINGS, "Versions in which objects may be stored.", always=True),
                },
                "What became of it.",
                EXTENSIONS,
            ),
            "What became of it.",
            always=True,
        ),
    },
)
