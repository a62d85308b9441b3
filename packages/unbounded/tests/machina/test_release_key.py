"""machina publishes the public key of releases under its own account, and agents read it under theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.support import Client
from tests.cli.deployed import deployed
from tests.cli.test_rights import as_account
from tests.join.signing import ANOTHER, KEY, PUBLIC_KEY, pem_of, word_of
from tests.support.memory_api import MemoryApi
from tests.support.waiting import eventually
from unbounded.api.core import CONFIG_MAPS
from unbounded.api.names import GROUP_AGENTS, NAMESPACE
from unbounded.join.release_key import published_key
from unbounded.kube.api import Forbidden, ServerUnreachable
from unbounded.kube.client import HttpApi
from unbounded.kube.config import ClientConfig, from_kubeconfig
from unbounded.kube.credentials import AuthInfo, StaticCredentials
from unbounded.kube.tls import ClientCertificate
from unbounded.machina import controller
from unbounded.machina.controller import publish_once, publish_release_key
from unbounded_apiserver.pki import CertificateAuthority
from unbounded_apiserver.server import ApiServer

NAME = "unbounded-releases"


async def published(api: MemoryApi | HttpApi) -> str:
    found = await api.get(CONFIG_MAPS, NAME, namespace=NAMESPACE)
    return published_key(found)


async def test_the_key_is_made_corrected_and_otherwise_left() -> None:
    api = MemoryApi()
    await publish_once(api, PUBLIC_KEY)
    assert await published(api) == PUBLIC_KEY
    writes = api.writes
    await publish_once(api, PUBLIC_KEY)
    assert api.writes == writes
    for there in ("nonsense", pem_of(ANOTHER)):
        await api.patch(CONFIG_MAPS, NAME, {"data": {"publicKey": there, "more": "kept"}}, namespace=NAMESPACE)
        await publish_once(api, PUBLIC_KEY)
        found = await api.get(CONFIG_MAPS, NAME, namespace=NAMESPACE)
        assert found.data == {"publicKey": pem_of(KEY), "more": "kept"}


class Failing(MemoryApi):
    """Its first reads come to nothing."""

    left = 2

    async def get(self, *given: Any, **more: Any) -> Any:
        if self.left:
            self.left -= 1
            raise ServerUnreachable("no answer")
        return await super().get(*given, **more)


async def test_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "RETRY_S", 0.01)
    api = Failing()
    running = asyncio.create_task(publish_release_key(api, PUBLIC_KEY))

    async def there() -> bool:
        return bool((await api.list(CONFIG_MAPS, namespace=NAMESPACE)).items)

    await eventually(there, within_s=20)
    assert await published(api) == PUBLIC_KEY
    running.cancel()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    async with deployed(tmp_path / "server") as both:
        yield both


@pytest.mark.slow
async def test_each_has_the_rights_for_it_and_no_more(served: tuple[ApiServer, Client]) -> None:
    server, _ = served
    admin = from_kubeconfig(server.kubeconfig_path)
    async with as_account(server, "machina") as machina:
        await publish_once(machina, PUBLIC_KEY)
        await publish_once(machina, word_of(ANOTHER))
        with pytest.raises(Forbidden):
            await machina.delete(CONFIG_MAPS, NAME, namespace=NAMESPACE)
    identity = CertificateAuthority(server.data_dir).issue_client("system:node:m1", (GROUP_AGENTS,))
    async with HttpApi(_as(admin, identity.certificate, identity.key)) as agent:
        assert await published(agent) == word_of(ANOTHER)
        with pytest.raises(Forbidden):
            await agent.delete(CONFIG_MAPS, NAME, namespace=NAMESPACE)
        with pytest.raises(Forbidden):
            await agent.patch(CONFIG_MAPS, NAME, {"data": {"publicKey": pem_of(KEY)}}, namespace=NAMESPACE)
    for component in ("metalman", "machine-ops-controller"):
        async with as_account(server, component) as api:
            assert await published(api) == word_of(ANOTHER)
            with pytest.raises(Forbidden):
                await api.patch(CONFIG_MAPS, NAME, {"data": {}}, namespace=NAMESPACE)


def _as(admin: ClientConfig, certificate: bytes, key: bytes) -> ClientConfig:
    """The administrator's server, with another login."""
    return ClientConfig(
        admin.server, StaticCredentials(AuthInfo(certificate=ClientCertificate(certificate, key))), ca=admin.ca
    )
