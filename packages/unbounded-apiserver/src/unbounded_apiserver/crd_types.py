"""CustomResourceDefinitions: their shape with the schemas in it, and the resources that they define."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from unbounded_apiserver import (
    columns,
    crd_validation,
    crd_version_validation,
    metadata,
    name_validation,
    resource_model,
    scale,
    type_descriptor_parser,
)
from unbounded_apiserver.builtin_resources import BuiltInType
from unbounded_apiserver.managed_fields.merge import ObjectKind, of_schema
from unbounded_apiserver.schema import FieldError, Schema
from unbounded_apiserver.type_descriptors import StructType

EXTENSIONS: Final = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1"

_SCHEMA: Final = StructType(  # contains itself
    "JSONSchemaProps",
    {},
    "A JSON schema (OpenAPI v3).",
    EXTENSIONS,
    later=lambda: _TYPES["SchemaFields"].fields,
)
_TYPES: Final[Mapping[str, StructType]] = type_descriptor_parser.read(
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
  jsonPath string!  Path of the value.
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
  type string!  Type of the condition.
  status string!  True, False or Unknown.
  lastTransitionTime time  Time of the last change of the status.
  reason string  Reason of the last change, in one word.
  message string  Message for users.
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
  fieldPath string  Field that the error names.
  optionalOldSelf bool*  True if the rule also runs on creation, with an optional oldSelf.
""",
    package=EXTENSIONS,
    known={"JSONSchemaProps": _SCHEMA},
)
CUSTOM_RESOURCE_DEFINITION: Final = type_descriptor_parser.kind(_TYPES, "CustomResourceDefinition")


CLEANUP: Final = "customresourcecleanup.apiextensions.k8s.io"
DEFINITIONS: Final = resource_model.Resource(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    "customresourcedefinition",
    False,
    BuiltInType(
        CUSTOM_RESOURCE_DEFINITION,
        generation=True,
        unconditional_update=False,
        defaults=crd_validation.default,
        decide=crd_validation.decide,
        rules=crd_validation.rules,
        advice=crd_validation.advise,
        qualified_finalizers=False,
    ),
    short_names=("crd", "crds"),
    categories=("api-extensions",),
    subresources=resource_model.STATUS,
    columns=columns.DEFINITION,
)


@dataclass(frozen=True)
class CustomType:
    """The type of a custom resource in one version."""

    kind: str
    schema: Schema
    status: bool
    merge_fields: ObjectKind
    scale: resource_model.ScalePaths | None = None
    generation: bool = True
    name_check: name_validation.Check = name_validation.subdomain
    unconditional_update: bool = False
    create_on_update: bool = False
    tracks_owners: bool = True
    shape: StructType | None = None

    def empty(self) -> resource_model.Object:
        return {}

    def decode(self, obj: resource_model.Object) -> list[str]:
        unknown: list[str] = []
        metadata.decode(obj, unknown)
        return unknown + sorted(self.schema.prune(obj))

    def default(self, obj: resource_model.Object) -> None:
        self.schema.default(obj)

    def prepare(self, obj: resource_model.Object, old: resource_model.Object | None) -> None:
        if self.status:
            obj.pop("status", None)
            if old is not None and "status" in old:
                obj["status"] = old["status"]
        if old is not None and self._desired(obj) != self._desired(old):
            obj["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1

    def validate(
        self,
        obj: resource_model.Object,
        old: resource_model.Object | None,
        warnings: list[str] | None = None,
        others: Sequence[FieldError] = (),
    ) -> list[FieldError]:
        errors = self.schema.validate(obj, old, warnings, others)
        return errors if self.scale is None else [*errors, *scale.errors(self.scale, obj)]

    def advise(self, obj: resource_model.Object) -> list[str]:  # noqa: ARG002 - the protocol's
        return []

    def _desired(self, obj: resource_model.Object) -> resource_model.Object:
        left_out = {"metadata", "status"} if self.status else {"metadata"}
        return {k: v for k, v in obj.items() if k not in left_out}


def _keep_all_but_status(obj: resource_model.Object, old: resource_model.Object, now: datetime) -> None:
    """Keep everything but the status, as for built-in types; metadata does not change either."""
    obj["metadata"] = dict(old["metadata"])
    resource_model.keep_all_but_status(obj, old, now)


_STATUS: Final[Mapping[str, resource_model.Subresource]] = {"status": resource_model.Subresource(_keep_all_but_status)}


def served_resources(definition: Mapping[str, Any]) -> list[resource_model.Resource]:
    """Return the resources of an accepted definition, one for each served version, the preferred version first."""
    served = [v for v in definition["spec"]["versions"] if v["served"]]
    return [_resource(definition, version) for version in sorted(served, key=lambda v: version_order(v["name"]))]


def stored_resource(definition: Mapping[str, Any]) -> resource_model.Resource:
    """Return the resource in the version in which objects are stored from now on, served or not."""
    return _resource(definition, _stored(definition))


def types_by_version(definition: Mapping[str, Any]) -> dict[str, CustomType]:
    """Return the types of all versions by apiVersion: objects may be stored in any of them."""
    spec = definition["spec"]
    return {f"{spec['group']}/{v['name']}": _type(spec["names"]["kind"], v) for v in spec["versions"]}


def _stored(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    version: Mapping[str, Any] = next(v for v in definition["spec"]["versions"] if v["storage"])
    return version


def _type(kind: str, version: Mapping[str, Any]) -> CustomType:
    written = version["schema"]["openAPIV3Schema"]
    schema = crd_version_validation.draft(written, "spec.validation.openAPIV3Schema").schema
    subresources = version.get("subresources") or {}
    return CustomType(
        kind,
        schema,
        subresources.get("status") is not None,
        of_schema(written),
        _scale_paths(subresources.get("scale")),
    )


def _scale_paths(given: Mapping[str, Any] | None) -> resource_model.ScalePaths | None:
    if given is None:
        return None
    selector = given.get("labelSelectorPath") or ""
    return resource_model.ScalePaths(given["specReplicasPath"], given["statusReplicasPath"], selector)


def _resource(definition: Mapping[str, Any], version: Mapping[str, Any]) -> resource_model.Resource:
    spec, names, stored = definition["spec"], definition["spec"]["names"], _stored(definition)
    this = _type(names["kind"], version)
    api_version = f"{spec['group']}/{version['name']}"
    warning = version.get("deprecationWarning") or f"{api_version} {names['kind']} is deprecated"
    return resource_model.Resource(
        spec["group"],
        version["name"],
        names["kind"],
        names["plural"],
        names.get("singular", ""),
        spec["scope"] == "Namespaced",
        this,
        list_kind=names["listKind"],
        short_names=tuple(names.get("shortNames", ())),
        categories=tuple(names.get("categories", ())),
        verbs=resource_model.ALL_VERBS,
        subresources=_STATUS if this.status else {},
        scale=this.scale,
        storage_version=stored["name"],
        stored_type=None if stored is version else _type(names["kind"], stored),
        selectable={f["jsonPath"].lstrip("."): f["jsonPath"].lstrip(".") for f in version.get("selectableFields", ())},
        columns=(columns.NAME, *_columns(version)),
        custom=True,
        deprecation=warning if version.get("deprecated") else "",
        schema=version["schema"]["openAPIV3Schema"],
        accepting="deletionTimestamp" not in definition["metadata"],
    )


def _columns(version: Mapping[str, Any]) -> list[resource_model.TableColumn]:
    """Return the printer columns, or kube-apiserver's default ones if a path among them cannot be parsed."""
    given = version.get("additionalPrinterColumns")
    if not given or not all(_is_readable(column["jsonPath"]) for column in given):
        return [columns.CUSTOM_AGE]
    return [
        resource_model.TableColumn(
            c["name"],
            c["type"],
            c.get("format", ""),
            c.get("description") or f"Custom resource definition column (in JSONPath format): {c['jsonPath']}",
            c.get("priority", 0),
            path=c["jsonPath"],
        )
        for c in given
    ]


def _is_readable(path: str) -> bool:
    try:
        columns.compile_path(path)
    except columns.BadPath:
        return False
    return True


def version_order(name: str) -> tuple[int, int, int, int, str]:
    """Return a key that sorts versions as Kubernetes does: v2, v1, v1beta2, v1beta1, v1alpha1, then other names."""
    match = re.fullmatch(r"v([0-9]+)(?:(alpha|beta)([0-9]+))?", name)
    if match is None:
        return (1, 0, 0, 0, name)
    stage = {None: 0, "beta": 1, "alpha": 2}[match[2]]
    return (0, stage, -int(match[1]), -int(match[3] or 0), "")
