"""kubectl apply --server-side: who owns what, conflicts, and what becomes of objects from before."""

from __future__ import annotations

from typing import Any

from tests.conformance.support import Kubectl, config_map, needs_kubectl

pytestmark = needs_kubectl

SERVER_SIDE = ("apply", "--server-side", "-f", "-")
REVIEW = "Please review the fields above--they currently have other managers."


def owners(obj: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Manager, operation and subresource of each entry."""
    entries = obj["metadata"].get("managedFields", [])
    return {(entry["manager"], entry["operation"], entry.get("subresource", "")) for entry in entries}


async def managed(kubectl: Kubectl, *name: str) -> dict[str, Any]:
    stored: dict[str, Any] = await kubectl.json(*name, "--show-managed-fields")
    return stored


async def test_an_applied_object_is_created_kept_and_owned(kubectl: Kubectl) -> None:
    widget = kubectl.widget(title="hello")
    name = f"widgets.{kubectl.group}/one"
    assert "one serverside-applied" in await kubectl(*SERVER_SIDE, stdin=widget)
    first = await managed(kubectl, name)
    assert owners(first) == {("kubectl", "Apply", "")}
    assert "last-applied-configuration" not in str(first["metadata"])
    await kubectl(*SERVER_SIDE, stdin=widget)
    assert (await managed(kubectl, name))["metadata"] == first["metadata"]  # nothing was written
    await kubectl(*SERVER_SIDE, stdin=kubectl.widget())
    assert "title" not in (await kubectl.json(name))["spec"]
    assert "managedFields" not in await kubectl("get", name, "-o", "yaml")
    tried = await kubectl(*SERVER_SIDE, "--dry-run=server", stdin=kubectl.widget("two"))
    assert "two serverside-applied (server dry run)" in tried
    assert await kubectl("get", f"widgets.{kubectl.group}", "two", "--ignore-not-found") == ""


async def test_a_field_of_another_manager_conflicts_until_it_is_forced(kubectl: Kubectl) -> None:
    name = f"widgets.{kubectl.group}/one"
    await kubectl(*SERVER_SIDE, "--field-manager=other", stdin=kubectl.widget())
    refused = await kubectl.fails(*SERVER_SIDE, stdin=kubectl.widget(size=5))
    first, *rest = refused.splitlines()
    assert first == 'error: Apply failed with 1 conflict: conflict with "other": .spec.size'
    assert rest[0].startswith(REVIEW)
    assert (await kubectl.json(name))["spec"]["size"] == 3
    await kubectl(*SERVER_SIDE, stdin=kubectl.widget())  # the same value is shared
    assert owners(await managed(kubectl, name)) == {("other", "Apply", ""), ("kubectl", "Apply", "")}
    await kubectl(*SERVER_SIDE, "--force-conflicts", stdin=kubectl.widget(size=5))
    taken = await managed(kubectl, name)
    assert (taken["spec"]["size"], owners(taken)) == (5, {("kubectl", "Apply", "")})
    await kubectl("patch", name, "--type=merge", "-p", '{"spec":{"size":6}}')
    refused = await kubectl.fails(*SERVER_SIDE, stdin=kubectl.widget(size=5))
    assert f'conflict with "kubectl-patch" using {kubectl.group}/v1: .spec.size' in refused


async def test_elements_of_a_list_have_owners_of_their_own(kubectl: Kubectl) -> None:
    def service(*ports: int) -> dict[str, Any]:
        spec = {"clusterIP": "None", "ports": [{"name": f"p{port}", "port": port} for port in ports]}
        return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": spec}

    async def stored() -> list[int]:
        return [port["port"] for port in (await kubectl.json("service", "s"))["spec"]["ports"]]

    await kubectl(*SERVER_SIDE, "--field-manager=a", stdin=service(1, 2))
    await kubectl(*SERVER_SIDE, "--field-manager=b", stdin=service(3))
    assert sorted(await stored()) == [1, 2, 3]
    await kubectl(*SERVER_SIDE, "--field-manager=a", stdin=service(2))
    assert sorted(await stored()) == [2, 3]


async def test_what_was_applied_on_the_client_side_goes_over(kubectl: Kubectl) -> None:
    name = f"widgets.{kubectl.group}/one"
    await kubectl.apply(kubectl.widget(title="hello"))
    assert owners(await managed(kubectl, name)) == {("kubectl-client-side-apply", "Update", "")}
    await kubectl(*SERVER_SIDE, stdin=kubectl.widget(size=4))
    moved = await managed(kubectl, name)
    assert owners(moved) == {("kubectl", "Apply", ""), ("kubectl-last-applied", "Apply", "")}
    assert (moved["spec"]["size"], "title" in moved["spec"]) == (4, False)
    assert "configured" in await kubectl.apply(kubectl.widget(size=5))  # and back
    assert (await kubectl.json(name))["spec"]["size"] == 5


async def test_diff_shows_what_an_apply_would_change(kubectl: Kubectl) -> None:
    await kubectl(*SERVER_SIDE, stdin=config_map("a", k="v"))
    diff = ("diff", "--server-side", "-f", "-")
    changed, _ = await kubectl.both(*diff, stdin=config_map("a", k="w"), code=1)
    assert [line for line in changed.splitlines() if line[:3] in {"-  ", "+  "}] == ["-  k: v", "+  k: w"]
    assert await kubectl(*diff, stdin=config_map("a", k="v")) == ""
    new, _ = await kubectl.both(*diff, stdin=config_map("b", k="v"), code=1)
    assert "+  k: v" in new
    other = ("diff", "--server-side", "--field-manager=other", "-f", "-")
    refused = await kubectl.fails(*other, stdin=config_map("a", k="w"), code=2)
    assert 'conflict with "kubectl": .data.k' in refused
    forced, _ = await kubectl.both(*other, "--force-conflicts", stdin=config_map("a", k="w"), code=1)
    assert "+  k: w" in forced


async def test_the_status_has_owners_of_its_own(kubectl: Kubectl) -> None:
    name = f"widgets.{kubectl.group}/one"
    await kubectl(*SERVER_SIDE, stdin=kubectl.widget())
    status = {**kubectl.widget(), "status": {"phase": "Ready"}}
    del status["spec"]
    said = await kubectl(*SERVER_SIDE, "--subresource=status", "--field-manager=controller", stdin=status)
    assert "serverside-applied" in said
    stored = await managed(kubectl, name)
    assert (stored["spec"]["size"], stored["status"]) == (3, {"phase": "Ready"})
    assert owners(stored) == {("kubectl", "Apply", ""), ("controller", "Apply", "status")}
    status["status"]["phase"] = "Stuck"
    refused = await kubectl.fails(*SERVER_SIDE, "--subresource=status", stdin=status)
    assert 'conflict with "controller" with subresource "status": .status.phase' in refused
    await kubectl(*SERVER_SIDE, stdin={**kubectl.widget(), **status, "spec": {"size": 3}})  # not by the object itself
    assert (await kubectl.json(name))["status"] == {"phase": "Ready"}


async def test_owners_can_be_renamed_and_cleared(kubectl: Kubectl) -> None:
    name = f"widgets.{kubectl.group}/one"
    await kubectl(*SERVER_SIDE, "--field-manager=other", stdin=kubectl.widget())
    stored = await managed(kubectl, name)
    stored["metadata"]["managedFields"][0]["manager"] = "another"
    await kubectl("replace", "-f", "-", stdin=stored)
    assert owners(await managed(kubectl, name)) == {("another", "Apply", "")}
    await kubectl("patch", name, "--type=merge", "-p", '{"metadata":{"managedFields":[{}]}}')
    assert owners(await managed(kubectl, name)) == set()
    refused = await kubectl.fails(*SERVER_SIDE, stdin=kubectl.widget(size=9))
    assert f'conflict with "before-first-apply" using {kubectl.group}/v1: .spec.size' in refused
    await kubectl(*SERVER_SIDE, "--force-conflicts", stdin=kubectl.widget(size=9))
    stored = await managed(kubectl, name)
    assert stored["spec"]["size"] == 9
    assert ("kubectl", "Apply", "") in owners(stored)


async def test_unknown_fields_are_refused(kubectl: Kubectl) -> None:
    refused = await kubectl.fails(*SERVER_SIDE, stdin=kubectl.widget(nope=1))
    assert ".spec.nope: field not declared in schema" in refused
    refused = await kubectl.fails(*SERVER_SIDE, stdin=kubectl.widget(size=700))
    assert "spec.size in body should be less than or equal to 100" in refused
