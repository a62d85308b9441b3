"""The shape of a CustomResourceDefinition, with the schemas in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from unbounded_apiserver import notation
from unbounded_apiserver.type_desc import StructType

EXTENSIONS: Final = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1"

_SCHEMA: Final = StructType(  # contains itself
    "JSONSchemaProps",
    {},
    "A JSON schema (OpenAPI v3).",
    EXTENSIONS,
    later=lambda: _TYPES["SchemaFields"].fields,
)
_TYPES: Final[Mapping[str, StructType]] = notation.read(
    """
CustomResourceDefinition: A resource that the API server learns to serve.
  spec CustomResourceDefinitionSpec!  The definition of the resource.
  status CustomResourceDefinitionStatus!  Its state.
CustomResourceDefinitionSpec: The definition of the resource.
  group string!  The API group.
  names CustomResourceDefinitionNames!  Names of the resource.
  scope string!  Cluster or Namespaced.
  versions [CustomResourceDefinitionVersion]!  The versions.
  conversion CustomResourceConversion*  The conversion of versions.
  preserveUnknownFields bool  Not supported; see the schema.
CustomResourceDefinitionNames: Names of a resource.
  plural string!  The name in URLs.
  singular string  The name on the command line; the kind in lower case by default.
  shortNames [string]  Short names for the command line.
  kind string!  The kind, in CamelCase.
  listKind string  The kind of lists; kind and List by default.
  categories [string]  Groups of resources such as `all`.
CustomResourceDefinitionVersion: A version of the resource.
  name string!  Such as v1alpha3.
  served bool!  True if this version is served.
  storage bool!  True if objects are stored in this version.
  deprecated bool  True if its use causes a warning.
  deprecationWarning string*  The words of that warning.
  schema CustomResourceValidation*  The validation, pruning and defaults of objects.
  subresources CustomResourceSubresources*  Subresources.
  additionalPrinterColumns [CustomResourceColumnDefinition]  Columns that kubectl prints.
  selectableFields [SelectableField]  Fields that can be selected by.
CustomResourceValidation: The validation of objects.
  openAPIV3Schema JSONSchemaProps*  The schema.
CustomResourceSubresources: Subresources of the resource.
  status CustomResourceSubresourceStatus*
  scale CustomResourceSubresourceScale*
CustomResourceSubresourceStatus
CustomResourceSubresourceScale
  specReplicasPath string!
  statusReplicasPath string!
  labelSelectorPath string*
CustomResourceColumnDefinition: A column that kubectl prints.
  name string!  The heading.
  type string!  string, integer, number, boolean or date.
  format string  Such as int32 or date-time.
  description string  The meaning of the column.
  priority int32  Columns above 0 are shown with -o wide.
  jsonPath string!  Where the value is.
SelectableField
  jsonPath string!  The field.
CustomResourceConversion: The conversion of versions.
  strategy string!  None or Webhook.
  webhook WebhookConversion*  The webhook.
WebhookConversion: A webhook that converts versions.
  clientConfig WebhookClientConfig*  The address of the webhook.
  conversionReviewVersions [string]!  Versions of ConversionReview that it accepts.
WebhookClientConfig: The address of a webhook: a URL or a Service.
  url string*  URL of the webhook.
  service ServiceReference*  The Service of the webhook.
  caBundle bytes  Certificates of the authorities that sign the webhook's certificate.
ServiceReference: The Service of a webhook.
  namespace string!  Namespace of the Service.
  name string!  Name of the Service.
  path string*  Path of the URL.
  port int32*  Port of the Service; 443 by default.
CustomResourceDefinitionStatus: Its state.
  conditions [CustomResourceDefinitionCondition]+type!  The acceptance of names, and whether the resource is served.
  acceptedNames CustomResourceDefinitionNames!  The names in use.
  storedVersions [string]!  Versions in which objects may be stored.
CustomResourceDefinitionCondition
  type string!  What is told.
  status string!  True, False or Unknown.
  lastTransitionTime time  When the status last changed.
  reason string  One word for the last change.
  message string  A sentence for people.
SchemaFields
  $ref string
  $schema string
  description string
  format string
  id string
  pattern string
  title string
  type string
  maxItems int64*
  maxLength int64*
  maxProperties int64*
  minItems int64*
  minLength int64*
  minProperties int64*
  maximum float*
  minimum float*
  multipleOf float*
  exclusiveMaximum bool
  exclusiveMinimum bool
  uniqueItems bool
  nullable bool
  allOf [JSONSchemaProps]
  oneOf [JSONSchemaProps]
  anyOf [JSONSchemaProps]
  properties {JSONSchemaProps}
  patternProperties {JSONSchemaProps}
  definitions {JSONSchemaProps}
  default any*
  example any*
  enum [any]
  required [string]
  items any*
  additionalItems any*
  additionalProperties any*
  dependencies {any}
  not JSONSchemaProps*
  externalDocs any
  x-kubernetes-preserve-unknown-fields bool*
  x-kubernetes-embedded-resource bool
  x-kubernetes-int-or-string bool
  x-kubernetes-list-map-keys [string]
  x-kubernetes-list-type string*
  x-kubernetes-map-type string*
  x-kubernetes-validations [ValidationRule]rule
ValidationRule: A rule in CEL.
  rule string!  A CEL expression that has to be true.
  message string  The message if it is false.
  messageExpression string  A CEL expression that makes the message.
  reason string*  The machine-readable reason.
  fieldPath string  The field that the error is put on.
  optionalOldSelf bool*  True if the rule also runs on creation, with an optional oldSelf.
""",
    package=EXTENSIONS,
    known={"JSONSchemaProps": _SCHEMA},
)
CUSTOM_RESOURCE_DEFINITION: Final = notation.kind(_TYPES, "CustomResourceDefinition")
