"""Acting as another user, by kubeconfig and by flags: refused is what kubectl is refused, in the same words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.plugin.conftest import Cli
from tests.cli.running import KUBECTL
from unbounded.api.core import SECRETS
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.kube.api import Forbidden
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig

pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not on PATH")

RBAC = "rbac.authorization.k8s.io"
ROLES: Kind[dict[str, Any]] = Kind(RBAC, "v1", "ClusterRole", "clusterroles", dict)
BINDINGS: Kind[dict[str, Any]] = Kind(RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", dict)
WHO: Kind[dict[str, Any]] = Kind("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", dict)
JOE: dict[str, Any] = {
    "as": "joe",
    "as-uid": "42",
    "as-groups": ["readers", "others"],
    "as-user-extra": {"example.com/team & more": ["a", "b"], "reason": ["é"]},
}


@pytest.fixture(scope="module")
def joe(kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of an administrator who acts as joe; joe's group may read what is ours."""
    config = yaml.safe_load(kubeconfig.read_text())
    config["users"][0]["user"] |= JOE
    path = tmp_path_factory.mktemp("joe") / "kubeconfig"
    path.write_text(yaml.safe_dump(config))

    async def prepare() -> None:
        rules = [{"apiGroups": ["unbounded-cloud.io"], "resources": ["*"], "verbs": ["get", "list", "watch"]}]
        subject = {"apiGroup": RBAC, "kind": "Group", "name": "readers"}
        role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "readers"}
        async with HttpApi(from_kubeconfig(kubeconfig)) as api:
            await api.create(ROLES, {"metadata": {"name": "readers"}, "rules": rules})
            await api.create(BINDINGS, {"metadata": {"name": "readers"}, "roleRef": role, "subjects": [subject]})

    asyncio.run(prepare())
    yield path
    path.unlink()


async def kubectl(kubeconfig: Path, *words: str) -> tuple[str, str]:
    """Run kubectl; return its output, and its error after `error: ` or `Error from server (…): `."""
    process = await asyncio.create_subprocess_exec(
        KUBECTL or "kubectl", "--kubeconfig", str(kubeconfig), *words, stdout=-1, stderr=-1
    )
    out, err = await process.communicate()
    return out.decode(), err.decode().strip().partition(": ")[2]


@pytest.mark.slow
async def test_who_may_only_read_is_refused_what_kubectl_is_refused(joe: Path, api: HttpApi, machine: Machine) -> None:
    name = machine.metadata.name
    _, refused = await kubectl(joe, "patch", "machine", name, "--type=merge", "--patch", '{"spec":{"paused":true}}')
    assert 'User "joe" cannot patch resource "machines"' in refused
    ran = await Cli(joe)("machine", "pause", name)
    assert (ran.status, ran.err.splitlines()[0]) == (1, f"error: no permission: {refused}")
    before = machine.metadata.resource_version
    assert (await api.get(MACHINES, name)).metadata.resource_version == before
    assert (await Cli(joe)("machine", "operation", "list")).status == 0


async def test_impersonation_of_a_kubeconfig_applies_to_requests_and_watches(joe: Path) -> None:
    out, _ = await kubectl(joe, "auth", "whoami", "-o", "json")
    async with HttpApi(from_kubeconfig(joe)) as api:
        assert (await api.create(WHO, {}))["status"] == json.loads(out)["status"]
        with pytest.raises(Forbidden, match='User "joe" cannot watch resource "secrets"'):
            await anext(api.watch(SECRETS, resource_version="0"))


@pytest.mark.slow
async def test_flags_go_before_the_kubeconfig(kubeconfig: Path, joe: Path) -> None:
    listing = ("machine", "operation", "list")
    assert (await Cli(kubeconfig)(*listing, "--as", "ann", "--as-group", "x", "--as-group", "readers")).status == 0
    for given in (("--as", "ann"), ("--as=ann", "--as-group=x", "--as-uid=1")):
        _, refused = await kubectl(kubeconfig, "get", "machineoperations", *given)
        ran = await Cli(kubeconfig)(*listing, *given)
        assert (ran.status, ran.err.splitlines()[0]) == (1, f"error: no permission: {refused}")
    _, refused = await kubectl(joe, "get", "machineoperations", "--as-group=x")
    ran = await Cli(joe)("plan", "machine", "pause", "web-0", "--as-group=x")
    assert (ran.status, 'User "joe" cannot' in ran.err, 'User "joe" cannot' in refused) == (1, True, True)


async def test_a_group_without_a_user_is_an_error_as_with_kubectl(kubeconfig: Path) -> None:
    _, refused = await kubectl(kubeconfig, "get", "machines", "--as-group=readers")
    ran = await Cli(kubeconfig)("machine", "operation", "list", "--as-group=readers")
    assert refused.endswith(ran.err.splitlines()[0].removeprefix("error: ")), (refused, ran.err)
    assert "without impersonating a user" in ran.err
