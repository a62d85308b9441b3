"""`kill -9` in a storm of clients: the next process has every acknowledged write, and watches resume."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from tests.apiserver.ledger import Ledger, Seen
from tests.apiserver.processes import ServerProcess, parent
from tests.apiserver.support import MADE_HERE, Client
from tests.support.seeds import first_seed

ROUNDS: Final = 20
CLIENTS: Final = 8
KEYS: Final = 3  # of each client
WRITES: Final = 200  # within so many acknowledged writes the process is killed
PATH: Final = "/api/v1/namespaces/default/configmaps"
MERGE: Final = {"Content-Type": "application/merge-patch+json"}
MARKER: Final = "marker"


async def write_on(
    client: Client, ledger: Ledger, number: int, chance: random.Random, until: int, reached: asyncio.Event
) -> None:
    """Create, patch and delete until the server is gone; set an event after so many acknowledged writes."""
    there = {key for key in ledger.state() if key.startswith(f"w{number}-")}
    count = len(ledger.begun)
    while True:
        count += 1
        key = f"w{number}-{chance.randrange(KEYS)}"
        deletes = key in there and chance.random() < 0.2
        step = ledger.begin(key, "" if deletes else f"{number}.{count}")
        body: dict[str, Any] = {"data": {"token": step.token, "filling": "x" * chance.randrange(3000)}}
        try:
            if deletes:
                answer = await client.ask("DELETE", f"{PATH}/{key}")
                there.remove(key)
            elif key in there:
                answer = await client.ask("PATCH", f"{PATH}/{key}", body, headers=MERGE)
            else:
                answer = await client.ask("POST", PATH, {"metadata": {"name": key}, **body})
                there.add(key)
        except (aiohttp.ClientError, OSError):
            return
        assert answer.status in {200, 201}, answer.text
        ledger.acknowledge(step, 0 if deletes else int(answer.json()["metadata"]["resourceVersion"]))
        if len(ledger.acknowledged) >= until:
            reached.set()


async def storm(server: ServerProcess, ledger: Ledger, chance: random.Random) -> None:
    """Let clients write, and kill the server among them."""
    until = len(ledger.acknowledged) + chance.randrange(1, WRITES)
    reached = asyncio.Event()
    clients = [
        asyncio.create_task(write_on(server.client, ledger, number, random.Random(chance.random()), until, reached))
        for number in range(CLIENTS)
    ]
    async with asyncio.timeout(60):
        waiting = asyncio.create_task(reached.wait())
        await asyncio.wait([waiting, *clients], return_when=asyncio.FIRST_COMPLETED)
        assert waiting.done(), [client.exception() for client in clients if client.done()]
        await server.end()
        await asyncio.gather(*clients)


async def check(client: Client, ledger: Ledger, chance: random.Random) -> None:
    """Hold what the server has against the ledger, by lists and by watches from revisions of old."""
    there = MARKER in ledger.state()
    step = ledger.begin(MARKER, f"marker.{len(ledger.begun)}")
    body: dict[str, Any] = {"metadata": {"name": MARKER}, "data": {"token": step.token}}
    if there:
        marked = await client.ask("PATCH", f"{PATH}/{MARKER}", body, headers=MERGE)
    else:
        marked = await client.ask("POST", PATH, body)
    assert marked.status in {200, 201}, marked.text
    until = int(marked.json()["metadata"]["resourceVersion"])
    before = ledger.newest()
    assert until > before
    ledger.acknowledge(step, until)
    for since in (max(1, before - WRITES), *(chance.randrange(max(1, before - WRITES), until) for _ in range(2))):
        ledger.settle(await watched(client, since, until), since)
    items = (await client.get(f"{PATH}?{MADE_HERE}"))["items"]
    found = {i["metadata"]["name"]: (i["data"]["token"], int(i["metadata"]["resourceVersion"])) for i in items}
    assert found == {key: (step.token, step.revision) for key, step in ledger.state().items()}


async def watched(client: Client, since: int, until: int) -> list[Seen]:
    """Return the events of a client that resumes its watch after `since`, up to the change `until`."""
    told: list[Seen] = []
    url = f"{client.url}{PATH}?watch=1&resourceVersion={since}&{MADE_HERE}"
    async with asyncio.timeout(30), client.session.get(url) as response:
        assert response.status == 200
        while not told or told[-1].revision < until:
            event = json.loads(await response.content.readline())
            meta, deleted = event["object"]["metadata"], event["type"] == "DELETED"
            token = "" if deleted else event["object"]["data"]["token"]
            told.append(Seen(int(meta["resourceVersion"]), meta["name"], token))
    return told


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    chance = random.Random(first_seed())
    ledger = Ledger()
    async with parent() as started:
        for _ in range(ROUNDS):
            async with started.serving(tmp_path) as server:
                if ledger.begun:
                    await check(server.client, ledger, chance)
                await storm(server, ledger, chance)
        async with started.serving(tmp_path) as server:
            await check(server.client, ledger, chance)
            ledger.settle(await watched(server.client, 1, ledger.newest()), 1)
            await server.end(signal.SIGTERM)
    assert len(ledger.acknowledged) > ROUNDS * 20
