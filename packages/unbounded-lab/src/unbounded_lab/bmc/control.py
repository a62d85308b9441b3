"""The control interface of simulated BMCs: plain HTTP on loopback, under `/lab`, on a port that no BMC has.

| request | effect |
|---|---|
| GET /lab/profiles | list the profiles, each with a line about it |
| GET /lab/bmcs | list all BMCs |
| GET /lab/bmcs/NAME | show one BMC: its true power, counters, and the dials that differ from `ideal` |
| GET /lab/bmcs/NAME/history?system=ID | list the events of a host, with times |
| GET /lab/bmcs/NAME/journal | list the last requests, with their replies |
| PUT /lab/bmcs/NAME/profile `{"profile": P}` | set all dials to a profile |
| PATCH /lab/bmcs/NAME/dials `{DIAL: VALUE}` | set single dials |
| POST /lab/bmcs/NAME/unplug, …/plug | cut or restore the mains |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from aiohttp import web

from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.profiles import explain, names
from unbounded_lab.control import answer_errors, json_response, read_object
from unbounded_lab.dials import turned

PREFIX: Final = "/lab/bmcs"


def describe(bmc: LabBmc) -> dict[str, Any]:
    """Return a BMC's address and credentials, which do not change."""
    return {
        "name": bmc.identity.name,
        "url": bmc.url,
        "username": bmc.username,
        "password": bmc.password,
        "deviceIDs": bmc.device_ids,
        "certFingerprint": bmc.fingerprint,
        "profile": bmc.profile,
    }


def truth(bmc: LabBmc) -> dict[str, Any]:
    """Return the true state of a BMC and its hosts."""
    now = bmc.clock.now()
    systems = {
        name: {"power": host.power.value, "boots": host.boots, "boot": asdict(host.boot)}
        for name, host in ((name, bmc.host(name)) for name in bmc.device_ids)
    }
    return describe(bmc) | {
        "now": now,
        "plainURL": bmc.plain_url,
        "mains": bmc.bmc.mains,
        "systems": systems,
        "dials": turned(bmc.bmc.dials),
        "requests": bmc.bmc.requests,
        "mostConcurrent": bmc.most_concurrent,
        "sessions": len(bmc.bmc.access.sessions(now, bmc.bmc.dials)),
        "logins": bmc.bmc.access.logins,
        "refusedLogins": bmc.bmc.access.refused_logins,
    }


class BmcControl:
    """Handlers for the BMCs of this process, by name."""

    def __init__(self, bmcs: Mapping[str, LabBmc]) -> None:
        self._bmcs = bmcs

    def application(self) -> web.Application:
        app = web.Application(middlewares=[answer_errors])
        app.add_routes(
            [
                web.get("/lab/profiles", self._profiles),
                web.get(PREFIX, self._all),
                web.get(f"{PREFIX}/{{name}}", self._one),
                web.get(f"{PREFIX}/{{name}}/history", self._history),
                web.get(f"{PREFIX}/{{name}}/journal", self._journal),
                web.put(f"{PREFIX}/{{name}}/profile", self._set_profile),
                web.patch(f"{PREFIX}/{{name}}/dials", self._set_dials),
                web.post(f"{PREFIX}/{{name}}/unplug", self._unplug),
                web.post(f"{PREFIX}/{{name}}/plug", self._plug),
            ]
        )
        return app

    def _find(self, request: web.Request) -> LabBmc:
        name = request.match_info["name"]
        if name not in self._bmcs:
            raise web.HTTPNotFound(text=f"BMC {name} does not exist")
        return self._bmcs[name]

    async def _profiles(self, _request: web.Request) -> web.Response:
        return json_response({name: explain(name) for name in names()})

    async def _all(self, _request: web.Request) -> web.Response:
        return json_response([describe(bmc) for bmc in self._bmcs.values()])

    async def _one(self, request: web.Request) -> web.Response:
        return json_response(truth(self._find(request)))

    async def _history(self, request: web.Request) -> web.Response:
        bmc = self._find(request)
        system = request.query.get("system", bmc.device_ids[0])
        if system not in bmc.device_ids:
            raise web.HTTPNotFound(text=f"system {system} does not exist; the systems are {', '.join(bmc.device_ids)}")
        return json_response([asdict(event) for event in bmc.history(system)])

    async def _journal(self, request: web.Request) -> web.Response:
        return json_response([asdict(exchange) for exchange in self._find(request).bmc.journal])

    async def _set_profile(self, request: web.Request) -> web.Response:
        bmc = self._find(request)
        await bmc.set_profile(str((await read_object(request)).get("profile", "")))
        return json_response(truth(bmc))

    async def _set_dials(self, request: web.Request) -> web.Response:
        bmc = self._find(request)
        await bmc.set_dials(**await read_object(request))
        return json_response(truth(bmc))

    async def _unplug(self, request: web.Request) -> web.Response:
        bmc = self._find(request)
        await bmc.unplug()
        return json_response(truth(bmc))

    async def _plug(self, request: web.Request) -> web.Response:
        bmc = self._find(request)
        await bmc.plug()
        return json_response(truth(bmc))
