"""Live data of one user: one watch of each `Selection`, shared by all views of that user and by no other user.

A view reads caches, and is called after changes. Rights can end while a watch goes on, as a server checks them when the
watch begins. So `LiveData` asks the server now and then, and empties the cache of a kind that may not be read any more.
The same question shows within seconds that a server does not answer any more, while its watches are open and silent.

A watch of a whole kind lasts until the user's last session ends. One of a part of a kind, such as of one object, ends
with the last page that follows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar, cast

from unbounded.api.core import LEASES
from unbounded.api.meta import Kind
from unbounded.api.names import NAMESPACE
from unbounded.console.compaction import compaction_of, reduction_of
from unbounded.console.rights import UserRights, WatchRight
from unbounded.kube.api import Api, ApiError, Forbidden, ObjectList, WatchEvent
from unbounded.kube.cache import Cache
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import Backoff, utc_now
from unbounded.kube.logs import Log

T = TypeVar("T")
D = TypeVar("D", bound="Derived")
Changed = Callable[[T | None, T | None], None]

RIGHTS_EVERY_S: Final = 5.0  # between questions for the rights of a user
ANSWER_S: Final = 5.0  # a server that answers such a question no sooner is no source of live data
RECONNECT: Final = Backoff(base_s=0.2, max_s=2.0)  # a person looks at the screen

NAME: Final = "metadata.name"
MAX_PARTS: Final = 100  # watches of parts of kinds, of one user: each is a connection
CLOSED: Final = "the session has ended"
TOO_MANY: Final = f"{MAX_PARTS} watches of single objects are open"

log = Log(__name__)


@dataclass(frozen=True)
class Selection(Generic[T]):
    """Objects of one kind that pages follow: all of them, unless a namespace or a selector is given."""

    kind: Kind[T]
    namespace: str = ""
    labels: str = ""
    fields: str = ""

    @property
    def is_whole(self) -> bool:
        """Return whether these are all objects of the kind."""
        return not (self.namespace or self.labels or self.fields)

    @property
    def right(self) -> WatchRight:
        """Return the right to watch the objects. A cache needs none to list them: a watch begins with all of them."""
        return WatchRight(self.kind.group, self.kind.plural, self.namespace, self.name)

    @property
    def name(self) -> str:
        """Return the name of the one object that is selected; empty where several can be."""
        field, _, value = self.fields.partition("=")
        return value if field == NAME else ""


LiveSource = Kind[T] | Selection[T]
LEADER_LEASES: Final = Selection(LEASES, NAMESPACE)


def selection_of(source: LiveSource[T]) -> Selection[T]:
    """Return a selection as it is, or that of all objects of a kind."""
    return source if isinstance(source, Selection) else Selection(source)


def one_object(kind: Kind[T], name: str, namespace: str = "") -> Selection[T]:
    """Return the selection of one object. The name has to be a valid one: it becomes a part of a selector."""
    return Selection(kind, namespace, fields=f"{NAME}={name}")


class LiveState(StrEnum):
    LOADING = "loading"
    LIVE = "live"
    STALE = "stale"
    DENIED = "denied"


class _ReportingApi:
    """The reads of a cache, which report how the watch fares."""

    def __init__(self, api: HttpApi, live: LiveKind[Any]) -> None:
        self._api, self._live = api, live

    async def list(self, kind: Kind[T], *, namespace: str = "", labels: str = "", fields: str = "") -> ObjectList[T]:
        try:
            return await self._api.list(kind, namespace=namespace, labels=labels, fields=fields)
        except ApiError as error:
            self._live.interrupted(error)
            raise

    async def watch(
        self, kind: Kind[T], *, resource_version: str, namespace: str = "", labels: str = "", fields: str = ""
    ) -> AsyncIterator[WatchEvent[T]]:
        stream = self._api.watch(
            kind,
            resource_version=resource_version,
            namespace=namespace,
            labels=labels,
            fields=fields,
            opened=self._live.heard,
        )
        try:
            async for event in stream:
                yield event
                self._live.heard()
        except ApiError as error:
            self._live.interrupted(error)
            raise
        finally:
            await cast("Any", stream).aclose()


class LiveKind(Generic[T]):
    """The objects of a selection that the user may read, and how fresh they are.

    Args:
        refused: called when the server refuses a request.
        unused: called when the last subscription has ended.

    Attributes:
        cache: the objects. Another cache takes its place once the user may not read them: do not keep it.
        state, cause: how the watch fares.
        since: time up to which the objects are known, while the state is STALE.
        heard_at: when the watch has last heard from the server.
    """

    def __init__(
        self,
        api: HttpApi,
        selection: Selection[T],
        *,
        refused: Callable[[Forbidden], None],
        unused: Callable[[LiveKind[T]], None] = lambda _live: None,
    ) -> None:
        self.selection = selection
        self.kind = selection.kind
        self.state = LiveState.LOADING
        self.cause = ""
        self.since: datetime | None = None
        self.heard_at = utc_now()
        self._api = api
        self._refused = refused
        self._unused = unused
        self._compact = compaction_of(self.kind) if selection.is_whole else reduction_of(self.kind)
        self._subscribers: list[Changed[T]] = []
        self._watchers: list[Callable[[], None]] = []  # of the state
        self._task: asyncio.Task[None] | None = None
        self.cache: Cache[T] = self._new_cache()

    @property
    def is_watched(self) -> bool:
        return self._task is not None

    def start(self) -> None:
        """Watch the objects, if they are not watched."""
        if self._task is None:
            self.cache = self._new_cache()
            self.cache.subscribe(self._notify)
            self._set(LiveState.LOADING)
            self._task = self._follow()

    def reopen(self) -> None:
        """Open an interrupted watch again, from where it was: the connection of the former one may be half open."""
        if self._task is not None and self.state is LiveState.STALE:
            self._task.cancel()
            self._task = self._follow()

    def stop(self) -> None:
        """Stop the watch and forget all objects; subscribers are called for each."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        gone, self.cache = self.cache, self._new_cache()
        for item in gone.all():
            self._notify(item, None)

    def deny(self, cause: str) -> None:
        """Forget all objects, as the user may not read them."""
        self.stop()
        self._set(LiveState.DENIED, cause)

    def subscribe(self, changed: Changed[T]) -> Callable[[], None]:
        """Call `changed(old, new)` for each object now and after each change; returns the end of the subscription."""
        self._subscribers.append(changed)
        for item in self.cache.all():
            self._call(changed, None, item)
        return lambda: self._unsubscribe(changed)

    def on_state(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after each change of the state; returns the end of that."""
        self._watchers.append(changed)
        return lambda: self._watchers.remove(changed)

    async def settled(self) -> None:
        """Wait until the objects are known, or the cause why they are not."""
        while self.state is LiveState.LOADING and not self.cause:
            changed = asyncio.Event()
            end = self.on_state(changed.set)
            try:
                await changed.wait()
            finally:
                end()

    # ---- reports of the watch

    def heard(self) -> None:
        """Note that the server has accepted the watch, or sent something."""
        self.heard_at = utc_now()
        if self.state is LiveState.STALE or (self.state is LiveState.LOADING and self.cache.synced.is_set()):
            self._set(LiveState.LIVE)

    def interrupted(self, error: ApiError) -> None:
        """Note that the watch, or an attempt of one, has failed."""
        if isinstance(error, Forbidden):
            self._refused(error)
            # not from inside of the task that is cancelled by it
            asyncio.get_running_loop().call_soon(self.deny, str(error))
        elif self.state is LiveState.LIVE:
            self.since = self.heard_at
            self._set(LiveState.STALE, str(error))
        elif self.state in (LiveState.STALE, LiveState.LOADING):
            self._set(self.state, str(error))

    def unanswered(self, error: ApiError, heard_at: datetime) -> None:
        """Note that the server does not answer other requests either, and when it was last heard."""
        if self.state is LiveState.LIVE:
            self.since = heard_at
            self._set(LiveState.STALE, str(error))
        elif self.state is LiveState.LOADING and not self.cause:
            self._set(self.state, str(error))

    # ---- inside

    def _unsubscribe(self, changed: Changed[T]) -> None:
        self._subscribers.remove(changed)
        if not self._subscribers:
            self._unused(self)

    def _follow(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.cache.run(), name=f"live {self.kind.plural}")

    def _new_cache(self) -> Cache[T]:
        api = cast("Api", _ReportingApi(self._api, self))
        picked = self.selection
        return Cache(
            api,
            self.kind,
            namespace=picked.namespace,
            labels=picked.labels,
            fields=picked.fields,
            backoff=RECONNECT,
            compact=self._compact,
        )

    def _notify(self, old: T | None, new: T | None) -> None:
        if self.state is LiveState.LOADING and self.cache.synced.is_set():
            self._set(LiveState.LIVE)
        for changed in tuple(self._subscribers):
            self._call(changed, old, new)

    def _call(self, changed: Changed[T], old: T | None, new: T | None) -> None:
        """Call a subscriber; one that fails at an object keeps no other from it, nor a page from opening."""
        try:
            changed(old, new)
        except Exception:
            log.exception("subscriber failed", kind=self.kind.kind)

    def _set(self, state: LiveState, cause: str = "") -> None:
        if (state, cause) == (self.state, self.cause):
            return
        self.state, self.cause = state, cause
        if state is not LiveState.STALE:
            self.since = None
        for watcher in tuple(self._watchers):
            try:
                watcher()
            except Exception:
                log.exception("subscriber failed", kind=self.kind.kind)


class Derived:
    """Data derived from the objects of some kinds, once for all views of a user.

    Attributes:
        kinds: of the objects.
    """

    kinds: tuple[Kind[Any], ...]

    def changed(self, old: Any, new: Any) -> None:
        """Take a change into account."""
        raise NotImplementedError


class LiveData:
    """All live data of one user.

    Args:
        api: with the rights of the user.
        unauthorized: called when the server knows the credentials no more.
    """

    def __init__(self, api: HttpApi, *, unauthorized: Callable[[str], None]) -> None:
        self.api = api
        self._unauthorized = unauthorized
        self._kinds: dict[Selection[Any], LiveKind[Any]] = {}
        self._derived: dict[type[Derived], Derived] = {}
        self._rights = UserRights(self._ask)
        self._checks: asyncio.Task[None] | None = None
        self._is_closed = False
        self._answered_at = utc_now()
        self._answers = True

    def of(self, source: LiveSource[T]) -> LiveKind[T]:
        """Return the live objects of a kind, or of a part of it; their watch starts with the first call.

        None are watched any more after `close`: a page may still be in the making then.
        """
        selection = selection_of(source)
        found = self._kinds.get(selection)
        if found is None:
            found = LiveKind(self.api, selection, refused=self._on_refused, unused=self._on_unused)
            self._kinds[selection] = found
            self._start(found)
        if self._checks is None and not self._is_closed:
            self._checks = asyncio.create_task(self._check_rights(), name="rights")
        return cast("LiveKind[T]", found)

    def _start(self, live: LiveKind[Any]) -> None:
        """Watch a selection, unless too many are watched, or the session has ended."""
        if self._is_closed:
            live.deny(CLOSED)
            return
        parts = sum(one.is_watched and not one.selection.is_whole for one in self._kinds.values())
        if live.selection.is_whole or live.selection == LEADER_LEASES or parts < MAX_PARTS:
            live.start()
        else:
            live.deny(TOO_MANY)

    def derived(self, of: type[D]) -> D:
        """Return the one instance of a derivation, which follows its kinds from the first call on."""
        found = self._derived.get(of)
        if found is None:
            found = self._derived[of] = of()
            for kind in found.kinds:
                self.of(kind).subscribe(found.changed)
        return cast("D", found)

    def close(self) -> None:
        """End all watches, and forget all objects."""
        self._is_closed = True
        if self._checks is not None:
            self._checks.cancel()
            self._checks = None
        for live in self._kinds.values():
            live.stop()

    async def _check_rights(self) -> None:
        """Ask the server again and again for the right to watch each selection, until cancelled."""
        while True:
            await asyncio.sleep(RIGHTS_EVERY_S)
            with suppress(ApiError):  # changes no rights; `_ask` has noted it
                await self._check_once()

    async def _check_once(self) -> None:
        uses: dict[WatchRight, list[LiveKind[Any]]] = {}
        for live in self._kinds.values():
            uses.setdefault(live.selection.right, []).append(live)
        denied = {right: [one.state is LiveState.DENIED for one in of_right] for right, of_right in uses.items()}
        async for right, denial in self._rights.check(denied):
            for live in uses[right]:
                self._decide(live, denial)

    def _decide(self, live: LiveKind[Any], denial: str | None) -> None:
        """Start or end a watch after an answer of the server."""
        if self._kinds.get(live.selection) is not live:  # it has ended in the meantime
            return
        if denial is None:
            if live.state is LiveState.DENIED:
                self._start(live)
        elif live.state is not LiveState.DENIED:
            live.deny(denial)

    async def _ask(self, kind: Kind[Any], review: dict[str, Any]) -> dict[str, Any]:
        """Create a review; note whether the server answers, and a login that it refuses."""
        asked_at = utc_now()
        try:
            found: dict[str, Any] = await self.api.create(kind, review, limit_s=ANSWER_S)
        except ApiError as error:
            if isinstance(error, Forbidden):
                self._on_refused(error)
            if error.code:
                self._note_answer()
            else:
                self._note_silence(error, asked_at)
            raise
        self._note_answer()
        return found

    def _note_silence(self, error: ApiError, asked_at: datetime) -> None:
        heard_at = max(self._answered_at, *(live.heard_at for live in self._kinds.values()))
        if heard_at >= asked_at:  # a watch goes on
            return
        self._answers = False
        for live in tuple(self._kinds.values()):
            live.unanswered(error, heard_at)

    def _note_answer(self) -> None:
        self._answered_at = utc_now()
        if not self._answers:
            self._answers = True
            for live in tuple(self._kinds.values()):
                live.reopen()

    def _on_unused(self, live: LiveKind[Any]) -> None:
        if not live.selection.is_whole and self._kinds.get(live.selection) is live:
            del self._kinds[live.selection]
            live.stop()

    def _on_refused(self, error: Forbidden) -> None:
        if error.code == 401:
            asyncio.get_running_loop().call_soon(self._unauthorized, str(error))
