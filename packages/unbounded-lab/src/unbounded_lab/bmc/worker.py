"""A process with simulated BMCs: `python -m unbounded_lab.bmc.worker`, started by `fleet.start_fleet`.

It reads a line of JSON from its standard input (WorkerOrder), serves, and writes a line of JSON about that
(WorkerReport). It ends when its standard input closes, so that it never outlives the process that started it.

The BMCs' control interface is plain HTTP on loopback, under `/lab`, on a port that no BMC has.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web

from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.power import HostPower
from unbounded_lab.bmc.profiles import explain, names
from unbounded_lab.bmc.replay import load_recording
from unbounded_lab.command import answer_errors, json_response, read_object
from unbounded_lab.faults import non_default
from unbounded_lab.listener import HOST

PREFIX: Final = "/lab/bmcs"
FIRST_ADDRESS: Final = IPv4Address("127.1.0.1")  # of BMCs of hosts that boot: their servers limit what one address gets


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
        "faults": non_default(bmc.bmc.faults),
        "requests": bmc.bmc.requests,
        "mostConcurrent": bmc.most_concurrent,
        "sessions": len(bmc.bmc.access.sessions(now, bmc.bmc.faults)),
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
                web.patch(f"{PREFIX}/{{name}}/faults", self._set_faults),
                web.patch(f"{PREFIX}/{{name}}/dials", self._set_faults),  # the former path, for one release
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

    async def _set_faults(self, request: web.Request) -> web.Response:
        bmc = self._find(request)
        await bmc.set_faults(**await read_object(request))
        return json_response(truth(bmc))

    async def _unplug(self, request: web.Request) -> web.Response:
        bmc = self._find(request)
        await bmc.unplug()
        return json_response(truth(bmc))

    async def _plug(self, request: web.Request) -> web.Response:
        bmc = self._find(request)
        await bmc.plug()
        return json_response(truth(bmc))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """The BMCs to serve: those with these numbers, counted from 0."""

    indexes: tuple[int, ...]
    names: tuple[str, ...]
    profile: str
    seed: int
    shutdown_s: float
    boot_s: float
    port_base: int  # 0: any free ports
    power: HostPower
    recording: str = ""  # file of a recorded BMC; empty: none
    media_ca: str = ""  # PEM; empty: the system's
    boots: bool = False


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The BMCs that are served, or the error."""

    control: str = ""
    bmcs: tuple[dict[str, Any], ...] = ()
    error: str = ""


def lab_bmcs(order: WorkerOrder) -> dict[str, LabBmc]:
    recording = load_recording(Path(order.recording)) if order.recording else None
    return {
        name: LabBmc(
            name,
            profile=order.profile,
            seed=order.seed,
            index=index,
            shutdown_s=order.shutdown_s,
            boot_s=order.boot_s,
            power=order.power,
            port=order.port_base + index if order.port_base else 0,
            recording=recording,
            media_ca=order.media_ca or None,
            boots=order.boots,
            address=str(FIRST_ADDRESS + index) if order.boots else HOST,
        )
        for index, name in zip(order.indexes, order.names, strict=True)
    }


async def serve(order: WorkerOrder, stdin: asyncio.StreamReader) -> None:
    bmcs = lab_bmcs(order)
    async with AsyncExitStack() as stack:
        try:
            for bmc in bmcs.values():
                await stack.enter_async_context(bmc)
        except OSError as error:
            return _write_report(WorkerReport(error=str(error)))
        runner = web.AppRunner(BmcControl(bmcs).application(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, HOST, 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        _write_report(WorkerReport(f"http://{host}:{port}", tuple(describe(bmc) for bmc in bmcs.values())))
        await stdin.read()
    return None


async def main() -> None:
    _allow_many_files()
    reader = asyncio.StreamReader(limit=1 << 24)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    line = await reader.readline()
    if line:
        await serve(msgspec.json.decode(line, type=WorkerOrder), reader)


def _allow_many_files() -> None:
    """Raise the soft limit of open files to the hard limit: each BMC takes a port and its connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _write_report(roll: WorkerReport) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(roll) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    asyncio.run(main())
