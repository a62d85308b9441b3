"""Services: stored as written. Nothing assigns addresses or node ports, and nothing routes traffic."""

from __future__ import annotations

from typing import Final

from unbounded_apiserver import name_validation
from unbounded_apiserver.builtin import BuiltInType
from unbounded_apiserver.core_types import CORE, kind_shape
from unbounded_apiserver.type_desc import StructField
from unbounded_apiserver.types import STATUS, Object, Resource
from unbounded_apiserver.workloads import columns, notation, service_fields
from unbounded_apiserver.workloads.defaults import default_service
from unbounded_apiserver.workloads.pod_rules import is_address
from unbounded_apiserver.workloads.service_rules import HEADLESS, rules_of_service

_FAMILIES: Final = ("ipFamilies", "ipFamilyPolicy")
TYPES: Final = notation.read(service_fields.FIELDS)
SERVICE: Final = kind_shape(
    "Service",
    "A name, and in a cluster an address, for pods that do the same.",
    CORE,
    {
        "spec": StructField(TYPES["ServiceSpec"], "The desired state.", always=True),
        "status": StructField(TYPES["ServiceStatus"], "The observed state.", always=True),
    },
)


def _decide(service: Object, old: Object | None) -> None:
    """Keep the address of a Service when an update leaves it out, as clients do that do not know it."""
    spec = service["spec"]
    service["status"] = {"loadBalancer": {}} if old is None else old["status"]
    if spec["type"] == "ExternalName":
        for key in _FAMILIES:
            spec.pop(key, None)
        return
    for key in (*(("clusterIP", "clusterIPs") if not spec.get("clusterIP") else ()), *_FAMILIES):
        if old is not None and key in old["spec"] and not spec.get(key):
            spec[key] = old["spec"][key]
    _choose_families(spec)


def _choose_families(spec: Object) -> None:
    """Set the IP families of a Service, as a cluster with IPv4 does, in place."""
    addresses = [address for address in spec.get("clusterIPs", ()) if is_address(address)]
    both = spec.get("clusterIP") == HEADLESS and not spec.get("selector") and not spec.get("ipFamilies")
    if not spec.get("ipFamilyPolicy"):
        dual = both or len(addresses) > 1 or len(spec.get("ipFamilies", ())) > 1
        spec["ipFamilyPolicy"] = "RequireDualStack" if dual else "SingleStack"
    if not spec.get("ipFamilies"):
        families = ["IPv6" if ":" in address else "IPv4" for address in addresses] or ["IPv4"]
        spec["ipFamilies"] = ["IPv4", "IPv6"] if both and not addresses else families


SERVICES: Final = Resource(
    "",
    "v1",
    "Service",
    "services",
    "service",
    True,
    BuiltInType(
        SERVICE, name_check=name_validation.label_1035, defaults=default_service, decide=_decide, rules=rules_of_service
    ),
    short_names=("svc",),
    categories=("all",),
    subresources=STATUS,
    selectable={"spec.clusterIP": "spec.clusterIP", "spec.type": "spec.type"},
    columns=columns.SERVICE,
    shows_deleted=True,
)
