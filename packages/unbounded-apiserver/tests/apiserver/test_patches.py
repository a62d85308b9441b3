"""Effects of patches on objects."""

from __future__ import annotations

import json
from typing import Any

import jsonpatch
import jsonpointer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.apiserver.support import refusal
from unbounded_apiserver import patches
from unbounded_apiserver.core_types import NODE
from unbounded_apiserver.status import StatusError

values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from("abc"), values, max_size=3)
paths = st.sampled_from(["/a", "/b", "/a/0", "/a/1", "/a/b", "/a/-", "/b/c/0", "/a/a/a"])


def strategic(obj: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    return patches.apply(patches.STRATEGIC, json.dumps(patch).encode(), obj, NODE)


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


def test_new_elements_come_first_and_known_ones_keep_their_places() -> None:
    """As `kubectl patch` shows it: a new element is before the existing ones."""
    assert types(strategic(node("A", "B"), {"status": {"conditions": [{"type": "C"}]}})) == ["C", "A", "B"]
    patch = {"status": {"conditions": [{"type": "D"}, {"type": "B"}, {"type": "C"}]}}
    assert types(strategic(node("A", "B"), patch)) == ["D", "A", "B", "C"]
    patched = strategic(node(finalizers=("a", "b")), {"metadata": {"finalizers": ["c"]}})
    assert patched["metadata"]["finalizers"] == ["c", "a", "b"]


def test_elements_that_the_client_did_not_see_stay_where_they_stood() -> None:
    order = {"$setElementOrder/conditions": [{"type": "C"}, {"type": "A"}]}
    assert types(strategic(node("A", "B", "C", "D"), {"status": order})) == ["B", "C", "A", "D"]


def test_an_order_can_be_set_while_elements_are_deleted_and_added() -> None:
    patch = {
        "$setElementOrder/conditions": [{"type": "N"}, {"type": "B"}],
        "conditions": [{"type": "N"}, {"type": "A", "$patch": "delete"}],
    }
    assert types(strategic(node("A", "B"), {"status": patch})) == ["N", "B"]
    sets: dict[str, Any] = {
        "$setElementOrder/finalizers": ["c", "b"],
        "$deleteFromPrimitiveList/finalizers": ["a"],
        "finalizers": ["c"],
    }
    patched = strategic(node(finalizers=("a", "b")), {"metadata": sets})
    assert patched["metadata"]["finalizers"] == ["c", "b"]


def test_the_same_element_twice_in_a_patch_is_merged_into_one() -> None:
    patched = strategic(
        node(), {"status": {"conditions": [{"type": "A", "status": "True"}, {"type": "A", "reason": "R"}]}}
    )
    assert patched["status"]["conditions"] == [{"type": "A", "status": "True", "reason": "R"}]


def test_what_is_new_to_an_object_has_no_directives_and_no_nulls() -> None:
    new = {"a": None, "b": 1, "c": {"$patch": "replace", "d": None}, "$retainKeys": ["b"]}
    assert strategic({}, {"x": new, "l": [{"$patch": "delete", "k": 1}, {"k": 2}]}) == {
        "x": {"b": 1, "c": {}},
        "l": [{"k": 2}],
    }


def test_lists_of_plain_values_are_sets() -> None:
    patched = strategic(node(finalizers=("a", "b")), {"metadata": {"finalizers": ["b", "c"]}})
    assert patched["metadata"]["finalizers"] == ["a", "b", "c"]
    patched = strategic(node(finalizers=("a", "b")), {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}})
    assert patched["metadata"]["finalizers"] == ["b"]


def test_an_object_can_be_replaced_or_keep_only_some_keys() -> None:
    assert strategic({"spec": {"a": 1}}, {"spec": {"$patch": "replace", "b": 2}}) == {"spec": {"b": 2}}
    assert strategic({"spec": {"a": 1, "b": 2}}, {"spec": {"$retainKeys": ["b"]}}) == {"spec": {"b": 2}}


CONDITIONS = {"status": {"conditions": [{"type": "A"}]}}


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        (
            {"status": {"conditions": [{"status": "True", "reason": "R"}]}},
            "map: map[reason:R status:True] does not contain declared merge key: type",
        ),
        (
            {"status": {"conditions": [{"$patch": "delete"}]}},
            "map: map[$patch:delete] does not contain declared merge key: type",
        ),
        (
            {"status": {"conditions": [{"$patch": "merge", "type": "A"}]}},
            "merging lists cannot yet be specified in the patch",
        ),
        (
            {"status": {"conditions": [{"$patch": "frob", "type": "A"}]}},
            "unknown patch type: frob in map: map[$patch:frob type:A]",
        ),
        ({"status": {"$patch": "merge"}}, "unknown patch type: merge in map: map[$patch:merge]"),
        ({"status": {"$retainKeys": ["a"], "b": 1}}, "invalid patch format of retainKeys"),
        ({"status": {"$retainKeys": "a"}}, "invalid patch format of retainKeys"),
        ({"metadata": {"$deleteFromPrimitiveList/finalizers": "a"}}, "invalid patch format of primitive list"),
        ({"status": {"$setElementOrder/conditions": {}}}, "invalid patch format of setElementOrder list"),
        (
            {"status": {"$setElementOrder/conditions": [{"type": "A"}], "conditions": [{"type": "B"}]}},
            "The order in patch list:\n[map[type:B]]\n doesn't match $setElementOrder list:\n[map[type:A]]\n",
        ),
        ({"status": {"conditions": ["A"]}}, "list element types are not identical: [map[type:A] A]"),
    ],
)
def test_a_patch_that_makes_no_sense_is_refused(patch: dict[str, Any], said: str) -> None:
    whole = {"metadata": {"finalizers": ["x"]}, **CONDITIONS}
    error = refusal(StatusError, lambda: strategic(json.loads(json.dumps(whole)), patch))
    assert error is not None
    assert (error.code, error.message) == (400, said)


def json_patched(obj: dict[str, Any], *operations: Any) -> dict[str, Any]:
    return patches.apply(patches.JSON, json.dumps(operations).encode(), obj, None)


def op(kind: str, path: str, *value: Any, **more: Any) -> dict[str, Any]:
    return {"op": kind, "path": path, **({"value": value[0]} if value else {}), **more}


@pytest.mark.parametrize(
    ("operation", "result"),
    [
        (op("test", "/none", None), {"l": [1, 2], "m": {"t": True}}),
        (op("test", "/none"), {"l": [1, 2], "m": {"t": True}}),
        (op("test", "/m", {"t": True}), {"l": [1, 2], "m": {"t": True}}),
        (op("replace", "/n", 1), {"l": [1, 2], "m": {"t": True}, "n": 1}),
        (op("replace", "/l/-1", 9), {"l": [1, 9], "m": {"t": True}}),
        (op("remove", "/l/-2"), {"l": [2], "m": {"t": True}}),
        (op("add", "/l/-1", 9), {"l": [1, 2, 9], "m": {"t": True}}),
        (op("add", "/l/2", 9), {"l": [1, 2, 9], "m": {"t": True}}),
        (op("add", "/m/x~1y~0", 1), {"l": [1, 2], "m": {"t": True, "x/y~": 1}}),
        (op("copy", "/m/l", **{"from": "/l"}), {"l": [1, 2], "m": {"t": True, "l": [1, 2]}}),
        (op("move", "/l/0", **{"from": "/l/1"}), {"l": [2, 1], "m": {"t": True}}),
        (op("replace", "", {"a": 1}), {"a": 1}),
    ],
)
def test_operations_do_what_they_do_at_a_kube_apiserver(operation: dict[str, Any], result: dict[str, Any]) -> None:
    assert json_patched({"l": [1, 2], "m": {"t": True}}, operation) == result


@pytest.mark.parametrize(
    "operation",
    [
        op("test", "/m/t", 1),
        op("test", "/l", [True, 2]),
        op("test", "/m/t", None),
        op("test", "/none/deeper", None),
        op("test", "/l/7", None),
        op("remove", "/none"),
        op("remove", ""),
        op("add", "", {}),
        op("add", "/l/4", 1),
        op("add", "/l/x", 1),
        op("add", "/m/t/x", 1),
        op("replace", "/l/2", 1),
        op("replace", "/none/x", 1),
        op("replace", "", 1),
        op("move", "/m/x"),
        op("frob", "/m"),
        {"op": "add"},
        {},
    ],
)
def test_operations_that_do_not_fit_are_rejected(operation: dict[str, Any]) -> None:
    error = refusal(StatusError, lambda: json_patched({"l": [1, 2], "m": {"t": True}}, operation))
    assert error is not None
    assert (error.code, error.reason) == (422, "Invalid")


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"op": "add"}, "cannot unmarshal object into Go value of type []handlers.jsonPatchOp"),
        ([1], "cannot unmarshal number into Go value of type handlers.jsonPatchOp"),
        ([{"op": 1}], "cannot unmarshal number into Go struct field jsonPatchOp.op of type string"),
    ],
)
def test_what_is_no_list_of_operations_cannot_be_decoded(patch: Any, said: str) -> None:
    error = refusal(StatusError, lambda: patches.apply(patches.JSON, json.dumps(patch).encode(), {}, None))
    assert error is not None
    assert (error.code, error.message) == (400, f"error decoding patch: json: {said}")


def test_a_document_is_as_deep_as_it_may_be_without_harm() -> None:
    deep = b'{"a":' * 900 + b"1" + b"}" * 900
    for kind in (patches.MERGE, patches.STRATEGIC):
        error = refusal(StatusError, lambda kind=kind: patches.apply(kind, deep, json.loads(deep), NODE))  # type: ignore[misc]  # a default
        assert error is None or error.code == 400


@pytest.mark.slow
@given(objects, st.lists(st.tuples(st.sampled_from(["add", "remove", "replace"]), paths, values), max_size=3))
def test_what_another_implementation_applies_comes_out_the_same(
    obj: dict[str, Any], drawn: list[tuple[str, str, Any]]
) -> None:
    operations = [{"op": kind, "path": path, "value": value} for kind, path, value in drawn]
    try:
        expected = jsonpatch.apply_patch(obj, operations)
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException):
        return
    assert json_patched(json.loads(json.dumps(obj)), *operations) == expected


@pytest.mark.slow
@given(objects, objects)
def test_a_merge_patch_is_idempotent_and_leaves_no_null_at_its_keys(obj: dict[str, Any], patch: dict[str, Any]) -> None:
    once = patches.merge(patch, json.loads(json.dumps(obj)))
    assert patches.merge(patch, json.loads(json.dumps(once))) == once
    assert all(key not in once for key, value in patch.items() if value is None)


@pytest.mark.slow
@given(objects, values)
def test_any_json_patch_is_applied_or_refused(obj: dict[str, Any], patch: Any) -> None:
    error = refusal(StatusError, lambda: patches.apply(patches.JSON, json.dumps(patch).encode(), obj, None))
    assert error is None or error.code in {400, 413, 422}


@pytest.mark.slow
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


@pytest.mark.slow
@given(objects, objects)
def test_any_strategic_patch_is_applied_or_refused(obj: dict[str, Any], patch: dict[str, Any]) -> None:
    whole = {"status": patch, "metadata": {"finalizers": ["x"]}}
    error = refusal(StatusError, lambda: strategic({"status": {"conditions": [{"type": "A"}]}, **obj}, whole))
    assert error is None or error.code == 400


@pytest.mark.slow
def test_copies_cannot_make_an_object_grow_without_end() -> None:
    double = [{"op": "copy", "from": "/data", "path": f"/data/{number}"} for number in range(40)]
    with pytest.raises(StatusError) as refused:
        patches.apply(patches.JSON, json.dumps(double).encode(), {"data": {"a": "x" * 100}}, None)
    assert refused.value.code == 422
