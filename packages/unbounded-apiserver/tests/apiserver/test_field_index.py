"""Finding by the value of a field: the same as looking at everything, for less."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded_apiserver.builtin_resources import CONFIG_MAPS, EVENTS
from unbounded_apiserver.collection import Extract, FieldIndex, FieldKey, FieldTerm, Watchers
from unbounded_apiserver.reads import select


class Thing:
    """A record with one field that can be selected."""

    def __init__(self, key: str, value: str) -> None:
        self.key = key
        self.value = value

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    def extract(self, extract: Extract) -> tuple[str, ...]:
        return extract({"value": self.value})


def extract(obj: Mapping[str, Any]) -> tuple[str, ...]:
    return ("other", obj["value"])


VALUE = FieldKey(extract, 1)
NAME = FieldKey()
KEYS = st.sampled_from(["a/x", "a/y", "b/x", "b/z"])
VALUES = st.sampled_from(["1", "2", ""])
STEPS = st.lists(st.tuples(KEYS, st.one_of(VALUES, st.none())), max_size=30)


@pytest.mark.slow
@given(STEPS, STEPS)
def test_an_index_holds_what_looking_at_all_records_would_find(
    first: list[tuple[str, str | None]], then: list[tuple[str, str | None]]
) -> None:
    records: dict[str, Thing] = {key: Thing(key, value) for key, value in first if value is not None}
    indexes = {field: FieldIndex(field, records.values()) for field in (VALUE, NAME)}
    for key, value in then:
        before = records.pop(key, None)
        if value is not None:
            records[key] = Thing(key, value)
        for index in indexes.values():
            index.update(before, records.get(key))
    for field, values in ((VALUE, ("1", "2", "", "3")), (NAME, ("x", "y", "z"))):
        for wanted in values:
            found = sorted(record.key for record in records.values() if field.of(record) == wanted)
            assert indexes[field].keys(wanted) == found


@pytest.mark.slow
@given(st.lists(st.one_of(VALUES, st.none()), max_size=6), st.one_of(VALUES, st.none()), VALUES)
def test_watchers_of_a_value_are_affected_once_by_old_or_new_value(
    waiting: list[str | None], before: str | None, after: str
) -> None:
    audience: Watchers[int] = Watchers()
    leave = [
        audience.add(number, None if value is None else FieldTerm(VALUE, value)) for number, value in enumerate(waiting)
    ]
    old = None if before is None else Thing("a/x", before)
    concerned = [number for number, value in enumerate(waiting) if value is None or value in {before, after}]
    assert sorted(audience.affected(old, Thing("a/x", after))) == concerned
    assert len(audience) == len(waiting)
    for end in leave:
        end()
        end()  # again: nothing more
    assert len(audience) == 0
    assert list(audience.affected(old, Thing("a/x", after))) == []


def test_selection_uses_the_name_index_or_else_an_equality_field() -> None:
    named = select(CONFIG_MAPS, "default", "", "metadata.name=a")
    assert named.term == FieldTerm(NAME, "a")
    both = select(EVENTS, "", "", "reason=n,metadata.name=a")
    assert both.term == FieldTerm(NAME, "a")
    reason = select(EVENTS, "", "", "type!=Normal,reason=n").term
    assert reason is not None
    assert reason.value == "n"
    assert reason.field.extract is not None
    assert reason.field.extract({"reason": "n"})[reason.field.position] == "n"
    for unbound in ("", "metadata.name!=a", "metadata.namespace=default"):
        assert select(CONFIG_MAPS, "default", "", unbound).term is None
