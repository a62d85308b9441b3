"""Bootstrap tokens: one for a Machine at a time, good for an hour, and for nothing but a request for a certificate."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.apiserver.support import client_with
from tests.cli.deployed import deployed
from tests.support.memory_api import MemoryApi
from tests.support.token_groups import machine_of
from unbounded.api.core import SECRETS, Secret
from unbounded.api.machine import MACHINES
from unbounded.cli.servers import component_runtime
from unbounded.join.bootstrap_tokens import TokenIssuer
from unbounded.kube.api import Api, Conflict, Forbidden
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.tls import client_context

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def tokens_of(api: Api) -> list[Secret]:
    return [secret for secret in (await api.list(SECRETS, namespace="kube-system")).items if "token-id" in secret.data]


async def test_a_token_is_its_machines_and_the_only_one() -> None:
    api = MemoryApi()
    made = await api.create(MACHINES, {"metadata": {"name": "m1"}})
    tokens = TokenIssuer(api, now=lambda: NOW)
    first, machine = await tokens.issue(made)
    second, machine = await tokens.issue(machine, {"tpm": {"ekPublicKey": "pem"}})
    (secret,) = await tokens_of(api)
    assert secret.metadata.name == f"bootstrap-token-{second.id}" != f"bootstrap-token-{first.id}"
    assert secret.type == "bootstrap.kubernetes.io/token"
    assert secret.value("expiration") == b"2026-01-01T01:00:00Z"
    assert f"{second.id}.{(secret.value('token-secret') or b'').decode()}" == second.text.reveal()
    assert secret.value("usage-bootstrap-signing") == b"true"
    assert secret.metadata.labels == {"unbounded-cloud.io/machine": "m1"}
    groups = tuple((secret.value("auth-extra-groups") or b"").decode().split(","))
    assert machine_of(groups) == made.metadata.uid
    assert machine.status.bootstrap_token_id == second.id
    assert machine.status.tpm is not None
    assert machine.status.tpm.ek_public_key == "pem"
    assert second.text.reveal() not in repr(second)


async def test_of_two_who_make_a_token_at_once_one_does() -> None:
    api = MemoryApi()
    machine = await api.create(MACHINES, {"metadata": {"name": "m1"}})
    await TokenIssuer(api).issue(machine)
    with pytest.raises(Conflict):
        await TokenIssuer(api).issue(machine)
    assert len(await tokens_of(api)) == 1


async def test_a_token_that_is_gone_already_does_not_stand_in_the_way() -> None:
    api = MemoryApi()
    token, machine = await TokenIssuer(api).issue(await api.create(MACHINES, {"metadata": {"name": "m1"}}))
    await api.delete(SECRETS, f"bootstrap-token-{token.id}", namespace="kube-system")
    await TokenIssuer(api).issue(machine)
    assert len(await tokens_of(api)) == 1


@pytest.mark.slow
async def test_metalman_makes_tokens_for_certificates_and_no_other_secrets(tmp_path: Path) -> None:
    async with deployed(tmp_path) as (server, _):
        config = from_kubeconfig(server.kubeconfig_path)
        async with (
            HttpApi(config) as root,
            component_runtime("metalman", root, metrics=ControllerMetrics()) as metalman,
        ):
            machine = await root.create(MACHINES, {"metadata": {"name": "m1"}})
            await root.create(SECRETS, {"metadata": {"name": "other"}}, namespace="kube-system")
            api = metalman.api
            first, seen = await TokenIssuer(api).issue(machine)
            token, _ = await TokenIssuer(api).issue(seen)
            assert [secret.metadata.name for secret in await tokens_of(root)] == [f"bootstrap-token-{token.id}"]
            for body, said in OTHERS:
                with pytest.raises(Forbidden, match=said):
                    await api.create(SECRETS, {"metadata": {"name": "x"}, **body}, namespace="kube-system")
            with pytest.raises(Forbidden, match="may create and delete bootstrap tokens only"):
                await api.delete(SECRETS, "other", namespace="kube-system")
            for read in (
                api.get(SECRETS, "other", namespace="kube-system"),
                api.list(SECRETS, namespace="kube-system"),
            ):
                with pytest.raises(Forbidden):
                    await read
        bearer = {"Authorization": f"Bearer {token.text.reveal()}"}
        async with client_with(server, client_context(ca=config.ca), **bearer) as agent:
            me = await agent.ask(
                "POST",
                "/apis/authentication.k8s.io/v1/selfsubjectreviews",
                {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
            )
            info = me.json()["status"]["userInfo"]
            assert info["username"] == f"system:bootstrap:{token.id}"
            assert machine_of(tuple(info["groups"])) == machine.metadata.uid
            assert (await agent.ask("GET", "/apis/certificates.k8s.io/v1/certificatesigningrequests")).status == 200
            assert (await agent.ask("GET", "/api/v1/nodes")).status == 403
        old = {"Authorization": f"Bearer {first.text.reveal()}"}
        async with client_with(server, client_context(ca=config.ca), **old) as gone:
            assert (await gone.ask("GET", "/apis/certificates.k8s.io/v1/certificatesigningrequests")).status == 401


LABELLED = {"name": "x", "labels": {"unbounded-cloud.io/machine": "m1"}}
TOKEN_TYPE = "bootstrap.kubernetes.io/token"
OTHERS: list[tuple[dict[str, object], str]] = [
    ({"type": "Opaque"}, "bootstrap tokens only"),
    (
        {
            "type": "kubernetes.io/service-account-token",
            "metadata": LABELLED | {"annotations": {"kubernetes.io/service-account.name": "default"}},
        },
        "bootstrap tokens only",
    ),
    ({"type": TOKEN_TYPE, "stringData": {"token-id": "x"}}, "delete only bootstrap tokens of Machines"),
    ({"type": TOKEN_TYPE, "metadata": LABELLED, "stringData": {"token-id": "x"}}, "metalman creates must expire"),
    (
        {
            "type": TOKEN_TYPE,
            "metadata": LABELLED,
            "stringData": {"expiration": "x", "auth-extra-groups": "system:bootstrappers:other"},
        },
        "in the group system:bootstrappers:unbounded-agent-daemons",
    ),
]


def test_an_hour_is_an_hour() -> None:
    from unbounded.join.bootstrap_tokens import new_token

    assert new_token(NOW).expires - NOW == timedelta(hours=1)
