"""The shape of a CustomResourceDefinition, with the schemas in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from unbounded.apiserver.kinds import kind_shape
from unbounded.apiserver.shapes import (
    ANYTHING,
    BOOL,
    BYTES,
    FLOAT,
    INT32,
    INT64,
    STRING,
    STRINGS,
    TIME,
    Field,
    ListOf,
    MapOf,
    Struct,
)

EXTENSIONS: Final = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1"


def _schema_fields() -> Mapping[str, Field]:
    """Return the fields of JSONSchemaProps, which contains itself."""
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

_SERVICE: Final = Struct(
    "ServiceReference",
    {
        "namespace": Field(STRING, "Namespace of the Service.", always=True),
        "name": Field(STRING, "Name of the Service.", always=True),
        "path": Field(STRING, "Path of the URL.", keep=True),
        "port": Field(INT32, "Port of the Service; 443 by default.", keep=True),
    },
    "The Service of a webhook.",
    EXTENSIONS,
)

_WEBHOOK: Final = Struct(
    "WebhookConversion",
    {
        "clientConfig": Field(
            Struct(
                "WebhookClientConfig",
                {
                    "url": Field(STRING, "URL of the webhook.", keep=True),
                    "service": Field(_SERVICE, "The Service of the webhook.", keep=True),
                    "caBundle": Field(BYTES, "Certificates of the authorities that sign the webhook's certificate."),
                },
                "The address of a webhook: a URL or a Service.",
                EXTENSIONS,
            ),
            "The address of the webhook.",
            keep=True,
        ),
        "conversionReviewVersions": Field(STRINGS, "Versions of ConversionReview that it accepts.", always=True),
    },
    "A webhook that converts versions.",
    EXTENSIONS,
)

CUSTOM_RESOURCE_DEFINITION: Final = kind_shape(
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
                                "webhook": Field(_WEBHOOK, "The webhook.", keep=True),
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
                            ),
                            map_keys=("type",),
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
