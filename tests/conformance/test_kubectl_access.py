"""kubectl auth and create token: who may do what."""

from __future__ import annotations

import base64
import json
from typing import Any

from tests.conformance.support import Kubectl, needs_kubectl
from tests.support.waiting import eventually

pytestmark = needs_kubectl


async def test_an_account_may_do_what_its_role_says(kubectl: Kubectl) -> None:
    assert (await kubectl("auth", "can-i", "delete", f"widgets.{kubectl.group}")).strip() == "yes"
    await kubectl("create", "serviceaccount", "bot")
    await kubectl("create", "role", "reader", "--verb=get,list", "--resource=configmaps")
    await kubectl("create", "rolebinding", "bot", "--role=reader", f"--serviceaccount={kubectl.namespace}:bot")
    name = f"system:serviceaccount:{kubectl.namespace}:bot"

    async def allowed() -> bool:
        process = await kubectl.start("auth", "can-i", "list", "configmaps", f"--as={name}")
        return await kubectl.ended(process) == 0

    await eventually(allowed)
    denied, _ = await kubectl.both("auth", "can-i", "delete", "configmaps", f"--as={name}", code=1)
    assert denied.strip() == "no"
    listed = await kubectl("auth", "can-i", "--list", f"--as={name}")
    assert ["configmaps", "[]", "[]", "[get", "list]"] in [row.split() for row in listed.splitlines()]

    token = (await kubectl("create", "token", "bot", "--duration=10m")).strip()
    mine = str(kubectl.configure("bot", user={"token": token}))
    who = await kubectl("auth", "whoami", KUBECONFIG=mine)
    assert name in who
    assert "system:serviceaccounts" in who
    await kubectl("get", "configmaps", KUBECONFIG=mine)
    refused = await kubectl.fails("get", "secrets", KUBECONFIG=mine)
    assert refused == (
        f'Error from server (Forbidden): secrets is forbidden: User "{name}" cannot list resource "secrets" '
        f'in API group "" in the namespace "{kubectl.namespace}"\n'
    )
    refused = await kubectl.fails("get", "configmaps", "--as=somebody", KUBECONFIG=mine)
    assert f'users "somebody" is forbidden: User "{name}" cannot impersonate resource "users"' in refused


async def test_a_wrong_token_is_refused(kubectl: Kubectl) -> None:
    config = str(kubectl.configure("wrong", user={"token": "nonsense"}))
    refused = await kubectl.fails("get", "configmaps", KUBECONFIG=config)
    assert "You must be logged in to the server" in refused


async def test_impersonation_shows_what_a_group_may_do(kubectl: Kubectl) -> None:
    who = await kubectl("auth", "whoami", "--as=jane", "--as-group=ops", "-o", "jsonpath={.status.userInfo}")
    assert '"username":"jane"' in who
    assert "ops" in who
    refused = await kubectl.fails("get", "configmaps", "--as=jane", "--as-group=ops")
    assert 'User "jane" cannot list resource "configmaps"' in refused


async def test_roles_are_reconciled(kubectl: Kubectl) -> None:
    def role(*verbs: str) -> dict[str, Any]:
        return {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": "r", "namespace": kubectl.namespace},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": list(verbs)}],
        }

    reconcile = ("auth", "reconcile", "-f", "-")
    assert "reconciled" in await kubectl(*reconcile, stdin=role("get"))
    await kubectl(*reconcile, stdin=role("list"))
    rules = (await kubectl.json("role", "r"))["rules"]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list"}


def claims(token: str) -> dict[str, Any]:
    """Return the claims of a token."""
    part = token.strip().split(".")[1]
    said: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return said


async def test_tokens_as_they_are_asked_for(kubectl: Kubectl) -> None:
    await kubectl("create", "serviceaccount", "bot")
    await kubectl("create", "secret", "generic", "bound")
    ask = ("create", "token", "bot")
    said = claims(await kubectl(*ask, "--duration=20m", "--audience=a", "--audience=b"))
    assert (said["aud"], said["sub"]) == (["a", "b"], f"system:serviceaccount:{kubectl.namespace}:bot")
    assert said["exp"] - said["iat"] == 1200
    secret = (*ask, "--bound-object-kind=Secret", "--bound-object-name=bound")
    uid = (await kubectl.json("secret", "bound"))["metadata"]["uid"]
    assert claims(await kubectl(*secret))["kubernetes.io"]["secret"] == {"name": "bound", "uid": uid}
    whole = json.loads(await kubectl(*ask, "-o", "json"))
    assert (whole["kind"], whole["status"]["token"].count(".")) == ("TokenRequest", 2)
    refused = await kubectl.fails(*secret, "--bound-object-uid=another")
    assert "the UID in the bound object reference (another) does not match the UID in record" in refused
    refused = await kubectl.fails(*ask, "--duration=1s")
    assert "spec.expirationSeconds: Invalid value: 1: may not specify a duration less than 10 minutes" in refused
    refused = await kubectl.fails("create", "token", "none")
    assert refused == 'error: failed to create token: serviceaccounts "none" not found\n'


async def test_a_bound_token_ends_with_its_secret(kubectl: Kubectl) -> None:
    await kubectl("create", "serviceaccount", "bot")
    await kubectl("create", "secret", "generic", "bound")
    token = await kubectl("create", "token", "bot", "--bound-object-kind=Secret", "--bound-object-name=bound")
    mine = str(kubectl.configure("bot", user={"token": token.strip()}))
    assert "bot" in await kubectl("auth", "whoami", KUBECONFIG=mine)
    await kubectl("delete", "secret", "bound")

    async def refused() -> bool:  # kube-apiserver remembers a token that was good for 10 s
        process = await kubectl.start("auth", "whoami", KUBECONFIG=mine)
        return await kubectl.ended(process) != 0

    await eventually(refused, within_s=60)


async def test_everybody_may_find_out_what_there_is_and_what_they_may_do(kubectl: Kubectl) -> None:
    rows = [row.split() for row in (await kubectl("auth", "can-i", "--list", "--as=jane")).splitlines()]
    assert ["selfsubjectrulesreviews.authorization.k8s.io", "[]", "[]", "[create]"] in rows
    assert ["[/openapi/*]", "[]", "[get]"] in rows
    denied, warned = await kubectl.both("auth", "can-i", "nope", "nothings", "--as=jane", code=1)
    assert denied.strip() == "no"
    assert "the server doesn't have a resource type 'nothings'" in warned
    assert (await kubectl("auth", "can-i", "get", "/version", "--as=jane")).strip() == "yes"
