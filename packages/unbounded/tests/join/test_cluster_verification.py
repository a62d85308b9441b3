"""A host verifies a cluster by its bootstrap token, and shows the token to no other."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import trustme
from aiohttp import web

from tests.agent.daemon.joining import TOKEN, approving, config_of
from tests.apiserver.support import Client
from tests.cli.deployed import deployed
from tests.support.waiting import eventually
from unbounded.agent.daemon.identity import join
from unbounded.agent.paths import HostPaths
from unbounded.agent.start import verified_token
from unbounded.api.failures import Failure, Rejected
from unbounded.api.names import GROUP_BOOTSTRAP
from unbounded.cli.servers import publish_cluster_info
from unbounded.join.agent_config import AgentConfig
from unbounded.join.attestation import AttestedToken
from unbounded.join.cluster_verification import signed_place
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.logs import SecretStr
from unbounded_apiserver.server import ApiServer

INFO: Final = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
SECRETS: Final = "/api/v1/namespaces/kube-system/secrets"
KNOWN: Final = SecretStr(TOKEN)
FORGED: Final = SecretStr("abcdef.fedcba9876543210")


async def make_signing_token(admin: Client, token: str = TOKEN) -> None:
    identity, _, secret = token.partition(".")
    data = {
        "token-id": identity,
        "token-secret": secret,
        "usage-bootstrap-authentication": "true",
        "usage-bootstrap-signing": "true",
        "auth-extra-groups": GROUP_BOOTSTRAP,
    }
    metadata = {"name": f"bootstrap-token-{identity}"}
    await admin.create(SECRETS, {"metadata": metadata, "type": "bootstrap.kubernetes.io/token", "stringData": data})


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    """A server that publishes cluster-info."""
    async with deployed(tmp_path / "server") as (server, admin):
        config = from_kubeconfig(server.kubeconfig_path)
        async with HttpApi(config) as api:
            await publish_cluster_info(api, server.url, config.ca or b"")
        yield server, admin


def ca_of(server: ApiServer) -> str:
    return (server.data_dir / "pki" / "ca.crt").read_text()


def with_trust(config: AgentConfig, pem: str, server: str = "") -> AgentConfig:
    cluster = msgspec.structs.replace(config.cluster, ca_cert_base64=base64.b64encode(pem.encode()).decode())
    kubelet = msgspec.structs.replace(config.kubelet, api_server=server or config.kubelet.api_server)
    return msgspec.structs.replace(config, cluster=cluster, kubelet=kubelet)


@dataclass
class Impostor:
    """A server with a CA of its own, which serves the real one's answers to every client, and records requests."""

    info: dict[str, Any]
    ca: trustme.CA = field(default_factory=trustme.CA)
    url: str = ""
    shown: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    @property
    def pem(self) -> str:
        return self.ca.cert_pem.bytes().decode()

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if "Authorization" in request.headers:
            self.shown.append(request.headers["Authorization"])
        if request.path == INFO:
            return web.json_response(self.info)
        return web.json_response({"kind": "Status", "status": "Failure", "code": 403}, status=403)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.ca.issue_cert("127.0.0.1").configure_cert(context)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        self.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield
        finally:
            await runner.cleanup()


async def signed_info(admin: Client, token: str = TOKEN) -> dict[str, Any]:
    """Return cluster-info once the server has signed it with a token."""

    async def signed() -> dict[str, Any]:
        info: dict[str, Any] = await admin.get(INFO)
        return info if f"jws-kubeconfig-{token[:6]}" in info["data"] else {}

    found: dict[str, Any] = await eventually(signed)
    return found


@pytest.mark.slow
async def test_a_host_finds_the_cluster_that_knows_its_token_and_joins(
    served: tuple[ApiServer, Client], tmp_path: Path
) -> None:
    server, admin = served
    await make_signing_token(admin)
    await signed_info(admin)
    place = await signed_place(server.url, ca_of(server), KNOWN)
    assert place is not None
    assert (place.url, place.ca_pem) == (server.url, ca_of(server))
    async with approving(admin) as decided:
        await join(HostPaths(tmp_path / "host"), config_of(server))
    assert len(decided) == 1


@pytest.mark.slow
async def test_the_signature_of_a_new_token_is_waited_for(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    other = "first0.0123456789abcdef"
    await make_signing_token(admin, other)
    await signed_info(admin, other)

    async def later() -> None:
        await asyncio.sleep(1)
        await make_signing_token(admin)

    task = asyncio.create_task(later())
    assert await signed_place(server.url, ca_of(server), KNOWN, wait_s=30) is not None
    await task


@pytest.mark.slow
async def test_where_nothing_is_signed_nothing_is_waited_for(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    began = asyncio.get_running_loop().time()
    assert await signed_place(server.url, ca_of(server), KNOWN, wait_s=60) is None
    await admin.ask("DELETE", INFO)
    assert await signed_place(server.url, ca_of(server), KNOWN, wait_s=60) is None
    assert asyncio.get_running_loop().time() - began < 30


@pytest.mark.slow
async def test_a_server_that_knows_another_secret_is_not_shown_the_token(
    served: tuple[ApiServer, Client], tmp_path: Path
) -> None:
    server, admin = served
    await make_signing_token(admin)
    await signed_info(admin)
    config = config_of(server, token=FORGED.reveal())
    with pytest.raises(Rejected, match=r"jws-kubeconfig-abcdef: .*does not know this bootstrap token"):
        await join(HostPaths(tmp_path / "host"), config)


@pytest.mark.slow
@pytest.mark.parametrize("ours_too", [False, True], ids=["its CA alone", "its CA beside the real one"])
async def test_an_impostor_that_passes_signatures_on_is_not_shown_the_token(
    served: tuple[ApiServer, Client], tmp_path: Path, ours_too: bool
) -> None:
    server, admin = served
    await make_signing_token(admin)
    impostor = Impostor(await signed_info(admin))
    async with impostor.serving():
        pem = impostor.pem + (ca_of(server) if ours_too else "")
        with pytest.raises(Failure) as failed:
            await join(HostPaths(tmp_path / "host"), with_trust(config_of(server), pem, impostor.url))
        assert impostor.asked == [INFO]
        assert impostor.shown == []
    words = "certificate" if ours_too else "the cluster with this bootstrap token has another CA"
    assert words in str(failed.value).replace("CERTIFICATE", "certificate")


# Attestation


def answer_with(authority: str) -> AttestedToken:
    return AttestedToken(TOKEN, authority)


@pytest.mark.slow
async def test_attestation_token_is_used_only_with_its_sealed_ca(
    served: tuple[ApiServer, Client],
) -> None:
    server, _ = served
    config, ours, theirs = config_of(server, token=""), ca_of(server), trustme.CA().cert_pem.bytes().decode()
    assert verified_token(answer_with(ours), config).reveal() == TOKEN
    assert verified_token(answer_with(theirs + ours), config).reveal() == TOKEN, "as while a CA is renewed"
    assert verified_token(answer_with(""), config).reveal() == TOKEN, "of a server that seals none"
    for pem in (theirs, theirs + ours):
        with pytest.raises(Rejected, match="differs from the CA that was sealed with the token for this TPM"):
            verified_token(answer_with(ours), with_trust(config, pem))
