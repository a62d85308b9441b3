"""Authenticated calls to one BMC account: wait for the turn, log in if necessary, send, and repeat both on a 401."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from unbounded.api.failures import Failure, Transient
from unbounded.kube.clock import loop_time
from unbounded.kube.logs import Log
from unbounded.metalman.redfish.auth import BmcAuth, complete_despite_cancel
from unbounded.metalman.redfish.failures import BmcBusy, CircuitOpen
from unbounded.metalman.redfish.gate import BmcGate
from unbounded.metalman.redfish.http import BmcResponse, Http
from unbounded.metalman.redfish.ports import BmcLimits

log = Log(__name__)


class BmcChannel:
    """Transport of `Client`. Answers of any status are returned; only transport and log-in raise."""

    def __init__(self, http: Http, auth: BmcAuth, gate: BmcGate, limits: BmcLimits) -> None:
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
                    raise BmcBusy(
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
                if answer.status != 401 or not self._auth.denied(answer):
                    break
                if last:
                    raise Transient(f"{self.where} rejects the session that it has just created (401)")
        return answer

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
        except CircuitOpen:
            return
        except (Failure, TimeoutError) as error:
            log.warning("cannot delete redfish session", error=error, bmc=self.where)

    async def _delete_session(self, unused_s: float, limit_s: float) -> None:
        async with asyncio.timeout(limit_s), self._gate.call(within_s=limit_s):
            if self.unused_s(loop_time()) >= unused_s:
                await self._auth.end(within_s=limit_s)


def _left(deadline: float) -> float:
    return max(deadline - loop_time(), 0.001)
