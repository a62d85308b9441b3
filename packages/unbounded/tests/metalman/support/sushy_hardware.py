"""The host behind a system of the sushy-tools emulator: its board, as `netboot_host` wants it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp

from tests.support.sushy import PASSWORD, USERNAME, Sushy

LOOK_S: Final = 0.1


class SushyHardware:
    """Follows the system by polling it, as it sends no events. Valid inside `sushy_hardware`."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self._on = False
        self._sources: list[str] = []
        self._asked: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        while True:
            system = await self._system()
            on = system["PowerState"] == "On"
            if on and not self._on:
                self._boot(system)
            self._on = on
            await asyncio.sleep(LOOK_S)

    def boots(self) -> list[str]:
        return list(self._sources)

    def is_on(self) -> bool:
        return self._on

    def restart(self) -> None:
        self._asked.append(asyncio.create_task(self._restart()))

    def switch_off(self) -> None:
        self._asked.append(asyncio.create_task(self._reset("ForceOff")))

    async def _restart(self) -> None:
        """A power cycle: whether the fake system shows Off during a ForceRestart is a matter of chance."""
        await self._reset("ForceOff")
        while self._on:  # noqa: ASYNC110 - that is polled itself
            await asyncio.sleep(LOOK_S)
        await asyncio.sleep(1)  # another client clears the override meanwhile
        await self._reset("On")

    def _boot(self, system: dict[str, Any]) -> None:
        boot = system["Boot"]
        enabled = boot["BootSourceOverrideEnabled"] != "Disabled"
        self._sources.append(boot["BootSourceOverrideTarget"] if enabled else "Hdd")

    async def _system(self) -> dict[str, Any]:
        async with self._session.get(self._url) as answer:
            found: dict[str, Any] = await answer.json()
            return found

    async def _reset(self, kind: str) -> None:
        async with self._session.post(f"{self._url}/Actions/ComputerSystem.Reset", json={"ResetType": kind}) as answer:
            assert answer.status < 300, await answer.text()


@asynccontextmanager
async def sushy_hardware(server: Sushy, device_id: str) -> AsyncIterator[SushyHardware]:
    headers = {"Authorization": aiohttp.encode_basic_auth(USERNAME, PASSWORD)}
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=False)) as session:
        hardware = SushyHardware(session, f"{server.url}/redfish/v1/Systems/{device_id}")
        task = asyncio.create_task(hardware.run())
        try:
            yield hardware
        finally:
            task.cancel()
            await asyncio.wait({task})
