"""Tokens of service accounts: renewed in time, kept while there is nothing better, and never taken for an answer."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.kube.api import ApiError, NotFound, ServerUnreachable
from unbounded.kube.clock import rfc3339
from unbounded.kube.credentials import AccountToken, IssuedToken


class Issuer:
    """Issues tokens of an hour, one number after the other, until a test makes it fail."""

    def __init__(self) -> None:
        self.count = 0
        self.failure: ApiError | None = None

    async def __call__(self) -> IssuedToken:
        await asyncio.sleep(0.1)
        if self.failure is not None:
            raise self.failure
        self.count += 1
        return IssuedToken(f"token-{self.count}", rfc3339(virtual_now() + timedelta(hours=1)))


def tokens(issuer: Issuer) -> AccountToken:
    return AccountToken("service account machina", issuer, now=virtual_now)


def test_token_is_requested_once_and_renewed_at_80_percent_of_validity() -> None:
    async def main() -> None:
        issuer = Issuer()
        credentials = tokens(issuer)
        first = await asyncio.gather(*(credentials.login() for _ in range(5)))
        assert {login.token for login in first} == {"token-1"}
        await asyncio.sleep(0.79 * 3600)
        assert (await credentials.login()).token == "token-1"
        await asyncio.sleep(0.02 * 3600)
        assert (await credentials.login()).token == "token-2"
        assert issuer.count == 2

    run_virtual(main())


def test_valid_token_survives_issuer_failures_and_expiry_names_the_account() -> None:
    async def main() -> None:
        issuer = Issuer()
        credentials = tokens(issuer)
        await credentials.login()
        issuer.failure = NotFound('serviceaccounts "machina" not found')
        await asyncio.sleep(0.9 * 3600)
        assert (await credentials.login()).token == "token-1"
        await asyncio.sleep(0.1 * 3600)
        with pytest.raises(
            ServerUnreachable, match='token of service account machina: serviceaccounts "machina" not found'
        ):
            await credentials.login()
        issuer.failure = None
        assert (await credentials.login()).token == "token-2"

    run_virtual(main())


def test_a_token_that_is_refused_is_replaced() -> None:
    async def main() -> None:
        credentials = tokens(Issuer())
        login = await credentials.login()
        assert credentials.refused(login)
        assert (await credentials.login()).token == "token-2"
        assert credentials.refused(login)  # late: the newer one stays
        assert (await credentials.login()).token == "token-2"

    run_virtual(main())
