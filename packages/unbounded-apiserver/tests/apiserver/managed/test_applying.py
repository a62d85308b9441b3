"""Server-side apply on plain values: what it merges, takes, leaves and refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.apiserver.managed.support import KIND, apply, config, fields_of, owners_of, specs, with_owners
from unbounded_apiserver.managed_fields import fieldsets, ownership
from unbounded_apiserver.managed_fields.encoding import UPDATE, FieldManager
from unbounded_apiserver.managed_fields.merge import Mistyped, compare, merge, owned_paths, with_parents
from unbounded_apiserver.managed_fields.ownership import signer
from unbounded_apiserver.server_side_apply import Conflicts


@pytest.mark.slow
@given(specs, specs)
def test_applying_twice_changes_nothing(before: dict[str, Any], spec: dict[str, Any]) -> None:
    once = apply(apply({}, before, "first"), spec, "second", force=True)
    assert apply(once, spec, "second") == once


@pytest.mark.slow
@given(specs, specs)
def test_what_was_applied_and_taken_back_leaves_the_object_as_it_was(
    base: dict[str, Any], more: dict[str, Any]
) -> None:
    before = apply({}, base, "first")
    try:
        with_more = apply(before, more, "second")
    except Conflicts:
        assume(False)
    after = apply(with_more, {}, "second")
    assert sorted(fieldsets.paths(owned_paths(KIND, after))) == sorted(fieldsets.paths(owned_paths(KIND, before)))
    assert fields_of(after, "first") == fields_of(before, "first")
    assert not ownership.difference(KIND, before, after).changed


@pytest.mark.slow
@given(specs, st.lists(specs, max_size=4))
def test_an_apply_without_force_never_loses_what_another_manager_owns(
    mine: dict[str, Any], theirs: list[dict[str, Any]]
) -> None:
    obj = apply({}, mine, "mine")
    for spec in theirs:
        try:
            obj = apply(obj, spec, "other")
        except Conflicts:
            continue
    assert fields_of(obj, "mine") == ownership.stripped(owned_paths(KIND, config(mine)))
    assert fieldsets.difference(fields_of(obj, "mine"), with_parents(KIND, owned_paths(KIND, obj))) == {}
    assert not compare(KIND, obj, merge(KIND, obj, config(mine))).changed


@pytest.mark.slow
@given(specs, specs)
def test_a_manager_owns_exactly_what_it_applied(first: dict[str, Any], second: dict[str, Any]) -> None:
    obj = apply(apply({}, first, "m"), second, "m")
    assert fieldsets.ordered(fields_of(obj, "m")) == fieldsets.ordered(
        ownership.stripped(owned_paths(KIND, config(second)))
    )


@pytest.mark.slow
@given(specs, specs)
def test_force_gives_a_changed_field_to_the_last_one(first: dict[str, Any], second: dict[str, Any]) -> None:
    before = apply({}, first, "first")
    after = apply(before, second, "second", force=True)
    changed = ownership.difference(KIND, before, after).changed
    assert fieldsets.intersection(fields_of(after, "first"), changed) == {}


@pytest.mark.slow
@given(specs, specs)
def test_update_owns_changed_fields_and_removed_ones_have_no_owner(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    old, new = apply({}, first, "first"), config(second)
    given = owners_of(old)
    owners = ownership.updated(KIND, old, new, given, FieldManager("u", UPDATE, "", "v1"), "2026-01-02T00:00:00Z")
    change = ownership.difference(KIND, old, new)
    if not given:
        assert not owners
        return
    after = with_owners(new, owners)
    assert fields_of(after, "u") == change.changed
    for entry in owners.shown():
        assert fieldsets.intersection(entry["fieldsV1"], change.removed) == {}


def test_elements_of_both_stand_in_the_order_of_the_configuration() -> None:
    live = config({"tags": ["x", "b", "y", "a", "z"]})
    assert merge(KIND, live, config({"tags": ["a", "n", "b"]}))["spec"]["tags"] == ["x", "y", "a", "z", "n", "b"]


def test_fields_of_an_untracked_object_belong_to_before_first_apply() -> None:
    with pytest.raises(Conflicts, match=r'"before-first-apply" using example\.com/v1: \.spec\.size'):
        apply(config({"size": 1}), {"size": 2}, "m")
    taken = apply(config({"size": 1, "plain": [1]}), {"size": 2}, "m", force=True)
    assert fields_of(taken, "before-first-apply") == {"f:spec": {".": {}, "f:plain": {}}}
    assert fields_of(taken, "m") == {"f:spec": {"f:size": {}}}


def test_a_configuration_that_does_not_fit_is_refused_with_its_place() -> None:
    with pytest.raises(Mistyped, match=r"^\.spec\.nope: field not declared in schema$"):
        apply({}, {"nope": 1}, "m")
    with pytest.raises(Mistyped, match="associative list with keys may not have non-map elements"):
        apply({}, {"ports": ["web"]}, "m")


def test_the_oldest_updates_become_one_entry() -> None:
    obj: dict[str, Any] = {**config({}), "metadata": {"name": "t"}}
    first = config({"labels": {"k0": "x"}})
    owners = ownership.created(KIND, {}, first, FieldManager("m0", UPDATE, "", "v1"), "2026-01-01T00:00:00Z")
    for number in range(1, 15):
        old = {**obj, "spec": {"labels": {f"k{i}": "x" for i in range(number)}}}
        new = {**obj, "spec": {"labels": {f"k{i}": "x" for i in range(number + 1)}}}
        manager = FieldManager(f"m{number}", UPDATE, "", "v1")
        owners = ownership.updated(KIND, old, new, owners, manager, f"2026-01-{number + 1:02}T00:00:00Z")
        assert len(owners.entries) == min(number + 1, ownership.MAX_UPDATERS)
    assert [e["manager"] for e in owners.shown()] == ["ancient-changes", *(f"m{i}" for i in range(6, 15))]
    together: fieldsets.FieldSet = {}
    for entry in owners.shown():
        together = fieldsets.union(together, entry["fieldsV1"])
    assert {f"f:k{i}" for i in range(15)} <= together["f:spec"]["f:labels"].keys()


def test_updates_of_different_versions_do_not_become_one_entry() -> None:
    first = config({"labels": {"k0": "x"}})
    owners = ownership.created(KIND, {}, first, FieldManager("m0", UPDATE, "", "v0"), "2026-01-01T00:00:00Z")
    for number in range(1, 12):
        old, new = (config({"labels": {f"k{i}": "x" for i in range(number + more)}}) for more in (0, 1))
        manager = FieldManager(f"m{number}", UPDATE, "", f"v{number}")
        owners = ownership.updated(KIND, old, new, owners, manager, f"2026-01-{number + 1:02}T00:00:00Z")
    assert [e["manager"] for e in owners.shown()] == [f"m{number}" for number in range(12)]


@pytest.mark.parametrize(
    "garbage",
    [
        "x",
        [],
        [1],
        [{"operation": "Steal"}],
        [{"operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": {"x": {}}}],
        [{"operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": {"f:x": {}}, "time": "yesterday"}],
        [{"operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": {"f:x": {}}, "manager": 1}],
    ],
)
def test_managed_fields_that_cannot_be_read_are_not_accepted(garbage: Any) -> None:
    assert ownership.client_entries(garbage) is None


@pytest.mark.slow
@given(specs, specs)
def test_objects_with_the_same_signature_have_the_same_paths(first: dict[str, Any], second: dict[str, Any]) -> None:
    signatures: list[list[Any]] = [[], []]
    for spec, signature in zip((first, second), signatures, strict=True):
        signer(KIND)(config(spec), signature)
    sets = [fieldsets.ordered(compare(KIND, {}, config(spec)).changed) for spec in (first, second)]
    assert signatures[0] != signatures[1] or sets[0] == sets[1]


@pytest.mark.slow
@given(specs)
def test_who_creates_an_object_owns_all_of_it(spec: dict[str, Any]) -> None:
    manager = FieldManager("m", UPDATE, "", "v1")
    for _ in range(2):  # worked out, then remembered
        owners = ownership.created(KIND, {}, config(spec), manager, "2026-01-01T00:00:00Z")
        shown = owners.shown()[0]["fieldsV1"] if owners else {}
        assert shown == ownership.stripped(compare(KIND, {}, config(spec)).changed)
