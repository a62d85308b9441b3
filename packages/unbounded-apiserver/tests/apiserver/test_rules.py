"""Rights that the rules of roles allow and cover, as values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded_apiserver.access.rbac_authorizer import PolicyRule, uncovered_rules
from unbounded_apiserver.auth import AuthAttributes
from unbounded_apiserver.http import paths

PODS = PolicyRule(("get", "list"), ("",), ("pods",))


@pytest.mark.parametrize(
    ("rule", "request_", "allowed"),
    [
        (PODS, AuthAttributes("get", "", "pods", name="a"), True),
        (PODS, AuthAttributes("delete", "", "pods", name="a"), False),
        (PODS, AuthAttributes("get", "apps", "pods"), False),
        (PODS, AuthAttributes("get", "", "secrets"), False),
        (PODS, AuthAttributes("get", "", "pods", "log"), False),
        (PODS, AuthAttributes("get", path="/pods"), False),
        (PolicyRule(("*",), ("*",), ("*",)), AuthAttributes("patch", "a.b", "things", "status"), True),
        (PolicyRule(("*",), ("*",), ("*",)), AuthAttributes("get", path="/metrics"), False),
        (PolicyRule(("get",), ("",), ("pods/log",)), AuthAttributes("get", "", "pods", "log"), True),
        (PolicyRule(("get",), ("",), ("pods/log",)), AuthAttributes("get", "", "pods"), False),
        (PolicyRule(("get",), ("",), ("*/status",)), AuthAttributes("get", "", "nodes", "status"), True),
        (PolicyRule(("get",), ("",), ("*/status",)), AuthAttributes("get", "", "nodes"), False),
        (PolicyRule(("get",), ("",), ("secrets",), ("one",)), AuthAttributes("get", "", "secrets", name="one"), True),
        (PolicyRule(("get",), ("",), ("secrets",), ("one",)), AuthAttributes("get", "", "secrets", name="two"), False),
        (PolicyRule(("list",), ("",), ("secrets",), ("one",)), AuthAttributes("list", "", "secrets"), False),
        (PolicyRule(("get",), urls=("/api/*",)), AuthAttributes("get", path="/api/v1"), True),
        (PolicyRule(("get",), urls=("/api/*",)), AuthAttributes("get", path="/api"), False),
        (PolicyRule(("get",), urls=("/api",)), AuthAttributes("get", path="/api/v1"), False),
        (PolicyRule(("*",), urls=("*",)), AuthAttributes("post", path="/x"), True),
    ],
)
def test_a_rule_allows_what_it_names(rule: PolicyRule, request_: AuthAttributes, allowed: bool) -> None:
    assert rule.allows(request_) is allowed


@pytest.mark.parametrize(
    ("held", "wanted", "lacking"),
    [
        (PODS, PODS, []),
        (PolicyRule(("*",), ("*",), ("*",)), PolicyRule(("get",), ("a",), ("b/c",), ("n",)), []),
        (
            PolicyRule(("*",), ("*",), ("*",)),
            PolicyRule(("get",), urls=("/x",)),
            ['{NonResourceURLs:["/x"], Verbs:["get"]}'],
        ),
        (PODS, PolicyRule(("get", "watch", "delete"), ("",), ("pods",)), ["Verbs"]),
        (PODS, PolicyRule(("*",), ("",), ("pods",)), ["Verbs"]),
        (PODS, PolicyRule(("get",), ("",), ("*",)), ["Resources"]),
        (PODS, PolicyRule(("get",), ("",), ("pods/log",)), ["Resources"]),
        (PolicyRule(("get",), ("",), ("*/log",)), PolicyRule(("get",), ("",), ("pods/log",)), []),
        (PolicyRule(("get",), ("",), ("pods",), ("a",)), PolicyRule(("get",), ("",), ("pods",), ("a",)), []),
        (PolicyRule(("get",), ("",), ("pods",), ("a",)), PolicyRule(("get",), ("",), ("pods",)), ["Resources"]),
        (
            PolicyRule(("get",), ("",), ("pods",), ("a",)),
            PolicyRule(("get",), ("",), ("pods",), ("a", "b")),
            ['ResourceNames:["b"]'],
        ),
        (PolicyRule(("get",), urls=("/a/*",)), PolicyRule(("get",), urls=("/a/b", "/a/c/*")), []),
        (PolicyRule(("get",), urls=("/a/b",)), PolicyRule(("get",), urls=("/a/*",)), ["/a/*"]),
    ],
)
def test_rights_that_are_not_held_are_named(held: PolicyRule, wanted: PolicyRule, lacking: list[str]) -> None:
    found = uncovered_rules([held], [wanted])
    assert len(found) == len(lacking)
    for rule, words in zip(found, lacking, strict=True):
        assert words in str(rule)


words = st.lists(st.sampled_from(["a", "b", "c/s", "*", "*/s"]), min_size=1, max_size=3).map(tuple)
names = st.lists(st.sampled_from(["n", "m"]), max_size=2).map(tuple)
rules = st.builds(PolicyRule, words, words, words, names)
requests = st.builds(
    AuthAttributes,
    st.sampled_from("abcd"),
    st.sampled_from("abcd"),
    st.sampled_from("abcd"),
    st.sampled_from(["", "s"]),
    name=st.sampled_from(["", "n", "m"]),
)


@pytest.mark.slow
@given(st.lists(rules, max_size=3), rules, requests)
def test_nothing_is_allowed_by_covered_rules_that_the_holder_may_not(
    held: list[PolicyRule], wanted: PolicyRule, request_: AuthAttributes
) -> None:
    if not uncovered_rules(held, [wanted]) and wanted.allows(request_):
        assert any(rule.allows(request_) for rule in held)


@pytest.mark.parametrize(
    ("selector", "name"),
    [
        ("metadata.name=a", "a"),
        ("spec.x=1,metadata.name==a-b.c", "a-b.c"),
        ("metadata.name!=a", ""),
        ("metadata.namespace=a", ""),
        ("spec.x=a\\,metadata.name=b", ""),
        ("", ""),
    ],
)
def test_a_selector_names_an_object_only_when_it_lets_no_other_through(selector: str, name: str) -> None:
    assert paths.single_name(selector) == name


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/metrics", AuthAttributes("get", path="/metrics")),
        ("GET", "/apis/a.b/v1", AuthAttributes("get", path="/apis/a.b/v1")),
        ("GET", "/apis/a.b/v1/things", AuthAttributes("list", "a.b", "things")),
        ("DELETE", "/apis/a.b/v1/things", AuthAttributes("deletecollection", "a.b", "things")),
        ("GET", "/api/v1/watch/things", AuthAttributes("watch", "", "things")),
        ("PUT", "/api/v1/namespaces/n/things/x/s", AuthAttributes("update", "", "things", "s", "n", "x")),
    ],
)
def test_a_path_that_is_not_served_is_asked_for_all_the_same(method: str, path: str, expected: AuthAttributes) -> None:
    assert paths.path_attributes(method, path) == expected
