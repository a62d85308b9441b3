"""Events that are prompt, late, doubled, out of order, of other forms, or missing; streams that end or are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.lab.misbehaviours.checks import Checks
from tests.lab.wire import ROOT, SYSTEM, Wire
from tests.support.waiting import eventually
from unbounded_lab.bmc import HostPower

CHECKS = Checks()
SSE = f"{ROOT}/EventService/SSE"
POWERED_OFF = "ResourceEvent.1.4.ResourcePoweredOff"


class Stream:
    """A reader of one stream: frames as lists of lines."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def frame(self) -> list[str]:
        lines = []
        async with asyncio.timeout(30):
            while line := (await self._answer.content.readline()).decode().rstrip("\n"):
                lines.append(line)
        return lines

    async def event(self) -> Any:
        lines = await self.frame()
        data = "\n".join(line.removeprefix("data: ") for line in lines if line.startswith("data:"))
        return msgspec.json.decode(data)

    async def message(self) -> str:
        return str((await self.event())["Events"][0]["MessageId"]).rpartition(".")[2]

    async def is_silent(self) -> bool:
        try:
            async with asyncio.timeout(0.3):
                return await self._answer.content.readline() == b""
        except TimeoutError:
            return True


@asynccontextmanager
async def stream(talk: Wire) -> AsyncIterator[Stream]:
    async with talk.open(SSE, accept="text/event-stream") as answer:
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/event-stream"
        opened = Stream(answer)
        assert (await opened.frame())[0].startswith(":")
        yield opened


@CHECKS.shows
async def sends_events(talk: Wire) -> None:
    assert (await talk.get(f"{ROOT}/EventService")).json["ServerSentEventUri"] == SSE
    async with stream(talk) as events:
        await talk.reset("GracefulShutdown")
        assert await events.message() == "ResourcePoweringOff"
        await eventually(lambda: talk.clock.sleepers > 0)
        talk.clock.move(1.0)  # without a request: the host itself has gone off
        event = (await events.event())["Events"][0]
        assert event["MessageId"] == POWERED_OFF
        assert event["OriginOfCondition"] == {"@odata.id": SYSTEM}
        assert (await talk.get(f"{ROOT}/EventService/Subscriptions")).json["Members@odata.count"] == 1
    assert (await talk.get(SSE)).status == 404, "without the media type in Accept"


@CHECKS.shows
async def events_late(talk: Wire) -> None:
    async with stream(talk) as events:
        await talk.reset("ForceOff")
        talk.clock.move(19.0)
        assert await events.is_silent()
        talk.clock.move(1.0)
        assert await events.message() == "ResourcePoweredOff"


@CHECKS.shows
async def events_twice(talk: Wire) -> None:
    async with stream(talk) as events:
        await talk.reset("ForceOff")
        assert await events.frame() == await events.frame()


@CHECKS.shows
async def events_out_of_order(talk: Wire) -> None:
    async with stream(talk) as events:
        await talk.reset("ForceOff")
        await talk.reset("On")
        talk.clock.move(4.0)
        messages = [await events.message() for _ in range(3)]
        assert messages == ["ResourcePoweredOn", "ResourcePoweringOn", "ResourcePoweredOff"]


@CHECKS.shows
async def events_never(talk: Wire) -> None:
    async with stream(talk) as events:
        await talk.reset("ForceOff")
        assert talk.bmc.power() is HostPower.OFF
        assert await events.is_silent()


@CHECKS.shows
async def event_stream_ends(talk: Wire) -> None:
    async with stream(talk) as events:
        await talk.reset("ForceOff")
        assert await events.message() == "ResourcePoweredOff"
        talk.clock.move(3.0)
        assert await events.frame() == [], "the end of the stream"
    await eventually(lambda: not talk.bmc.bmc.events.streams)


@CHECKS.shows
async def event_streams_taken(talk: Wire) -> None:
    answer = await talk.ask("GET", SSE, accept="text/event-stream")
    assert answer.status == 503
    assert answer.message_id == "Base.1.18.EventSubscriptionLimitExceeded"


@CHECKS.shows
async def events_without_links(talk: Wire) -> None:
    async with stream(talk) as events:
        await talk.reset("ForceOff")
        assert (await events.event())["Events"][0]["OriginOfCondition"] == SYSTEM


@CHECKS.shows
async def events_without_origin(talk: Wire) -> None:
    async with stream(talk) as events:
        await talk.reset("ForceOff")
        record = (await events.event())["Events"][0]
        assert record["MessageId"] == POWERED_OFF
        assert "OriginOfCondition" not in record


@CHECKS.shows
async def events_in_many_lines(talk: Wire) -> None:
    async with stream(talk) as events:
        await talk.reset("ForceOff")
        lines = await events.frame()
        assert len([line for line in lines if line.startswith("data: ")]) > 10
        data = "\n".join(line.removeprefix("data: ") for line in lines[1:])
        assert msgspec.json.decode(data)["Events"][0]["MessageId"] == POWERED_OFF


@pytest.mark.parametrize("name", CHECKS)
async def test_it_does_what_it_says(name: str) -> None:
    await CHECKS.show(name)
