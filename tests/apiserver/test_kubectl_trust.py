"""Plain kubectl on requests for certificates, and on roles that gather."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.support import eventually, running, signing_request
from tests.apiserver.test_kubectl import KUBECTL, Kubectl

pytestmark = [pytest.mark.slow, pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")]


@pytest.fixture
async def command(tmp_path: Path) -> AsyncIterator[Kubectl]:
    async with running(tmp_path / "data") as (server, client):
        yield Kubectl(server.kubeconfig_path, tmp_path, client)


def request(name: str) -> dict[str, Any]:
    text = base64.b64encode(signing_request("bob", "team")[0]).decode()
    usages = ["client auth"]
    spec = {"request": text, "signerName": "kubernetes.io/kube-apiserver-client", "usages": usages}
    head = {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name}}
    return {**head, "spec": {**spec, "expirationSeconds": 86400}}


async def test_requests_are_approved_denied_and_told(command: Kubectl) -> None:
    for name in ("good", "bad"):
        await command.run("create", "-f", "-", stdin=request(name))
    assert "good approved" in await command.run("certificate", "approve", "good")
    assert "bad denied" in await command.run("certificate", "deny", "bad")
    assert "already Denied" in await command.run("certificate", "approve", "bad", fails=True)

    async def issued() -> list[list[str]]:
        rows = [line.split() for line in (await command.run("get", "csr")).splitlines()]
        return rows if rows[-1][-1] == "Approved,Issued" else []

    header, bad, good = await eventually(issued, within_s=20)
    assert header == ["NAME", "AGE", "SIGNERNAME", "REQUESTOR", "REQUESTEDDURATION", "CONDITION"]
    assert (bad[0], bad[-1]) == ("bad", "Denied")
    assert (good[0], *good[2:5]) == ("good", "kubernetes.io/kube-apiserver-client", "unbounded-admin", "24h")
    told = await command.run("describe", "csr", "good")
    assert "Approved,Issued" in told
    assert "Common Name:    bob" in told
    assert "FIELD: usages <[]string>" in await command.run("explain", "csr.spec.usages")
    refused = await command.run("create", "-f", "-", stdin={**request("x"), "spec": {"signerName": "x"}}, fails=True)
    assert "PEM block type must be CERTIFICATE REQUEST" in refused


async def test_a_role_that_gathers_is_made_on_the_command_line(command: Kubectl) -> None:
    await command.run("create", "clusterrole", "part", "--verb=get", "--resource=nodes")
    await command.run("label", "clusterrole", "part", "team=x")
    await command.run("create", "clusterrole", "whole", "--aggregation-rule=team=x")

    async def gathered() -> bool:
        return "nodes" in await command.run("get", "clusterrole", "whole", "-o", "jsonpath={.rules[*].resources[*]}")

    await eventually(gathered, within_s=20)
    assert "matchLabels" in await command.run("explain", "clusterrole.aggregationRule.clusterRoleSelectors")
