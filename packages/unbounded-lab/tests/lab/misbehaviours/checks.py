"""Checks over HTTPS that a misbehaviour does what its description says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.lab.wire import PXE_ONCE, SYSTEM, Answer, Wire, wire

Check = Callable[[Wire], Awaitable[None]]


class Checks(dict[str, Check]):
    """Checks by the names of misbehaviours."""

    def shows(self, check: Check) -> Check:
        """The misbehaviour that has the name of a function is shown by it."""
        self[check.__name__.replace("_", "-")] = check
        return check

    async def show(self, name: str) -> None:
        async with wire(name) as talk:
            await self[name](talk)


async def patched(talk: Wire, **headers: str) -> Answer:
    return await talk.ask("PATCH", SYSTEM, PXE_ONCE, **headers)
