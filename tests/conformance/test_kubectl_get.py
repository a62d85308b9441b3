"""kubectl get: what it prints, how it selects, how it watches."""

from __future__ import annotations

import json

import yaml

from tests.conformance.support import Kubectl, config_map, line, needs_kubectl

pytestmark = needs_kubectl


async def test_the_columns_are_those_of_the_definition(kubectl: Kubectl) -> None:
    await kubectl.apply(kubectl.widget(ratio=0.5))
    widgets = f"widgets.{kubectl.group}"
    assert (await kubectl("get", widgets)).split()[:6] == ["NAME", "COLOR", "SIZE", "READY", "PHASE", "AGE"]
    wide = (await kubectl("get", widgets, "-o", "wide", "--show-labels")).splitlines()
    assert wide[0].split() == ["NAME", "COLOR", "SIZE", "READY", "PHASE", "RATIO", "AGE", "LABELS"]
    assert "0.5" in wide[1].split()
    assert (await kubectl("get", widgets, "--no-headers")).split()[:3] == ["one", "red", "3"]


async def test_every_form_of_output(kubectl: Kubectl) -> None:
    await kubectl.apply(config_map("a", {"tier": "1"}, key="value"))
    one = ("get", "configmap/a", "-o")
    assert json.loads(await kubectl(*one, "json"))["data"] == {"key": "value"}
    assert yaml.safe_load(await kubectl(*one, "yaml"))["kind"] == "ConfigMap"
    assert await kubectl(*one, "jsonpath={.data.key}") == "value"
    assert await kubectl(*one, "go-template={{.metadata.name}}:{{len .data}}") == "a:1"
    assert await kubectl(*one, "name") == "configmap/a\n"
    columns = await kubectl(*one, "custom-columns=N:.metadata.name,K:.data.key")
    assert [row.split() for row in columns.splitlines()] == [["N", "K"], ["a", "value"]]


async def test_lists_are_selected_sorted_and_read_in_pages(kubectl: Kubectl) -> None:
    await kubectl.apply(*(config_map(f"m{n}", {"half": str(n % 2)}, rank=str(9 - n)) for n in range(5)))
    named = ("get", "configmaps", "-o", "name")
    odd = await kubectl(*named, "-l", "half=1")
    assert odd.split() == ["configmap/m1", "configmap/m3"]
    assert (await kubectl(*named, "-l", "half in (0,7),half!=1")).split() == [f"configmap/m{n}" for n in (0, 2, 4)]
    assert (await kubectl(*named, "--field-selector", "metadata.name=m3")).split() == ["configmap/m3"]
    ranked = await kubectl(*named, "-l", "half", "--sort-by={.data.rank}")
    assert ranked.split() == [f"configmap/m{n}" for n in (4, 3, 2, 1, 0)]
    paged = (await kubectl("get", "configmaps", "-l", "half", "--chunk-size=2", "--no-headers")).splitlines()
    assert [row.split()[0] for row in paged] == [f"m{n}" for n in range(5)]
    everywhere = await kubectl("get", "configmaps", "-A", "--field-selector", "metadata.name=m3")
    assert kubectl.namespace in everywhere
    assert "NAMESPACE" in everywhere


async def test_selectable_fields_of_a_definition(kubectl: Kubectl) -> None:
    await kubectl.apply(kubectl.widget("a"), kubectl.widget("b", color="green"))
    widgets = f"widgets.{kubectl.group}"
    found = await kubectl("get", widgets, "--field-selector", "spec.color=green", "-o", "name")
    assert found.split() == [f"widget.{kubectl.group}/b"]
    refused = await kubectl.fails("get", widgets, "--field-selector", "spec.size=3")
    assert "field label not supported: spec.size" in refused


async def test_several_kinds_at_once(kubectl: Kubectl) -> None:
    await kubectl.apply(kubectl.widget(), config_map("a"))
    shown = await kubectl("get", f"configmaps,widgets.{kubectl.group}", "-o", "name")
    assert {"configmap/a", f"widget.{kubectl.group}/one"} <= set(shown.split())
    assert f"widget.{kubectl.group}/one" in await kubectl("get", "all", "-o", "name")


async def test_a_watch_prints_what_changes(kubectl: Kubectl) -> None:
    widgets = f"widgets.{kubectl.group}"
    await kubectl.apply(kubectl.widget())
    watch = await kubectl.start("get", widgets, "-w", "--no-headers")
    only = await kubectl.start("get", widgets, "--watch-only", "--output-watch-events", "--no-headers")
    assert (await line(watch))[:3] == ["one", "red", "3"]
    for size in range(4, 60):  # until --watch-only has begun, which nothing reports
        await kubectl("patch", widgets, "one", "--type=merge", "-p", f'{{"spec":{{"size":{size}}}}}')
        assert (await line(watch))[:3] == ["one", "red", str(size)]
        assert only.stdout is not None
        if size > 5:
            break
    await kubectl("delete", widgets, "one")
    seen = await line(only)
    while seen[0] != "DELETED":
        assert seen[:3] == ["MODIFIED", "one", "red"]
        seen = await line(only)
    assert seen[1] == "one"


async def test_raw_paths(kubectl: Kubectl) -> None:
    assert await kubectl("get", "--raw", "/readyz") == "ok"
    found = json.loads(await kubectl("get", "--raw", f"/api/v1/namespaces/{kubectl.namespace}/configmaps?limit=1"))
    assert found["kind"] == "ConfigMapList"
    assert "NotFound" in await kubectl.fails("get", "--raw", "/api/v1/nothings")


async def test_what_is_not_there_is_said_so(kubectl: Kubectl) -> None:
    refused = await kubectl.fails("get", "nothings")
    assert 'the server doesn\'t have a resource type "nothings"' in refused
    refused = await kubectl.fails("get", "configmap", "none")
    assert refused == 'Error from server (NotFound): configmaps "none" not found\n'
    assert await kubectl("get", "configmap", "none", "--ignore-not-found") == ""
    refused = await kubectl.fails("get", "configmaps", "-l", "a in (")
    assert "unable to parse requirement" in refused
