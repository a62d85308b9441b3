"""Session of a site's current credential."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from unbounded.kube.logs import Log
from unbounded.machineops import causes, reasons
from unbounded.machineops.credentials import SelectedLogin, SiteLogins
from unbounded.machineops.provider import Budget, Provider, Session
from unbounded.operations.ports import Refusal

CLOSE_S: Final = 5.0

log = Log("machine-ops-controller")


@dataclass
class _Open:
    made_of: tuple[str, ...]
    session: Session
    credential: str
    calls: int = 0


class Sessions:
    """One session at a time. After a change of the credential, the old session closes once its calls have ended."""

    def __init__(self, provider: Provider, site: str, logins: SiteLogins, budget: Budget) -> None:
        self._provider = provider
        self._site = site
        self._logins = logins
        self._budget = budget
        self._open: _Open | None = None

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Session]:
        """Provide a session for the calls in the block.

        Raises:
            Refusal: there is no usable credential.
        """
        try:
            chosen = await self._logins.login_for(self._site)
            before = used = self._open
            if used is None or used.made_of != chosen.made_of:
                used = self._open = _Open(chosen.made_of, self._connect(chosen), chosen.login.name)
        except Refusal:
            self._logins.invalidate()  # the user may have corrected the Secret before the next attempt
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

    def invalidate_login(self) -> str:
        """Drop the cached Secret of a refused login: the user may have corrected it.

        Returns:
            The MachineOperationCredential of the login.
        """
        self._logins.invalidate()
        return self._open.credential if self._open is not None else ""

    async def close(self) -> None:
        """Close the session, if there is one."""
        used, self._open = self._open, None
        if used is not None:
            await _closed(used.session)

    def _connect(self, chosen: SelectedLogin) -> Session:
        try:
            return self._provider.connect(chosen.login, self._budget)
        except ValueError as error:
            raise _unusable(chosen, str(error)) from error


def _unusable(chosen: SelectedLogin, message: str) -> Refusal:
    """Return the refusal of a login that the provider cannot use; names the keys of the Secret in the message."""
    name = chosen.login.name
    if not chosen.secret:
        cause = causes.of_credential(causes.CREDENTIAL_INVALID, name)
        return Refusal(reasons.AUTH_INVALID, f"MachineOperationCredential {name}: {message}", cause)
    keys = ", ".join(key for key in chosen.login.secret if re.search(rf"(?<!\w){re.escape(key)}(?!\w)", message))
    wrong = f"Secret {chosen.secret} is invalid{keys and f' in {keys}'}: {message}"
    cause = causes.of_secret(causes.SECRET_INVALID, chosen.secret, keys, name)
    return Refusal(reasons.AUTH_INVALID, f"MachineOperationCredential {name}: {wrong}", cause)


async def _closed(session: Session) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await session.close()
    except Exception as error:  # a failing `close` of a third-party session has no effect on operations
        log.warning("cannot close session", error=error)
