"""Validation of Pods and of their changes, worded as by Kubernetes."""

from __future__ import annotations

import copy
import ipaddress
from collections.abc import Mapping
from typing import Any, Final

from unbounded_apiserver import field_errors, name_validation
from unbounded_apiserver.builtin_resources import TAINT_EFFECTS
from unbounded_apiserver.schema import FieldError
from unbounded_apiserver.workloads.containers import label, of_container

Object = dict[str, Any]

RESTART_POLICIES: Final = ["Always", "OnFailure", "Never"]
DNS_POLICIES: Final = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]
_SORTS: Final = ("containers", "initContainers", "ephemeralContainers")
_SECONDS_MAX: Final = 2**31 - 1
_FROZEN: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def rules_of_pod(pod: Object, old: Object | None) -> list[FieldError]:
    errors = _spec(pod["spec"])
    if old is not None and pod["spec"] != old["spec"]:  # an unchanged spec need not be copied
        errors += _update(pod["spec"], old["spec"])
    return errors


def _spec(spec: Object) -> list[FieldError]:
    errors, volumes = _volumes(spec.get("volumes", ()))
    if not spec.get("containers"):
        errors.append(field_errors.required("spec.containers"))
    names: set[str] = set()
    for sort in _SORTS:
        for index, container in enumerate(spec.get(sort) or ()):
            at = f"spec.{sort}[{index}]"
            errors += of_container(at, container, volumes)
            if container["name"] in names:
                errors.append(field_errors.duplicate(f"{at}.name", container["name"]))
            names.add(container["name"])
            if spec.get("hostNetwork"):
                errors += _host_ports(f"{at}.ports", container)
    for key, known in (("restartPolicy", RESTART_POLICIES), ("dnsPolicy", DNS_POLICIES)):
        if spec[key] not in known:
            errors.append(field_errors.unsupported(f"spec.{key}", spec[key], known))
    return errors + _seconds(spec) + _names(spec) + _tolerations(spec.get("tolerations", ())) + _aliases(spec)


def _volumes(volumes: Any) -> tuple[list[FieldError], frozenset[str]]:
    errors: list[FieldError] = []
    names: set[str] = set()
    for index, volume in enumerate(volumes):
        at = f"spec.volumes[{index}]"
        sources = [key for key in volume if key != "name"]
        errors += [
            field_errors.forbidden(f"{at}.{key}", "may not specify more than 1 volume type") for key in sources[1:]
        ]
        errors += label(f"{at}.name", volume["name"])
        if volume["name"] in names:
            errors.append(field_errors.duplicate(f"{at}.name", volume["name"]))
        names.add(volume["name"])
        if "hostPath" in volume and not volume["hostPath"]["path"]:
            errors.append(field_errors.required(f"{at}.hostPath.path"))
        if "secret" in volume and not volume["secret"].get("secretName"):
            errors.append(field_errors.required(f"{at}.secret.secretName"))
        if "configMap" in volume and not volume["configMap"].get("name"):
            errors.append(field_errors.required(f"{at}.configMap.name"))
        if "persistentVolumeClaim" in volume and not volume["persistentVolumeClaim"]["claimName"]:
            errors.append(field_errors.required(f"{at}.persistentVolumeClaim.claimName"))
    return errors, frozenset(names)


def _host_ports(at: str, container: Mapping[str, Any]) -> list[FieldError]:
    why = "must match `hostPort` when `hostNetwork` is true"
    return [
        field_errors.invalid(f"{at}[{index}].containerPort", port["containerPort"], why)
        for index, port in enumerate(container.get("ports", ()))
        if port.get("hostPort") != port["containerPort"]
    ]


def _seconds(spec: Object) -> list[FieldError]:
    errors = []
    grace = spec["terminationGracePeriodSeconds"]
    if grace < 0:
        errors.append(
            field_errors.invalid("spec.terminationGracePeriodSeconds", grace, "must be greater than or equal to 0")
        )
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= _SECONDS_MAX:
        why = f"must be between 1 and {_SECONDS_MAX}, inclusive"
        errors.append(field_errors.invalid("spec.activeDeadlineSeconds", deadline, why))
    return errors


def _names(spec: Object) -> list[FieldError]:
    checks = {
        "serviceAccountName": name_validation.subdomain,
        "nodeName": name_validation.subdomain,
        "hostname": name_validation.label_1123,
        "subdomain": name_validation.label_1123,
        "priorityClassName": name_validation.subdomain,
        "runtimeClassName": name_validation.subdomain,
    }
    errors = [
        field_errors.invalid(f"spec.{key}", spec[key], why)
        for key, check in checks.items()
        if spec.get(key)
        for why in check(spec[key])
    ]
    for key, value in spec.get("nodeSelector", {}).items():
        errors += [field_errors.invalid("spec.nodeSelector", key, why) for why in name_validation.qualified_name(key)]
        errors += [field_errors.invalid("spec.nodeSelector", value, why) for why in name_validation.label_value(value)]
    return errors


def _tolerations(tolerations: Any) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, toleration in enumerate(tolerations):
        at = f"spec.tolerations[{index}]"
        key, operator = toleration.get("key", ""), toleration.get("operator", "")
        if key:
            errors += [field_errors.invalid(f"{at}.key", key, why) for why in name_validation.qualified_name(key)]
        elif operator != "Exists":
            why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            errors.append(field_errors.invalid(f"{at}.operator", operator, why))
        if operator == "Exists" and toleration.get("value"):
            why = "value must be empty when `operator` is 'Exists'"
            errors.append(field_errors.invalid(f"{at}.operator", dict(toleration), why))
        elif operator not in {"", "Equal", "Exists"}:
            errors.append(field_errors.unsupported(f"{at}.operator", operator, ["Equal", "Exists"]))
        effect = toleration.get("effect", "")
        if effect and effect not in TAINT_EFFECTS:
            errors.append(field_errors.unsupported(f"{at}.effect", effect, TAINT_EFFECTS))
        if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
            why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            errors.append(field_errors.invalid(f"{at}.effect", effect, why))
    return errors


def _aliases(spec: Object) -> list[FieldError]:
    errors = []
    for index, alias in enumerate(spec.get("hostAliases", ())):
        at = f"spec.hostAliases[{index}]"
        if not is_address(alias["ip"]):
            errors.append(not_an_address(f"{at}.ip", alias["ip"]))
        for name in alias.get("hostnames", ()):
            errors += [field_errors.invalid(f"{at}.hostnames", name, why) for why in name_validation.subdomain(name)]
    return errors


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def not_an_address(at: str, value: str) -> FieldError:
    return field_errors.invalid(at, value, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")


def _update(spec: Object, old: Object) -> list[FieldError]:
    """Return the errors of an update: it may change images, shorten the deadline, add tolerations, remove gates."""
    errors: list[FieldError] = []
    before = old.get("activeDeadlineSeconds")
    deadline = spec.get("activeDeadlineSeconds")
    if before is not None and deadline is None:
        why = "must not update from a positive integer to nil value"
        errors.append(field_errors.invalid("spec.activeDeadlineSeconds", None, why))
    elif before is not None and deadline > before:
        why = f"must be less than or equal to previous value of {before}"
        errors.append(field_errors.invalid("spec.activeDeadlineSeconds", deadline, why))
    gates = old.get("schedulingGates", [])
    if any(gate not in gates for gate in spec.get("schedulingGates", ())):
        why = "only deletion is allowed, but found new scheduling gate(s)"
        errors.append(field_errors.forbidden("spec.schedulingGates", why))
    tolerations = spec.get("tolerations", [])
    if any(not _tolerated(toleration, tolerations) for toleration in old.get("tolerations", ())):
        errors.append(
            field_errors.forbidden(
                "spec.tolerations", "existing toleration can not be modified except its tolerationSeconds"
            )
        )
    return errors if _as_before(spec, old) == old else [*errors, field_errors.forbidden("spec", _FROZEN)]


def _tolerated(toleration: Mapping[str, Any], now: list[Object]) -> bool:
    kept = {k: v for k, v in toleration.items() if k != "tolerationSeconds"}
    return any({k: v for k, v in other.items() if k != "tolerationSeconds"} == kept for other in now)


def _as_before(spec: Object, old: Object) -> Object:
    """Return the new spec with the mutable fields of the old one."""
    same = copy.deepcopy(spec)
    for key in ("activeDeadlineSeconds", "tolerations", "schedulingGates"):
        same.pop(key, None)
        if key in old:
            same[key] = old[key]
    if old["terminationGracePeriodSeconds"] < 0 and spec["terminationGracePeriodSeconds"] == 1:
        same["terminationGracePeriodSeconds"] = old["terminationGracePeriodSeconds"]
    for sort in ("containers", "initContainers"):
        for container, before in zip(same.get(sort) or (), old.get(sort) or (), strict=False):
            container["image"] = before.get("image", "")
    return same
