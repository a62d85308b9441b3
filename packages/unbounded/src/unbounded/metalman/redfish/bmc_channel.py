"""Authenticated calls to one BMC account: wait for the turn, log in if necessary, send, and repeat both on a 401.

A log-in is one session, or basic auth without session support. A rejected password is offered only once. While a
password is rotated, there are two, and the second one is offered once the first one is rejected.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import aiohttp

from unbounded.api.failures import Failure, Rejected, Transient
from unbounded.kube.clock import loop_time
from unbounded.kube.http_pool import HttpResponse
from unbounded.kube.logs import Log
from unbounded.metalman.redfish import bmc_interface
from unbounded.metalman.redfish.circuit_breaker import BmcGate
from unbounded.metalman.redfish.documents import failure_of
from unbounded.metalman.redfish.endpoint import SERVICE_ROOT
from unbounded.metalman.redfish.http import BmcResponse, Http
from unbounded.metalman.redfish.quirks import LOGIN_REFUSED, NO_SESSIONS, SESSION_LIMIT

ERROR_BYTES: Final = 1 << 16  # of an answer in place of a stream
DELETION_PAUSE_S: Final = (
    0.5  # to the next attempt to delete a session, if a busy BMC names no time; after the last one
)

log = Log(__name__)


class BmcChannel:
    """Transport of `Client`. Answers of any status are returned; only transport and log-in raise."""

    def __init__(self, http: Http, auth: BmcAuth, gate: BmcGate, limits: bmc_interface.BmcLimits) -> None:
        self._http = http
        self._auth = auth
        self._gate = gate
        self._limits = limits
        self._last_used = loop_time()
        self._open_calls = 0

    def unused_s(self, now: float) -> float:
        """Return the seconds since the last call; 0 during a call, which may still open a session."""
        return 0.0 if self._open_calls else now - self._last_used

    @property
    def where(self) -> str:
        return self._http.endpoint.origin

    @property
    def secrets(self) -> tuple[str, ...]:
        return self._auth.secrets

    @property
    def refused(self) -> str:
        """Reason why the password is not offered any more; "" while it is."""
        return self._auth.refused

    @property
    def has_session(self) -> bool:
        return self._auth.has_session

    @property
    def password_in_use(self) -> str:
        """See `BmcAuth.password_in_use`."""
        return self._auth.password_in_use

    def offer(self, *passwords: str) -> None:
        """See `BmcAuth.offer`."""
        self._auth.offer(*passwords)

    def has_rejected(self, password: str) -> bool:
        """See `BmcAuth.has_rejected`."""
        return self._auth.has_rejected(password)

    def leave_by(self) -> float:
        """Return the time until which a change that is decided now may be sent; a successor process relies on this
        limit.
        """
        return loop_time() + self._limits.start_s

    async def get(self, reference: str) -> BmcResponse:
        return await self.send("GET", reference)

    async def send(
        self,
        method: str,
        reference: str,
        *,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        leave_by: float | None = None,
    ) -> BmcResponse:
        """Make one call.

        Args:
            leave_by: set for a change (see `leave_by()`); the request is sent before that time or not at all.
        """
        self._open_calls += 1
        try:
            return await self._send(method, reference, body, headers or {}, leave_by)
        finally:
            self._open_calls -= 1
            self._last_used = loop_time()

    async def _send(
        self,
        method: str,
        reference: str,
        body: Mapping[str, Any] | None,
        headers: Mapping[str, str],
        leave_by: float | None,
    ) -> BmcResponse:
        changes = leave_by is not None
        async with self._gate.call(within_s=self._limits.queue_s if leave_by is None else _left(leave_by)):
            deadline = loop_time() + self._limits.call_s
            for last in (False, True):
                credentials = await self._auth.headers(within_s=_left(deadline))
                if leave_by is not None and loop_time() > leave_by:
                    raise bmc_interface.BmcBusy(
                        f"{self.where}: the time limit passed before the request could be sent; nothing was sent"
                    )
                answer = await self._http.send(
                    method,
                    reference,
                    headers={**credentials, **headers},
                    body=body,
                    changes=changes,
                    within_s=_left(deadline),
                )
                if answer.status != 401:
                    self._auth.confirm()
                    break
                if not self._auth.denied(answer):
                    break
                if last:
                    raise Transient(f"{self.where} rejects the session that it has just created (401)")
        return answer

    async def stream(self, reference: str, media_type: str) -> AsyncGenerator[bytes, None]:
        """Yield the parts of an answer that does not end; the first is empty. Its session stays open meanwhile.

        Raises:
            Failure: the BMC refuses the stream, or its connection breaks.
        """
        self._open_calls += 1
        try:
            async with AsyncExitStack() as opened:
                answer = await self._open(opened, reference, media_type)
                yield b""
                async for part in answer.parts():
                    yield part
        finally:
            self._open_calls -= 1
            self._last_used = loop_time()

    async def _open(self, opened: AsyncExitStack, reference: str, media_type: str) -> HttpResponse:
        """Open a stream; other calls have their turns once it is open."""
        async with self._gate.call(within_s=self._limits.queue_s):
            for _ in range(2):
                headers = {**await self._auth.headers(within_s=self._limits.call_s), "Accept": media_type}
                try:
                    async with asyncio.timeout(self._limits.call_s):
                        answer = await opened.enter_async_context(self._http.stream(reference, headers))
                        if answer.status == 200 and answer.media_type == media_type:
                            self._auth.confirm()
                            return answer
                        body = await answer.read_start(ERROR_BYTES)
                except TimeoutError as error:
                    raise bmc_interface.BmcUnreachable(
                        f"{self.where}: no answer to the request for a stream in time"
                    ) from error
                refused = BmcResponse(answer.status, answer.headers, body)
                if answer.status != 401 or not self._auth.denied(refused):
                    break
        if refused.ok:
            found = bmc_interface.clean(answer.media_type) or "no type"
            raise bmc_interface.Unsupported(f"{self.where} answers the request for a stream with {found}")
        raise failure_of(refused, what="the stream of events", where=self.where, changes=False, hide=self.secrets)

    @asynccontextmanager
    async def websocket(self, reference: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open a web socket for the time of the context. Its session stays open meanwhile.

        Raises:
            Failure: the BMC refuses the web socket, or does not answer.
        """
        self._open_calls += 1
        try:
            connected = await self._upgrade(reference)
            try:
                yield connected
            finally:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._limits.close_s):
                        await connected.close()
        finally:
            self._open_calls -= 1
            self._last_used = loop_time()

    async def _upgrade(self, reference: str) -> aiohttp.ClientWebSocketResponse:
        """Open a web socket. Other calls have their turns meanwhile, and its silence says nothing about theirs."""
        for is_last in (False, True):
            async with self._gate.call(within_s=self._limits.queue_s):
                headers = await self._auth.headers(within_s=self._limits.call_s)
            try:
                async with asyncio.timeout(self._limits.call_s):
                    answer = await self._http.websocket(reference, headers)
            except TimeoutError as error:
                raise bmc_interface.BmcUnreachable(
                    f"{self.where}: no answer to the request for a web socket in time"
                ) from error
            if isinstance(answer, aiohttp.ClientWebSocketResponse):
                return answer
            refused = answer
            if refused.status != 401 or is_last:
                break
            await self.get(SESSIONS)  # logs in again if the session is over: a console that refuses does not end it
        if refused.ok:
            raise bmc_interface.Unsupported(f"{self.where} answers the request for a web socket with {refused.status}")
        raise failure_of(refused, what="the web socket", where=self.where, changes=False, hide=self.secrets)

    async def delete_session(self, *, unused_s: float = 0.0, is_urgent: bool = True) -> None:
        """Delete the session, unless it was used within `unused_s` or the BMC is known to be dead.

        Args:
            is_urgent: a caller waits, so the limit is `BmcLimits.close_s`, else `BmcLimits.release_call_s`.
        """
        if not self.has_session:
            return
        try:
            limit_s = self._limits.close_s if is_urgent else self._limits.release_call_s
            await complete_despite_cancel(self._delete_session(unused_s, limit_s), within_s=self._limits.close_s)
        except bmc_interface.CircuitOpen:
            return
        except (Failure, TimeoutError) as error:
            log.warning("cannot delete redfish session", error=error, bmc=self.where)

    async def _delete_session(self, unused_s: float, limit_s: float) -> None:
        deadline = loop_time() + limit_s
        async with asyncio.timeout(limit_s):
            while True:
                try:
                    async with self._gate.call(within_s=limit_s):
                        if self.unused_s(loop_time()) >= unused_s:
                            await self._auth.end(within_s=limit_s)
                        return
                except bmc_interface.BmcBusy as error:
                    left_s = deadline - loop_time() - DELETION_PAUSE_S
                    if left_s <= 0:
                        raise
                    await asyncio.sleep(min(error.retry_after_s or DELETION_PAUSE_S, left_s))

    async def log_in_again(self) -> None:
        """Let the next call log in, even if the BMC does not delete the present session."""
        await self.delete_session()
        if self.has_session:
            log.warning("redfish session left open: the BMC did not delete it", bmc=self.where)
            self._auth.forget_session()


def _left(deadline: float) -> float:
    return max(deadline - loop_time(), 0.001)


T = TypeVar("T")
SESSIONS: Final = f"{SERVICE_ROOT}/SessionService/Sessions"


async def complete_despite_cancel(work: Coroutine[Any, Any, T], *, within_s: float) -> T:
    """Complete `work` even if the caller is cancelled meanwhile; after a cancellation within `within_s` at most."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        try:
            await asyncio.wait({task}, timeout=within_s)
        finally:
            if not task.done():
                task.cancel()
            elif not task.cancelled():
                task.exception()  # retrieved, as the caller is gone and asyncio would log the exception
        raise


class BmcAuth:
    """Credentials of one BMC account, and their session. Used by one task at a time, under the BMC's gate."""

    def __init__(
        self, http: Http, username: str, password: str, limits: bmc_interface.BmcLimits, *, next_password: str = ""
    ) -> None:
        self._http = http
        self._username = username
        self._given: tuple[str, ...] = ()  # the passwords of the Secret
        self._candidates: list[str] = []  # those that were not rejected; the first is offered
        self._passwords: set[str] = set()  # all that were ever given
        self._offered = ""  # by the last log-in
        self._opened = ""  # the password with which a request was answered last
        self._limits = limits
        self._basic = ""
        self._token = ""
        self._session = ""  # path of the session; "" if the BMC did not send it
        self.refused = ""  # the BMC's message once it has rejected all passwords
        self.offer(password, next_password)

    @property
    def password_in_use(self) -> str:
        """Return the password of the log-in with which the last answered request was made."""
        return self._offered

    def offer(self, *passwords: str) -> None:
        """Offer these passwords from the next log-in on, each until it is rejected, the first one first."""
        first, *others = dict.fromkeys(passwords)
        self._given = (first, *filter(None, others))
        self._candidates = list(self._given)
        self._passwords.update(self._given)
        self.refused = self._basic = ""

    def has_rejected(self, password: str) -> bool:
        """Return whether this password was offered and rejected."""
        return password not in self._candidates

    def confirm(self) -> None:
        """Note that the BMC has accepted the password of the last log-in."""
        self._opened = self._offered

    @property
    def has_session(self) -> bool:
        return bool(self._token)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Secret texts, which must not appear in logs or messages."""
        return (*self._passwords, self._token, self._basic.removeprefix("Basic "))

    async def headers(self, *, within_s: float) -> Mapping[str, str]:
        """Return the header fields that authenticate a request; log in first if necessary.

        A log-in that has begun is completed even if the caller is cancelled, as its session would remain on the BMC.
        """
        if self.refused:
            raise bmc_interface.PasswordRejected(self.refused)
        while not self._token and not self._basic:
            await complete_despite_cancel(self._log_in(within_s), within_s=self._limits.close_s)
        return {"X-Auth-Token": self._token} if self._token else {"Authorization": self._basic}

    def denied(self, answer: BmcResponse) -> bool:
        """Handle a 401 to an authenticated request; True if another log-in may help: the session had expired, or
        another password is left.

        Raises:
            PasswordRejected: the request used basic auth, and no other password is left.
        """
        if self._token:
            self.forget_session()
            return True
        self._basic = ""
        self._reject(answer)
        return True

    async def _log_in(self, within_s: float) -> None:
        """Offer one password. If the BMC rejects it and another one is left, nothing is raised."""
        self._offered = self._candidates[0]
        body = {"UserName": self._username, "Password": self._offered}
        answer = await self._http.send("POST", SESSIONS, body=body, within_s=within_s)
        token = answer.headers.get("X-Auth-Token", "")
        if answer.ok and token and token.isascii() and token.isprintable():
            self._token, self._session = token, self._session_path(answer)
            log.debug("redfish session opened", bmc=self._http.endpoint.origin)
            return
        await self._without_session(answer, within_s)

    async def _without_session(self, answer: BmcResponse, within_s: float) -> None:
        """Handle a log-in without a session: use basic auth if the answer means that there are none, else raise."""
        reason = bmc_interface.error_text(answer.hints())
        where = self._http.endpoint.origin
        if answer.status in (401, 403) or (answer.status == 400 and LOGIN_REFUSED.search(reason)):
            if answer.status != 401 or await self._offers_sessions(within_s):
                self._reject(answer)
                return
        elif not (answer.ok or answer.status in NO_SESSIONS or SESSION_LIMIT.search(reason)):
            message = bmc_interface.clean(
                f"{where}: login answered {answer.status}: {reason or 'no details'}", hide=self.secrets
            )
            if answer.status in (429, 503):
                raise bmc_interface.BmcBusy(message, retry_after_s=answer.retry_after_s)
            raise (Rejected if answer.status < 500 else bmc_interface.BmcBusy)(message)
        log.debug("redfish without session", bmc=where, status=answer.status)
        pair = f"{self._username}:{self._offered}".encode()
        self._basic = "Basic " + base64.b64encode(pair).decode("ascii")

    async def _offers_sessions(self, within_s: float) -> bool:
        """Return whether a 401 to the log-in means a wrong password.

        A service without sessions that requires basic auth everywhere (the emulator of sushy-tools) answers 401, too,
        and has not checked the password yet. Anyone can read the service root (DSP0266, 13.3.3).
        """
        try:
            root = (await self._http.send("GET", f"{SERVICE_ROOT}/", within_s=within_s)).document()
        except Failure:
            return True  # unknown: do not offer the password a second time
        links = root.get("Links")
        return "SessionService" in root or (isinstance(links, Mapping) and "Sessions" in links)

    def _reject(self, answer: BmcResponse) -> None:
        """Do not offer the password of the last log-in any more.

        If it has opened the BMC before, the password was changed there, and another one may be right by now.

        Raises:
            PasswordRejected: no other one is left.
        """
        left = self._given if self._opened == self._offered else self._candidates
        self._candidates = [one for one in left if one != self._offered]
        self._opened = ""
        if self._candidates:
            log.info("BMC rejected the password; the other one in the Secret is next", bmc=self._http.endpoint.origin)
            return
        message = bmc_interface.error_text(answer.hints())
        text = f"{self._http.endpoint.origin} rejected the password of {self._username!r} ({answer.status})"
        self.refused = bmc_interface.clean(f"{text}: {message}" if message else text, hide=self.secrets)
        raise bmc_interface.PasswordRejected(self.refused)

    @staticmethod
    def _session_path(answer: BmcResponse) -> str:
        found = answer.headers.get("Location") or answer.hints().get("@odata.id")
        return found if isinstance(found, str) else ""

    async def end(self, *, within_s: float) -> None:
        """Delete the session, if there is one, and forget basic auth, so that the next call tries a session again.

        Raises:
            Failure: the BMC did not answer, or was busy; the session is kept for later use or deletion.
        """
        self._basic = ""
        if not self._token:
            return
        where = self._http.endpoint.origin
        if not self._session:
            log.warning("redfish session left open: the BMC did not report its address", bmc=where)
            self.forget_session()
            return
        headers = {"X-Auth-Token": self._token}
        answer = await self._http.send("DELETE", self._session, headers=headers, within_s=within_s)
        if answer.status == 429 or answer.status >= 500:
            message = f"{where}: the deletion of the session answered {answer.status}"
            raise bmc_interface.BmcBusy(message, retry_after_s=answer.retry_after_s)
        self.forget_session()
        log.debug("redfish session deleted", bmc=where, status=answer.status)

    def forget_session(self) -> None:
        """Use the session no longer, without deleting it."""
        self._token = self._session = ""
