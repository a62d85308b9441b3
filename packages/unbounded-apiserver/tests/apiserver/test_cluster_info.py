"""cluster-info is signed with permitted bootstrap tokens, and readable by every host that joins."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from tests.apiserver.support import Client, client_of, client_with, running
from tests.support.waiting import eventually
from unbounded.cli.servers import publish_cluster_info
from unbounded.kube.client import HttpApi
from unbounded.kube.cluster_info import verify
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.tls import client_context
from unbounded_apiserver.server import ApiServer

pytestmark = pytest.mark.slow

INFO: Final = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
SECRETS: Final = "/api/v1/namespaces/kube-system/secrets"
SECRET: Final = "0123456789abcdef"


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    async with running(tmp_path) as both:
        yield both


async def publish(server: ApiServer, url: str = "https://10.0.0.1:6443", ca: bytes = b"CA") -> None:
    async with HttpApi(from_kubeconfig(server.kubeconfig_path)) as api:
        await publish_cluster_info(api, url, ca)


def token(identity: str, **data: str) -> dict[str, Any]:
    given = {"token-id": identity, "token-secret": SECRET, "usage-bootstrap-signing": "true", **data}
    return {
        "metadata": {"name": f"bootstrap-token-{identity}"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {key: value for key, value in given.items() if value},
    }


async def signers(client: Client, count: int) -> dict[str, str]:
    """The signatures once there are so many."""

    async def found() -> dict[str, str]:
        data = (await client.get(INFO))["data"]
        there = {key.removeprefix("jws-kubeconfig-"): value for key, value in data.items() if key.startswith("jws-")}
        return {"text": data["kubeconfig"], **there} if len(there) == count else {}

    signed: dict[str, str] = await eventually(found)
    return signed


async def test_tokens_that_may_sign_do_so_as_long_as_they_may(served: tuple[ApiServer, Client]) -> None:
    server, client = served
    await client.create(SECRETS, token("first0", expiration="2999-01-01T00:00:00Z"))
    await publish(server)
    signed = await signers(client, 1)
    verify(signed["text"], signed["first0"], "first0", SECRET)

    for body in (
        token("nosign", **{"usage-bootstrap-signing": ""}),
        token("ended0", expiration="2001-01-01T00:00:00Z"),
        token("noname", **{"token-id": "other0"}),
        token("nosecr", **{"token-secret": ""}),
        {**token("opaque"), "type": "Opaque"},
        token("second"),
    ):
        await client.ask("POST", SECRETS, body)
    signed = await signers(client, 2)
    assert signed.keys() == {"text", "first0", "second"}

    await publish(server, "https://10.0.0.2:6443")

    async def anew() -> bool:
        now = await signers(client, 2)
        return "10.0.0.2" in now["text"] and now["second"] != signed["second"]

    await eventually(anew)
    verify((await signers(client, 2))["text"], (await signers(client, 2))["second"], "second", SECRET)

    await client.ask("DELETE", f"{SECRETS}/bootstrap-token-second")
    assert (await signers(client, 1)).keys() == {"text", "first0"}


async def test_what_others_write_into_it_is_kept_but_for_signatures(served: tuple[ApiServer, Client]) -> None:
    server, client = served
    await client.create(SECRETS, token("first0"))
    await publish(server)
    await signers(client, 1)
    await client.merge(
        INFO, {"data": {"note": "kept", "jws-kubeconfig-forged": "a..b", "jws-kubeconfig-first0": "c..d"}}
    )
    signed = await signers(client, 1)
    verify(signed["text"], signed["first0"], "first0", SECRET)
    assert (await client.get(INFO))["data"]["note"] == "kept"
    await client.merge(INFO, {"data": {"kubeconfig": None}})

    async def unsigned() -> bool:
        return bool((await client.get(INFO))["data"].keys() == {"note"})

    await eventually(unsigned)


async def test_without_it_nothing_is_made(served: tuple[ApiServer, Client]) -> None:
    _, client = served
    await client.create(SECRETS, token("first0"))
    assert (await client.ask("GET", INFO)).status == 404


async def test_anonymous_clients_read_only_cluster_info(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    anyone = client_context(ca=(server.data_dir / "pki" / "ca.crt").read_bytes())
    async with client_with(server, anyone) as nobody:
        assert (await nobody.ask("GET", INFO)).status == 403, "before it was published"
        await publish(server)
        assert (await nobody.get(INFO))["metadata"]["name"] == "cluster-info"
        for method in ("PUT", "DELETE"):
            assert (await nobody.ask(method, INFO, {} if method == "PUT" else None)).status == 403
        for path in (INFO.rpartition("/")[0], SECRETS, "/api/v1/namespaces/kube-public/configmaps/kube-root-ca.crt"):
            assert (await nobody.ask("GET", path)).status == 401
        wrong = {"Authorization": "Bearer wrong"}
        assert (await nobody.ask("GET", INFO, headers=wrong)).status == 401
    async with client_of(server, "somebody") as somebody:
        assert (await somebody.ask("GET", INFO)).status == 403, "the binding is for nobody alone, as in Kubernetes"
    await admin.ask(
        "DELETE",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-public/rolebindings/kubeadm:bootstrap-signer-clusterinfo",
    )
    connector = aiohttp.TCPConnector(ssl=anyone)
    async with aiohttp.ClientSession(connector=connector) as session, session.get(server.url + INFO) as answer:
        assert answer.status == 403
