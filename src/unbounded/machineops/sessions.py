"""The session of a site's credential, as the credential is now."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from unbounded.kube.logs import Log
from unbounded.machineops import reasons
from unbounded.machineops.credentials import Chosen, Logins
from unbounded.machineops.provider import Budget, Provider, Session
from unbounded.operations.ports import Refusal

CLOSE_S: Final = 5.0

log = Log("machine-ops-controller")


@dataclass
class _Open:
    made_of: tuple[str, ...]
    session: Session
    calls: int = 0


class Sessions:
    """One session at a time; one whose credential has changed ends when the calls that use it have."""

    def __init__(self, provider: Provider, site: str, logins: Logins, budget: Budget) -> None:
        self._provider = provider
        self._site = site
        self._logins = logins
        self._budget = budget
        self._open: _Open | None = None

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Session]:
        """A session for the calls made inside.

        Raises:
            Refusal: there is no credential that can be used.
        """
        try:
            chosen = await self._logins.of(self._site)
            before = used = self._open
            if used is None or used.made_of != chosen.made_of:
                used = self._open = _Open(chosen.made_of, self._connect(chosen))
        except Refusal:
            self._logins.forget()  # what is wrong with a Secret may be corrected before it is looked at again
            raise
        used.calls += 1
        try:
            if before is not None and before is not used and before.calls == 0:
                await _closed(before.session)
            yield used.session
        finally:
            used.calls -= 1
            if used.calls == 0 and used is not self._open:
                await _closed(used.session)

    def refused(self) -> None:
        """The cloud has refused the login: read its Secret anew, which may have been corrected."""
        self._logins.forget()

    async def close(self) -> None:
        """End the session, if there is one."""
        used, self._open = self._open, None
        if used is not None:
            await _closed(used.session)

    def _connect(self, chosen: Chosen) -> Session:
        try:
            return self._provider.connect(chosen.login, self._budget)
        except ValueError as error:
            wrong = _wrong_in(chosen, str(error))
            told = f"MachineOperationCredential {chosen.login.name}: {wrong}{error}"
            raise Refusal(reasons.AUTH_INVALID, told) from error


def _wrong_in(chosen: Chosen, said: str) -> str:
    """What holds the keys of which something is said, as a beginning for that; empty where nothing does."""
    if not chosen.secret:
        return ""
    keys = ", ".join(key for key in chosen.login.secret if re.search(rf"(?<!\w){re.escape(key)}(?!\w)", said))
    return f"{chosen.secret} is wrong{keys and f' in {keys}'}: "


async def _closed(session: Session) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await session.close()
    except Exception as error:  # a third party's: its end is nothing that work rests on
        log.warning("a session did not close", error=error)
