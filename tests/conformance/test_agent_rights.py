"""Refusals for an agent, by roles and policies of deploy/, on any API server; the agent is impersonated.

Skipped on a cluster that has the project's definitions already: see `tests.support.prepared_cluster`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from tests.apiserver.support import Answer, Client
from tests.support.agent_rights import BINDINGS, MERGE, NODES, TABLE, Refused, expected, stage, widen
from tests.support.prepared_cluster import InUse, prepared
from tests.support.waiting import eventually
from unbounded.kube.client import HttpApi

pytestmark = pytest.mark.slow

KNOWN_S: Final = 60.0  # until a server acts on a policy, or on a role, that was made just before


@pytest.fixture
async def admin(server: Path) -> AsyncIterator[Client]:
    """An administrator of a server with the project's definitions, rights and policies."""
    try:
        async with prepared(server) as api, client_of(api) as client:
            yield client
    except InUse as found:
        pytest.skip(f"a control plane may be at work on the cluster: {found}")


@asynccontextmanager
async def client_of(api: HttpApi) -> AsyncIterator[Client]:
    login = await api.config.credentials.login()
    connector = aiohttp.TCPConnector(ssl=api.config.ssl_context(login.certificate) or True)
    headers = {"Authorization": f"Bearer {login.token}"} if login.token else {}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        yield Client(session, api.config.server)


async def test_what_is_not_its_own_is_refused_to_an_agent(admin: Client) -> None:
    told, wanted = {}, {}
    try:
        await stage(admin)
        for row in TABLE:
            if row.wide:
                await widen(admin)
            answer = await refusal(admin, row)
            told[row.what], wanted[row.what] = (answer.status, answer.json().get("message")), (403, expected(row))
            if row.wide:
                await admin.ask("DELETE", f"{BINDINGS}/wide")
    finally:  # the rest goes with its definitions
        for name in ("m1", "m2"):
            await admin.ask("DELETE", f"{NODES}/{name}")
        await admin.ask("DELETE", f"{BINDINGS}/wide")
    assert told == wanted


async def refusal(admin: Client, row: Refused) -> Answer:
    """The answer to what an agent tries, once the server knows of what was made for it: until then nothing is done."""
    headers = {"Impersonate-User": row.user, "Impersonate-Group": row.groups[0]}
    headers |= MERGE if row.method == "PATCH" else {}

    async def tried() -> bool:
        answer = await admin.ask(row.method, f"{row.path}?dryRun=All", row.body, headers=headers)
        return bool(answer.json().get("message") == expected(row))

    if row.policy:
        await eventually(tried, within_s=KNOWN_S)
    return await admin.ask(row.method, row.path, row.body, headers=headers)
