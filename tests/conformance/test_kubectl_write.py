"""kubectl apply, create, edit, patch, replace, label, annotate, diff."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.support import Kubectl, config_map, needs_kubectl, pod

pytestmark = needs_kubectl


async def test_apply_changes_what_changed_and_removes_what_is_gone(kubectl: Kubectl) -> None:
    first = kubectl.widget(title="hello", tags=["a"])
    assert "created" in await kubectl.apply(first)
    assert "unchanged" in await kubectl.apply(first)
    assert "configured" in await kubectl.apply(kubectl.widget(size=4, tags=["a"]))
    stored = await kubectl.json(f"widgets.{kubectl.group}", "one")
    assert stored["spec"]["size"] == 4
    assert "title" not in stored["spec"]
    assert stored["metadata"]["generation"] == 2
    last = await kubectl("apply", "view-last-applied", f"widgets.{kubectl.group}/one")
    assert "size: 4" in last


async def test_scale_changes_the_replicas_of_a_custom_resource(kubectl: Kubectl) -> None:
    widgets = f"widgets.{kubectl.group}"
    await kubectl.apply(kubectl.widget(replicas=2))
    assert "one scaled" in await kubectl("scale", widgets, "one", "--replicas=5")
    assert "one scaled" in await kubectl("scale", widgets, "one", "--current-replicas=5", "--replicas=3")
    assert (await kubectl.json(widgets, "one"))["spec"]["replicas"] == 3
    heading, row = (await kubectl("get", widgets, "one", "--subresource=scale")).splitlines()
    assert heading.split() == ["NAME", "DESIRED", "AVAILABLE", "AGE"]
    assert row.split()[:3] == ["one", "3", "0"]


async def test_apply_of_many_objects_at_once(kubectl: Kubectl) -> None:
    many = [config_map(f"m{n:02}", {"set": "many"}, n=str(n)) for n in range(60)]
    assert (await kubectl.apply(*many)).splitlines() == [f"configmap/m{n:02} created" for n in range(60)]
    many[7]["data"]["n"] = "other"
    said = (await kubectl.apply(*many)).splitlines()
    assert [line for line in said if "unchanged" not in line] == ["configmap/m07 configured"]
    assert (await kubectl("delete", "configmaps", "-l", "set=many", "--wait=false")).count("deleted") == 60


async def test_apply_of_a_built_in_type_merges_its_lists(kubectl: Kubectl) -> None:
    service: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s"},
        "spec": {"clusterIP": "None", "ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2}]},
    }
    await kubectl.apply(service)
    assert "unchanged" in await kubectl.apply(service)
    service["spec"]["ports"] = [{"name": "b", "port": 2, "targetPort": "x"}, {"name": "c", "port": 3}]
    await kubectl.apply(service)
    ports = (await kubectl.json("service", "s"))["spec"]["ports"]
    assert [(port["name"], port["targetPort"]) for port in ports] == [("b", "x"), ("c", 3)]
    assert {port["protocol"] for port in ports} == {"TCP"}


async def test_apply_writes_no_secret_in_the_clear(kubectl: Kubectl) -> None:
    def secret(**data: str) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": data}

    await kubectl.apply(secret(user="me", password="x"))
    await kubectl.apply(secret(user="you"))
    stored = await kubectl.json("secret", "s")
    assert stored["data"]["user"] == "eW91"
    assert "stringData" not in stored
    assert stored["type"] == "Opaque"


async def test_apply_can_be_tried(kubectl: Kubectl) -> None:
    assert "(server dry run)" in await kubectl("apply", "--dry-run=server", "-f", "-", stdin=config_map("a", k="v"))
    assert await kubectl("get", "configmap", "a", "--ignore-not-found") == ""
    await kubectl.apply(config_map("a", k="v"))
    diff, _ = await kubectl.both("diff", "-f", "-", stdin=config_map("a", k="w"), code=1)
    assert "-  k: v" in diff
    assert "+  k: w" in diff
    assert await kubectl("diff", "-f", "-", stdin=config_map("a", k="v")) == ""


async def test_apply_prunes_what_is_no_longer_given(kubectl: Kubectl) -> None:
    both = {"apiVersion": "v1", "kind": "List", "items": [config_map("a", {"set": "x"}), config_map("b", {"set": "x"})]}
    prune = ("apply", "--prune", "-l", "set=x", "--prune-allowlist=core/v1/ConfigMap", "-f", "-")
    await kubectl(*prune, stdin=both)
    assert "configmap/b pruned" in await kubectl(*prune, stdin={**both, "items": both["items"][:1]})


async def test_unknown_fields_are_refused(kubectl: Kubectl) -> None:
    refused = await kubectl.fails("apply", "-f", "-", stdin=kubectl.widget(nope=1))
    assert 'strict decoding error: unknown field "spec.nope"' in refused
    refused = await kubectl.fails("create", "-f", "-", stdin={**config_map("a"), "bogus": 1})
    assert 'unknown field "bogus"' in refused
    _, warned = await kubectl.both("create", "--validate=warn", "-f", "-", stdin=kubectl.widget(nope=1))
    assert 'Warning: unknown field "spec.nope"' in warned
    _, warned = await kubectl.both("create", "--validate=ignore", "-f", "-", stdin=kubectl.widget("two", nope=1))
    assert not warned


async def test_every_kind_of_patch(kubectl: Kubectl) -> None:
    await kubectl.apply(kubectl.widget())
    patch = ("patch", f"widgets.{kubectl.group}", "one")
    await kubectl(*patch, "--type=merge", "-p", '{"spec":{"size":7}}')
    await kubectl(*patch, "--type=json", "-p", '[{"op":"add","path":"/spec/title","value":"hi"}]')
    await kubectl(*patch, "--type=merge", "--subresource=status", "-p", '{"status":{"phase":"Ready"}}')
    stored = await kubectl.json(f"widgets.{kubectl.group}", "one")
    assert (stored["spec"]["size"], stored["spec"]["title"], stored["status"]) == (7, "hi", {"phase": "Ready"})
    refused = await kubectl.fails(*patch, "--type=merge", "-p", '{"spec":{"size":700}}')
    assert "spec.size in body should be less than or equal to 100" in refused
    refused = await kubectl.fails(*patch, "-p", '{"spec":{"size":7}}')
    assert "application/strategic-merge-patch+json is not supported" in refused or "UnsupportedMediaType" in refused
    await kubectl.apply(pod("p"))
    added = '{"spec":{"tolerations":[{"key":"a","operator":"Exists"}],"containers":[{"name":"c","image":"other:2"}]}}'
    await kubectl("patch", "pod", "p", "-p", added)
    containers = (await kubectl.json("pod", "p"))["spec"]["containers"]
    assert [(c["name"], c["image"]) for c in containers] == [("c", "other:2")]


async def test_labels_and_annotations(kubectl: Kubectl) -> None:
    await kubectl.apply(config_map("a"), config_map("b"))
    await kubectl("label", "configmap", "a", "b", "tier=1")
    refused = await kubectl.fails("label", "configmap", "a", "tier=2")
    assert "already has a value (1), and --overwrite is false" in refused
    await kubectl("label", "configmap", "-l", "tier=1", "--overwrite", "tier=2")
    await kubectl("annotate", "configmap", "a", "note=x")
    stored = (await kubectl.json("configmap", "a"))["metadata"]
    assert (stored["labels"], stored["annotations"]["note"]) == ({"tier": "2"}, "x")
    await kubectl("label", "configmap", "a", "tier-")
    assert "labels" not in (await kubectl.json("configmap", "a"))["metadata"]


async def test_edit(kubectl: Kubectl) -> None:
    await kubectl.apply(kubectl.widget())
    edit = ("edit", f"widgets.{kubectl.group}", "one")
    done = kubectl.editor("sed -i 's/size: 3/size: 8/' \"$1\"")
    assert "edited" in await kubectl(*edit, KUBE_EDITOR=done)
    assert (await kubectl.json(f"widgets.{kubectl.group}", "one"))["spec"]["size"] == 8
    unchanged, _ = await kubectl.both(*edit, KUBE_EDITOR=kubectl.editor("true"))
    assert "Edit cancelled, no changes made" in unchanged or unchanged == ""


async def test_an_edit_that_is_refused_is_opened_again_with_the_reason(kubectl: Kubectl) -> None:
    await kubectl.apply(kubectl.widget())
    copies = kubectl.home / "copies"
    wrong = kubectl.editor(
        f'cat "$1" >> {copies}; if grep -q "size: 3" "$1"; then sed -i "s/size: 3/size: 800/" "$1"; '
        'else sed -i "s/size: 800/size: 9/" "$1"; fi'
    )
    edited, _ = await kubectl.both("edit", f"widgets.{kubectl.group}", "one", KUBE_EDITOR=wrong)
    assert "edited" in edited
    assert "# widgets." in copies.read_text()
    assert "spec.size in body should be less than or equal to 100" in copies.read_text()
    assert (await kubectl.json(f"widgets.{kubectl.group}", "one"))["spec"]["size"] == 9


async def test_edit_of_the_status_alone(kubectl: Kubectl) -> None:
    await kubectl.apply(kubectl.widget())
    add = kubectl.editor("printf 'status:\\n  phase: Ready\\n' >> \"$1\"; sed -i 's/size: 3/size: 9/' \"$1\"")
    await kubectl("edit", f"widgets.{kubectl.group}", "one", "--subresource=status", KUBE_EDITOR=add)
    stored = await kubectl.json(f"widgets.{kubectl.group}", "one")
    assert (stored["status"]["phase"], stored["spec"]["size"]) == ("Ready", 3)


async def test_replace_conflicts_when_somebody_else_wrote(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", stdin=kubectl.widget())
    stored = await kubectl.json(f"widgets.{kubectl.group}", "one")
    stored["spec"]["size"] = 9
    await kubectl("replace", "-f", "-", stdin=stored)
    refused = await kubectl.fails("replace", "-f", "-", stdin=stored)
    assert (
        f'Operation cannot be fulfilled on widgets.{kubectl.group} "one": the object has been modified; '
        "please apply your changes to the latest version and try again"
    ) in refused
    await kubectl("replace", "--force", "-f", "-", stdin=kubectl.widget(size=5))
    made = await kubectl.json(f"widgets.{kubectl.group}", "one")
    assert made["spec"]["size"] == 5
    assert made["metadata"]["uid"] != stored["metadata"]["uid"]


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1"),
        ("x", 'spec.size: Invalid value: "string": spec.size in body must be of type integer: "string"'),
    ],
)
async def test_an_invalid_object_is_refused(kubectl: Kubectl, size: Any, said: str) -> None:
    refused = await kubectl.fails("create", "-f", "-", stdin=kubectl.widget(size=size))
    assert 'The Widget "one" is invalid' in refused
    assert said in refused
