"""Validation of Services and of their changes, worded as by Kubernetes."""

from __future__ import annotations

from typing import Any, Final

from unbounded_apiserver import field_errors, name_validation
from unbounded_apiserver.schema import FieldError
from unbounded_apiserver.workloads.container_rules import PROTOCOLS, label, number_or_name, port_number
from unbounded_apiserver.workloads.pod_rules import is_address, not_an_address

Object = dict[str, Any]

TYPES: Final = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]
AFFINITIES: Final = ["ClientIP", "None"]
POLICIES: Final = ["Cluster", "Local"]
HEADLESS: Final = "None"
LONGEST_AFFINITY_S: Final = 86400


def rules_of_service(service: Object, old: Object | None) -> list[FieldError]:
    spec = service["spec"]
    errors = _ports(spec)
    for key, known in (("type", TYPES), ("sessionAffinity", AFFINITIES)):
        if spec[key] not in known:
            errors.append(field_errors.unsupported(f"spec.{key}", spec[key], known))
    for key in ("externalTrafficPolicy", "internalTrafficPolicy"):
        if spec.get(key, "Cluster") not in POLICIES:
            errors.append(field_errors.unsupported(f"spec.{key}", spec[key], POLICIES))
    for key, value in spec.get("selector", {}).items():
        errors += [field_errors.invalid("spec.selector", key, why) for why in name_validation.qualified_name(key)]
        errors += [field_errors.invalid("spec.selector", value, why) for why in name_validation.label_value(value)]
    errors += _addresses(spec) + _affinity(spec)
    return errors if old is None else errors + _update(spec, old["spec"])


def _ports(spec: Object) -> list[FieldError]:
    ports = spec.get("ports", [])
    headless = spec.get("clusterIP") == HEADLESS
    if not ports and not headless and spec["type"] != "ExternalName":
        return [field_errors.required("spec.ports")]
    errors: list[FieldError] = []
    names: set[str] = set()
    served: set[tuple[str, int]] = set()
    for index, port in enumerate(ports):
        at = f"spec.ports[{index}]"
        name = port.get("name", "")
        if name or len(ports) > 1:
            errors += label(f"{at}.name", name)
        if name and name in names:
            errors.append(field_errors.duplicate(f"{at}.name", name))
        names.add(name)
        errors += port_number(f"{at}.port", port["port"])
        if port["protocol"] not in PROTOCOLS:
            errors.append(field_errors.unsupported(f"{at}.protocol", port["protocol"], PROTOCOLS))
        errors += number_or_name(f"{at}.targetPort", port["targetPort"])
        if port.get("nodePort") and spec["type"] not in {"NodePort", "LoadBalancer"}:
            errors.append(field_errors.forbidden(f"{at}.nodePort", "may not be used when `type` is 'ClusterIP'"))
        if (port["protocol"], port["port"]) in served:
            errors.append(field_errors.duplicate(at, {"protocol": port["protocol"], "port": port["port"]}))
        served.add((port["protocol"], port["port"]))
    return errors


def _addresses(spec: Object) -> list[FieldError]:
    errors: list[FieldError] = []
    if spec["type"] == "ExternalName":
        name = spec.get("externalName", "").removesuffix(".")
        if not name:
            errors.append(field_errors.required("spec.externalName"))
        errors += [
            field_errors.invalid("spec.externalName", name, why) for why in name_validation.subdomain(name) if name
        ]
        if spec.get("clusterIPs"):
            errors.append(field_errors.forbidden("spec.clusterIPs", "may not be set when `type` is 'ExternalName'"))
        return errors
    given = spec.get("clusterIPs", [])
    if given and given[0] != spec.get("clusterIP"):
        why = "first value must match `clusterIP`"
        errors.append(field_errors.invalid("spec.clusterIPs[0]", given, why))
    for index, address in enumerate(given):
        if address == HEADLESS and index == 0 and len(given) == 1:
            continue
        if not is_address(address):
            errors.append(not_an_address(f"spec.clusterIPs[{index}]", address))
    for index, address in enumerate(spec.get("externalIPs", ())):
        if not is_address(address):
            errors.append(not_an_address(f"spec.externalIPs[{index}]", address))
    return errors


def _affinity(spec: Object) -> list[FieldError]:
    if spec["sessionAffinity"] != "ClientIP":
        return []
    seconds = spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"]
    if 0 < seconds <= LONGEST_AFFINITY_S:
        return []
    why = f"must be greater than 0 and less than {LONGEST_AFFINITY_S}"
    return [field_errors.invalid("spec.sessionAffinityConfig.clientIP.timeoutSeconds", seconds, why)]


def _update(spec: Object, old: Object) -> list[FieldError]:
    """Reject a change of the address, unless the type changes to one without an address."""
    before, now = old.get("clusterIPs", []), spec.get("clusterIPs", [])
    if not before or spec["type"] == "ExternalName" or old["type"] == "ExternalName" or before[:1] == now[:1]:
        return []
    return [field_errors.invalid("spec.clusterIPs[0]", now, "may not change once set")]
