"""Concurrent work: the failure is the relevant one, and no work continues after it."""

from __future__ import annotations

import asyncio

import pytest

from unbounded.api.failures import Transient
from unbounded.kube.gather import gather


async def test_the_failure_comes_by_itself_and_the_others_have_ended() -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("waits")

    async def fails() -> None:
        await asyncio.sleep(0)
        raise Transient("refused")

    with pytest.raises(Transient, match="refused"):
        await gather([waits(), fails()])
    assert ended == ["waits"]


async def test_our_own_bug_is_not_hidden_behind_a_failure_of_the_outside() -> None:
    async def fails() -> None:
        raise Transient("refused")

    async def is_wrong() -> None:
        raise KeyError("bug")

    async def both() -> None:
        await gather([fails(), is_wrong()])

    with pytest.raises(KeyError, match="bug"):
        await gather([fails(), both()])
