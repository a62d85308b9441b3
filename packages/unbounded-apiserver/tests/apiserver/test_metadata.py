"""Fields of metadata that the server sets."""

from __future__ import annotations

import uuid

from unbounded_apiserver import metadata


def test_uids_are_random_uuids_of_version_4_as_they_are_written() -> None:
    texts = {metadata.new_uid() for _ in range(1000)}
    assert len(texts) == 1000
    found = [uuid.UUID(text) for text in texts]
    assert {str(one) for one in found} == texts
    assert {(one.version, one.variant) for one in found} == {(4, uuid.RFC_4122)}
    assert {one.hex[16] for one in found} == set("89ab")
