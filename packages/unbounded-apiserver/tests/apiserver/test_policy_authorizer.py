"""Admission policies that ask the server's authorizers: a verb of one's own, nodes, accounts, and impersonation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.support import Answer, Client, client_of, running
from unbounded_apiserver.server import ApiServer

pytestmark = pytest.mark.slow

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
MAPS = "/api/v1/namespaces/default/configmaps"
NODES = "/api/v1/nodes"
MACHINE = "authorizer.group('unbounded-cloud.io').resource('machines').name(object.data.machine)"
ERASE: dict[str, Any] = {
    "matchConditions": [{"name": "erases", "expression": "'erase' in object.data"}],
    "variables": [{"name": "machine", "expression": MACHINE}],
    "validations": [
        {
            "expression": "variables.machine.check('erase').allowed()",
            "messageExpression": "'needs the verb erase on Machine ' + object.data.machine",
            "reason": "Forbidden",
        }
    ],
}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    async with running(tmp_path) as (server, admin):
        yield server, admin


@pytest.fixture
async def admin(served: tuple[ApiServer, Client]) -> Client:
    return served[1]


def policy(resource: str, spec: dict[str, Any]) -> dict[str, Any]:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": [resource]}
    return {"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": [rule]}, **spec}}


async def enforce(admin: Client, spec: dict[str, Any], resource: str = "configmaps") -> None:
    await admin.create(f"{ADMISSION}/validatingadmissionpolicies", policy(resource, spec))
    bound = {"metadata": {"name": "p"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}}
    await admin.create(f"{ADMISSION}/validatingadmissionpolicybindings", bound)


async def allow(admin: Client, name: str, subjects: list[dict[str, str]], **rule: Any) -> None:
    await admin.create(f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": [rule]})
    reference = {"kind": "ClusterRole", "name": name}
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": subjects}
    await admin.create(f"{RBAC}/clusterrolebindings", binding)


async def allow_erasing(admin: Client) -> None:
    """Let alice erase all machines and bob only m1; alice, bob and carol create ConfigMaps."""
    people = [{"kind": "User", "name": name} for name in ("alice", "bob", "carol")]
    erase: dict[str, Any] = {"apiGroups": ["unbounded-cloud.io"], "resources": ["machines"], "verbs": ["erase"]}
    await allow(admin, "maps", people, apiGroups=[""], resources=["configmaps"], verbs=["create", "patch"])
    await allow(admin, "erase", people[:1], **erase)
    await allow(admin, "erase-m1", people[1:2], **erase, resourceNames=["m1"])


def erasure(name: str, machine: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {"erase": "x", "machine": machine},
    }


def said(answer: Answer) -> str:
    """Return a policy's message about a request; '' for an accepted request."""
    return "" if answer.status < 400 else str(answer.json()["message"].partition("denied request: ")[2])


@pytest.mark.parametrize(
    ("user", "machines"), [("alice", {"m1", "m2"}), ("bob", {"m1"}), ("carol", set()), ("admin", {"m1", "m2"})]
)
async def test_only_holders_of_a_verb_create(served: tuple[ApiServer, Client], user: str, machines: set[str]) -> None:
    server, admin = served
    await allow_erasing(admin)
    await enforce(admin, ERASE)
    groups = ("system:masters",) if user == "admin" else ()
    async with client_of(server, user, *groups) as client:
        for machine in ("m1", "m2"):
            refused = "" if machine in machines else f"needs the verb erase on Machine {machine}"
            query = "?fieldManager=kubectl-create&fieldValidation=Strict"
            dry = await client.ask("POST", f"{MAPS}{query}&dryRun=All", erasure(machine, machine))
            answer = await client.ask("POST", f"{MAPS}{query}", erasure(machine, machine))
            assert (said(dry), said(answer)) == (refused, refused)
            assert (dry.status, answer.status) == ((403, 403) if refused else (201, 201))
        assert (await client.ask("POST", MAPS, {"metadata": {"name": "harmless"}, "data": {"a": "b"}})).status == 201
    kept = {one["metadata"]["name"] for one in (await admin.get(MAPS))["items"]}
    assert kept & {"m1", "m2"} == machines


async def test_an_apply_that_creates_is_checked(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    await allow_erasing(admin)
    await enforce(admin, ERASE)
    apply = {"Content-Type": "application/apply-patch+yaml"}
    async with client_of(server, "bob") as bob:
        for machine, status in (("m1", 201), ("m2", 403)):
            path = f"{MAPS}/{machine}?fieldManager=kubectl"
            assert (await bob.ask("PATCH", path, erasure(machine, machine), headers=apply)).status == status


async def test_an_impersonated_user_counts_and_not_the_impersonator(admin: Client) -> None:
    await allow_erasing(admin)
    await enforce(admin, ERASE)
    for user, machine, status in (("alice", "m2", 201), ("bob", "m1", 201), ("bob", "m2", 403), ("carol", "m1", 403)):
        answer = await admin.ask(
            "POST", f"{MAPS}?dryRun=All", erasure("x", machine), headers={"Impersonate-User": user}
        )
        assert answer.status == status, user


async def test_a_right_that_ends_is_refused_at_once(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    await allow_erasing(admin)
    await enforce(admin, ERASE)
    async with client_of(server, "bob") as bob:
        assert (await bob.ask("POST", f"{MAPS}?dryRun=All", erasure("x", "m1"))).status == 201
        await admin.ask("DELETE", f"{RBAC}/clusterrolebindings/erase-m1")
        assert (await bob.ask("POST", f"{MAPS}?dryRun=All", erasure("x", "m1"))).status == 403


async def test_a_decision_tells_which_binding_allows_it_and_an_account_has_its_own_rights(
    served: tuple[ApiServer, Client],
) -> None:
    server, admin = served
    await allow_erasing(admin)
    account = [{"kind": "ServiceAccount", "namespace": "default", "name": "eraser"}]
    await allow(admin, "account", account, apiGroups=["unbounded-cloud.io"], resources=["machines"], verbs=["erase"])
    allowed = 'RBAC: allowed by ClusterRoleBinding "erase" of ClusterRole "erase" to User "alice"'
    as_account = "authorizer.serviceAccount('default', 'eraser')"
    facts = [
        f"{MACHINE}.check('erase').reason() == '{allowed}'",
        f"{MACHINE}.check('reboot').reason() == '' && !{MACHINE}.check('reboot').errored()",
        f"{as_account}.group('unbounded-cloud.io').resource('machines').check('erase').allowed()",
        f"!{as_account}.group('').resource('configmaps').check('create').allowed()",
        f"!{as_account}.path('/api').check('get').allowed()",  # no group system:authenticated, as in Kubernetes
    ]
    await enforce(admin, {"validations": [{"expression": fact} for fact in facts]})
    async with client_of(server, "alice") as alice:
        assert said(await alice.ask("POST", MAPS, erasure("x", "m1"))) == ""


async def test_the_node_authorizer_is_asked_too_with_the_field_selector(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    pods = "authorizer.group('').resource('pods')"
    facts = [
        f"{pods}.fieldSelector('spec.nodeName=n1').check('list').allowed()",
        f"!{pods}.fieldSelector('spec.nodeName=n2').check('list').allowed()",
        f"!{pods}.fieldSelector('spec.nodeName').check('list').allowed()",  # does not parse, and counts as none
        f"{pods}.check('list').reason() == 'can only list/watch pods with spec.nodeName field selector'",
    ]
    await enforce(admin, {"validations": [{"expression": fact} for fact in facts]}, "nodes")
    async with client_of(server, "system:node:n1", "system:nodes") as node:
        assert said(await node.ask("POST", NODES, {"metadata": {"name": "n1"}})) == ""


CHECK = "authorizer.path('/x').check('get')"


async def test_messages_and_audit_annotations_have_no_authorizer(admin: Client) -> None:
    said_by = [{"expression": "false", "messageExpression": "variables.reason + '!'"}]
    await enforce(admin, {"variables": [{"name": "reason", "expression": f"{CHECK}.reason()"}], "validations": said_by})
    assert said(await admin.ask("POST", MAPS, erasure("x", "m1"))) == "failed expression: false"
    for path in ("validatingadmissionpolicies", "validatingadmissionpolicybindings"):
        await admin.ask("DELETE", f"{ADMISSION}/{path}/p")
    noted = [{"key": "a", "valueExpression": f"{CHECK}.reason()"}]
    await enforce(admin, {"auditAnnotations": noted})
    assert said(await admin.ask("POST", MAPS, erasure("x", "m1"))) == (
        f"expression '{CHECK}.reason()' resulted in error: no such attribute(s): authorizer"
    )


async def test_audit_annotations_have_a_cost_limit_of_their_own(admin: Client) -> None:
    checks = [{"expression": f"!{CHECK}.allowed() || {CHECK}.allowed()"}] * 14  # 9.8 of 10 million
    costly = {"key": "a", "valueExpression": "string(lists.range(900000).size())"}
    await enforce(admin, {"validations": checks, "auditAnnotations": [costly]})
    assert said(await admin.ask("POST", f"{MAPS}?dryRun=All", erasure("x", "m1"))) == ""
    twelve = [{**costly, "key": f"a{number}"} for number in range(12)]
    change = {"spec": {"auditAnnotations": twelve}}
    await admin.merge(f"{ADMISSION}/validatingadmissionpolicies/p", change)
    spent = "validation failed due to running out of cost budget, no further validation rules will be run"
    assert said(await admin.ask("POST", f"{MAPS}?dryRun=All", erasure("x", "m1"))) == spent


async def test_a_policy_with_a_wrong_type_is_refused(admin: Client) -> None:
    wrong = [{"expression": "authorizer.group('').check('get').allowed()"}, {"expression": CHECK}]
    answer = await admin.ask(
        "POST", f"{ADMISSION}/validatingadmissionpolicies", policy("configmaps", {"validations": wrong})
    )
    assert answer.status == 422
    assert [(cause["field"], cause["message"]) for cause in answer.json()["details"]["causes"]] == [
        (
            "spec.validations[0].expression",
            "Invalid value: \"authorizer.group('').check('get').allowed()\": compilation failed: ERROR: <input>:1:27: "
            "found no matching overload for 'check' applied to 'kubernetes.authorization.GroupCheck.(string)'\n"
            " | authorizer.group('').check('get').allowed()\n | ..........................^",
        ),
        (
            "spec.validations[1].expression",
            f'Invalid value: "{CHECK}": must evaluate to bool but got kubernetes.authorization.Decision',
        ),
    ]
