"""Sets of field paths obey the laws of sets, and are read back as they were written."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded_apiserver.managed_fields import fieldsets

elements = st.sampled_from(["f:a", "f:b", "f:c.d", 'k:{"name":"x"}', 'v:"a"', "v:1"])
path_lists = st.lists(st.lists(elements, min_size=1, max_size=3).map(tuple), max_size=6)


@pytest.mark.slow
@given(path_lists)
def test_a_set_holds_the_paths_that_it_was_made_of(paths: list[tuple[str, ...]]) -> None:
    made = fieldsets.of(paths)
    assert set(fieldsets.paths(made)) == set(paths)
    assert len(list(fieldsets.paths(made))) == len(set(paths))


@pytest.mark.slow
@given(path_lists, path_lists)
def test_union_difference_and_intersection_are_those_of_sets(
    left: list[tuple[str, ...]], right: list[tuple[str, ...]]
) -> None:
    a, b = fieldsets.of(left), fieldsets.of(right)
    assert set(fieldsets.paths(fieldsets.union(a, b))) == set(left) | set(right)
    assert set(fieldsets.paths(fieldsets.difference(a, b))) == set(left) - set(right)
    assert set(fieldsets.paths(fieldsets.intersection(a, b))) == set(left) & set(right)
    assert fieldsets.includes(a, b) == (set(left) >= set(right))
    assert (a, b) == (fieldsets.of(left), fieldsets.of(right)), "an operation changed its operands"


@pytest.mark.slow
@given(path_lists, path_lists)
def test_equal_sets_have_one_form(left: list[tuple[str, ...]], right: list[tuple[str, ...]]) -> None:
    a, b = fieldsets.of(left), fieldsets.of(right)
    back = fieldsets.union(fieldsets.difference(a, b), fieldsets.intersection(a, b))
    assert msgspec.json.encode(fieldsets.ordered(back)) == msgspec.json.encode(fieldsets.ordered(fieldsets.of(left)))


@pytest.mark.slow
@given(path_lists)
def test_what_is_written_is_well_formed_when_it_is_read(paths: list[tuple[str, ...]]) -> None:
    text = msgspec.json.encode(fieldsets.of(paths))
    assert fieldsets.well_formed(msgspec.json.decode(text))
    assert set(fieldsets.paths(msgspec.json.decode(text))) == set(paths)


def test_a_difference_that_takes_nothing_is_the_set_itself() -> None:
    a = fieldsets.of([("f:a", "f:b")])
    assert fieldsets.difference(a, fieldsets.of([("f:a",), ("f:c",)])) is a


@pytest.mark.parametrize(
    "garbage", [None, [], "x", {".": {}}, {"f:a": 1}, {"a": {}}, {"k:[": {}}, {"k:1": {}}, {"v:": {}}]
)
def test_garbage_is_not_a_set(garbage: Any) -> None:
    assert not fieldsets.well_formed(garbage)


def test_paths_are_shown_as_messages_of_conflicts_show_them() -> None:
    path = ("f:spec", "f:ports", fieldsets.keyed({"protocol": "TCP", "name": "web"}), "f:number")
    assert fieldsets.shown(path) == '.spec.ports[name="web",protocol="TCP"].number'
    assert fieldsets.shown(("f:spec", "f:tags", fieldsets.element("a"))) == '.spec.tags[="a"]'
