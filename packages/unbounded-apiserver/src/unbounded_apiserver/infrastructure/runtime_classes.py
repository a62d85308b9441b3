"""node.k8s.io RuntimeClass: the handlers of the container runtime that Pods can name."""

from __future__ import annotations

from typing import Any, Final

from unbounded_apiserver import field_errors, name_validation, notation
from unbounded_apiserver.builtin import BuiltInType
from unbounded_apiserver.columns import AGE, NAME
from unbounded_apiserver.infrastructure.storage import immutable
from unbounded_apiserver.schema import FieldError
from unbounded_apiserver.types import Object, Resource, TableColumn
from unbounded_apiserver.workloads.pods import TYPES as POD_TYPES

GROUP: Final = "node.k8s.io"
TYPES: Final = notation.read(
    """
RuntimeClass: A handler of the container runtime that pods can name.
  handler string!  The handler as the runtime calls it.
  overhead Overhead*  The resources of each of its pods beyond its containers.
  scheduling Scheduling*  The nodes that have the handler.
Overhead: The resources of a pod beyond its containers.
  podFixed {quantity}  Resources of each pod.
Scheduling: Where pods of the class can run.
  nodeSelector {string}  Labels that the node must have.
  tolerations [Toleration]  Taints that these pods are allowed on.
""",
    package="io.k8s.api.node.v1",
    known={"Toleration": POD_TYPES["Toleration"]},
)


def _rules(obj: Object, old: Object | None) -> list[FieldError]:
    handler, scheduling = obj["handler"], obj.get("scheduling") or {}
    errors = (
        [field_errors.invalid("handler", handler, why) for why in name_validation.label_1123(handler)]
        if handler
        else []
    )
    if not handler:
        errors.append(field_errors.required("handler"))
    for key, value in (scheduling.get("nodeSelector") or {}).items():
        where = "scheduling.nodeSelector"
        errors += [field_errors.invalid(where, key, why) for why in name_validation.qualified_name(key)]
        errors += [field_errors.invalid(where, value, why) for why in name_validation.label_value(value)]
    seen: list[tuple[Any, ...]] = []
    for index, toleration in enumerate(scheduling.get("tolerations") or ()):
        identity = tuple(toleration.get(name, "") for name in ("key", "operator", "value", "effect"))
        if identity in seen:
            errors.append(field_errors.duplicate(f"scheduling.tolerations[{index}]", toleration))
        seen.append(identity)
    return errors if old is None else [*errors, *immutable(handler, old["handler"], "handler")]


RUNTIME_CLASSES: Final = Resource(
    GROUP,
    "v1",
    "RuntimeClass",
    "runtimeclasses",
    "runtimeclass",
    False,
    BuiltInType(notation.kind(TYPES, "RuntimeClass"), unconditional_update=False, rules=_rules),
    columns=(NAME, TableColumn("Handler", path=".handler"), AGE),
)
