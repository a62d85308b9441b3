"""Sessions of browsers, in memory alone: each acts with the credentials of its user.

Sessions of the same credentials share live data. A session ends when no page of it has been open for some time, after
an absolute time, at the user's wish, and when the API server knows the credentials no more.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from unbounded.console.live import LiveData
from unbounded.kube.client import HttpApi
from unbounded.kube.logs import Log

ID_BYTES: Final = 32
DUE_EVERY_S: Final = 30.0
MAX_SESSIONS: Final = 200
MAX_OF_USER: Final = 20  # the oldest one ends for a new one
MAX_LOGINS: Final = 5  # credentials of one name, each with live data of its own; likewise
MAX_PAGES: Final = 20  # of a session; the one that was opened first ends for a new one

log = Log(__name__)
Clock = Callable[[], float]


class TooManySessions(Exception):
    """All sessions are in use."""


class Page(Protocol):
    """An open page of a session."""

    def end(self, reason: str) -> None:
        """Show nothing of the session any more."""
        ...

    def retire(self, reason: str) -> None:
        """Show nothing but why the page has ended, while its session goes on."""
        ...


@dataclass
class ConsoleUser:
    """Somebody with credentials, and the live data that they may read.

    Attributes:
        identity: digest of the credentials; it tells users apart.
        name: as the API server has it.
        stays: its data stay live without a session.
    """

    identity: str
    name: str
    api: HttpApi
    live: LiveData
    stays: bool = False
    sessions: set[str] = field(default_factory=set)


@dataclass
class BrowserSession:
    """A browser that has logged in.

    Attributes:
        id: the secret in its cookie.
        pages: that are open, by their ids, in the order of their begin.
    """

    id: str = field(repr=False)
    user: ConsoleUser
    began: float
    used: float
    pages: dict[str, Page] = field(default_factory=dict)

    def open_page(self, id_: str, page: Page) -> None:
        """Note an open page; the oldest one ends where there are too many."""
        while len(self.pages) >= MAX_PAGES:
            self.pages.pop(next(iter(self.pages))).retire(f"{MAX_PAGES} newer pages are open")
        self.pages[id_] = page


def identity_of(*credentials: str) -> str:
    """Return the digest of credentials."""
    return hashlib.sha256("\0".join(credentials).encode()).hexdigest()


class BrowserSessions:
    """All sessions of a console.

    Args:
        idle_s: a session without an open page ends after this time without a request.
        absolute_s: a session ends after this time.
        now: monotonic.
        forget: called with each user whose last session has ended.
    """

    def __init__(
        self,
        *,
        idle_s: float,
        absolute_s: float,
        now: Clock,
        forget: Callable[[ConsoleUser], None] = lambda _user: None,
    ) -> None:
        self._forget = forget
        self._idle_s = idle_s
        self._absolute_s = absolute_s
        self._now = now
        self._sessions: dict[str, BrowserSession] = {}
        self._users: dict[str, ConsoleUser] = {}

    def user(self, identity: str) -> ConsoleUser | None:
        return self._users.get(identity)

    def prepare(self, identity: str, name: str, api: HttpApi) -> ConsoleUser:
        """Return a user without a session, whose data stay live."""
        user = self._users[identity] = self._new_user(identity, name, api)
        user.stays = True
        return user

    def begin(self, identity: str, name: str, api: HttpApi) -> BrowserSession:
        """Begin a session of a user. Raises TooManySessions."""
        self.end_expired()
        user = self._users.get(identity)
        if user is not None and len(user.sessions) >= MAX_OF_USER:
            oldest = min((self._sessions[one] for one in user.sessions), key=lambda one: one.used)
            self.end(oldest, "a newer session has taken its place")
            user = self._users.get(identity)
        if user is None:
            self._end_oldest_login(name)
        if len(self._sessions) >= MAX_SESSIONS:
            raise TooManySessions("all sessions are in use: try again later")
        if user is None:
            user = self._users[identity] = self._new_user(identity, name, api)
        now = self._now()
        session = BrowserSession(secrets.token_urlsafe(ID_BYTES), user, now, now)
        self._sessions[session.id] = session
        user.sessions.add(session.id)
        return session

    def _end_oldest_login(self, name: str) -> None:
        """Make room for another login of this name."""
        logins = [user for user in self._users.values() if user.name == name and user.sessions]
        if len(logins) >= MAX_LOGINS:
            oldest = min(logins, key=lambda user: max(self._sessions[one].used for one in user.sessions))
            self.end_user(oldest.identity, "a newer login of the same user has taken its place")

    def _new_user(self, identity: str, name: str, api: HttpApi) -> ConsoleUser:
        def unauthorized(cause: str) -> None:
            log.info("credentials are not valid any more", user=name, cause=cause)
            self.end_user(identity, "the API server does not accept the login any more")

        return ConsoleUser(identity, name, api, LiveData(api, unauthorized=unauthorized))

    def find(self, id_: str) -> BrowserSession | None:
        """Return the session of a cookie, and count that as its use; None if there is none, or it has expired."""
        session = self._sessions.get(id_)
        if session is None:
            return None
        if self._has_expired(session):
            self.end(session, "the session has expired")
            return None
        session.used = self._now()
        return session

    def owner(self, page: str) -> BrowserSession | None:
        """Return the session of an open page."""
        return next((one for one in self._sessions.values() if page in one.pages), None)

    def end(self, session: BrowserSession, reason: str) -> None:
        """End a session; its pages show nothing of it any more."""
        if self._sessions.pop(session.id, None) is None:
            return
        for page in tuple(session.pages.values()):
            page.end(reason)
        user = session.user
        user.sessions.discard(session.id)
        if not user.sessions and not user.stays:
            del self._users[user.identity]
            user.live.close()
            self._forget(user)

    def end_user(self, identity: str, reason: str) -> None:
        """End all sessions of a user."""
        user = self._users.get(identity)
        for one in () if user is None else tuple(user.sessions):
            self.end(self._sessions[one], reason)

    def end_expired(self) -> None:
        """End all sessions whose time is over."""
        for session in tuple(self._sessions.values()):
            if self._has_expired(session):
                self.end(session, "the session has expired")

    async def end_when_due(self) -> None:
        """End sessions whose time is over, until cancelled."""
        while True:
            await asyncio.sleep(DUE_EVERY_S)
            self.end_expired()

    def _has_expired(self, session: BrowserSession) -> bool:
        now = self._now()
        is_idle = not session.pages and now - session.used > self._idle_s
        return is_idle or now - session.began > self._absolute_s


class OneTimeUrls:
    """Secrets of URLs that open a session, each once.

    Args:
        issued: called with each new secret, as the one before it was used.
    """

    def __init__(self, issued: Callable[[str], None]) -> None:
        self._issued = issued
        self._current = ""

    def issue(self) -> None:
        """Make another secret; the one before it is of no use any more."""
        self._current = secrets.token_urlsafe(ID_BYTES)
        self._issued(self._current)

    def redeem(self, given: str) -> bool:
        """Return whether a secret is the current one, and use it up."""
        if not self._current or not secrets.compare_digest(given.encode(), self._current.encode()):
            return False
        self.issue()
        return True
