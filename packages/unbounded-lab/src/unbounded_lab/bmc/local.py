"""A simulated BMC on a port of loopback: the shell of HTTPS around the service."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Any, Final

import aiohttp
from aiohttp import web

from unbounded.kube.tls import bound_buffers
from unbounded_lab.bmc import service
from unbounded_lab.bmc.console import BmcConsoles, console_at
from unbounded_lab.bmc.device import HostTimes, SimulatedBmc
from unbounded_lab.bmc.events import EVENT_STREAM, OPENED, BmcEventStream, frame
from unbounded_lab.bmc.faults import BmcFaults
from unbounded_lab.bmc.identity import BmcIdentity, Certificate
from unbounded_lab.bmc.media import insertion_url
from unbounded_lab.bmc.power import HostEvent, HostPower, SimulatedHost
from unbounded_lab.bmc.profiles import faults_for, misbehaviours_for
from unbounded_lab.bmc.redfish import BmcRequest
from unbounded_lab.bmc.replay import BmcRecording
from unbounded_lab.clock import LabClock, LoopClock
from unbounded_lab.faults import changed
from unbounded_lab.hosts.board import LabBoard
from unbounded_lab.http import OK, LabReply
from unbounded_lab.listener import HOST, LabListener, LabServer, hang_up, send, server

CUSTOM: Final = "custom"
"""The profile of a BMC with single faults set."""
CHECK_S: Final = 10.0
"""Time after which an idle stream of events checks its connection."""


class LabBmc(LabServer):
    """One BMC in this process: `async with LabBmc(profile="slow") as bmc:` serves it at `bmc.url`.

    Args:
        faults: instead of a profile.
        clock: the BMC's time; the event loop's if None.
        port: 0 takes a free one.
        recording: answers of another BMC to replay; its misbehaviours come on top.
        media_ca: certificates in PEM that servers of virtual media must chain to; the system's if None.
        boots: its hosts run what they boot: installers from virtual media, and what those install.
        address: where it listens, and from where it fetches images. On Linux, all of 127.0.0.0/8 is there.
    """

    def __init__(
        self,
        name: str = "lab-01",
        *,
        profile: str = "ideal",
        faults: BmcFaults | None = None,
        seed: int = 0,
        index: int = 0,
        shutdown_s: float = 1.0,
        boot_s: float = 2.0,
        power: HostPower = HostPower.ON,
        clock: LabClock | None = None,
        port: int = 0,
        recording: BmcRecording | None = None,
        media_ca: str | None = None,
        boots: bool = False,
        address: str = HOST,
    ) -> None:
        self.identity = BmcIdentity(name, seed, address)
        self._index = index
        self._recording = recording
        self.concurrent = 0  # requests in progress, including those with a closed connection
        self.most_concurrent = 0
        self.profile, self._faults = self._resolve(profile) if faults is None else (CUSTOM, self._as_recorded(faults))
        self._times = HostTimes(shutdown_s, boot_s)
        self._first_power = power
        self._given_clock = clock
        self._port = port
        self.media_ca = media_ca
        self.media_content = b""  # of the image that was fetched last
        self._boots = boots
        self.boards: dict[str, LabBoard] = {}  # of hosts that boot, by the ids of their systems
        self._minder: asyncio.Task[None] | None = None
        self._woken: set[asyncio.Event] = set()  # of the open streams
        self._plain: LabListener | None = None

    async def start(self) -> None:
        """Serve; returns when connections are accepted."""
        bound_buffers()
        self.clock = self._given_clock or LoopClock()
        self.bmc = SimulatedBmc(
            self.identity,
            self._faults,
            self._times,
            now=self.clock.now(),
            power=self._first_power,
            recording=self._recording,
        )
        self.bmc.on_event = self._wake_streams
        if self._boots:
            self._folder = TemporaryDirectory(prefix="lab-host-")
            for system in self.bmc.systems:
                folder = Path(self._folder.name) / system.name
                board = LabBoard(self.bmc, system, lambda: self.media_content, self.clock, folder)
                self.boards[system.name] = system.host.board = board
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.num_tickets = 0  # no client resumes sessions, and tickets take time to make
        self._show_certificate()
        self._door = LabListener(server(self._answer), self._port, self._tls, self.identity.address)
        self.consoles = BmcConsoles(self.bmc, self.clock, self.identity.address)
        await self._follow_faults()

    async def stop(self) -> None:
        await self._stop_following()
        for board in self.boards.values():
            await board.close()
        if self.boards:
            self._folder.cleanup()
        await self.consoles.close()
        await self._door.close()
        if self._plain is not None:
            await self._plain.close()

    # Properties for users

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def url(self) -> str:
        return f"https://{self.identity.address}:{self._door.port}"

    @property
    def plain_url(self) -> str | None:
        """The address of plain HTTP, while the fault `plain_http` is not closed."""
        if self._plain is None or self.bmc.faults.plain_http == "closed":
            return None
        return f"http://{self.identity.address}:{self._plain.port}"

    @property
    def username(self) -> str:
        return self.bmc.access.username

    @property
    def password(self) -> str:
        return self.bmc.access.password

    @property
    def device_ids(self) -> tuple[str, ...]:
        return self.bmc.faults.systems

    @property
    def fingerprint(self) -> str:
        return self._certificate.fingerprint

    # The true state, and the faults

    def host(self, device_id: str | None = None) -> SimulatedHost:
        """Return the true state of the host now; of the first one if no id is given."""
        self.bmc.advance(self.clock.now())
        system = self.bmc.system(device_id or self.device_ids[0])
        if system is None:
            raise KeyError(device_id)
        return system.host

    def power(self, device_id: str | None = None) -> HostPower:
        return self.host(device_id).power

    def history(self, device_id: str | None = None) -> list[HostEvent]:
        """Return the events of the host, oldest first."""
        return list(self.host(device_id).history)

    async def set_faults(self, **settings: Any) -> None:
        """Set single faults; the others stay.

        Raises:
            ValueError: there is no such fault, or the value is invalid.
        """
        await self._set(changed(self.bmc.faults, settings), CUSTOM)

    async def set_profile(self, profile: str) -> None:
        """Set all faults to a profile.

        Raises:
            ValueError: there is no such profile.
        """
        name, faults = self._resolve(profile)
        await self._set(faults, name)

    async def unplug(self) -> None:
        """Cut the mains: the hosts are off and the BMC is gone."""
        self.bmc.unplug(self.clock.now())
        await self._follow_faults()

    async def plug(self) -> None:
        """Restore the mains: the BMC starts, the hosts follow the fault `power_restore`."""
        self.bmc.plug(self.clock.now())
        await self._follow_faults()

    def _resolve(self, profile: str) -> tuple[str, BmcFaults]:
        """Return the misbehaviours that a profile means for this BMC, and their faults."""
        seed, index = self.identity.seed, self._index
        name = "+".join(misbehaviours_for(profile, seed=seed, index=index)) or "ideal"
        return name, self._as_recorded(faults_for(profile, seed=seed, index=index))

    def _as_recorded(self, faults: BmcFaults) -> BmcFaults:
        return faults if self._recording is None else self._recording.applied_to(faults)

    async def _set(self, faults: BmcFaults, profile: str) -> None:
        self.profile = profile
        self.bmc.advance(self.clock.now())
        self.bmc.set_faults(faults, self.clock.now())
        self._show_certificate()
        self._wake_streams()
        await self._follow_faults()

    def _show_certificate(self) -> None:
        """Load the certificate that the faults select; new connections get it."""
        self._certificate: Certificate = self.identity.certificate(self.bmc.faults.certificate)
        with NamedTemporaryFile(prefix="lab-bmc-") as file:  # ssl loads it from a file only
            file.write(self._certificate.pem)
            file.flush()
            self._tls.load_cert_chain(file.name)

    # Listening

    async def _follow_faults(self) -> None:
        await self._stop_following()
        if self.bmc.faults.plain_http != "closed" and self._plain is None:
            self._plain = LabListener(server(self._answer_plain), 0, None, self.identity.address)
        until = await self._update_listeners()
        if until is not None:
            self._minder = asyncio.create_task(self._follow_listening(until), name=f"{self.identity.name} listener")

    async def _update_listeners(self) -> float | None:
        """Open or shut the ports as the faults require now; returns when that changes by itself."""
        is_open, until = self.bmc.listening(self.clock.now())
        await self.consoles.follow_faults(is_open=is_open)
        if is_open:
            await self._door.open()
        else:
            self._door.shut()
        if self._plain is not None:
            if is_open and self.bmc.faults.plain_http != "closed":
                await self._plain.open()
            else:
                self._plain.shut()
        return until

    async def _follow_listening(self, until: float | None) -> None:
        while until is not None:
            await self.clock.sleep(max(0.0, until - self.clock.now()))
            until = await self._update_listeners()

    async def _stop_following(self) -> None:
        if self._minder is not None:
            self._minder.cancel()
            with suppress(asyncio.CancelledError):
                await self._minder
            self._minder = None

    # Answering

    async def _answer_plain(self, http: web.BaseRequest) -> web.StreamResponse:
        if self.bmc.faults.plain_http == "redirects":
            return web.Response(status=301, headers={"location": f"{self.url}{http.path}"})
        return await self._answer(http)

    async def _answer(self, http: web.BaseRequest) -> web.StreamResponse:
        if (system := console_at(self.bmc, http.path)) is not None and "Upgrade" in http.headers:
            return await self.consoles.serve(http, system)
        reply = await self._reply(http)
        if isinstance(reply, web.StreamResponse):
            return reply
        if reply.status == OK and reply.headers.get("content-type") == EVENT_STREAM:
            return await self._stream(http, reply)
        return await send(http, reply)

    async def _reply(self, http: web.BaseRequest) -> LabReply | web.StreamResponse:
        """Return the reply when it is to be sent, or a broken connection."""
        self.concurrent += 1
        self.most_concurrent = max(self.most_concurrent, self.concurrent)
        try:
            headers = {name.lower(): value for name, value in http.headers.items()}
            request = BmcRequest(http.method, http.path, headers, await http.read())
            admitted = service.admit(self.bmc, request, self.clock.now())
            if admitted.wait_s:
                await self.clock.sleep(admitted.wait_s)
            if admitted.dropped:
                return hang_up(http)
            restarts = self.bmc.restarts
            if (image := insertion_url(self.bmc, request)) is not None:
                self.bmc.fetched[image] = await self._fetch(image)
            reply = service.answer(self.bmc, request, self.clock.now())
            if self.bmc.restarts != restarts:
                await self._follow_faults()
            if reply.hold_s:
                await self.clock.sleep(reply.hold_s)
            return reply
        finally:
            self.concurrent -= 1
            self._wake_streams()  # a request can set a time at which a host changes

    async def _stream(self, http: web.BaseRequest, reply: LabReply) -> web.StreamResponse:
        """Send events until the stream or its connection ends."""
        response = web.StreamResponse(status=reply.status, headers=reply.headers)
        stream, woken = BmcEventStream(self.bmc.events, self.clock.now()), asyncio.Event()
        self._woken.add(woken)
        try:
            await response.prepare(http)
            await response.write(OPENED)
            while not stream.is_ended(now := self.clock.now(), self.bmc.faults):
                woken.clear()
                self.bmc.advance(now)
                for event in stream.due(now, self.bmc.faults):
                    await response.write(frame(event, self.bmc.faults))
                if http.transport is None or http.transport.is_closing():
                    return response
                times = (self.bmc.next_change(), stream.next_at(self.bmc.faults))
                await self._sleep_until(min((at for at in times if at is not None), default=None), woken)
        except ConnectionError:  # the client has left
            return response
        finally:
            self._woken.discard(woken)
            self.bmc.events.streams.pop(stream.name, None)
        response.force_close()
        return response

    async def _sleep_until(self, at: float | None, woken: asyncio.Event) -> None:
        """Sleep until a time, or until woken; at most CHECK_S, after which the client may have left."""
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(woken.wait())]
        if at is not None:
            waits.append(asyncio.ensure_future(self.clock.sleep(max(0.0, at - self.clock.now()))))
        try:
            await asyncio.wait(waits, timeout=CHECK_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _wake_streams(self) -> None:
        for woken in self._woken:
            woken.set()

    async def _fetch(self, url: str) -> bool:
        """Fetch an image as a real BMC does, its certificate included; return whether all of it came."""
        trusted = ssl.create_default_context(cadata=self.media_ca) if self.media_ca else True
        try:
            connector = aiohttp.TCPConnector(local_addr=(self.identity.address, 0))
            async with aiohttp.ClientSession(connector=connector) as session, session.get(url, ssl=trusted) as answer:
                self.media_content = await answer.read()
                return answer.status == 200
        except (aiohttp.ClientError, OSError, ValueError):
            return False
