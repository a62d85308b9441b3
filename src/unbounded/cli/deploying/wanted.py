"""What a cluster is to have, stage by stage: pure, for `install`, `site init` and the files of deploy/."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from unbounded.api.crd import custom_resource_definitions
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploying.workloads import Machina, machina_objects
from unbounded.cli.manifests import manifests

Raw = dict[str, Any]

POLICIES: Final = frozenset({"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"})


@dataclass(frozen=True)
class Stage:
    """Objects that may be applied together, once the stages before are there."""

    name: str
    objects: tuple[Raw, ...]


def namespace() -> Raw:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}


def stages(machina: Machina | None, others: Iterable[Raw] = ()) -> tuple[Stage, ...]:
    """All that the project needs on a cluster.

    Args:
        machina: None where it runs elsewhere, or is not wanted.
        others: what else to run.
    """
    brought = tuple(manifests())
    found = (
        Stage("definitions", custom_resource_definitions()),
        Stage("namespace", (namespace(),)),
        Stage("rights", tuple(body for body in brought if body["kind"] not in POLICIES)),
        Stage("policies", tuple(body for body in brought if body["kind"] in POLICIES)),
        Stage("controllers", (*(() if machina is None else machina_objects(machina)), *others)),
    )
    return tuple(stage for stage in found if stage.objects)
