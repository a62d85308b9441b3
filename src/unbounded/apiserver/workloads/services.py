"""Services: stored as they are written. Nothing gives out addresses or node ports, and nothing sends traffic."""

from __future__ import annotations

from typing import Final

from unbounded.apiserver import naming
from unbounded.apiserver.builtin import BuiltIn
from unbounded.apiserver.kinds import CORE, kind_shape
from unbounded.apiserver.shapes import Field
from unbounded.apiserver.types import STATUS, Object, Resource
from unbounded.apiserver.workloads import columns, notation, service_fields
from unbounded.apiserver.workloads.defaults import default_service
from unbounded.apiserver.workloads.service_rules import rules_of_service

TYPES: Final = notation.read(service_fields.FIELDS)
SERVICE: Final = kind_shape(
    "Service",
    "A name, and in a cluster an address, for pods that do the same.",
    CORE,
    {
        "spec": Field(TYPES["ServiceSpec"], "The desired state.", always=True),
        "status": Field(TYPES["ServiceStatus"], "The observed state.", always=True),
    },
)


def _decide(service: Object, old: Object | None) -> None:
    """The address of a service is kept when an update leaves it out, as clients do that do not know it."""
    if old is None:
        service["status"] = {"loadBalancer": {}}
        return
    service["status"] = old["status"]
    spec, before = service["spec"], old["spec"]
    if spec["type"] != "ExternalName" and not spec.get("clusterIP"):
        for key in ("clusterIP", "clusterIPs"):
            if key in before:
                spec[key] = before[key]


SERVICES: Final = Resource(
    "",
    "v1",
    "Service",
    "services",
    "service",
    True,
    BuiltIn(SERVICE, name_check=naming.label_1035, defaults=default_service, decide=_decide, rules=rules_of_service),
    short_names=("svc",),
    categories=("all",),
    parts=STATUS,
    selectable={"spec.clusterIP": "spec.clusterIP", "spec.type": "spec.type"},
    columns=columns.SERVICE,
    shows_deleted=True,
)
