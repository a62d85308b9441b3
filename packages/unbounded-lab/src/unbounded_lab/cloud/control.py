"""The control interface of a simulated cloud: plain HTTP on loopback, on a port of its own.

| request | effect |
|---|---|
| GET /lab/profiles | list the profiles, each with a line about it |
| GET /lab/cloud | show the cloud: the dials that differ from `ideal`, and its load |
| GET /lab/cloud/history | list what really happened, with times |
| GET /lab/cloud/journal | list the last requests, with their replies |
| PUT /lab/cloud/profile `{"profile": P}` | set all dials to a profile |
| PATCH /lab/cloud/dials `{DIAL: VALUE}` | set single dials |
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from aiohttp import web

from unbounded_lab.cloud.local import LabCloud
from unbounded_lab.control import answer_errors, json_response, read_object
from unbounded_lab.dials import turned

PREFIX: Final = "/lab/cloud"


class CloudControl:
    def __init__(self, cloud: LabCloud[Any]) -> None:
        self._cloud = cloud

    def application(self) -> web.Application:
        app = web.Application(middlewares=[answer_errors])
        app.add_routes(
            [
                web.get("/lab/profiles", self._profiles),
                web.get(PREFIX, self._describe),
                web.get(f"{PREFIX}/history", self._history),
                web.get(f"{PREFIX}/journal", self._journal),
                web.put(f"{PREFIX}/profile", self._set_profile),
                web.patch(f"{PREFIX}/dials", self._set_dials),
            ]
        )
        return app

    async def _profiles(self, _request: web.Request) -> web.Response:
        table = self._cloud.table
        return json_response({name: table.explain(name) for name in table.names()})

    async def _describe(self, _request: web.Request) -> web.Response:
        cloud = self._cloud
        return json_response(
            {
                "name": cloud.name,
                "url": cloud.url,
                "now": cloud.now,
                "profile": cloud.profile,
                "dials": turned(cloud.dials),
                "requests": len(cloud.journal),
                "concurrent": cloud.concurrent,
                "mostConcurrent": cloud.most_concurrent,
            }
        )

    async def _history(self, _request: web.Request) -> web.Response:
        return json_response([asdict(event) for event in self._cloud.history.events])

    async def _journal(self, _request: web.Request) -> web.Response:
        return json_response([asdict(exchange) for exchange in self._cloud.journal])

    async def _set_profile(self, request: web.Request) -> web.Response:
        self._cloud.set_profile(str((await read_object(request)).get("profile", "")))
        return await self._describe(request)

    async def _set_dials(self, request: web.Request) -> web.Response:
        self._cloud.set_dials(**await read_object(request))
        return await self._describe(request)
