"""Roles and bindings as they bear on requests, by certificates of other users."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.support import Client, client_of, running
from unbounded_apiserver.server import ApiServer

pytestmark = pytest.mark.slow

RBAC = "/apis/rbac.authorization.k8s.io/v1"
ROLES = f"{RBAC}/namespaces/default/roles"
BINDINGS = f"{RBAC}/namespaces/default/rolebindings"
MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    async with running(tmp_path) as (server, client):
        yield server, client


def rule(resources: str, *verbs: str, group: str = "", **more: Any) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources.split(), "verbs": list(verbs), **more}


def role(name: str, *rules: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": name}, "rules": list(rules)}


def binding(name: str, to: str, *subjects: dict[str, str], kind: str = "Role") -> dict[str, Any]:
    return {"metadata": {"name": name}, "roleRef": {"kind": kind, "name": to}, "subjects": list(subjects)}


USER = {"kind": "User", "name": "alice"}
RBAC_GROUP = "rbac.authorization.k8s.io"


async def test_role_grants_apply_in_the_namespace_while_the_binding_exists(
    served: tuple[ApiServer, Client],
) -> None:
    server, admin = served
    await admin.create(ROLES, role("reader", rule("configmaps", "get", "list")))
    async with client_of(server, "alice") as alice:
        assert (await alice.ask("GET", MAPS)).status == 403
        await admin.create(BINDINGS, binding("b", "reader", USER))
        assert (await alice.ask("GET", MAPS)).status == 200
        assert (await alice.ask("POST", MAPS, {"metadata": {"name": "a"}})).status == 403
        assert (await alice.ask("GET", f"{MAPS}?watch=true")).status == 403
        assert (await alice.ask("GET", "/api/v1/configmaps")).status == 403
        assert (await alice.ask("GET", "/api/v1/namespaces/kube-system/configmaps")).status == 403
        assert (await admin.ask("DELETE", f"{BINDINGS}/b")).status == 200
        assert (await alice.ask("GET", MAPS)).status == 403


async def test_equal_requests_are_authorized_anew_by_user_and_present_bindings(
    served: tuple[ApiServer, Client],
) -> None:
    server, admin = served
    path, body = f"{MAPS}?dryRun=All", {"metadata": {"name": "a"}}
    as_carol = {"Impersonate-User": "carol"}
    await admin.create(ROLES, role("maker", rule("configmaps", "create")))
    async with client_of(server, "alice") as alice:

        async def codes(**headers: str) -> list[int]:
            """Return the status codes for alice, the administrator, and alice again, in requests with equal bytes."""
            return [(await who.ask("POST", path, body, headers=headers)).status for who in (alice, admin, alice)]

        assert await codes() == [403, 201, 403]
        await admin.create(BINDINGS, binding("b", "maker", USER))
        assert await codes() == [201, 201, 201]
        assert await codes(**as_carol) == [403, 403, 403]  # carol may not, and alice may not act as her
        await admin.create(BINDINGS, binding("c", "maker", {"kind": "User", "name": "carol"}))
        assert await codes(**as_carol) == [403, 201, 403]
        await admin.ask("DELETE", f"{BINDINGS}/b")
        assert await codes() == [403, 201, 403]


async def test_cluster_role_applies_in_the_namespace_or_cluster_of_its_binding(
    served: tuple[ApiServer, Client],
) -> None:
    server, admin = served
    ours = {"kind": "Group", "name": "dev"}
    await admin.create(BINDINGS, binding("b", "view", ours, kind="ClusterRole"))
    async with client_of(server, "bob", "dev") as bob:
        assert (await bob.ask("GET", MAPS)).status == 200
        assert (await bob.ask("GET", "/api/v1/configmaps")).status == 403
        await admin.create(f"{RBAC}/clusterrolebindings", binding("b", "view", ours, kind="ClusterRole"))
        assert (await bob.ask("GET", "/api/v1/configmaps")).status == 200
        assert (await bob.ask("GET", "/api/v1/secrets")).status == 403


async def test_a_rule_with_names_lets_one_object_be_watched_by_a_selector(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    named = rule("configmaps", "get", "list", "watch", resourceNames=["one"])
    await admin.create(ROLES, role("one", named))
    await admin.create(BINDINGS, binding("one", "one", USER))
    async with client_of(server, "alice") as alice:
        assert (await alice.ask("GET", f"{MAPS}/one")).status == 404
        assert (await alice.ask("GET", f"{MAPS}/two")).status == 403
        assert (await alice.ask("GET", f"{MAPS}?fieldSelector=metadata.name%3Done")).status == 200
        assert (await alice.ask("GET", MAPS)).status == 403


async def test_forbidden_message_names_the_missing_role_of_a_binding(
    served: tuple[ApiServer, Client],
) -> None:
    server, admin = served
    await admin.create(BINDINGS, binding("b", "nowhere", USER))
    async with client_of(server, "alice") as alice:
        answer = await alice.ask("GET", MAPS)
    assert answer.json()["message"] == (
        'configmaps is forbidden: User "alice" cannot list resource "configmaps" in API group "" in the namespace '
        '"default": RBAC: role.rbac.authorization.k8s.io "nowhere" not found'
    )


async def test_users_cannot_grant_rights_that_they_lack(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    await admin.create(ROLES, role("keeper", rule("roles rolebindings", "*", group=RBAC_GROUP)))
    await admin.create(ROLES, role("secrets", rule("secrets", "get")))
    await admin.create(BINDINGS, binding("keeper", "keeper", USER))
    merge = {"Content-Type": "application/merge-patch+json"}
    lacking = '{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}'
    async with client_of(server, "alice") as alice:
        # `*` on roles holds escalate and bind too, hence verbs by name from here on
        named = rule("roles rolebindings", "get", "create", "update", "patch", group=RBAC_GROUP)
        await admin.merge(f"{ROLES}/keeper", {"rules": [named]})
        for refused in (
            await alice.ask("POST", ROLES, role("mine", rule("secrets", "get"))),
            await alice.ask("POST", f"{ROLES}?dryRun=All", role("mine", rule("secrets", "get"))),
            await alice.ask("PATCH", f"{ROLES}/keeper", {"rules": [named, rule("secrets", "get")]}, headers=merge),
            await alice.ask("PUT", f"{ROLES}/put", role("put", rule("secrets", "get"))),
            await alice.ask("POST", BINDINGS, binding("mine", "secrets", USER)),
        ):
            assert refused.status == 403, refused.text
            assert "is attempting to grant RBAC permissions not currently held" in refused.json()["message"]
            assert refused.json()["message"].endswith(lacking)
        refused = await alice.ask("POST", BINDINGS, binding("mine", "cluster-admin", USER, kind="ClusterRole"))
        assert refused.status == 403
        assert (await alice.ask("POST", BINDINGS, binding("mine", "nowhere", USER))).status == 404
        assert (await alice.ask("POST", BINDINGS, binding("mine", "keeper", USER))).status == 201
        assert (await alice.ask("GET", "/api/v1/namespaces/default/secrets/a")).status == 403


async def test_the_verbs_escalate_and_bind_lift_that(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    may = rule("roles", "create", "escalate", group=RBAC_GROUP)
    bind = rule("roles", "bind", group=RBAC_GROUP, resourceNames=["secrets"])
    await admin.create(ROLES, role("keeper", may, bind, rule("rolebindings", "create", group=RBAC_GROUP)))
    await admin.create(BINDINGS, binding("keeper", "keeper", USER))
    async with client_of(server, "alice") as alice:
        assert (await alice.ask("POST", ROLES, role("secrets", rule("secrets", "get")))).status == 201
        assert (await alice.ask("POST", ROLES, role("other", rule("nodes", "get")))).status == 201
        assert (await alice.ask("POST", BINDINGS, binding("mine", "secrets", USER))).status == 201
        assert (await alice.ask("POST", BINDINGS, binding("more", "other", USER))).status == 403


async def test_impersonation_needs_its_own_right(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    carol = {"Impersonate-User": "carol"}
    whoami = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    cluster = {"metadata": {"name": "as-carol"}, "rules": [rule("users", "impersonate", resourceNames=["carol"])]}
    async with client_of(server, "alice") as alice:
        refused = await alice.ask("POST", path, whoami, headers=carol)
        assert refused.json()["message"] == (
            'users "carol" is forbidden: User "alice" cannot impersonate resource "users" in API group "" '
            "at the cluster scope"
        )
        await admin.create(f"{RBAC}/clusterroles", cluster)
        await admin.create(f"{RBAC}/clusterrolebindings", binding("b", "as-carol", USER, kind="ClusterRole"))
        told = (await alice.ask("POST", path, whoami, headers=carol)).json()["status"]["userInfo"]
        assert told == {"username": "carol", "groups": ["system:authenticated"]}
        for more in ({"Impersonate-Group": "system:masters"}, {"Impersonate-Uid": "1"}, {"Impersonate-Extra-a": "b"}):
            assert (await alice.ask("POST", path, whoami, headers=carol | more)).status == 403


async def test_reviews_are_only_asked(served: tuple[ApiServer, Client]) -> None:
    _, admin = served
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert (await admin.ask("GET", path)).status == 405
    assert (await admin.ask("GET", f"{path}/x")).status == 405
    assert (await admin.ask("PUT", f"{path}/x", {})).status == 405
    assert (await admin.ask("DELETE", f"{path}/x")).status == 405


async def test_default_roles_get_back_what_they_lack_unless_that_is_switched_off(tmp_path: Path) -> None:
    path = f"{RBAC}/clusterroles"
    async with running(tmp_path) as (_, admin):
        full = (await admin.get(f"{path}/system:aggregate-to-view"))["rules"]
        await admin.merge(f"{path}/system:aggregate-to-view", {"rules": full[1:]})
        off = {"metadata": {"annotations": {"rbac.authorization.kubernetes.io/autoupdate": "false"}}}
        await admin.merge(f"{path}/system:aggregate-to-edit", {**off, "rules": full[1:]})
        assert (await admin.ask("DELETE", f"{path}/admin")).status == 200
    async with running(tmp_path) as (_, admin):
        restored = (await admin.get(f"{path}/system:aggregate-to-view"))["rules"]
        assert {v for r in restored if "configmaps" in r["resources"] for v in r["verbs"]} == {"get", "list", "watch"}
        assert (await admin.get(f"{path}/system:aggregate-to-edit"))["rules"] == full[1:]
        assert (await admin.get(f"{path}/admin"))["rules"]


async def test_a_put_that_would_create_needs_the_right_to_create(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    change = rule("leases", "get", "update", group="coordination.k8s.io")
    await admin.create(ROLES, role("renewer", change))
    await admin.create(BINDINGS, binding("renewer", "renewer", USER))
    async with client_of(server, "alice") as alice:
        refused = await alice.ask("PUT", f"{leases}/one", {"metadata": {"name": "one"}})
        assert refused.status == 403
        assert 'cannot create resource "leases"' in refused.json()["message"]
        await admin.create(leases, {"metadata": {"name": "one"}})
        lease = await alice.get(f"{leases}/one")
        lease["spec"]["holderIdentity"] = "alice"
        assert (await alice.ask("PUT", f"{leases}/one", lease)).status == 200


@pytest.mark.parametrize("path", ["/nowhere", "/apis/nowhere.example/v1/things", "/api/v1/nothings"])
async def test_what_is_not_served_is_refused_before_it_is_missed(path: str, served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    assert (await admin.ask("GET", path)).status == 404
    async with client_of(server, "alice") as alice:
        assert (await alice.ask("GET", path)).status == 403


@pytest.mark.parametrize(
    ("plural", "body", "field"),
    [
        ("roles", role("x", {"verbs": ["get"], "nonResourceURLs": ["/x"]}), "rules[0].nonResourceURLs"),
        ("roles", role("x", {"verbs": [], "apiGroups": [""], "resources": ["a"]}), "rules[0].verbs"),
        ("roles", role("x", {"verbs": ["get"], "apiGroups": [""]}), "rules[0].resources"),
        ("rolebindings", binding("x", "", USER), "roleRef.name"),
        ("rolebindings", binding("x", "r", USER, kind="Machine"), "roleRef.kind"),
        ("rolebindings", binding("x", "r", {"kind": "Dog", "name": "a"}), "subjects[0].kind"),
        ("rolebindings", binding("x", "r", {"kind": "User", "name": ""}), "subjects[0].name"),
        ("rolebindings", binding("x", "r", {**USER, "apiGroup": "a"}), "subjects[0].apiGroup"),
        ("rolebindings", binding("x", "r", {"kind": "ServiceAccount", "name": "A"}), "subjects[0].name"),
        ("clusterrolebindings", binding("x", "r", USER), "roleRef.kind"),
        (
            "clusterrolebindings",
            binding("x", "r", {"kind": "ServiceAccount", "name": "a"}, kind="ClusterRole"),
            "subjects[0].namespace",
        ),
        ("clusterroles", {**role("x"), "aggregationRule": {}}, "aggregationRule.clusterRoleSelectors"),
        (
            "clusterroles",
            {**role("x"), "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "_"}}]}},
            "aggregationRule.clusterRoleSelectors[0].matchLabels",
        ),
        (
            "clusterroles",
            role("x", rule("pods", "get", nonResourceURLs=["/x"])),
            "rules[0].nonResourceURLs",
        ),
    ],
)
async def test_roles_and_bindings_that_make_no_sense_are_invalid(
    plural: str, body: dict[str, Any], field: str, served: tuple[ApiServer, Client]
) -> None:
    _, admin = served
    path = f"{RBAC}/{plural}" if plural.startswith("cluster") else f"{RBAC}/namespaces/default/{plural}"
    answer = await admin.ask("POST", path, body)
    assert answer.status == 422, answer.text
    assert [cause["field"] for cause in answer.json()["details"]["causes"]] == [field]
