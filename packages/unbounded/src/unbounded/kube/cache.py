"""`Cache`: what a process knows of one kind, kept up to date by one watch, indexed, with callbacks for changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Final, Generic, TypeVar

import msgspec

from unbounded.api.meta import Kind
from unbounded.kube.api import (
    Api,
    ApiError,
    EventType,
    Expired,
    InvalidObject,
    NotFound,
    ObjectIdentity,
    ObjectKey,
    ReadFailed,
    WatchEvent,
    identify,
    version_number,
)
from unbounded.kube.clock import Backoff
from unbounded.kube.logs import Log
from unbounded.kube.process_tuning import pause_gc
from unbounded.kube.selectors import field_terms, field_value, label_test

T = TypeVar("T")
Callback = Callable[[T | None, T | None], None]
Index = Callable[[T], Iterable[str]]

RECONNECT: Final = Backoff(base_s=0.2, max_s=15.0)
STEADY_S: Final = 10.0  # a watch that held this long was no failure
INITIAL_S: Final = 60.0  # limit of a stream's initial objects; after it lists take their place

log = Log(__name__)


class Cache(Generic[T]):
    """Local copy of the objects of one kind that a selector picks.

    `run` keeps it equal to the store: after a dropped, half-open or expired watch it resumes or lists again. It calls
    subscribers for every object that differs from their last one, deletions included. Objects are shared and must not
    be changed. The cache may skip versions: a subscriber learns that something changed, not how often.

    Args:
        indexes: for each name, a function that returns the index keys of an object.
        compact: returns the object that is stored in place of a decoded one.
    """

    def __init__(
        self,
        api: Api,
        kind: Kind[T],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        indexes: Mapping[str, Index[T]] | None = None,
        backoff: Backoff = RECONNECT,
        compact: Callable[[T], T] | None = None,
    ) -> None:
        self.kind = kind
        self.synced = asyncio.Event()  # set once the first list is in, and never cleared
        self._api = api
        self._namespace, self._labels, self._fields = namespace, labels, fields
        self._label_test, self._field_terms = label_test(labels), field_terms(fields)
        self._backoff = backoff
        self._compact = compact
        self._items: dict[ObjectKey, T] = {}
        self._indexes = {name: _Index(function) for name, function in (indexes or {}).items()}
        self._subscribers: list[Callback[T]] = []
        self._position = ""  # resourceVersion up to which the store's changes are known; empty while they are not
        self._last_version = 0  # the last that it was; a list from before it comes from another history
        self._begins_with_stream = True
        self._log = log.bind(kind=kind.kind)

    # ---- reading

    def get(self, name: str, namespace: str = "") -> T | None:
        return self._items.get(ObjectKey(namespace, name))

    def all(self) -> tuple[T, ...]:
        return tuple(self._items.values())

    def by(self, index: str, key: str) -> tuple[T, ...]:
        """The objects that the index function gave this key for. Raises KeyError for an index that does not exist."""
        return self._indexes[index].objects(key)

    def __len__(self) -> int:
        return len(self._items)

    def subscribe(self, callback: Callback[T]) -> Callable[[], None]:
        """Call this with (old, new) for every change, in order; what is there already comes at once, as new.

        `old` is None for an object that is new, `new` for one that is gone. The callback must not wait. What comes
        back ends the subscription.
        """
        self._subscribers.append(callback)
        for item in self.all():
            self._notify(callback, None, item)
        return lambda: self._subscribers.remove(callback)

    @contextlib.contextmanager
    def subscribed(self, callback: Callback[T]) -> Iterator[None]:
        """A subscription that lasts as long as the block."""
        stop = self.subscribe(callback)
        try:
            yield
        finally:
            stop()

    def observe(self, item: T) -> None:
        """Store the answer to a write of this process, so that a read returns it before the watch delivers it.

        An answer that is older than the watch's last event changes nothing.
        """
        identity = identify(item)
        is_later = version_number(identity.version) > self._last_version
        if self._position and is_later and self._selects(item, identity):
            self._put_newer(self._reduced(item))

    # ---- following the store

    async def run(self) -> None:
        """Follow the store until cancelled."""
        failures = 0
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._follow()
            except Expired as error:
                self._position = ""
                self._log.debug("watch history expired, listing again", error=str(error))
            except NotFound as error:  # a path that leads nowhere: an empty list would be found
                self._log.warning("kind is not served; install its CustomResourceDefinition", error)
            except ApiError as error:
                self._log.warning("watch interrupted", error, failures=failures)
            failures = 0 if loop.time() - began >= STEADY_S else failures + 1
            await asyncio.sleep(self._backoff.after(max(1, failures)))

    async def _follow(self) -> None:
        """One watch, from where the last one ended or from the beginning, until it ends or fails."""
        if not self._position and not self._begins_with_stream:
            with pause_gc(first=not self.synced.is_set()):
                listing = await self._api.list(self.kind, **self._selection)
                self._replace(map(self._reduced, listing.items), listing.resource_version)
        stream = self._api.watch(self.kind, resource_version=self._position, **self._selection)
        async with _closing(stream):
            if not self._position:
                await self._begin(stream)
            async for event in stream:
                version = version_number(event.resource_version)
                if version < self._last_version:
                    raise Expired("the server's versions went back: its history was replaced")
                if event.object is not None:
                    self._apply(event.type, event.object, version)
                self._position, self._last_version = event.resource_version, version

    async def _begin(self, stream: AsyncIterator[WatchEvent[T]]) -> None:
        """Take in the objects that a watch begins with; from a server that cannot begin so, lists are taken later."""
        items: list[T] = []
        try:
            with pause_gc(first=not self.synced.is_set()):
                async with asyncio.timeout(INITIAL_S):
                    async for event in stream:
                        if event.synced:
                            self._replace(items, event.resource_version)
                            return
                        if event.object is not None:
                            items.append(self._reduced(event.object))  # while the server encodes the next ones
        except (InvalidObject, ReadFailed, TimeoutError) as error:
            if isinstance(error, ReadFailed) and not error.code:
                raise  # the connection failed: the server refused nothing
            self._begins_with_stream = False
            raise ReadFailed("server does not start watches with its objects; using lists") from error
        raise ReadFailed("watch ended among its first objects")

    @property
    def _selection(self) -> dict[str, str]:
        return {"namespace": self._namespace, "labels": self._labels, "fields": self._fields}

    def _apply(self, type_: EventType, item: T, version: int) -> None:
        if type_ is not EventType.DELETED:
            self._put_newer(self._reduced(item))
            return
        key = identify(item).key
        if key in self._items and self._version(key) <= version:
            self._drop(key)

    def _replace(self, items: Iterable[T], version: str) -> None:
        """Make the cache equal to a list of reduced objects, except for later writes observed here.

        The watch delivers those.
        """
        number = version_number(version)
        restarted = number < self._last_version
        listed = {identify(item).key: item for item in items}
        for key in [key for key in self._items if key not in listed]:
            if restarted or self._version(key) <= number:
                self._drop(key)
        for item in listed.values():
            if restarted:
                self._put(item)
            else:
                self._put_newer(item)
        self._position, self._last_version = version, number
        self.synced.set()

    # ---- inside

    def _selects(self, item: T, identity: ObjectIdentity) -> bool:
        if self._namespace and identity.key.namespace != self._namespace:
            return False
        if not self._labels and not self._field_terms:
            return True
        body = msgspec.to_builtins(item)
        labels = body.get("metadata", {}).get("labels") or {}
        return self._label_test(labels) and all(
            (field_value(body, path) == value) is equal for path, equal, value in self._field_terms
        )

    def _version(self, key: ObjectKey) -> int:
        return version_number(identify(self._items[key]).version)

    def _reduced(self, item: T) -> T:
        return item if self._compact is None else self._compact(item)

    def _put_newer(self, item: T) -> None:
        """Store a reduced object unless a later version of it is known."""
        identity = identify(item)
        if identity.key not in self._items or self._version(identity.key) < version_number(identity.version):
            self._put(item)

    def _put(self, item: T) -> None:
        identity = identify(item)  # its texts are those of the reduced object
        old = self._items.get(identity.key)
        if old is not None and identify(old).uid != identity.uid:  # deleted and created again between two lists
            self._drop(identity.key)
            old = None
        indexed = [(index, index.keys(item)) for index in self._indexes.values()]  # may fail: before anything changes
        self._items[identity.key] = item
        if old is not None and any(keys != index.keys(old) for index, keys in indexed):
            self._unindex(identity.key, old)
        for index, keys in indexed:
            index.put(identity.key, item, keys)
        self._notify_all(old, item)

    def _drop(self, key: ObjectKey) -> None:
        old = self._items.pop(key)
        self._unindex(key, old)
        self._notify_all(old, None)

    def _unindex(self, key: ObjectKey, old: T) -> None:
        for index in self._indexes.values():
            index.remove(key, old)

    def _notify_all(self, old: T | None, new: T | None) -> None:
        for callback in self._subscribers:
            self._notify(callback, old, new)

    def _notify(self, callback: Callback[T], old: T | None, new: T | None) -> None:
        try:
            callback(old, new)
        except Exception:
            self._log.exception("subscriber failed")


class _Members(dict[ObjectKey, T]):
    """Several objects of one index key."""


class _Index(Generic[T]):
    """Objects by their index keys, most of which have one object: it is stored without a collection of its own."""

    def __init__(self, function: Index[T]) -> None:
        self._function = function
        self._found: dict[str, T | _Members[T]] = {}

    def keys(self, item: T) -> tuple[str, ...]:
        return tuple(self._function(item))

    def objects(self, index_key: str) -> tuple[T, ...]:
        found = self._found.get(index_key)
        if isinstance(found, _Members):
            return tuple(found.values())
        return () if found is None else (found,)

    def put(self, key: ObjectKey, new: T, index_keys: tuple[str, ...]) -> None:
        for index_key in index_keys:
            found = self._found.get(index_key)
            if isinstance(found, _Members):
                found[key] = new
            elif found is None or identify(found).key == key:
                self._found[index_key] = new
            else:
                self._found[index_key] = _Members({identify(found).key: found, key: new})

    def remove(self, key: ObjectKey, old: T) -> None:
        for index_key in self.keys(old):
            found = self._found.get(index_key)
            if isinstance(found, _Members):
                found.pop(key, None)
            if not found or found is old:
                self._found.pop(index_key, None)


@contextlib.asynccontextmanager
async def _closing(stream: AsyncIterator[WatchEvent[T]]) -> AsyncIterator[None]:
    """Close a watch that is left early: its connection should not wait for the garbage collector."""
    try:
        yield
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
