"""One version of one object, as JSON bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from unbounded_apiserver.database import LogEntry
from unbounded_apiserver.field_index import Extract
from unbounded_apiserver.managed_fields.owners import NO_OWNERS, ManagedFields, join_body, split_body

_RESOURCE_VERSION: Final = b'"resourceVersion":"'


class StoredObject(msgspec.Struct, eq=False):
    """One version of one object.

    `bare` is its JSON without managedFields, and metadata in it begins with name, namespace, uid, resourceVersion.
    """

    key: str
    revision: int
    bare: bytes
    owners: ManagedFields = NO_OWNERS
    _body: bytes | None = None
    _labels: Mapping[str, str] | None = None
    _extracted: tuple[Extract, tuple[str, ...]] | None = None

    @staticmethod
    def from_entry(entry: LogEntry) -> StoredObject:
        """Return the record of an entry of the journal."""
        return StoredObject(entry.key, entry.revision, *split_body(entry.body))

    @property
    def body(self) -> bytes:
        """The JSON with managedFields, joined on each use: a cached copy would double the memory."""
        body, self._body = self._body, None
        return body or join_body(self.bare, self.owners)

    def drop_body(self) -> None:
        """Drop the cached body: readers need it no more often than that of any other record."""
        self._body = None

    def to_entry(self, resource: str, *, deleted: bool) -> LogEntry:
        """Return the entry for the journal. The next reader of `body`, the answer of the write, gets the same bytes."""
        self._body = join_body(self.bare, self.owners)
        return LogEntry(self.revision, resource, self.key, deleted, self._body)

    @property
    def namespace(self) -> str:
        """The namespace; '' for cluster-scoped objects."""
        return self.key.rpartition("/")[0]

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def labels(self) -> Mapping[str, str]:
        if self._labels is None:
            self._labels = _labels_of.decode(self.bare).metadata.labels or {}
        return self._labels

    def decode(self) -> dict[str, Any]:
        """Return the object as fresh plain JSON, without managedFields."""
        decoded: dict[str, Any] = msgspec.json.decode(self.bare)
        return decoded

    def extract(self, extract: Extract) -> tuple[str, ...]:
        """Return the fields that `extract` finds in the object; cached as long as the same function is used."""
        if self._extracted is None or self._extracted[0] is not extract:
            self._extracted = (extract, extract(self.decode()))
        return self._extracted[1]

    def at_revision(self, revision: int) -> StoredObject:
        """Return the same object under another resourceVersion."""
        return StoredObject(self.key, revision, with_revision(self.bare, revision), self.owners)


class _LabelsOnly(msgspec.Struct):
    labels: dict[str, str] | None = None


class _MetadataOnly(msgspec.Struct):
    metadata: _LabelsOnly


_labels_of: Final = msgspec.json.Decoder(_MetadataOnly)


def with_revision(body: bytes, revision: int) -> bytes:
    """Return the JSON with metadata.resourceVersion replaced; its first mention is that of metadata (see Record)."""
    start = body.index(_RESOURCE_VERSION) + len(_RESOURCE_VERSION)
    return b"%b%d%b" % (body[:start], revision, body[body.index(b'"', start) :])
