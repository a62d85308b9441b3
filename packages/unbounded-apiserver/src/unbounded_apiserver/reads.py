"""Gets, lists and watches: from memory, as stored bytes; and the records that a list or a watch selects.

A watch is one client's view of the changes of a resource, in order, none lost and none twice.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from unbounded_apiserver import selectors, status
from unbounded_apiserver.collection import Extract, FieldKey, FieldTerm, ObjectChange, Snapshot, StoredObject
from unbounded_apiserver.options import ListOptions
from unbounded_apiserver.resource_model import Resource
from unbounded_apiserver.selectors import FieldSelector, LabelSelector
from unbounded_apiserver.status import bad_request
from unbounded_apiserver.store import Compacted, Store

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
        known = (NAME,) if resource.custom and not resource.namespaced else (NAME, NAMESPACE)
        if term.field not in known and term.field not in resource.selectable:
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


QUEUE_EVENTS: Final = 10_000
QUEUE_BYTES: Final = 16 * 2**20
WAIT_FOR_REVISION_S: Final = 3.0
TOO_OLD_PAGE: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)
TOO_OLD_LIST: Final = "The resourceVersion for the provided list is too old."


class ObjectEvent(NamedTuple):
    """One event: ADDED, MODIFIED or DELETED. `record` carries the revision of the event."""

    type: str
    record: StoredObject


class Overrun(Exception):
    """The client reads more slowly than events arrive; the watch is over."""


def watch_event(change: ObjectChange, selection: RecordSelection) -> ObjectEvent | None:
    """Return a change's event for a selection. An object that leaves it is DELETED, with its last state inside."""
    record, previous = change.record, change.previous
    if not record.key.startswith(selection.prefix):
        return None
    if selection.selects_all:
        return ObjectEvent("DELETED" if change.deleted else "MODIFIED" if previous else "ADDED", record)
    before = previous is not None and selection.matches(previous)
    if change.deleted:
        return ObjectEvent("DELETED", record) if before else None
    if selection.matches(record):
        return ObjectEvent("MODIFIED" if before else "ADDED", record)
    return ObjectEvent("DELETED", previous.at_revision(record.revision)) if before and previous is not None else None


class Watch:
    """Events for one client, queued up to a bound.

    The watch begins in one of two ways:
    - with the existing objects, if the request has no revision or 0, or asks for initial events,
    - with the changes after the requested revision.

    `compacted` is set if history does not reach back that far. `on_overrun` is called when the bound is exceeded, as
    the reader may hang in the middle of a write.
    """

    def __init__(self, store: Store, resource: Resource, selection: RecordSelection, options: ListOptions) -> None:
        self._store = store
        self._selection = selection
        self._queue: deque[ObjectEvent] = deque()
        self._bytes = 0  # and below, of events since the last take; the initial ones do not count
        self._received = 0
        self._ready = asyncio.Event()
        self._overrun = False
        self.on_overrun: Callable[[], None] | None = None
        self.closed = False
        self.compacted: Compacted | None = None
        self.initial_until: int | None = None  # after these events the list is complete, and a bookmark reports it
        self._after = 0
        self._begin(resource, options)
        self._stop = store.listen(self._on_change, resource.name, selection.term)

    def _begin(self, resource: Resource, options: ListOptions) -> None:
        start_with_state = options.initial if options.initial is not None else not options.revision
        if start_with_state:
            snapshot = self._store.snapshot(resource.name)
            matching = snapshot.with_prefix(self._selection.prefix, term=self._selection.term)
            self._queue.extend(ObjectEvent("ADDED", record) for record in matching if self._selection.matches(record))
            if options.initial and options.bookmarks:
                self.initial_until = snapshot.revision
        elif options.revision:
            self._after = options.revision
            try:
                changes = self._store.changes(resource.name, options.revision)
            except Compacted as error:
                self.compacted = error
                return
            self._queue.extend(
                event for change in changes if (event := watch_event(change, self._selection)) is not None
            )
        if self._queue:
            self._ready.set()

    def _on_change(self, change: ObjectChange) -> None:
        if self._overrun or change.revision <= self._after:
            return
        event = watch_event(change, self._selection)
        if event is None:
            return
        self._bytes += len(event.record.bare)
        self._received += 1
        if self._received > QUEUE_EVENTS or self._bytes > QUEUE_BYTES:
            self._overrun = True
            self._queue.clear()
            if self.on_overrun is not None:
                self.on_overrun()
        else:
            self._queue.append(event)
        self._ready.set()

    def take(self) -> list[ObjectEvent]:
        """Return the queued events, oldest first; none if the queue is empty. Raises Overrun."""
        if self._overrun:
            raise Overrun
        events = list(self._queue)
        self._queue.clear()
        self._bytes = self._received = 0
        self._ready.clear()
        return events

    def progress(self) -> int:
        """Return the revision up to which everything was taken; valid only if `take` left nothing behind."""
        return max(self._store.revision, self._after)

    async def wait(self) -> None:
        """Wait for something to take."""
        await self._ready.wait()

    def close(self) -> None:
        """Stop receiving events, and wake a waiting reader."""
        self.closed = True
        self._stop()
        self._ready.set()


@dataclass(frozen=True)
class ObjectPage:
    """A part of a list. `token` continues it; `remaining` is None where the number is unknown."""

    records: list[StoredObject]
    revision: int
    token: str = ""
    remaining: int | None = None


class _Token(msgspec.Struct):
    v: str = ""
    rv: int = 0
    start: str = ""


class Reads:
    """Reads of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, resource: Resource, namespace: str, name: str, revision: int | None = None) -> StoredObject:
        """Return one object, not older than `revision`. Raises StatusError (404, 504)."""
        if revision:
            await self._wait_revision(revision)
        record = self._store.get(resource.name, resource.key(namespace, name))
        if record is None:
            raise status.not_found(resource.group, resource.plural, name)
        return record

    async def list(self, resource: Resource, namespace: str, options: ListOptions) -> ObjectPage:
        """Return a page of the matching objects. Raises StatusError (400, 410, 504)."""
        selection = select(resource, namespace, options.labels, options.fields)
        if options.token:
            return self._continue(resource, selection, options)
        limit = 0 if options.revision == 0 else options.limit  # "any version" always returns the whole list
        if options.revision:
            await self._wait_revision(options.revision)
        exact = options.match == "Exact" or (options.limit > 0 and not options.match and bool(options.revision))
        try:
            snapshot = self._store.snapshot(resource.name, options.revision if exact else None)
        except Compacted as error:
            raise status.expired(TOO_OLD_LIST) from error
        return _page(snapshot, selection, "", limit)

    async def watch(self, resource: Resource, namespace: str, options: ListOptions) -> Watch:
        """Start a watch; the caller closes it. Raises StatusError (400, 504)."""
        selection = select(resource, namespace, options.labels, options.fields)
        if options.initial and options.revision:
            await self._wait_revision(options.revision)
        return Watch(self._store, resource, selection, options)

    def _continue(self, resource: Resource, selection: RecordSelection, options: ListOptions) -> ObjectPage:
        if options.revision:
            raise status.bad_request("specifying resource version is not allowed when using continue")
        token = _read_token(options.token)
        start = selection.prefix + token.start
        try:
            snapshot = self._store.snapshot(resource.name, token.rv if token.rv > 0 else None)
        except Compacted as error:
            anyway = _write_token(-1, token.start)
            raise status.expired(TOO_OLD_PAGE, continue_token=anyway) from error
        return _page(snapshot, selection, start, options.limit)

    async def _wait_revision(self, revision: int) -> None:
        if revision <= self._store.revision:
            return
        try:
            async with asyncio.timeout(WAIT_FOR_REVISION_S):
                await self._store.wait_revision(revision)
        except TimeoutError:
            raise status.too_new(revision, self._store.revision) from None


def _page(snapshot: Snapshot, selection: RecordSelection, start: str, limit: int) -> ObjectPage:
    candidates = snapshot.with_prefix(selection.prefix, start, selection.term)
    matching: Iterator[StoredObject] = candidates if selection.selects_all else filter(selection.matches, candidates)
    if not limit:
        return ObjectPage(list(matching), snapshot.revision)
    records: list[StoredObject] = []
    for record in matching:
        if len(records) == limit:
            token = _write_token(snapshot.revision, records[-1].key.removeprefix(selection.prefix) + "\0")
            remaining = 1 + sum(1 for _ in matching) if selection.selects_all else None
            return ObjectPage(records, snapshot.revision, token, remaining)
        records.append(record)
    return ObjectPage(records, snapshot.revision)


def _write_token(revision: int, start: str) -> str:
    token = msgspec.json.encode(_Token("meta.k8s.io/v1", revision, start))
    return base64.urlsafe_b64encode(token).decode().rstrip("=")


def _read_token(text: str) -> _Token:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        token = msgspec.json.decode(data, type=_Token)
    except (binascii.Error, ValueError) as error:
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
        wrong = next((i for i, c in enumerate(text) if c not in alphabet), len(text) // 4 * 4)
        why = f"illegal base64 data at input byte {wrong}" if isinstance(error, binascii.Error) else str(error)
        raise status.bad_request(f"invalid continue token: continue key is not valid: {why}") from error
    if token.v != "meta.k8s.io/v1" or not token.start:
        why = (
            "server does not recognize this encoded version"
            if token.start
            else "encoded start key empty (version meta.k8s.io/v1)"
        )
        raise status.bad_request(f"invalid continue token: continue key is not valid: {why} {token.v!r}")
    return token
