"""Calls to a BMC's AccountService: find the account of a user name, and set its password."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from unbounded.api.failures import Rejected
from unbounded.metalman.redfish import documents
from unbounded.metalman.redfish.client import RedfishClient
from unbounded.metalman.redfish.documents import AccountReading, AccountServiceReading
from unbounded.metalman.redfish.endpoint import SERVICE_ROOT
from unbounded.metalman.redfish.ports import BmcUser, Unsupported, clean

ACCOUNT_SERVICE: Final = f"{SERVICE_ROOT}/AccountService"
MAX_ACCOUNTS: Final = 64
WHAT: Final = "the new password"


@dataclass(frozen=True, slots=True)
class _Found:
    path: str
    service: AccountServiceReading
    account: AccountReading


class AccountClient:
    """Calls to the AccountService of one BMC."""

    def __init__(self, client: RedfishClient) -> None:
        self._client = client

    async def find(self, username: str, next_password: str) -> BmcUser:
        """See `PooledBmc.user`."""
        found = await self._find(username)
        channel, service = self._client.channel, found.service
        is_rejected = bool(next_password) and channel.has_rejected(next_password)
        return BmcUser(found.path, channel.password_in_use, is_rejected, service.min_length, service.max_length)

    async def set_password(self, username: str, password: str, next_password: str, leave_by: float) -> bool:
        """Set a password; return whether it is set, not only accepted.

        An account with the action ChangePassword, which has the former password as a parameter, gets it where the BMC
        refuses the plain change.
        """
        found = await self._find(username)
        try:
            return await self._client.change("PATCH", found.path, {"Password": next_password}, WHAT, leave_by)
        except Unsupported:
            if found.account.change_path is None:
                raise
        body = {"NewPassword": next_password, "SessionAccountPassword": password}
        return await self._client.change("POST", found.account.change_path, body, WHAT, leave_by)

    async def _find(self, username: str) -> _Found:
        answer = await self._client.channel.get(ACCOUNT_SERVICE)
        own = documents.own_account(answer)
        if own is not None:  # until its password is changed, the BMC shows nothing else
            return _Found(own, AccountServiceReading(None, None, None), AccountReading(username, None))
        if not answer.ok:
            raise self._client.refusal(answer, "the AccountService", changes=False)
        service = documents.account_service(answer.document())
        if service.accounts_path is None:
            raise Unsupported(f"{self._where}: its AccountService has no accounts")
        listed = documents.members(await self._client.document(service.accounts_path, "the list of accounts"))
        users = []
        for name, path in list(listed.items())[:MAX_ACCOUNTS]:
            account = documents.account(await self._client.document(path, f"account {clean(name)}"))
            if account.user == username:
                return _Found(path, service, account)
            users.append(account.user)
        shown = clean(", ".join(filter(None, users))) or "none"
        raise Rejected(f"{self._where}: it lists no account of {username!r}; it lists: {shown}")

    @property
    def _where(self) -> str:
        return self._client.channel.where
