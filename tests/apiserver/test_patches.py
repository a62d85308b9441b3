"""How patches change objects."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.apiserver.support import refusal
from unbounded.apiserver import kinds, patches
from unbounded.apiserver.status import StatusError

values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from("abc"), values, max_size=3)


def strategic(obj: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    return patches.apply(patches.STRATEGIC, json.dumps(patch).encode(), obj, kinds.NODE)


def node(*conditions: str, finalizers: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "metadata": {"finalizers": list(finalizers)},
        "status": {"conditions": [{"type": c, "status": "True"} for c in conditions]},
    }


def types(obj: dict[str, Any]) -> list[str]:
    return [condition["type"] for condition in obj["status"]["conditions"]]


def test_elements_are_merged_by_their_key() -> None:
    patched = strategic(node("A", "B"), {"status": {"conditions": [{"type": "B", "status": "False"}, {"type": "C"}]}})
    assert patched["status"]["conditions"] == [
        {"type": "A", "status": "True"},
        {"type": "B", "status": "False"},
        {"type": "C"},
    ]


def test_an_element_can_be_deleted_and_a_list_replaced() -> None:
    assert types(strategic(node("A", "B"), {"status": {"conditions": [{"type": "A", "$patch": "delete"}]}})) == ["B"]
    replaced = {"status": {"conditions": [{"$patch": "replace"}, {"type": "Z"}]}}
    assert types(strategic(node("A", "B"), replaced)) == ["Z"]


def test_elements_stand_in_the_order_that_the_client_asks_for() -> None:
    order = {"$setElementOrder/conditions": [{"type": "C"}, {"type": "A"}], "conditions": [{"type": "C"}]}
    assert types(strategic(node("A", "B"), {"status": order})) == ["C", "A", "B"]


def test_lists_of_plain_values_are_sets() -> None:
    patched = strategic(node(finalizers=("a", "b")), {"metadata": {"finalizers": ["b", "c"]}})
    assert patched["metadata"]["finalizers"] == ["a", "b", "c"]
    patched = strategic(node(finalizers=("a", "b")), {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}})
    assert patched["metadata"]["finalizers"] == ["b"]


def test_an_object_can_be_replaced_or_keep_only_some_keys() -> None:
    assert strategic({"spec": {"a": 1}}, {"spec": {"$patch": "replace", "b": 2}}) == {"spec": {"b": 2}}
    assert strategic({"spec": {"a": 1, "b": 2}}, {"spec": {"$retainKeys": ["b"]}}) == {"spec": {"b": 2}}


def test_an_element_without_its_key_is_refused() -> None:
    with pytest.raises(StatusError, match="does not contain declared merge key: type"):
        strategic(node("A"), {"status": {"conditions": [{"status": "True"}]}})


@given(objects, objects)
def test_a_merge_patch_is_idempotent_and_leaves_no_null_at_its_keys(obj: dict[str, Any], patch: dict[str, Any]) -> None:
    once = patches.merge(patch, json.loads(json.dumps(obj)))
    assert patches.merge(patch, json.loads(json.dumps(once))) == once
    assert all(key not in once for key, value in patch.items() if value is None)


@given(objects, values)
def test_any_json_patch_is_applied_or_refused(obj: dict[str, Any], patch: Any) -> None:
    error = refusal(StatusError, lambda: patches.apply(patches.JSON, json.dumps(patch).encode(), obj, None))
    assert error is None or error.code in {400, 413, 422}


@given(
    objects,
    st.lists(
        st.fixed_dictionaries(
            {
                "op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]),
                "path": st.sampled_from(["", "/a", "/a/0", "/a/b", "/a/-", "a", "/~2", "/x/y"]),
            },
            optional={"value": values, "from": st.sampled_from(["/a", "/b", "", "/a/0"])},
        ),
        max_size=4,
    ),
)
def test_any_operations_are_applied_or_refused(obj: dict[str, Any], patch: Any) -> None:
    error = refusal(StatusError, lambda: patches.apply(patches.JSON, json.dumps(patch).encode(), obj, None))
    assert error is None or error.code in {400, 422}


@given(objects, objects)
def test_any_strategic_patch_is_applied_or_refused(obj: dict[str, Any], patch: dict[str, Any]) -> None:
    whole = {"status": patch, "metadata": {"finalizers": ["x"]}}
    error = refusal(StatusError, lambda: strategic({"status": {"conditions": [{"type": "A"}]}, **obj}, whole))
    assert error is None or error.code == 400


def test_copies_cannot_make_an_object_grow_without_end() -> None:
    double = [{"op": "copy", "from": "/data", "path": f"/data/{number}"} for number in range(40)]
    with pytest.raises(StatusError) as refused:
        patches.apply(patches.JSON, json.dumps(double).encode(), {"data": {"a": "x" * 100}}, None)
    assert refused.value.code == 422
