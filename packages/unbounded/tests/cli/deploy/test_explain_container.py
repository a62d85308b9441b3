"""The container of explanations, in a Pod that an API server has admitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.deployed import deployed
from unbounded.cli.deploy.pods import ACCOUNT_FOLDER, priority_class
from unbounded.cli.deploy.workloads import machina_deployment

pytestmark = pytest.mark.slow


async def test_container_of_explanations_gets_no_token(tmp_path: Path) -> None:
    """The API server mounts the token of the account where no other volume is mounted."""
    template = machina_deployment("registry.example.com/machina:v1")["spec"]["template"]
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "machina"}, "spec": template["spec"]}
    async with deployed(tmp_path) as (_server, admin):
        await admin.create("/apis/scheduling.k8s.io/v1/priorityclasses", priority_class())
        made = await admin.create("/api/v1/namespaces/unbounded-kube/pods", body)
    volumes = {one["name"]: one for one in made["spec"]["volumes"]}
    mounted = {
        container["name"]: [
            volumes[one["name"]] for one in container["volumeMounts"] if one["mountPath"] == ACCOUNT_FOLDER
        ]
        for container in made["spec"]["containers"]
    }
    assert mounted.keys() == {"machina", "explain"}
    (token,), (authority,) = mounted["machina"], mounted["explain"]
    assert "serviceAccountToken" in str(token["projected"])
    assert authority["configMap"]["name"] == "kube-root-ca.crt"
    assert "serviceAccountToken" not in str([volumes[one] for one in ("api-server-ca", "explain-tls", "tmp")])
