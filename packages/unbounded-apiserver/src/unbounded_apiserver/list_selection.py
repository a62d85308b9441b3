"""The records of a resource that a list or a watch selects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from unbounded_apiserver import selectors
from unbounded_apiserver.api_resources import Resource
from unbounded_apiserver.collection import Extract, FieldKey, FieldTerm, StoredObject
from unbounded_apiserver.selectors import FieldSelector, LabelSelector
from unbounded_apiserver.status import bad_request

NAME: Final = "metadata.name"
NAMESPACE: Final = "metadata.namespace"
_WHEN_ABSENT: Final = {"spec.unschedulable": "false", "spec.hostNetwork": "false"}


@dataclass(frozen=True)
class RecordSelection:
    """A namespace (or all, with ''), labels and fields."""

    prefix: str = ""  # of the keys: `namespace/`, or ''
    labels: LabelSelector = ()
    fields: FieldSelector = ()
    extract: Extract | None = None
    positions: Mapping[str, int] | None = None

    @property
    def selects_all(self) -> bool:
        """True if the selection has all records under the prefix."""
        return not self.labels and not self.fields

    @property
    def term(self) -> FieldTerm | None:
        """The most selective term that all these records match, for the index."""
        names = (FieldTerm(FieldKey(), term.value) for term in self.fields if term.equal and term.field == NAME)
        extract, positions = self.extract, self.positions or {}
        others = (
            FieldTerm(FieldKey(extract, positions[term.field]), term.value)
            for term in self.fields
            if term.equal and term.field in positions
        )
        return next(names, None) or next(others, None)

    def covers(self, record: StoredObject) -> bool:
        return record.key.startswith(self.prefix) and (self.selects_all or self.matches(record))

    def matches(self, record: StoredObject) -> bool:
        """Return whether labels and fields match; the namespace is not checked."""
        if self.labels and not selectors.labels_match(self.labels, record.labels):
            return False
        return all((self._value(record, term.field) == term.value) is term.equal for term in self.fields)

    def _value(self, record: StoredObject, field: str) -> str:
        if field == NAME:
            return record.name
        if field == NAMESPACE:
            return record.namespace
        if self.extract is None or self.positions is None:
            return ""
        return record.extract(self.extract)[self.positions[field]]


def select(resource: Resource, namespace: str, labels: str, fields: str) -> RecordSelection:
    """Parse the selectors of a request. Raises StatusError, worded as by kube-apiserver."""
    try:
        by_label = selectors.parse_labels(labels)
        by_field = selectors.parse_fields(fields)
    except selectors.BadSelector as error:
        raise bad_request(str(error)) from error
    for term in by_field:
        if term.field not in {NAME, NAMESPACE} and term.field not in resource.selectable:
            raise bad_request(_unknown_field(resource, term.field))
    extract, positions = _extractor(tuple(resource.selectable.items()))
    prefix = f"{namespace}/" if resource.namespaced and namespace else ""
    return RecordSelection(prefix, by_label, by_field, extract, positions)


def _unknown_field(resource: Resource, field: str) -> str:
    if resource.custom or resource.selectable:
        return f"field label not supported: {field}"
    return f'"{field}" is not a known field selector: only "{NAME}", "{NAMESPACE}"'


@lru_cache(maxsize=512)
def _extractor(selectable: tuple[tuple[str, str], ...]) -> tuple[Extract, Mapping[str, int]]:
    """Return one function for the same fields, so that cached values survive a change of the definition."""
    paths = [(field, tuple(path.split("."))) for field, path in selectable]

    def extract(obj: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(_text(obj, path, _WHEN_ABSENT.get(field, "")) for field, path in paths)

    return extract, {field: index for index, (field, _) in enumerate(paths)}


def _text(obj: Any, path: tuple[str, ...], absent: str) -> str:
    for name in path:
        obj = obj.get(name) if isinstance(obj, Mapping) else None
    if obj is None:
        return absent
    return ("false", "true")[obj] if isinstance(obj, bool) else str(obj)
