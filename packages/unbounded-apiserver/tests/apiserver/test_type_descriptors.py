"""Decoding built-in objects: the quick way for what is in form already gives what the thorough one gives."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded_apiserver import type_descriptors
from unbounded_apiserver.type_descriptor_parser import OBJECT_META

TEXT = st.sampled_from(["", "a", "2026-01-01T00:00:00Z", "not a time"])
VALUES = st.one_of(TEXT, st.none(), st.booleans(), st.integers(-3, 3), st.just(1 << 63), st.lists(TEXT, max_size=2))
OWNERS = st.lists(
    st.dictionaries(st.sampled_from(["apiVersion", "kind", "name", "uid", "controller", "other"]), VALUES, max_size=6),
    max_size=2,
)
METADATA = st.fixed_dictionaries(
    {},
    optional={
        "name": TEXT,
        "labels": st.dictionaries(st.sampled_from("ab"), VALUES),
        "finalizers": st.lists(st.one_of(TEXT, st.none()), max_size=2),
        "ownerReferences": OWNERS,
        "creationTimestamp": VALUES,
        "generation": VALUES,
        "deletionGracePeriodSeconds": VALUES,
        "unknown": VALUES,
    },
)


def decoded(value: dict[str, Any]) -> tuple[object, list[str]]:
    unknown: list[str] = []
    try:
        return type_descriptors.decode(OBJECT_META, deepcopy(value), unknown), unknown
    except type_descriptors.WrongType as error:
        return str(error), []


def thoroughly(value: dict[str, Any]) -> tuple[object, list[str]]:
    """As `decoded`, but beside a field that is not known, which rules out the quick way."""
    result, unknown = decoded({**value, "odd": 1})
    return result, [path for path in unknown if path != "odd"]


@pytest.mark.slow
@given(METADATA)
def test_an_object_that_is_in_form_is_decoded_like_any_other(value: dict[str, Any]) -> None:
    assert decoded(value) == thoroughly(value)


@pytest.mark.slow
@given(METADATA)
def test_what_was_decoded_is_in_form(value: dict[str, Any]) -> None:
    result, _ = decoded(value)
    if isinstance(result, dict):
        assert decoded(result) == (result, [])


@pytest.mark.parametrize("seconds", [-(1 << 63) - 1, 1 << 63])
def test_an_integer_beyond_its_type_is_refused(seconds: int) -> None:
    with pytest.raises(type_descriptors.WrongType):
        type_descriptors.decode(OBJECT_META, {"deletionGracePeriodSeconds": seconds}, [])
