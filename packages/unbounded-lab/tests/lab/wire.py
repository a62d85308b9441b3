"""A plain HTTPS client for tests of the simulator: no retries, no cleverness, one connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from unbounded_lab.bmc import LabBmc, ManualClock

ROOT = "/redfish/v1"
SYSTEM = f"{ROOT}/Systems/1"
RESET = f"{SYSTEM}/Actions/ComputerSystem.Reset"
SESSIONS = f"{ROOT}/SessionService/Sessions"
PXE_ONCE = {"Boot": {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe"}}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def message_id(self) -> str:
        return str(self.json["error"]["@Message.ExtendedInfo"][0]["MessageId"])


class Wire:
    """A client with Basic authorization, and the BMC's clock in its hand."""

    def __init__(self, bmc: LabBmc, clock: ManualClock, http: aiohttp.ClientSession) -> None:
        self.bmc = bmc
        self.clock = clock
        self._http = http

    async def ask(
        self, method: str, path: str, body: Any = None, *, token: str | None = None, base: str = "", **headers: str
    ) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            named["x-auth-token"] = token
        else:
            named.setdefault("authorization", aiohttp.encode_basic_auth(self.bmc.username, self.bmc.password))
        url = (base or self.bmc.url) + path
        async with (
            asyncio.timeout(30),
            self._http.request(method, url, json=body, headers=named, allow_redirects=False) as answer,
        ):
            content = await answer.read()
            return Answer(answer.status, {name.lower(): value for name, value in answer.headers.items()}, content)

    def open(self, path: str, **headers: str) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Open an answer that does not end."""
        named = {"authorization": aiohttp.encode_basic_auth(self.bmc.username, self.bmc.password), **headers}
        return self._http.get(self.bmc.url + path, headers=named, timeout=aiohttp.ClientTimeout(total=None))

    def upgrade(self, path: str, **headers: str) -> AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]:
        """Open a web socket."""
        named = {"authorization": aiohttp.encode_basic_auth(self.bmc.username, self.bmc.password), **headers}
        return self._http.ws_connect(self.bmc.url + path, headers=named)

    async def get(self, path: str = SYSTEM) -> Answer:
        return await self.ask("GET", path)

    async def reset(self, reset_type: str, path: str = RESET, **headers: str) -> Answer:
        return await self.ask("POST", path, {"ResetType": reset_type}, **headers)

    async def login(self, password: str | None = None) -> Answer:
        body = {"UserName": self.bmc.username, "Password": self.bmc.password if password is None else password}
        return await self.ask("POST", SESSIONS, body, authorization="")

    async def shown_power(self) -> Any:
        return (await self.get()).json["PowerState"]


@asynccontextmanager
async def wire(profile: str, **settings: Any) -> AsyncIterator[Wire]:
    """A BMC of a profile with a fixed clock, and a client for it."""
    clock = ManualClock()
    connector = aiohttp.TCPConnector(ssl=False)
    async with (
        LabBmc(profile=profile, clock=clock, **settings) as bmc,
        aiohttp.ClientSession(connector=connector) as http,
    ):
        yield Wire(bmc, clock, http)
