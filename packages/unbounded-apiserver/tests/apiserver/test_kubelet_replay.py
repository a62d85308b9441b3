"""The recorded life of a kubelet, sent to the embedded server: the answers are equal, or a table has the reason."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.apiserver.kubelet_differences import ALWAYS, DIFFERENT
from tests.apiserver.kubelet_replay import Exchange, KubeletReplay, load
from tests.apiserver.support import GOLDENS, Client, running
from unbounded_apiserver.controllers.nodes import NodeTimes

RECORDING = GOLDENS.parent / "kubelet" / "exchanges.json"
OWN_CONTROLLERS = re.compile(r":(certificate-controller|namespace-controller|generic-garbage-collector)$")
OWN_WRITES_ON_NODES = re.compile(r"PATCH /api/v1/nodes/|PUT /api/v1/namespaces/[^/]+/pods/")
PATIENT = NodeTimes(grace_s=3600, startup_s=3600, quarantine_s=3600)
RBAC = "rbac.authorization.k8s.io"
CERTIFICATES = "system:certificates.k8s.io:certificatesigningrequests"
BINDINGS = {
    "bootstrap": ("system:bootstrappers:site", "system:node-bootstrapper"),
    "approve": ("system:bootstrappers:site", f"{CERTIFICATES}:nodeclient"),
    "renew": ("system:nodes", f"{CERTIFICATES}:selfnodeclient"),
    "controllers": ("system:serviceaccounts:kube-system", "cluster-admin"),
}
KUBERNETES = {
    "metadata": {"name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"}},
    "spec": {
        "clusterIP": "10.96.0.1",
        "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": 6444}],
    },
}


def left_out(exchange: Exchange) -> str:
    """Omit what the server's own controllers do. The silence of a Node is sent: this test does not wait for it."""
    what = f"{exchange['method']} {exchange['path']}"
    own = OWN_CONTROLLERS.search(exchange["user"]) or (
        exchange["user"].endswith(":node-controller") and OWN_WRITES_ON_NODES.match(what)
    )
    return "the server does it by itself" if own else ""


async def prepare(client: Client) -> None:
    """Make what stood in the recorded cluster before kubelet came."""
    for name, (group, role) in BINDINGS.items():
        binding = {
            "metadata": {"name": name},
            "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": group}],
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        }
        await client.create(f"/apis/{RBAC}/v1/clusterrolebindings", binding)
    await client.create("/api/v1/namespaces/default/services", KUBERNETES)


@pytest.mark.slow
async def test_answers_to_a_kubelet_are_those_of_a_kube_apiserver(tmp_path: Path) -> None:
    """All differences, listed or not, are in `differences.json` of the temporary directory."""
    recorded = load(RECORDING)
    found: dict[int, list[str]] = {}
    async with running(tmp_path / "data", PATIENT) as (_, client):
        await prepare(client)
        replay = KubeletReplay(client, left_out, lambda exchange: exchange["n"] in DIFFERENT)
        async for exchange, differences in replay.all(recorded):
            found[exchange["n"]] = differences
    different = {n: found[n] for n in sorted(found) if found[n]}
    (tmp_path / "differences.json").write_text(json.dumps(different, indent=1))
    assert sorted(found) == [exchange["n"] for exchange in recorded]
    unlisted = {n: why for n, why in different.items() if n not in DIFFERENT}
    assert not unlisted, json.dumps(unlisted, indent=1)
    assert ALWAYS.keys() <= different.keys(), "some are answered as recorded by now; take them out of the table"
