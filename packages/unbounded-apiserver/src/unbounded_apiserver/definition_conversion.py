"""The rules of spec.conversion of a CustomResourceDefinition, worded as by kube-apiserver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from unbounded_apiserver import field_errors, name_validation
from unbounded_apiserver.schema import FieldError
from unbounded_apiserver.types import Object

NONE: Final = "None"
WEBHOOK: Final = "Webhook"
REVIEWS: Final = ("v1", "v1beta1")
_URL_FORM: Final = "; desired format: https://host[/path]"
_PORTS: Final = range(1, 65536)
_PATH: Final = "spec.conversion"
_CONFIG: Final = f"{_PATH}.webhookClientConfig"
_REVIEWS: Final = f"{_PATH}.conversionReviewVersions"


def rules(conversion: Mapping[str, Any], old: Object | None) -> list[FieldError]:
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


def default(conversion: Object) -> None:
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
