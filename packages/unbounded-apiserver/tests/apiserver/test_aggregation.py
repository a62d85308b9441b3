"""Cluster roles that gather the rules of others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.support import Answer, Client, client_of, running
from tests.support.waiting import eventually
from unbounded_apiserver.access.default_roles import AGGREGATED, default_roles
from unbounded_apiserver.access.resource_types import CLUSTER_ROLES
from unbounded_apiserver.controllers.aggregation import aggregated_rules
from unbounded_apiserver.server import ApiServer

RBAC = "/apis/rbac.authorization.k8s.io/v1"
ROLES = f"{RBAC}/clusterroles"
MAPS = "/api/v1/namespaces/default/configmaps"
LABEL = "rbac.authorization.k8s.io/aggregate-to"
MERGE = {"Content-Type": "application/merge-patch+json"}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    async with running(tmp_path) as (server, client):
        yield server, client


def rule(resource: str, *verbs: str, group: str = "") -> dict[str, Any]:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}


def role(name: str, *rules: dict[str, Any], gathers: str = "", **labels: str) -> dict[str, Any]:
    made: dict[str, Any] = {"metadata": {"name": name, "labels": labels}, "rules": list(rules)}
    if gathers:
        made["aggregationRule"] = {"clusterRoleSelectors": [{"matchLabels": {gathers: "true"}}]}
    return made


async def bind(admin: Client, user: str, name: str) -> None:
    subjects = [{"kind": "User", "name": user}]
    body = {"metadata": {"name": f"{user}-{name}"}, "roleRef": {"kind": "ClusterRole", "name": name}}
    await admin.create(f"{RBAC}/clusterrolebindings", {**body, "subjects": subjects})


async def rules_of(client: Client, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.get(f"{ROLES}/{name}"))["rules"]
    return found


@pytest.mark.slow
async def test_aggregation_label_adds_and_removes_rules_of_aggregated_roles(
    served: tuple[ApiServer, Client],
) -> None:
    server, admin = served
    await bind(admin, "alice", "view")
    widgets = rule("widgets", "get", group="example.com")
    await admin.create(ROLES, role("widget-viewer", widgets))
    nodes = rule("nodes", "list")
    await admin.create(ROLES, role("node-viewer", nodes, **{f"{LABEL}-view": "true"}))

    async def all_have(wanted: bool) -> bool:
        return all([(nodes in await rules_of(admin, name)) is wanted for name in ("view", "edit", "admin")])

    async with client_of(server, "alice") as alice:
        await eventually(lambda: all_have(True))
        assert (await alice.ask("GET", "/api/v1/nodes")).status == 200
        assert widgets not in await rules_of(admin, "admin")
        await admin.merge(f"{ROLES}/node-viewer", {"metadata": {"labels": {f"{LABEL}-view": None}}})
        await eventually(lambda: all_have(False))
        assert (await alice.ask("GET", "/api/v1/nodes")).status == 403


@pytest.mark.slow
async def test_what_is_written_into_a_gathering_role_does_not_stay(served: tuple[ApiServer, Client]) -> None:
    _, admin = served
    await admin.create(ROLES, role("part", rule("nodes", "get"), **{"x": "true"}))
    await admin.create(ROLES, role("whole", rule("nodes", "delete"), gathers="x"))

    async def settled() -> bool:
        return await rules_of(admin, "whole") == [rule("nodes", "get")]

    await eventually(settled)
    await admin.merge(f"{ROLES}/whole", {"rules": []})
    await eventually(settled)
    await admin.ask("DELETE", f"{ROLES}/part")

    async def empty() -> bool:
        return await rules_of(admin, "whole") == []

    await eventually(empty)


@pytest.mark.slow
async def test_the_default_roles_are_gathered_from_the_start(served: tuple[ApiServer, Client]) -> None:
    server, _ = served
    stored = [r.decode() for r in server.core.store.snapshot(CLUSTER_ROLES.name).with_prefix("")]
    found = {r["metadata"]["name"]: r for r in stored}
    for name in AGGREGATED:
        assert (
            found[name]["rules"] == aggregated_rules(found[name], stored) == [r.write() for r in default_roles()[name]]
        )


@pytest.mark.slow
async def test_what_was_added_to_a_default_role_before_it_gathered_is_kept(tmp_path: Path) -> None:
    added = rule("nodes", "get")
    async with running(tmp_path) as (_, admin):  # as an earlier version left it
        await admin.ask("DELETE", f"{ROLES}/system:aggregate-to-edit")
        old = {**role("edit", rule("configmaps", "get"), added), "aggregationRule": None}
        old["metadata"]["annotations"] = {"rbac.authorization.kubernetes.io/autoupdate": "true"}
        assert (await admin.ask("PUT", f"{ROLES}/edit", old)).status == 200
    async with running(tmp_path) as (_, admin):
        part = await rules_of(admin, "system:aggregate-to-edit")
        assert added in part
        assert rule("configmaps", "get") not in part

        async def gathered_again() -> bool:
            return added in await rules_of(admin, "edit") and added in await rules_of(admin, "admin")

        await eventually(gathered_again)
        own = {"metadata": {"labels": None}, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}}
        await admin.merge(f"{ROLES}/view", own)
    async with running(tmp_path) as (_, admin):
        view = await admin.get(f"{ROLES}/view")
        assert view["metadata"]["labels"] == {f"{LABEL}-edit": "true"}
        wanted = [{"matchLabels": {"a": "b"}}, {"matchLabels": {f"{LABEL}-view": "true"}}]
        assert view["aggregationRule"] == {"clusterRoleSelectors": wanted}


@pytest.mark.slow
async def test_who_gathers_holds_everything(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    manages = rule("clusterroles", "create", "update", "patch", "get", group="rbac.authorization.k8s.io")
    await admin.create(ROLES, role("manager", manages, rule("configmaps", "get")))
    for user in ("alice", "root"):
        await bind(admin, user, "manager")
    await bind(admin, "root", "cluster-admin")
    own = rule("configmaps", "get")
    gathering = role("mine", own, gathers="x")

    def refused(answer: Answer, name: str) -> bool:
        words = "must have cluster-admin privileges to use the aggregationRule"
        return (answer.status, answer.json()["message"]) == (
            403,
            f'clusterroles.rbac.authorization.k8s.io "{name}" is forbidden: {words}',
        )

    async with client_of(server, "alice") as alice, client_of(server, "root") as root:
        assert refused(await alice.ask("POST", ROLES, gathering), "mine")
        assert (await root.ask("POST", ROLES, gathering)).status == 201
        assert refused(await alice.ask("PUT", f"{ROLES}/mine", role("mine", own)), "mine")
        assert (await alice.ask("POST", ROLES, role("plain", own))).status == 201


@pytest.mark.slow
async def test_who_labels_a_role_holds_its_rights(served: tuple[ApiServer, Client]) -> None:
    """Otherwise a label would bring other rights into a role that the user has."""
    server, admin = served
    manages = rule("clusterroles", "patch", group="rbac.authorization.k8s.io")
    await admin.create(ROLES, role("manager", manages))
    await bind(admin, "alice", "manager")
    await admin.create(ROLES, role("strong", rule("secrets", "delete")))
    labelled = {"metadata": {"labels": {f"{LABEL}-view": "true"}}}
    async with client_of(server, "alice") as alice:
        answer = await alice.ask("PATCH", f"{ROLES}/strong", labelled, headers=MERGE)
        assert answer.status == 403
        assert "is attempting to grant RBAC permissions not currently held" in answer.json()["message"]
        held = await alice.ask("PATCH", f"{ROLES}/strong", {"metadata": {"finalizers": ["a.b/c"]}}, headers=MERGE)
        assert held.status == 200  # what garbage collection writes gives no rights


def test_rules_are_gathered_once_by_selector_and_name() -> None:
    get, put, post = rule("a", "get"), rule("a", "put"), rule("a", "post")
    roles = [
        role("c", get, put, x="true"),
        role("b", put, x="true", y="true"),
        role("all", post, x="true"),
        role("z", post, y="false"),
    ]
    whole = role("all", gathers="x")
    whole["aggregationRule"]["clusterRoleSelectors"].append({"matchExpressions": [{"key": "y", "operator": "Exists"}]})
    assert aggregated_rules(whole, roles) == [put, get, post]
