"""The roles that exist from the start, beside those of a kube-apiserver: as far as what they are about is served."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from tests.support.paths import GOLDENS
from unbounded_apiserver.access.default_roles import GrantedResources, default_roles
from unbounded_apiserver.served_resources import Catalog

ROLES: Mapping[str, Any] = json.loads((GOLDENS / "default-roles.json").read_text())["roles"]
NOT_SERVED = frozenset({"/flagz", "/metrics/slis", "/statusz"})
Right = tuple[str, str, str]  # verb, group, resource


def served() -> frozenset[tuple[str, str]]:
    found = set()
    for one in Catalog():
        found.add((one.group, one.plural))
        found |= {(one.group, f"{one.plural}/{part}") for part in (*one.subresources, *one.transient, *one.proxied)}
    return frozenset(found)


SERVED = served()


def rights(rules: Iterable[Mapping[str, Any]]) -> Iterator[Right]:
    for rule in rules:
        named = [(group, resource) for group in rule.get("apiGroups", ()) for resource in rule.get("resources", ())]
        for verb in rule["verbs"]:
            yield from ((verb, group, resource) for group, resource in named if (group, resource) in SERVED)
            yield from ((verb, "", url) for url in rule.get("nonResourceURLs", ()) if url not in NOT_SERVED)


@pytest.mark.parametrize("name", sorted(ROLES))
def test_a_default_role_allows_what_that_of_kubernetes_allows(name: str) -> None:
    assert set(rights(rule.write() for rule in default_roles()[name])) == set(rights(ROLES[name]))


def test_custom_resources_are_granted_where_that_is_a_setting() -> None:
    plain, roles = default_roles(), default_roles([GrantedResources("plants.example.com", ("trees",))])
    reads = {("get", "trees"), ("list", "trees/status")}
    for name, writes in (("view", False), ("edit", True), ("admin", True)):
        more = [rule for rule in roles[name] if rule not in plain[name]]
        assert {group for rule in more for group in rule.groups} == {"plants.example.com"}
        allowed = {(verb, plural) for rule in more for verb in rule.verbs for plural in rule.resources}
        assert reads <= allowed
        assert (("delete", "trees") in allowed) is writes
    assert {name for name in roles if roles[name] != plain[name]} == {
        *("view", "edit", "admin", "system:aggregate-to-view", "system:aggregate-to-edit")
    }
