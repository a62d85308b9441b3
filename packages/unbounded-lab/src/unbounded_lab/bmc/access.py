"""Access to a BMC: one account, its password, sessions with their limits, and the lock-out. No clock."""

from __future__ import annotations

import hmac
import random
from dataclasses import dataclass
from typing import Final

from unbounded_lab.bmc.faults import BmcFaults
from unbounded_lab.bmc.redfish import BmcRequest, RedfishProblem

TOKEN_HEADER: Final = "x-auth-token"  # noqa: S105 - the name of a header
ACCOUNT_ID: Final = "1"
ACCOUNT: Final = f"/redfish/v1/AccountService/Accounts/{ACCOUNT_ID}"
SESSIONS: Final = "/redfish/v1/SessionService/Sessions"
ROLE: Final = "Administrator"
CHALLENGE: Final = {"www-authenticate": 'Basic realm="Redfish"'}


@dataclass(slots=True)
class BmcSession:
    id: str
    token: str
    created: float
    used: float
    requests: int = 0


class BmcAccounts:
    """The account and the sessions of one BMC. It counts rejections, for tests."""

    def __init__(self, username: str, password: str, rng: random.Random) -> None:
        self.username = username
        self.password = password
        self.password_changed = False
        self.passwords_set: list[str] = []
        self._pending: list[tuple[float, str]] = []
        self.refused_logins = 0
        self.logins = 0
        self.locked_until = 0.0
        self._wrong = 0
        self._by_token: dict[str, BmcSession] = {}
        self._last_id = 0
        self._rng = rng

    def sessions(self, now: float, faults: BmcFaults) -> list[BmcSession]:
        """Return the open sessions, oldest first, after removing expired ones."""
        for session in [each for each in self._by_token.values() if now - each.used > faults.session_timeout_s]:
            del self._by_token[session.token]
        return list(self._by_token.values())

    def session(self, session_id: str, now: float, faults: BmcFaults) -> BmcSession | None:
        return next((each for each in self.sessions(now, faults) if each.id == session_id), None)

    def login(self, username: str, password: str, now: float, faults: BmcFaults) -> BmcSession:
        """Open a session.

        Raises:
            RedfishProblem: a wrong password, a locked account, or too many sessions.
        """
        self.advance(now, faults)
        if faults.session_service == "refuses":
            raise RedfishProblem("NoValidSession")
        self.check_password(username, password, now, faults)
        if len(self.sessions(now, faults)) + faults.leaked_sessions >= faults.session_limit:
            raise RedfishProblem("SessionLimitExceeded")
        self._last_id += 1
        session = BmcSession(str(self._last_id), f"{self._rng.getrandbits(128):032x}", created=now, used=now)
        self._by_token[session.token] = session
        self.logins += 1
        return session

    def logout(self, session: BmcSession) -> None:
        self._by_token.pop(session.token, None)

    def forget_sessions(self) -> None:
        """End all sessions, as a restart of the BMC does."""
        self._by_token.clear()

    def admit(self, request: BmcRequest, now: float, faults: BmcFaults) -> None:
        """Authenticate a request by its token or its Basic authorization.

        Raises:
            RedfishProblem: it has neither, or it is not valid, or the password has to be changed before anything else.
        """
        self.advance(now, faults)
        token = request.headers.get(TOKEN_HEADER)
        if token is not None:
            self._use(token, now, faults)
        elif (credentials := request.basic_credentials()) is not None:
            self.check_password(*credentials, now, faults)
        else:
            raise RedfishProblem("NoValidSession", headers=CHALLENGE)
        own = request.path.startswith(SESSIONS) or request.path.rstrip("/") == ACCOUNT
        if faults.password_expired and not self.password_changed and not own:
            raise RedfishProblem("PasswordChangeRequired", ACCOUNT)

    def change_password(self, password: str) -> None:
        self.password = password
        self.password_changed = True

    def request_password(self, password: str, now: float, faults: BmcFaults) -> None:
        """Change the password as the faults require, now or later.

        Raises:
            RedfishProblem: the BMC's rules forbid this password.
        """
        if faults.rotation == "refused":
            raise RedfishProblem("PropertyValueFormatError", password, "Password")
        self.passwords_set.append(password)
        if faults.rotation != "ignored":
            self._pending.append((now + faults.rotation_after_s, password))
        self.advance(now, faults)

    def advance(self, now: float, faults: BmcFaults) -> None:
        """Let the changes take effect that are due."""
        while self._pending and self._pending[0][0] <= now:
            self.change_password(self._pending.pop(0)[1])
            if faults.rotation_ends_sessions:
                self.forget_sessions()

    def _use(self, token: str, now: float, faults: BmcFaults) -> None:
        self.sessions(now, faults)
        session = self._by_token.get(token)
        if session is None:
            raise RedfishProblem("NoValidSession")
        if faults.session_requests is not None and session.requests >= faults.session_requests:
            self.logout(session)
            raise RedfishProblem("NoValidSession")
        session.used = now
        session.requests += 1

    def check_password(self, username: str, password: str, now: float, faults: BmcFaults) -> None:
        locked = faults.lockout_after > 0 and now < self.locked_until
        right = _same(username, self.username) & _same(password, self.password)
        if right and not locked:
            self._wrong = 0
            return
        self.refused_logins += 1
        self._wrong += not locked
        if not locked and faults.lockout_after > 0 and self._wrong >= faults.lockout_after:
            self.locked_until = now + faults.lockout_s
            self._wrong = 0
        raise RedfishProblem("NoValidSession", headers=CHALLENGE)


def _same(given: str, held: str) -> bool:
    return hmac.compare_digest(given.encode(), held.encode())
