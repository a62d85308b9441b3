"""SSH client that is imported on its first use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from unbounded.machina.ssh.model import FirstUse, Shell, Ssh, SshRoute


class LazySshClient:
    """An `Ssh` that imports asyncssh on the first login. The import takes as long as all others of machina."""

    def __init__(self) -> None:
        self._client: Ssh | None = None
        self._one_at_a_time = asyncio.Lock()

    @property
    def connections(self) -> int:
        return 0 if self._client is None else self._client.connections

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def probe(self, route: SshRoute, *, on_first_use: FirstUse) -> None:
        client = await self._ready()
        await client.probe(route, on_first_use=on_first_use)

    @asynccontextmanager
    async def login(self, route: SshRoute, *, on_first_use: FirstUse) -> AsyncIterator[Shell]:
        client = await self._ready()
        async with client.login(route, on_first_use=on_first_use) as shell:
            yield shell

    async def _ready(self) -> Ssh:
        async with self._one_at_a_time:
            if self._client is None:
                self._client = (await asyncio.to_thread(_imported))()
        return self._client


def _imported() -> type[Ssh]:
    from unbounded.machina.ssh.client import SshClient  # noqa: PLC0415

    return SshClient
