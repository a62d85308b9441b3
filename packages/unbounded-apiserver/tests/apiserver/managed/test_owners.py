"""managedFields apart from their objects: put together and taken apart again, and shared."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.apiserver.managed.support import specs
from unbounded_apiserver.managed_fields import ownership
from unbounded_apiserver.managed_fields.encoding import (
    APPLY,
    NO_OWNERS,
    UPDATE,
    FieldManager,
    ManagedFields,
    encode_time,
    encoded_entry,
    join_body,
    split_body,
)

texts = st.sampled_from(["", "a", 'q"', '"managedFields":[', ',"managedFields":[{}]', '"resourceVersion":"1"', "ü"])
times = st.sampled_from([b"", b"2026-01-01T00:00:00Z", b"2026-01-02T00:00:00Z"])
managers = st.builds(
    FieldManager, texts, st.sampled_from([APPLY, UPDATE]), st.sampled_from(["", "status"]), st.just("")
)
fields = specs.map(lambda spec: msgspec.json.encode(spec, order="sorted"))
owners = st.lists(
    st.tuples(st.builds(encoded_entry, managers, st.just("example.com/v1"), fields), times), max_size=3
).map(ManagedFields.of)
objects: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"spec": st.dictionaries(texts, texts | st.lists(texts))},
    optional={"managedFields": st.just([{}])},
)


def bare(obj: dict[str, Any], name: str = "one") -> bytes:
    head = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": name, "resourceVersion": "7"}}
    return msgspec.json.encode(head | obj)


@pytest.mark.slow
@given(objects, owners)
def test_what_was_joined_comes_apart_again(obj: dict[str, Any], some: ManagedFields) -> None:
    again, found = split_body(join_body(bare(obj), some))
    assert again == bare(obj)
    assert found.equal_but_times(some)
    assert found.times == some.times


@pytest.mark.slow
@given(objects, owners)
def test_the_owners_stand_in_the_metadata(obj: dict[str, Any], some: ManagedFields) -> None:
    shown = msgspec.json.decode(join_body(bare(obj), some))
    assert shown["metadata"].pop("managedFields", []) == some.shown()
    assert shown == msgspec.json.decode(bare(obj))


def test_objects_that_the_same_managers_wrote_share_their_owners() -> None:
    manager = FieldManager("m", UPDATE, "", "example.com/v1")
    entries = [
        (encoded_entry(manager, "example.com/v1", b'{"f:spec":{"f:size":{}}}'), encode_time(f"2026-01-0{n}"))
        for n in (1, 2)
    ]
    first, second = (
        split_body(join_body(bare({}, name), ManagedFields.of([entry])))[1]
        for name, entry in zip("ab", entries, strict=True)
    )
    assert first.entries[0] is second.entries[0]
    assert first.times != second.times
    assert first.equal_but_times(second)


def test_large_sets_are_not_remembered() -> None:
    large = msgspec.json.encode({f"f:{n}": {} for n in range(2000)}, order="sorted")
    manager = FieldManager("m", UPDATE, "", "v1")
    assert encoded_entry(manager, "v1", large) is not encoded_entry(manager, "v1", large)
    assert encoded_entry(manager, "v1", large).fields == large


def test_appliers_stand_first_then_the_earlier() -> None:
    def entry(name: str, operation: str, time: bytes) -> tuple[Any, bytes]:
        return encoded_entry(FieldManager(name, operation), "v1", b"{}"), time

    some = ManagedFields.of(
        [entry("a", UPDATE, b"2"), entry("c", UPDATE, b"1"), entry("b", UPDATE, b"1"), entry("z", APPLY, b"3")]
    )
    assert [item["manager"] for item in some.shown()] == ["z", "b", "c", "a"]


def test_an_entry_without_a_time_shows_none() -> None:
    some = ManagedFields.of([(encoded_entry(FieldManager("m", APPLY, "status"), "v1", b"{}"), b"")])
    assert some.shown() == [
        {"manager": "m", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}}
        | {"subresource": "status"}
    ]
    assert ManagedFields.of([]) is NO_OWNERS


@pytest.mark.parametrize(
    ("given_time", "shown"),
    [("2026-01-01T02:00:00+02:00", "2026-01-01T00:00:00Z"), ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z")],
)
def test_times_that_clients_send_are_shown_in_utc(given_time: str, shown: str) -> None:
    item = {"manager": "m", "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": {}, "time": given_time}
    found = ownership.client_entries([item])
    assert found is not None
    assert found.shown()[0]["time"] == shown
