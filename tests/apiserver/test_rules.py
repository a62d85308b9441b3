"""What the rules of roles allow and cover, as values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded.apiserver.access.rules import Rule, missing
from unbounded.apiserver.auth import AuthAttributes
from unbounded.apiserver.http import asked

PODS = Rule(("get", "list"), ("",), ("pods",))


@pytest.mark.parametrize(
    ("rule", "request_", "allowed"),
    [
        (PODS, AuthAttributes("get", "", "pods", name="a"), True),
        (PODS, AuthAttributes("delete", "", "pods", name="a"), False),
        (PODS, AuthAttributes("get", "apps", "pods"), False),
        (PODS, AuthAttributes("get", "", "secrets"), False),
        (PODS, AuthAttributes("get", "", "pods", "log"), False),
        (PODS, AuthAttributes("get", path="/pods"), False),
        (Rule(("*",), ("*",), ("*",)), AuthAttributes("patch", "a.b", "things", "status"), True),
        (Rule(("*",), ("*",), ("*",)), AuthAttributes("get", path="/metrics"), False),
        (Rule(("get",), ("",), ("pods/log",)), AuthAttributes("get", "", "pods", "log"), True),
        (Rule(("get",), ("",), ("pods/log",)), AuthAttributes("get", "", "pods"), False),
        (Rule(("get",), ("",), ("*/status",)), AuthAttributes("get", "", "nodes", "status"), True),
        (Rule(("get",), ("",), ("*/status",)), AuthAttributes("get", "", "nodes"), False),
        (Rule(("get",), ("",), ("secrets",), ("one",)), AuthAttributes("get", "", "secrets", name="one"), True),
        (Rule(("get",), ("",), ("secrets",), ("one",)), AuthAttributes("get", "", "secrets", name="two"), False),
        (Rule(("list",), ("",), ("secrets",), ("one",)), AuthAttributes("list", "", "secrets"), False),
        (Rule(("get",), urls=("/api/*",)), AuthAttributes("get", path="/api/v1"), True),
        (Rule(("get",), urls=("/api/*",)), AuthAttributes("get", path="/api"), False),
        (Rule(("get",), urls=("/api",)), AuthAttributes("get", path="/api/v1"), False),
        (Rule(("*",), urls=("*",)), AuthAttributes("post", path="/x"), True),
    ],
)
def test_a_rule_allows_what_it_names(rule: Rule, request_: AuthAttributes, allowed: bool) -> None:
    assert rule.allows(request_) is allowed


@pytest.mark.parametrize(
    ("held", "wanted", "lacking"),
    [
        (PODS, PODS, []),
        (Rule(("*",), ("*",), ("*",)), Rule(("get",), ("a",), ("b/c",), ("n",)), []),
        (Rule(("*",), ("*",), ("*",)), Rule(("get",), urls=("/x",)), ['{NonResourceURLs:["/x"], Verbs:["get"]}']),
        (PODS, Rule(("get", "watch", "delete"), ("",), ("pods",)), ["Verbs"]),
        (PODS, Rule(("*",), ("",), ("pods",)), ["Verbs"]),
        (PODS, Rule(("get",), ("",), ("*",)), ["Resources"]),
        (PODS, Rule(("get",), ("",), ("pods/log",)), ["Resources"]),
        (Rule(("get",), ("",), ("*/log",)), Rule(("get",), ("",), ("pods/log",)), []),
        (Rule(("get",), ("",), ("pods",), ("a",)), Rule(("get",), ("",), ("pods",), ("a",)), []),
        (Rule(("get",), ("",), ("pods",), ("a",)), Rule(("get",), ("",), ("pods",)), ["Resources"]),
        (
            Rule(("get",), ("",), ("pods",), ("a",)),
            Rule(("get",), ("",), ("pods",), ("a", "b")),
            ['ResourceNames:["b"]'],
        ),
        (Rule(("get",), urls=("/a/*",)), Rule(("get",), urls=("/a/b", "/a/c/*")), []),
        (Rule(("get",), urls=("/a/b",)), Rule(("get",), urls=("/a/*",)), ["/a/*"]),
    ],
)
def test_rights_that_are_not_held_are_named(held: Rule, wanted: Rule, lacking: list[str]) -> None:
    found = missing([held], [wanted])
    assert len(found) == len(lacking)
    for rule, words in zip(found, lacking, strict=True):
        assert words in str(rule)


words = st.lists(st.sampled_from(["a", "b", "c/s", "*", "*/s"]), min_size=1, max_size=3).map(tuple)
names = st.lists(st.sampled_from(["n", "m"]), max_size=2).map(tuple)
rules = st.builds(Rule, words, words, words, names)
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
    held: list[Rule], wanted: Rule, request_: AuthAttributes
) -> None:
    if not missing(held, [wanted]) and wanted.allows(request_):
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
    assert asked.one_name(selector) == name


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
    assert asked.of_path(method, path) == expected
