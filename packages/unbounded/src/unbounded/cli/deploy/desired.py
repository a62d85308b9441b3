"""Desired objects of a cluster in stages: pure, for `install`, `site init` and the files of deploy/."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from unbounded.api.crd import custom_resource_definitions
from unbounded.cli.deploy.pods import RESTRICTED, deny_all, namespace, priority_class
from unbounded.cli.deploy.workloads import MachinaWorkload, machina_objects
from unbounded.cli.manifests import manifests

Raw = dict[str, Any]

POLICIES: Final = frozenset({"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"})


@dataclass(frozen=True)
class InstallStage:
    """Objects that may be applied together, after the stages before."""

    name: str
    objects: tuple[Raw, ...]


def surroundings() -> tuple[InstallStage, ...]:
    """Return the cluster's objects that Pods need beside their namespace."""
    return (InstallStage("prerequisites", (priority_class(), deny_all())),)


def stages(
    machina: MachinaWorkload | None, others: Iterable[Raw] = (), *, level: str = RESTRICTED
) -> tuple[InstallStage, ...]:
    """Return all objects that the project needs on a cluster.

    Args:
        machina: None where it runs elsewhere, or is not to be installed.
        others: objects of other controllers.
        level: the Pod security standard of the namespace.
    """
    brought = tuple(manifests())
    controllers = (*(() if machina is None else machina_objects(machina)), *others)
    found = (
        InstallStage("definitions", custom_resource_definitions()),
        InstallStage("namespace", (namespace(level),)),
        InstallStage("rights", tuple(body for body in brought if body["kind"] not in POLICIES)),
        InstallStage("policies", tuple(body for body in brought if body["kind"] in POLICIES)),
        *(surroundings() if controllers else ()),
        InstallStage("controllers", controllers),
    )
    return tuple(stage for stage in found if stage.objects)
