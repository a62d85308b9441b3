"""kubectl on requests for certificates, and on roles that gather."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.apiserver.support import signing_request
from tests.conformance.support import Kubectl, needs_kubectl, unique
from tests.support.waiting import eventually

pytestmark = needs_kubectl


def request(name: str) -> dict[str, Any]:
    text = base64.b64encode(signing_request("bob", "team")[0]).decode()
    usages = ["client auth"]
    spec = {"request": text, "signerName": "kubernetes.io/kube-apiserver-client", "usages": usages}
    head = {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name}}
    return {**head, "spec": {**spec, "expirationSeconds": 86400}}


@pytest.fixture
async def names(kubectl: Kubectl) -> AsyncIterator[tuple[str, str]]:
    """Of two requests, which are removed after the test; the first is the later one in a list."""
    good, bad = unique("z-good"), unique("a-bad")
    yield good, bad
    await kubectl("delete", "csr", good, bad, "--ignore-not-found")


async def test_requests_are_approved_denied_and_told(kubectl: Kubectl, names: tuple[str, str]) -> None:
    good, bad = names
    for name in names:
        await kubectl("create", "-f", "-", stdin=request(name))
    assert f"{good} approved" in await kubectl("certificate", "approve", good)
    assert f"{bad} denied" in await kubectl("certificate", "deny", bad)
    assert "already Denied" in await kubectl.fails("certificate", "approve", bad)

    async def issued() -> list[list[str]]:
        rows = [line.split() for line in (await kubectl("get", "csr", bad, good)).splitlines()]
        return rows if rows[-1][-1] == "Approved,Issued" else []

    header, denied, approved = await eventually(issued)
    assert header == ["NAME", "AGE", "SIGNERNAME", "REQUESTOR", "REQUESTEDDURATION", "CONDITION"]
    assert (denied[0], denied[-1]) == (bad, "Denied")
    assert (approved[0], approved[2], approved[4]) == (good, "kubernetes.io/kube-apiserver-client", "24h")
    told = await kubectl("describe", "csr", good)
    assert "Approved,Issued" in told
    assert "Common Name:    bob" in told
    assert "FIELD: usages <[]string>" in await kubectl("explain", "csr.spec.usages")
    refused = await kubectl.fails("create", "-f", "-", stdin={**request("x"), "spec": {"signerName": "x"}})
    assert "PEM block type must be CERTIFICATE REQUEST" in refused


async def test_a_role_that_gathers_is_made_on_the_command_line(kubectl: Kubectl) -> None:
    part, whole, team = unique("conformance-part"), unique("conformance-whole"), unique("team")
    await kubectl("create", "clusterrole", part, "--verb=get", "--resource=nodes")
    try:
        await kubectl("label", "clusterrole", part, f"conformance={team}")
        await kubectl("create", "clusterrole", whole, f"--aggregation-rule=conformance={team}")

        async def gathered() -> bool:
            return "nodes" in await kubectl("get", "clusterrole", whole, "-o", "jsonpath={.rules[*].resources[*]}")

        await eventually(gathered)
        assert "matchLabels" in await kubectl("explain", "clusterrole.aggregationRule.clusterRoleSelectors")
    finally:
        await kubectl("delete", "clusterrole", part, whole, "--ignore-not-found")
