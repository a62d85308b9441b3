"""A small type for the tests of ownership, and objects of it."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

from unbounded_apiserver import server_side_apply
from unbounded_apiserver.managed_fields import ownership
from unbounded_apiserver.managed_fields.encoding import APPLY, NO_OWNERS, FieldManager, ManagedFields
from unbounded_apiserver.managed_fields.merge import of_schema
from unbounded_apiserver.server_side_apply import ApplyResult

PORT: Final = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "protocol": {"default": "TCP"}, "number": {"type": "integer"}},
}
SPEC: Final = {
    "type": "object",
    "properties": {
        "size": {"type": "integer"},
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "ports": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name", "protocol"],
            "items": PORT,
        },
        "plain": {"type": "array", "items": {"type": "integer"}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "atomic": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
}
KIND: Final = of_schema({"type": "object", "properties": {"spec": SPEC}})

# Lists are never empty: an empty list that is merged by its elements has no owner.
names = st.sampled_from(["a", "b", "c"])
ports = st.lists(
    st.fixed_dictionaries({"name": names}, optional={"number": st.integers(1, 3), "protocol": st.just("UDP")}),
    min_size=1,
    max_size=3,
    unique_by=lambda port: (port["name"], port.get("protocol", "TCP")),
)
specs = st.fixed_dictionaries(
    {},
    optional={
        "size": st.integers(1, 3),
        "tags": st.lists(names, min_size=1, max_size=3, unique=True),
        "ports": ports,
        "plain": st.lists(st.integers(1, 2), max_size=2),
        "labels": st.dictionaries(names, st.sampled_from("xy"), max_size=2),
        "atomic": st.dictionaries(names, st.sampled_from("xy"), max_size=2),
        "free": st.dictionaries(names, st.integers(0, 1) | st.dictionaries(names, st.integers(0, 1), max_size=2)),
    },
)


def config(spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": spec}


def apply(live: dict[str, Any], spec: dict[str, Any], manager: str, *, force: bool = False) -> dict[str, Any]:
    """The object after an apply, with its managedFields."""
    done: ApplyResult = server_side_apply.apply_configuration(
        KIND,
        {**live, "metadata": {k: v for k, v in live.get("metadata", {}).items() if k != "managedFields"}},
        owners_of(live),
        {},
        config(spec),
        FieldManager(manager, APPLY),
        version="example.com/v1",
        time="2026-01-01T00:00:00Z",
        force=force,
    )
    return with_owners(done.obj, done.owners)


def owners_of(obj: dict[str, Any]) -> ManagedFields:
    return ownership.client_entries(obj.get("metadata", {}).get("managedFields")) or NO_OWNERS


def with_owners(obj: dict[str, Any], owners: ManagedFields) -> dict[str, Any]:
    return {**obj, "metadata": obj["metadata"] | ({"managedFields": owners.shown()} if owners else {})}


def fields_of(obj: dict[str, Any], manager: str) -> dict[str, Any]:
    entries = obj["metadata"].get("managedFields", ())
    return next((e["fieldsV1"] for e in entries if e["manager"] == manager), {})
