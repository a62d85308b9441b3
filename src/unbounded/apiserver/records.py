"""One version of one object, as JSON bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from unbounded.apiserver.database import Entry
from unbounded.apiserver.finding import Extract
from unbounded.apiserver.managed.owners import NOBODY, Owners, joined, split

_RESOURCE_VERSION: Final = b'"resourceVersion":"'


class Record(msgspec.Struct, eq=False):
    """One version of one object.

    `bare` is its JSON without managedFields, and metadata in it begins with name, namespace, uid, resourceVersion.
    """

    key: str
    revision: int
    bare: bytes
    owners: Owners = NOBODY
    _body: bytes | None = None
    _labels: Mapping[str, str] | None = None
    _fields: tuple[Extract, tuple[str, ...]] | None = None

    @staticmethod
    def read(entry: Entry) -> Record:
        """What the journal holds."""
        return Record(entry.key, entry.revision, *split(entry.body))

    @property
    def body(self) -> bytes:
        """The JSON as it is shown and stored; made anew each time, as to keep it would take twice the memory."""
        body, self._body = self._body, None
        return body or joined(self.bare, self.owners)

    def settle(self) -> None:
        """The body is wanted no more than that of any other record."""
        self._body = None

    def entry(self, resource: str, *, deleted: bool) -> Entry:
        """What the journal is to hold. Whoever asks for `body` next gets the same bytes: that is the answer."""
        self._body = joined(self.bare, self.owners)
        return Entry(self.revision, resource, self.key, deleted, self._body)

    @property
    def namespace(self) -> str:
        """Empty for cluster-scoped objects."""
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
        """The object as fresh plain JSON, without managedFields."""
        decoded: dict[str, Any] = msgspec.json.decode(self.bare)
        return decoded

    def fields(self, extract: Extract) -> tuple[str, ...]:
        """What `extract` finds in the object, remembered for as long as the same function asks."""
        if self._fields is None or self._fields[0] is not extract:
            self._fields = (extract, extract(self.decode()))
        return self._fields[1]

    def at(self, revision: int) -> Record:
        """The same object under another resourceVersion."""
        return Record(self.key, revision, with_revision(self.bare, revision), self.owners)


class _LabelsOnly(msgspec.Struct):
    labels: dict[str, str] | None = None


class _MetadataOnly(msgspec.Struct):
    metadata: _LabelsOnly


_labels_of: Final = msgspec.json.Decoder(_MetadataOnly)


def with_revision(body: bytes, revision: int) -> bytes:
    """The JSON with metadata.resourceVersion replaced; its first mention is that of metadata (see Record)."""
    start = body.index(_RESOURCE_VERSION) + len(_RESOURCE_VERSION)
    return b"%b%d%b" % (body[:start], revision, body[body.index(b'"', start) :])
