"""Rules of the parts of a definition that its versions have or share, worded as by kube-apiserver.

These are schema, subresources, columns and selectors of a version, and the conversion between versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from unbounded_apiserver import field_errors, name_validation
from unbounded_apiserver.resource_model import Object
from unbounded_apiserver.schema import Draft, FieldError, SchemaError
from unbounded_apiserver.schema.errors import too_many
from unbounded_apiserver.schema.rules import BadFieldPath, selected_field

NONE: Final = "None"
WEBHOOK: Final = "Webhook"
REVIEWS: Final = ("v1", "v1beta1")
_URL_FORM: Final = "; desired format: https://host[/path]"
_PORTS: Final = range(1, 65536)
_PATH: Final = "spec.conversion"
_CONFIG: Final = f"{_PATH}.webhookClientConfig"
_REVIEWS: Final = f"{_PATH}.conversionReviewVersions"
COLUMN_FORMATS: Final = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")
COLUMN_TYPES: Final = ("boolean", "date", "integer", "number", "string")
SELECTABLE: Final = 8
PARTS: Final = frozenset({"schema", "subresources", "additionalPrinterColumns", "selectableFields"})
_SCALE_PATHS: Final[Mapping[str, tuple[str, ...]]] = {
    "specReplicasPath": (".spec",),
    "statusReplicasPath": (".status",),
    "labelSelectorPath": (".spec", ".status"),
}
# The keywords that may be at the root of a schema beside the status subresource, as kube-apiserver names them.
_ROOT_WORDS: Final = (
    "Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern "
    "MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields "
    "XValidations"
)
_AT_ROOT: Final = frozenset(word[0].lower() + word[1:] for word in _ROOT_WORDS.split()) | {
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
}


def draft(schema: Mapping[str, Any], path: str) -> Draft:
    """Return the parsed schema from a cache: a definition is validated when written and used when served.

    Raises:
        SchemaError: with the paths under `path`.
    """
    return _draft(msgspec.json.encode(schema), path)


@lru_cache(maxsize=64)
def _draft(schema: bytes, path: str) -> Draft:
    return Draft.of(msgspec.json.decode(schema), path=path)


def shared_parts(versions: list[Mapping[str, Any]]) -> frozenset[str]:
    """Return the parts that all versions share: errors name them once, as parts of spec itself."""
    first = versions[0] if versions else {}
    return frozenset(part for part in PARTS if first.get(part) and all(v.get(part) == first[part] for v in versions))


def part_errors(version: Mapping[str, Any], where: str, parts: frozenset[str], *, has_status: bool) -> list[FieldError]:
    """Validate some parts of a version: its own parts, or those that all versions share."""
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    errors: list[FieldError] = []
    if schema is not None and "schema" in parts:
        at = f"{where}.{'validation' if where == 'spec' else 'schema'}.openAPIV3Schema"
        errors += _rules_root(schema, at) if has_status else []
        try:
            errors += draft(schema, at).errors()
        except SchemaError as error:
            errors += error.causes
    if "subresources" in parts:
        errors += _rules_scale((version.get("subresources") or {}).get("scale"), f"{where}.subresources.scale")
    if "additionalPrinterColumns" in parts:
        errors += _rules_columns(version.get("additionalPrinterColumns", ()), f"{where}.additionalPrinterColumns")
    if schema is not None and "selectableFields" in parts:
        errors += _rules_selectable(version.get("selectableFields", ()), schema, f"{where}.selectableFields")
    return errors


def has_status_part(version: Mapping[str, Any]) -> bool:
    return (version.get("subresources") or {}).get("status") is not None


def _rules_root(schema: Mapping[str, Any], at: str) -> list[FieldError]:
    """Check the root of a schema beside the status subresource.

    The schema of status is checked by itself, so that other keywords at the root would have no effect.
    """
    if schema.get("type", "object") != "object":
        why = 'only "object" is allowed as the type at the root of the schema if the status subresource is enabled'
        return [field_errors.invalid(f"{at}.type", schema["type"], why)]
    if all(word in _AT_ROOT or not value for word, value in schema.items()):
        return []
    why = f"only [{_ROOT_WORDS}] fields are allowed at the root of the schema if the status subresource is enabled"
    return [field_errors.invalid(at, schema, why)]


def _rules_scale(scale: Mapping[str, Any] | None, where: str) -> list[FieldError]:
    if scale is None:
        return []
    errors = []
    for key, roots in _SCALE_PATHS.items():
        path, under = scale.get(key) or "", " or ".join(roots)
        if not path:
            errors += [field_errors.required(f"{where}.{key}")] if key != "labelSelectorPath" else []
        elif not path.startswith("."):
            errors.append(field_errors.invalid(f"{where}.{key}", path, "must be a simple json path starting with ."))
        elif not path.startswith(tuple(f"{root}." for root in roots)):
            either = "either " if len(roots) > 1 else ""
            errors.append(field_errors.invalid(f"{where}.{key}", path, f"should be a json path under {either}{under}"))
    return errors


def _rules_columns(given: list[Mapping[str, Any]], where: str) -> list[FieldError]:
    errors = []
    for index, column in enumerate(given):
        at = f"{where}[{index}]"
        if not column["name"]:
            errors.append(field_errors.required(f"{at}.name"))
        if not column["type"]:
            errors.append(field_errors.required(f"{at}.type", f"must be one of {','.join(COLUMN_TYPES)}"))
        elif column["type"] not in COLUMN_TYPES:
            errors.append(
                field_errors.invalid(f"{at}.type", column["type"], f"must be one of {','.join(COLUMN_TYPES)}")
            )
        if column.get("format") and column["format"] not in COLUMN_FORMATS:
            why = f"must be one of {','.join(COLUMN_FORMATS)}"
            errors.append(field_errors.invalid(f"{at}.format", column["format"], why))
        path = column["jsonPath"]
        if not path:
            errors.append(field_errors.required(f"{at}.JSONPath"))
        elif not path.startswith("."):
            errors.append(field_errors.invalid(f"{at}.JSONPath", path, "must be a simple json path starting with ."))
    return errors


def _rules_selectable(given: list[Mapping[str, Any]], schema: Mapping[str, Any], where: str) -> list[FieldError]:
    errors: list[FieldError] = []
    known: set[str] = set()
    for index, selectable in enumerate(given):
        path = selectable["jsonPath"]
        at = f"{where}[{index}].jsonPath"
        if not path:
            errors.append(field_errors.required(at))
            continue
        try:
            found = selected_field(path, schema)
        except BadFieldPath as error:
            errors.append(field_errors.invalid(at, path, f"is an invalid path: {error}"))
            continue
        if path.startswith(".metadata."):
            errors.append(field_errors.invalid(at, path, "must not point to fields in metadata"))
        if found.get("type") not in {"string", "boolean", "integer"}:
            why = (
                "must point to a field of type string, boolean or integer. "
                "Enum string fields and strings with formats are allowed."
            )
            errors.append(field_errors.invalid(at, path, why))
        if path in known:
            errors.append(field_errors.duplicate(at, path))
        known.add(path)
    if len(known) > SELECTABLE:
        errors.append(too_many(where, len(known), SELECTABLE))
    return errors


def conversion_errors(conversion: Mapping[str, Any], old: Object | None) -> list[FieldError]:
    """Return the errors of a conversion; `old` is the definition that is replaced.

    A valid webhook is rejected too, as this server calls none.
    """
    strategy = conversion["strategy"]
    if strategy not in {NONE, WEBHOOK}:
        return [field_errors.unsupported(f"{_PATH}.strategy", strategy, [NONE, WEBHOOK]), *_unused(conversion)]
    if strategy == NONE:
        return _unused(conversion)
    webhook = conversion.get("webhook") or {}
    errors = _client_errors(webhook.get("clientConfig"))
    errors += _review_errors(webhook.get("conversionReviewVersions") or [], _needs_known_review(old))
    if errors:
        return errors
    why = "this server calls no conversion webhooks: use None, and write objects in the version that is stored"
    return [field_errors.invalid(f"{_PATH}.strategy", strategy, why)]


def default_conversion(conversion: Object) -> None:
    """Default the port of a webhook's Service, and drop an empty webhook, in place."""
    if not any((conversion.get("webhook") or {}).values()):
        conversion.pop("webhook", None)
    service = ((conversion.get("webhook") or {}).get("clientConfig") or {}).get("service")
    if service is not None:
        service.setdefault("port", 443)


def _unused(conversion: Mapping[str, Any]) -> list[FieldError]:
    webhook = conversion.get("webhook") or {}
    why = "should not be set when strategy is not set to Webhook"
    errors = [] if webhook.get("clientConfig") is None else [field_errors.forbidden(_CONFIG, why)]
    return [*errors, field_errors.forbidden(_REVIEWS, why)] if webhook.get("conversionReviewVersions") else errors


def _client_errors(config: Mapping[str, Any] | None) -> list[FieldError]:
    if config is None:
        return [field_errors.required(_CONFIG, "required when strategy is set to Webhook")]
    url, service = config.get("url"), config.get("service")
    if url is not None and service is None:
        return _url_errors(url)
    if service is not None and url is None:
        return _service_errors(service)
    return [field_errors.required(_CONFIG, "exactly one of url or service is required")]


def _url_errors(url: str) -> list[FieldError]:
    where = f"{_CONFIG}.url"
    try:
        parsed = urlsplit(url)
    except ValueError as error:
        return [field_errors.required(where, f"url must be a valid URL: {error}{_URL_FORM}")]
    errors = []
    if parsed.scheme != "https":
        errors.append(field_errors.invalid(where, parsed.scheme, f"'https' is the only allowed URL scheme{_URL_FORM}"))
    host = parsed.netloc.rpartition("@")[2]
    if not host:
        errors.append(field_errors.invalid(where, host, f"host must be specified{_URL_FORM}"))
    return errors + _surplus_errors(parsed, where)


def _surplus_errors(parsed: SplitResult, where: str) -> list[FieldError]:
    """Report the parts of a URL that a webhook's URL may not have."""
    user, at, _ = parsed.netloc.rpartition("@")
    surplus = (
        (user, "user information is"),
        (parsed.fragment, "fragments are"),
        (parsed.query, "query parameters are"),
    )
    present = (bool(at), bool(parsed.fragment), bool(parsed.query))
    return [
        field_errors.invalid(where, value, f"{what} not permitted in the URL")
        for (value, what), is_there in zip(surplus, present, strict=True)
        if is_there
    ]


def _service_errors(service: Mapping[str, Any]) -> list[FieldError]:
    where = f"{_CONFIG}.service"
    # kube-apiserver takes name for namespace here and namespace for name; both are required in either order
    errors = [field_errors.required(f"{where}.{key}") for key in ("name", "namespace") if not service.get(key)]
    if service["port"] not in _PORTS:
        why = "port is not valid: must be between 1 and 65535, inclusive"
        errors.append(field_errors.invalid(f"{where}.port", service["port"], why))
    return errors + [
        field_errors.invalid(f"{where}.path", service["path"], why) for why in _path_faults(service.get("path"))
    ]


def _path_faults(path: str | None) -> list[str]:
    if path is None or path in {"", "/"}:
        return []
    if path == "//":
        return ["segment[0] may not be empty"]
    faults = [] if path.startswith("/") else ["must start with a '/'"]
    for index, step in enumerate(path[1:].removesuffix("/").split("/")):
        found = name_validation.subdomain(step) if step else None
        faults += [f"segment[{index}] may not be empty"] if found is None else [f"segment[{index}]: {f}" for f in found]
    return faults


def _review_errors(versions: list[str], needs_known: bool) -> list[FieldError]:
    if not versions:
        return [field_errors.required(_REVIEWS)]
    errors = []
    for index, version in enumerate(versions):
        where = f"{_REVIEWS}[{index}]"
        if version in versions[:index]:
            errors.append(field_errors.invalid(where, version, "duplicate version"))
        else:
            errors += [field_errors.invalid(where, version, why) for why in name_validation.label_1035(version)]
    if needs_known and not set(versions) & set(REVIEWS):
        errors.append(field_errors.invalid(_REVIEWS, versions, f"must include at least one of {', '.join(REVIEWS)}"))
    return errors


def _needs_known_review(old: Object | None) -> bool:
    """Return whether one review version must be known: an update may keep a list without a known version."""
    webhook = ((old or {}).get("spec", {}).get("conversion") or {}).get("webhook") or {}
    versions = webhook.get("conversionReviewVersions") or []
    return not versions or bool(set(versions) & set(REVIEWS))
