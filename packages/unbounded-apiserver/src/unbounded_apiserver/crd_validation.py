"""Validation of CustomResourceDefinitions, in the words and the order of kube-apiserver."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from unbounded_apiserver import crd_version_validation, field_errors, name_validation
from unbounded_apiserver.crd_version_validation import PARTS, has_status_part, part_errors, shared_parts
from unbounded_apiserver.resource_model import Object
from unbounded_apiserver.schema import FieldError

APPROVED: Final = "api-approved.kubernetes.io"
WARNING_BYTES: Final = 256
NOT_DEPRECATED: Final = "can only be set for deprecated versions"
_FORMATS: Final = frozenset(
    re.findall(
        r"\S+",
        "bsonobjectid uri email hostname ipv4 ipv6 cidr mac uuid uuid3 uuid4 uuid5 isbn isbn10 isbn13 creditcard ssn "
        "hexcolor rgbcolor byte password date duration datetime date-time int32 int64 float double "
        "k8s-short-name k8s-long-name",
    )
)
_PROTECTED: Final = re.compile(r"(^|\.)(k8s|kubernetes)\.io$")


def default(obj: Object) -> None:
    spec = obj["spec"]
    names = spec["names"]
    kind = names.get("kind", "")
    names["singular"] = names.get("singular") or kind.lower()
    names["listKind"] = names.get("listKind") or (f"{kind}List" if kind else "")
    spec.setdefault("conversion", {"strategy": "None"})
    if spec["conversion"].get("strategy", "") == "":
        spec["conversion"]["strategy"] = "None"
    crd_version_validation.default_conversion(spec["conversion"])


def decide(obj: Object, old: Object | None) -> None:
    if old is None:
        obj["status"] = {
            "conditions": None,
            "acceptedNames": {"plural": "", "kind": ""},
            "storedVersions": [v["name"] for v in obj["spec"]["versions"] or () if v["storage"]][:1] or None,
        }
        return
    stored = list(old["status"].get("storedVersions") or ())
    new = [v["name"] for v in obj["spec"]["versions"] or () if v["storage"] and v["name"] not in stored]
    obj["status"] = {**old["status"], "storedVersions": stored + new}
    if obj["spec"] != old["spec"]:
        obj["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1


def rules(obj: Object, old: Object | None) -> list[FieldError]:
    """Return all errors in the order in which kube-apiserver reports them."""
    spec = obj["spec"]
    versions = spec["versions"] or []
    errors: list[FieldError] = []
    expected = f"{spec['names']['plural']}.{spec['group']}"
    if old is None and obj["metadata"].get("name") != expected:
        errors.append(
            field_errors.invalid(
                "metadata.name", obj["metadata"].get("name"), 'must be spec.names.plural+"."+spec.group'
            )
        )
    errors += _rules_group(spec)
    lacking = [i for i, v in enumerate(versions) if (v.get("schema") or {}).get("openAPIV3Schema") is None]
    errors += [field_errors.required(f"spec.versions[{index}].schema.openAPIV3Schema") for index in lacking]
    shared = shared_parts(versions)
    for index, version in enumerate(versions):
        where = f"spec.versions[{index}]"
        errors += _rules_version(version, where)
        errors += part_errors(version, where, PARTS - shared, has_status=has_status_part(version))
    errors += _rules_storage(versions)
    if versions:
        first = versions[0]["name"]
        errors += [field_errors.invalid("spec.version", first, why) for why in name_validation.label_1035(first)]
    errors += _rules_names(spec["names"])
    if versions:
        errors += part_errors(versions[0], "spec", shared, has_status=any(map(has_status_part, versions)))
    strategy = spec["conversion"]["strategy"]
    if spec.get("preserveUnknownFields") and strategy != crd_version_validation.NONE:
        why = "must be None if spec.preserveUnknownFields is true"
        errors.append(field_errors.invalid("spec.conversion.strategy", strategy, why))
    errors += crd_version_validation.conversion_errors(spec["conversion"], old)
    if old is not None:
        errors += _rules_changes(spec, old)
    errors += _rules_stored(obj["status"].get("storedVersions") or [], versions)
    errors += _rules_approval(obj, old)
    if spec.get("preserveUnknownFields"):
        why = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
        errors.append(field_errors.invalid("spec.preserveUnknownFields", True, why))
    return errors


def _rules_approval(obj: Object, old: Object | None) -> list[FieldError]:
    """Require an approval for groups of Kubernetes itself; an update may leave the approval as it was."""
    given = _approval(obj)
    if not _PROTECTED.search(obj["spec"]["group"]) or (
        old is not None and _approval_state(_approval(old)) == _approval_state(given)
    ):
        return []
    where, (state, why) = f"metadata.annotations[{APPROVED}]", _approval_reason(given)
    if state == "Missing":
        return [field_errors.required(where, why)]
    return [field_errors.invalid(where, given, why)] if state == "Invalid" else []


def approval_condition(obj: Object) -> Object | None:
    """Return the condition KubernetesAPIApprovalPolicyConformant; None outside of the groups of Kubernetes itself."""
    if not _PROTECTED.search(obj["spec"]["group"]):
        return None
    state, why = _approval_reason(_approval(obj))
    return {
        "type": "KubernetesAPIApprovalPolicyConformant",
        "status": "True" if state == "Approved" else "False",
        "reason": f"{state}Annotation",
        "message": why,
    }


def _approval_reason(text: str) -> tuple[str, str]:
    """Return the state of an approval, and the reason."""
    state = _approval_state(text)
    see = "see https://github.com/kubernetes/enhancements/pull/1111"
    needed = f'protected groups must have approval annotation "{APPROVED}"'
    reasons = {
        "Missing": f"{needed}, {see}",
        "Unapproved": f"not approved: {field_errors.quoted(text)}",
        "Approved": f"approved in {text}",
        "Invalid": f'{needed} with either a URL or a reason starting with "unapproved", {see}',
    }
    return state, reasons[state]


def _approval(obj: Object) -> str:
    text: str = (obj["metadata"].get("annotations") or {}).get(APPROVED, "")
    return text


def _approval_state(text: str) -> str:
    if not text:
        return "Missing"
    if text.startswith("unapproved"):
        return "Unapproved"
    try:
        parsed = urlsplit(text)
    except ValueError:
        return "Invalid"
    return "Approved" if parsed.scheme and parsed.netloc else "Invalid"


def is_established(definition: Mapping[str, Any]) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def _rules_changes(spec: Mapping[str, Any], old: Mapping[str, Any]) -> list[FieldError]:
    """Check immutable fields: group and plural always, scope and kind once objects can exist."""
    before = old["spec"]
    kept = [
        ("spec.group", spec["group"], before["group"]),
        ("spec.names.plural", spec["names"]["plural"], before["names"]["plural"]),
    ]
    if is_established(old):
        kept = [
            ("spec.scope", spec["scope"], before["scope"]),
            ("spec.names.kind", spec["names"]["kind"], before["names"]["kind"]),
            *kept,
        ]
    return [field_errors.immutable(where, new) for where, new, held in kept if new != held]


def _rules_group(spec: Mapping[str, Any]) -> list[FieldError]:
    group = spec["group"]
    errors = [] if group else [field_errors.required("spec.group")]
    malformed = name_validation.subdomain(group)
    errors += [field_errors.invalid("spec.group", group, why) for why in malformed]
    if group and not malformed and "." not in group:
        errors.append(field_errors.invalid("spec.group", group, "should be a domain with at least one dot"))
    if not spec["scope"]:
        errors.append(field_errors.required("spec.scope"))
    elif spec["scope"] not in {"Cluster", "Namespaced"}:
        errors.append(field_errors.unsupported("spec.scope", spec["scope"], ["Cluster", "Namespaced"]))
    return errors


def _rules_storage(versions: list[Mapping[str, Any]]) -> list[FieldError]:
    shown = [
        {
            "Name": v["name"],
            "Served": v["served"],
            "Storage": v["storage"],
            "Deprecated": v.get("deprecated", False),
            "DeprecationWarning": v.get("deprecationWarning"),
            "Schema": None,
            "Subresources": None,
            "AdditionalPrinterColumns": None,
            "SelectableFields": None,
        }
        for v in versions
    ]
    errors = []
    names = [v["name"] for v in versions]
    if len(set(names)) != len(names):
        errors.append(field_errors.invalid("spec.versions", shown, "must contain unique version names"))
    if sum(v["storage"] for v in versions) != 1:
        errors.append(
            field_errors.invalid("spec.versions", shown, "must have exactly one version marked as storage version")
        )
    return errors


def _rules_stored(stored: list[str], versions: list[Mapping[str, Any]]) -> list[FieldError]:
    if not stored:
        return [field_errors.invalid("status.storedVersions", None, "must have at least one stored version")]
    names = {v["name"] for v in versions}
    errors = [
        field_errors.invalid(
            f"status.storedVersions[{index}]",
            name,
            f"missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions "
            f"until a storage migration ensures no data remains persisted in {name} and removes {name} from "
            "status.storedVersions",
        )
        for index, name in enumerate(stored)
        if name not in names
    ]
    storage = [v["name"] for v in versions if v["storage"]]
    if storage and storage[-1] not in stored:
        errors.append(
            field_errors.invalid("status.storedVersions", stored, f"must have the storage version {storage[-1]}")
        )
    return errors


def _rules_version(version: Mapping[str, Any], where: str) -> list[FieldError]:
    name = version["name"]
    errors = [field_errors.invalid(f"{where}.name", name, why) for why in name_validation.label_1035(name)]
    warning = version.get("deprecationWarning")
    if warning is not None:
        complaints = _warning_complaints(warning) if version.get("deprecated") else [NOT_DEPRECATED]
        errors += [field_errors.invalid(f"{where}.deprecationWarning", warning, why) for why in complaints]
    return errors


def _warning_complaints(text: str) -> list[str]:
    """Return the reasons why a text cannot be sent as a warning."""
    complaints = []
    if len(text.encode()) > WARNING_BYTES:
        complaints.append(f"must be <= {WARNING_BYTES} characters long")
    if not text:
        complaints.append("must not be an empty string")
    odd = next((i for i, char in enumerate(text) if not char.isprintable()), None)
    if odd is not None:
        at = len(text[:odd].encode())
        why = f"must only contain printable UTF-8 characters; non-printable character found at index {at}"
        complaints.append(why)
    return complaints


def _rules_names(names: Mapping[str, Any]) -> list[FieldError]:
    errors = []
    for key in ("plural", "singular", "kind", "listKind"):
        value = names.get(key, "")
        if not value:
            errors.append(field_errors.required(f"spec.names.{key}"))
        lowered = value.lower() if key.lower().endswith("kind") else value
        note = "may have mixed case, but should otherwise match: " if key.lower().endswith("kind") else ""
        if value:
            errors += [
                field_errors.invalid(f"spec.names.{key}", value, note + why)
                for why in name_validation.label_1035(lowered)
            ]
    for index, short in enumerate(names.get("shortNames", ())):
        errors += [
            field_errors.invalid(f"spec.names.shortNames[{index}]", short, why)
            for why in name_validation.label_1035(short)
        ]
    for index, category in enumerate(names.get("categories", ())):
        errors += [
            field_errors.invalid(f"spec.names.categories[{index}]", category, why)
            for why in name_validation.label_1035(category)
        ]
    if names.get("kind") and names.get("kind") == names.get("listKind"):
        errors.append(
            field_errors.invalid("spec.names.listKind", names["listKind"], "kind and listKind may not be the same")
        )
    return errors


def advise(obj: Object) -> list[str]:
    """Warn of formats that are accepted and have no effect."""
    schemas = ((v.get("schema") or {}).get("openAPIV3Schema") for v in obj["spec"]["versions"] or ())
    unknown = dict.fromkeys(f for schema in schemas for f in _formats(schema) if f not in _FORMATS)
    return [f'unrecognized format "{name}"' for name in unknown]


def _formats(schema: Any) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    if schema.get("format"):
        yield schema["format"]
    for key in ("items", "additionalProperties", "not"):
        yield from _formats(schema.get(key))
    for value in (schema.get("properties") or {}).values():
        yield from _formats(value)
    for key in ("allOf", "anyOf", "oneOf"):
        for value in schema.get(key) or ():
            yield from _formats(value)
