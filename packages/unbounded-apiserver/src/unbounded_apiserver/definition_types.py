"""The shape of a CustomResourceDefinition, with the schemas in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from unbounded_apiserver.core_types import kind_shape
from unbounded_apiserver.type_desc import (
    ANYTHING,
    BOOL,
    BYTES,
    FLOAT,
    INT32,
    INT64,
    STRING,
    STRINGS,
    TIME,
    ListType,
    MapType,
    StructField,
    StructType,
)

EXTENSIONS: Final = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1"


def _schema_fields() -> Mapping[str, StructField]:
    """Return the fields of JSONSchemaProps, which contains itself."""
    schemas = ListType(SCHEMA_PROPS)
    strings = {"id", "$schema", "$ref", "description", "type", "format", "title", "pattern"}
    integers = {"maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"}
    return {
        **{name: StructField(STRING) for name in sorted(strings)},
        **{name: StructField(INT64, keep=True) for name in sorted(integers)},
        **{name: StructField(FLOAT, keep=True) for name in ("maximum", "minimum", "multipleOf")},
        **{name: StructField(BOOL) for name in ("exclusiveMaximum", "exclusiveMinimum", "uniqueItems", "nullable")},
        **{name: StructField(schemas) for name in ("allOf", "oneOf", "anyOf")},
        **{name: StructField(MapType(SCHEMA_PROPS)) for name in ("properties", "patternProperties", "definitions")},
        "default": StructField(ANYTHING, keep=True),
        "example": StructField(ANYTHING, keep=True),
        "enum": StructField(ListType(ANYTHING)),
        "required": StructField(STRINGS),
        "items": StructField(ANYTHING, keep=True),
        "additionalItems": StructField(ANYTHING, keep=True),
        "additionalProperties": StructField(ANYTHING, keep=True),
        "dependencies": StructField(MapType(ANYTHING)),
        "not": StructField(SCHEMA_PROPS, keep=True),
        "externalDocs": StructField(ANYTHING),
        "x-kubernetes-preserve-unknown-fields": StructField(BOOL, keep=True),
        "x-kubernetes-embedded-resource": StructField(BOOL),
        "x-kubernetes-int-or-string": StructField(BOOL),
        "x-kubernetes-list-map-keys": StructField(STRINGS),
        "x-kubernetes-list-type": StructField(STRING, keep=True),
        "x-kubernetes-map-type": StructField(STRING, keep=True),
        "x-kubernetes-validations": StructField(ListType(VALIDATION_RULE, "rule")),
    }


VALIDATION_RULE: Final = StructType(
    "ValidationRule",
    {
        "rule": StructField(STRING, "A CEL expression that has to be true.", always=True),
        "message": StructField(STRING, "What is said when it is not."),
        "messageExpression": StructField(STRING, "A CEL expression that makes the message."),
        "reason": StructField(STRING, "The machine-readable reason.", keep=True),
        "fieldPath": StructField(STRING, "The field that the error is put on."),
        "optionalOldSelf": StructField(
            BOOL, "Whether the rule runs on creation too, with an optional oldSelf.", keep=True
        ),
    },
    "A rule in CEL.",
    EXTENSIONS,
)
SCHEMA_PROPS: Final = StructType("JSONSchemaProps", {}, "A JSON schema (OpenAPI v3).", EXTENSIONS, later=_schema_fields)

_NAMES: Final = StructType(
    "CustomResourceDefinitionNames",
    {
        "plural": StructField(STRING, "The name in URLs.", always=True),
        "singular": StructField(STRING, "The name on the command line; the kind in lower case by default."),
        "shortNames": StructField(STRINGS, "Short names for the command line."),
        "kind": StructField(STRING, "The kind, in CamelCase.", always=True),
        "listKind": StructField(STRING, "The kind of lists; kind and List by default."),
        "categories": StructField(STRINGS, "Groups of resources such as `all`."),
    },
    "Names of a resource.",
    EXTENSIONS,
)

_COLUMN: Final = StructType(
    "CustomResourceColumnDefinition",
    {
        "name": StructField(STRING, "The heading.", always=True),
        "type": StructField(STRING, "string, integer, number, boolean or date.", always=True),
        "format": StructField(STRING, "Such as int32 or date-time."),
        "description": StructField(STRING, "What the column shows."),
        "priority": StructField(INT32, "Columns above 0 are shown with -o wide."),
        "jsonPath": StructField(STRING, "Where the value is.", always=True),
    },
    "A column that kubectl prints.",
    EXTENSIONS,
)

_VERSION: Final = StructType(
    "CustomResourceDefinitionVersion",
    {
        "name": StructField(STRING, "Such as v1alpha3.", always=True),
        "served": StructField(BOOL, "Whether this version can be used.", always=True),
        "storage": StructField(BOOL, "Whether objects are stored in this version.", always=True),
        "deprecated": StructField(BOOL, "Whether its use is warned of."),
        "deprecationWarning": StructField(STRING, "The words of that warning.", keep=True),
        "schema": StructField(
            StructType(
                "CustomResourceValidation",
                {"openAPIV3Schema": StructField(SCHEMA_PROPS, "The schema.", keep=True)},
                "How objects are validated.",
                EXTENSIONS,
            ),
            "How objects are validated, pruned and defaulted.",
            keep=True,
        ),
        "subresources": StructField(
            StructType(
                "CustomResourceSubresources",
                {
                    "status": StructField(
                        StructType("CustomResourceSubresourceStatus", {}, package=EXTENSIONS), keep=True
                    ),
                    "scale": StructField(
                        StructType(
                            "CustomResourceSubresourceScale",
                            {
                                "specReplicasPath": StructField(STRING, always=True),
                                "statusReplicasPath": StructField(STRING, always=True),
                                "labelSelectorPath": StructField(STRING, keep=True),
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
        "additionalPrinterColumns": StructField(ListType(_COLUMN), "Columns that kubectl prints."),
        "selectableFields": StructField(
            ListType(
                StructType(
                    "SelectableField", {"jsonPath": StructField(STRING, "The field.", always=True)}, package=EXTENSIONS
                )
            ),
            "Fields that can be selected by.",
        ),
    },
    "A version of the resource.",
    EXTENSIONS,
)

_SERVICE: Final = StructType(
    "ServiceReference",
    {
        "namespace": StructField(STRING, "Namespace of the Service.", always=True),
        "name": StructField(STRING, "Name of the Service.", always=True),
        "path": StructField(STRING, "Path of the URL.", keep=True),
        "port": StructField(INT32, "Port of the Service; 443 by default.", keep=True),
    },
    "The Service of a webhook.",
    EXTENSIONS,
)

_WEBHOOK: Final = StructType(
    "WebhookConversion",
    {
        "clientConfig": StructField(
            StructType(
                "WebhookClientConfig",
                {
                    "url": StructField(STRING, "URL of the webhook.", keep=True),
                    "service": StructField(_SERVICE, "The Service of the webhook.", keep=True),
                    "caBundle": StructField(
                        BYTES, "Certificates of the authorities that sign the webhook's certificate."
                    ),
                },
                "The address of a webhook: a URL or a Service.",
                EXTENSIONS,
            ),
            "The address of the webhook.",
            keep=True,
        ),
        "conversionReviewVersions": StructField(STRINGS, "Versions of ConversionReview that it accepts.", always=True),
    },
    "A webhook that converts versions.",
    EXTENSIONS,
)

CUSTOM_RESOURCE_DEFINITION: Final = kind_shape(
    "CustomResourceDefinition",
    "A resource that the API server learns to serve.",
    EXTENSIONS,
    {
        "spec": StructField(
            StructType(
                "CustomResourceDefinitionSpec",
                {
                    "group": StructField(STRING, "The API group.", always=True),
                    "names": StructField(_NAMES, "Names of the resource.", always=True),
                    "scope": StructField(STRING, "Cluster or Namespaced.", always=True),
                    "versions": StructField(ListType(_VERSION), "The versions.", always=True),
                    "conversion": StructField(
                        StructType(
                            "CustomResourceConversion",
                            {
                                "strategy": StructField(STRING, "None or Webhook.", always=True),
                                "webhook": StructField(_WEBHOOK, "The webhook.", keep=True),
                            },
                            "How versions are converted.",
                            EXTENSIONS,
                        ),
                        "How versions are converted.",
                        keep=True,
                    ),
                    "preserveUnknownFields": StructField(BOOL, "Not supported; see the schema."),
                },
                "What the resource is.",
                EXTENSIONS,
            ),
            "What the resource is.",
            always=True,
        ),
        "status": StructField(
            StructType(
                "CustomResourceDefinitionStatus",
                {
                    "conditions": StructField(
                        ListType(
                            StructType(
                                "CustomResourceDefinitionCondition",
                                {
                                    "type": StructField(STRING, "What is told.", always=True),
                                    "status": StructField(STRING, "True, False or Unknown.", always=True),
                                    "lastTransitionTime": StructField(TIME, "When the status last changed."),
                                    "reason": StructField(STRING, "One word for the last change."),
                                    "message": StructField(STRING, "A sentence for people."),
                                },
                                package=EXTENSIONS,
                            ),
                            map_keys=("type",),
                        ),
                        "Whether names are accepted and the resource is served.",
                        always=True,
                    ),
                    "acceptedNames": StructField(_NAMES, "The names in use.", always=True),
                    "storedVersions": StructField(STRINGS, "Versions in which objects may be stored.", always=True),
                },
                "What became of it.",
                EXTENSIONS,
            ),
            "What became of it.",
            always=True,
        ),
    },
)
