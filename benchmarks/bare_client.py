"""The peer of metalman: a minimal client that reboots hosts over Redfish.

It sends metalman's requests in the same order and with the same pauses, and pins certificates in the same way. It
stores no state, watches nothing and handles no failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Final

import aiohttp
import msgspec

from unbounded.api.operation import MachineOperation, MachineOperationSpec, OperationKind
from unbounded.metalman import power
from unbounded.workflow.procedure import Procedure
from unbounded_lab.bmc.fleet import FleetBmc

SESSIONS: Final = "/redfish/v1/SessionService/Sessions"
SYSTEMS: Final = "/redfish/v1/Systems"
CALL: Final = aiohttp.ClientTimeout(total=30.0)
REBOOT_S: Final = 60.0


async def reboot_all(bmcs: Iterable[FleetBmc], *, concurrent: int) -> None:
    """Reboot each host once, `concurrent` at a time."""
    limiter = asyncio.Semaphore(concurrent)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=CALL, cookie_jar=aiohttp.DummyCookieJar()) as http:

        async def one(bmc: FleetBmc) -> None:
            async with limiter, asyncio.timeout(REBOOT_S):
                await _Bmc(http, bmc).reboot()

        await _all(one(bmc) for bmc in bmcs)


async def _all(work: Iterable[Awaitable[None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for one in work:
            group.create_task(_awaited(one))


async def _awaited(one: Awaitable[None]) -> None:
    await one


class _Bmc:
    """One BMC and its session."""

    def __init__(self, http: aiohttp.ClientSession, bmc: FleetBmc) -> None:
        self._http = http
        self._bmc = bmc
        self._pin = aiohttp.Fingerprint(bytes.fromhex(bmc.fingerprint.replace(":", "")))
        self._system = f"{SYSTEMS}/{bmc.device_ids[0]}"
        self._token: dict[str, str] = {}

    async def reboot(self) -> None:
        session = await self._log_in()
        system = await self._send("GET", self._system)
        target = system["Actions"]["#ComputerSystem.Reset"]["target"]
        for reset_type, state in (("GracefulShutdown", "Off"), ("On", "On")):
            await self._send("POST", target, {"ResetType": reset_type})
            await self._wait(state)
        await self._send("DELETE", session)

    async def _log_in(self) -> str:
        body = {"UserName": self._bmc.username, "Password": self._bmc.password}
        async with self._http.post(self._bmc.url + SESSIONS, json=body, ssl=self._pin) as answer:
            answer.raise_for_status()
            await answer.read()
            self._token = {"X-Auth-Token": answer.headers["X-Auth-Token"]}
            return answer.headers["Location"]

    async def _wait(self, state: str) -> None:
        polls = 0
        while True:
            await asyncio.sleep(AS_METALMAN.poll_s(polls))
            if (await self._send("GET", self._system))["PowerState"] == state:
                return
            polls += 1

    async def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        url = path if path.startswith("https:") else self._bmc.url + path
        async with self._http.request(method, url, json=body, headers=self._token, ssl=self._pin) as answer:
            answer.raise_for_status()
            content = await answer.read()
            return msgspec.json.decode(content, type=dict[str, Any]) if content else {}


def _procedure() -> Procedure:
    return power.reboot(MachineOperation(spec=MachineOperationSpec(operation_kind=OperationKind.HOST_REBOOT)))


AS_METALMAN: Final = _procedure()
