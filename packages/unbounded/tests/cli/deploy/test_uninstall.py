"""`uninstall`, `site delete`, `token revoke`: what goes, what stays, what they refuse."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.deploy.test_install import HERE, revision
from tests.cli.deploy.test_on_terminal import PLUGIN
from tests.cli.plugin.conftest import Cli
from tests.cli.test_terminal import terminal
from tests.support.paths import ROOT
from tests.support.waiting import eventually
from unbounded.api.core import NAMESPACES, SECRETS
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import LABEL_SITE, NAMESPACE
from unbounded.cli.deploy.pods import MODES
from unbounded.cli.deploy.server_side_apply import DEPLOYMENTS, PROMETHEUS_RULES, SERVICE_MONITORS, kind_of
from unbounded.cli.deploy.uninstall import names, workloads
from unbounded.cli.manifests import CRDS
from unbounded.kube.api import AlreadyExists, NotFound
from unbounded.kube.client import HttpApi

pytestmark = pytest.mark.slow

SYSTEM = "kube-system"


async def tokens(api: HttpApi, site: str) -> list[str]:
    return await names(api, SECRETS, SYSTEM, f"{LABEL_SITE}={site}")


async def make_machine(api: HttpApi, name: str, **spec: Any) -> None:
    await api.create(MACHINES, {"metadata": {"name": name, "labels": {LABEL_SITE: "rack1"}}, "spec": spec})


async def installed(cli: Cli, api: HttpApi) -> None:
    for words in (
        ("install", "--wait=false", "--image-registry", HERE, "--enable-machine-ops-controller", "--site", "rack1"),
        ("site", "init", "--name", "rack1", "--enable-machina=false"),
        ("site", "init", "--name", "rack2", "--enable-machina=false"),
        ("site", "deploy-pxe", "--site", "rack1"),
    ):
        ran = await cli(*words)
        assert ran.status == 0, ran.err
    key = {"metadata": {"name": "ssh-rack1", "labels": {LABEL_SITE: "rack1"}}, "stringData": {"key": "x"}}
    try:
        await api.get(SECRETS, "ssh-rack1", namespace=NAMESPACE)
    except NotFound:
        await api.create(SECRETS, key, namespace=NAMESPACE)


async def test_install_prints_a_line_for_each_stage(cluster_cli: Cli) -> None:
    first = await cluster_cli("install", "--wait=false", "--image-registry", HERE)
    assert first.status == 0, first.err
    lines = [line for line in first.out.splitlines() if not line.startswith("Next:")]
    assert [line.partition(":")[0] for line in lines] == [
        "definitions",
        "namespace",
        "rights",
        "policies",
        "prerequisites",
        "controllers",
    ]
    assert "definitions: 7 created" in lines[0]
    again = await cluster_cli("install", "--wait=false")
    assert again.out.count(" unchanged\n") == len(lines), again.out
    listed = await cluster_cli("install", "--wait=false", "-o", "name")
    assert "deployment.apps/machina-controller\n" in listed.out


async def test_a_site_goes_when_its_machines_are_gone(cluster_cli: Cli, cluster_api: HttpApi) -> None:
    await installed(cluster_cli, cluster_api)
    await make_machine(cluster_api, "web-1")
    refused = await cluster_cli("site", "delete", "--name", "rack1", "--force")
    assert (refused.status, refused.out) == (1, "")
    assert "1 Machine of site rack1 exists: web-1" in refused.err
    assert f"kubectl delete mach -l {LABEL_SITE}=rack1" in refused.err
    assert (await cluster_cli("site", "delete", "--name", "Rack_1!", "--force")).status == 2
    await cluster_api.delete(MACHINES, "web-1")

    asked = await cluster_cli("site", "delete", "--name", "rack1")
    assert (asked.status, "needs a terminal" in asked.err) == (2, True)
    ran = await cluster_cli("site", "delete", "--name", "rack1", "--force")
    assert ran.status == 0, ran.err
    gone = {"deployment.apps/metalman-controller-rack1", "deployment.apps/machine-ops-controller-rack1"}
    assert {f"{name} deleted" for name in gone} <= set(ran.out.splitlines())
    assert f"  secret/ssh-rack1 in {NAMESPACE}" in ran.out.splitlines()
    assert await workloads(cluster_api, f"{LABEL_SITE}=rack1") == []
    assert await names(cluster_api, DEPLOYMENTS, NAMESPACE) == ["machina-controller"]
    assert (await tokens(cluster_api, "rack1"), len(await tokens(cluster_api, "rack2"))) == ([], 1)
    again = await cluster_cli("site", "delete", "--name", "rack1")
    assert (again.status, "no controller runs for site rack1" in again.out) == (0, True)


async def levels(api: HttpApi) -> dict[str, str]:
    labels = (await api.get(NAMESPACES.raw(), NAMESPACE))["metadata"]["labels"]
    return {mode: labels[mode] for mode in MODES}


async def test_the_namespace_is_restricted_again_when_the_last_metalman_goes(
    cluster_cli: Cli, cluster_api: HttpApi
) -> None:
    await installed(cluster_cli, cluster_api)
    ran = await cluster_cli("site", "deploy-pxe", "--site", "rack2")
    assert ran.status == 0, ran.err
    ran = await cluster_cli("site", "delete", "--name", "rack1", "--force")
    assert (ran.status, await levels(cluster_api)) == (0, dict.fromkeys(MODES, "privileged")), ran.err
    ran = await cluster_cli("site", "delete", "--name", "rack2", "--force")
    assert (ran.status, await levels(cluster_api)) == (0, dict.fromkeys(MODES, "restricted")), ran.err
    assert f"namespace/{NAMESPACE} configured" in ran.out.splitlines()
    chosen = {"metadata": {"labels": dict.fromkeys(MODES, "baseline")}}  # by an administrator
    await cluster_api.patch(NAMESPACES, NAMESPACE, chosen)
    ran = await cluster_cli("site", "delete", "--name", "rack2", "--force")
    assert await levels(cluster_api) == dict.fromkeys(MODES, "baseline")


async def test_the_namespace_that_an_uninstall_leaves_is_restricted(cluster_cli: Cli, cluster_api: HttpApi) -> None:
    await installed(cluster_cli, cluster_api)
    assert await levels(cluster_api) == dict.fromkeys(MODES, "privileged")
    ran = await cluster_cli("uninstall", "--force")
    assert (ran.status, await levels(cluster_api)) == (0, dict.fromkeys(MODES, "restricted")), ran.err


async def test_tokens_are_revoked_by_id_and_by_site(cluster_cli: Cli, cluster_api: HttpApi) -> None:
    await installed(cluster_cli, cluster_api)
    (name,) = await tokens(cluster_api, "rack1")
    identity = name.removeprefix("bootstrap-token-")
    await make_machine(cluster_api, "web-2", kubernetes={"bootstrapTokenRef": {"name": name}})
    assert (await cluster_cli("token", "revoke", identity)).status == 2
    ran = await cluster_cli("token", "revoke", identity, "--force")
    assert (ran.status, ran.out) == (0, f"secret/{name} deleted\n")
    assert "Machines name it: web-2" in ran.err
    again = await cluster_cli("token", "revoke", f"{identity}.0123456789abcdef", "--force")
    assert (again.status, again.out) == (0, f"secret/{name} does not exist: no host can join with it\n")
    await cluster_api.delete(MACHINES, "web-2")
    ran = await cluster_cli("token", "revoke", "--site", "rack2", "--force")
    assert (ran.status, await tokens(cluster_api, "rack2")) == (0, [])
    ran = await cluster_cli("token", "revoke", "--site", "rack2")
    assert (ran.status, ran.out) == (0, "site rack2 has no token\n")


async def test_a_user_who_may_not_list_machines_revokes_tokens(cluster_cli: Cli, cluster_api: HttpApi) -> None:
    """The token is gone by the time that the Machines are listed, for a warning alone."""
    await installed(cluster_cli, cluster_api)
    (name,) = await tokens(cluster_api, "rack1")
    rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "delete"]}]
    await grant(cluster_api, "token-keeper", rules)
    ran = await cluster_cli("token", "revoke", "--site", "rack1", "--force", "--as", "token-keeper")
    assert (ran.status, ran.out) == (0, f"secret/{name} deleted\n"), ran.err
    assert "the Machines that name it cannot be listed: " in ran.err
    assert 'User "token-keeper" cannot list resource "machines"' in ran.err
    assert await tokens(cluster_api, "rack1") == []


async def grant(api: HttpApi, user: str, rules: list[dict[str, Any]]) -> None:
    """Give a user rights in all namespaces."""
    group = "rbac.authorization.k8s.io"
    bound = {
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }
    for plural, body in (("clusterroles", {"rules": rules}), ("clusterrolebindings", bound)):
        kind: Kind[dict[str, Any]] = Kind(group, "v1", "", plural, dict)
        with contextlib.suppress(AlreadyExists):
            await api.create(kind, {"metadata": {"name": user}, **body})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name tokens, or all tokens of a site with --site SITE"),
        (("abcdef", "--site", "rack1"), "name tokens, or all tokens of a site with --site SITE"),
        (("ABC",), "'ABC' is not a token: expected its id, 6 characters of a-z and 0-9, such as abcdef"),
        (("--site", "Rack_1!"), "--site"),
    ],
)
async def test_words_that_name_no_token_are_refused(words: tuple[str, ...], said: str, cluster_cli: Cli) -> None:
    ran = await cluster_cli("token", "revoke", *words)
    assert (ran.status, said in ran.err) == (2, True), ran.err


async def test_a_token_of_another_tool_is_refused(cluster_cli: Cli, cluster_api: HttpApi) -> None:
    body = {"metadata": {"name": "bootstrap-token-kubead"}, "type": "bootstrap.kubernetes.io/token"}
    await cluster_api.create(SECRETS, body, namespace=SYSTEM)
    ran = await cluster_cli("token", "revoke", "kubead", "--force")
    assert (ran.status, "another tool made it" in ran.err) == (1, True)
    await cluster_api.delete(SECRETS, "bootstrap-token-kubead", namespace=SYSTEM)


async def test_a_machine_that_comes_while_the_answer_waits_ends_the_deletion(
    cluster: Path, cluster_cli: Cli, cluster_api: HttpApi
) -> None:
    await installed(cluster_cli, cluster_api)
    for words, answer in ((("uninstall",), NAMESPACE), (("site", "delete", "--name", "rack1"), "rack1")):
        async with terminal(*PLUGIN, *words, "--kubeconfig", str(cluster)) as screen:
            await screen.shows(f"Type `{answer}` to continue: ")
            await make_machine(cluster_api, "late")
            screen.type(f"{answer}\n")
            await screen.shows("1 Machine .*exists: late")
            assert await screen.process.wait() == 1
        await cluster_api.delete(MACHINES, "late")
    assert await names(cluster_api, DEPLOYMENTS, NAMESPACE)
    assert await tokens(cluster_api, "rack1")


async def test_uninstall_takes_back_what_install_brought(cluster_cli: Cli, cluster_api: HttpApi) -> None:
    await installed(cluster_cli, cluster_api)
    for number in range(12):
        await make_machine(cluster_api, f"web-{number:02}")
    refused = await cluster_cli("uninstall", "--force")
    assert (refused.status, refused.out) == (1, "")
    assert "12 Machines exist: web-00, " in refused.err
    assert "and 2 more" in refused.err
    assert "`kubectl delete mach --all` first" in refused.err
    for number in range(12):
        await cluster_api.delete(MACHINES, f"web-{number:02}")

    asked = await cluster_cli("uninstall")
    assert (asked.status, f"confirm by typing '{NAMESPACE}'" in asked.err) == (2, True)
    ran = await cluster_cli("uninstall", "--force")
    assert ran.status == 0, ran.err
    gone = ran.out[: ran.out.index("These remain")].splitlines()
    assert len(gone) < 30
    assert {"deployment.apps/machina-controller deleted", "policies: 36 deleted", "rights: 54 deleted"} <= set(gone)
    kinds = {kind for kind, _, _ in await revision(cluster_api)}
    assert kinds == {"CustomResourceDefinition", "Namespace"}
    assert await workloads(cluster_api) == []
    stays = ran.out[ran.out.index("These remain") :].splitlines()[1:]
    assert f"  secret/ssh-rack1 in {NAMESPACE}" in stays
    assert "  customresourcedefinition.apiextensions.k8s.io/machines.unbounded-cloud.io" in stays
    assert f"  namespace/{NAMESPACE}" in stays
    assert sum(SYSTEM in line for line in stays) == 2
    again = await cluster_cli("uninstall")
    assert (again.status, again.out.splitlines()[1:]) == (
        0,
        ["These remain; `uninstall --delete-data` deletes them too:", *stays],
    )

    ran = await cluster_cli("uninstall", "--delete-data", "--force")
    assert ran.status == 0, ran.err
    assert not [name for name in await names(cluster_api, CRDS) if name.endswith("unbounded-cloud.io")]
    assert [*await tokens(cluster_api, "rack1"), *await tokens(cluster_api, "rack2")] == []
    assert NAMESPACE not in await names(cluster_api, NAMESPACES)
    again = await cluster_cli("uninstall", "--delete-data")
    assert (again.status, again.out) == (0, "this cluster has no objects of an install\n")

    # and all of it comes back
    back = await cluster_cli("install", "--wait=false", "--image-registry", HERE)
    assert (back.status, "definitions: 7 created" in back.out) == (0, True), back.err


async def test_uninstall_deletes_the_objects_for_prometheus(cluster_cli: Cli, cluster_api: HttpApi) -> None:
    """As kustomize has brought them: an alert about a controller that is gone would never end."""
    kinds = (SERVICE_MONITORS, PROMETHEUS_RULES)
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    for kind in kinds:
        spec = {
            "group": kind.group,
            "names": {"kind": kind.kind, "plural": kind.plural},
            "scope": "Namespaced",
            "versions": [{"name": kind.version, "served": True, "storage": True, "schema": schema}],
        }
        await cluster_api.create(CRDS, {"metadata": {"name": f"{kind.plural}.{kind.group}"}, "spec": spec})
    try:
        ran = await cluster_cli("install", "--wait=false", "--image-registry", HERE)
        assert ran.status == 0, ran.err
        path = ROOT / "deploy" / "components" / "monitoring"
        for file in sorted(path.glob("*.yaml")):
            body = yaml.safe_load(file.read_text())
            if (one := kind_of(body)) is not None:
                await eventually(partial(served, cluster_api, one))
                await cluster_api.create(one, body, namespace=NAMESPACE)
        assert [await names(cluster_api, kind, NAMESPACE) for kind in kinds] != [[], []]
        ran = await cluster_cli("uninstall", "--force")
        assert ran.status == 0, ran.err
        assert "prometheusrule.monitoring.coreos.com/unbounded-alerts deleted" in ran.out.splitlines()
        assert [await names(cluster_api, kind, NAMESPACE) for kind in kinds] == [[], []]
    finally:
        for kind in kinds:
            await cluster_api.delete(CRDS, f"{kind.plural}.{kind.group}")


async def served(api: HttpApi, kind: Kind[Any]) -> bool:
    with contextlib.suppress(NotFound):
        await api.list(kind, namespace=NAMESPACE)
        return True
    return False


async def test_beside_unbounded_up_there_is_nothing_to_take_back(up_cli: Cli, beside: Path) -> None:
    ran = await up_cli("uninstall", "--force")
    assert (ran.status, ran.out) == (1, "")
    assert "no Deployment runs the controllers: unbounded up" in ran.err
    assert "stop it, and delete its data directory" in ran.err
