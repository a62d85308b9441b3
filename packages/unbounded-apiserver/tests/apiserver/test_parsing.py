"""Input of clients is parsed as Kubernetes does, or refused; never a crash."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.apiserver.support import refusal
from unbounded_apiserver import columns, core_types, gojson, protobuf, selectors
from unbounded_apiserver.builtin_resources import NODES
from unbounded_apiserver.crd_types import version_order
from unbounded_apiserver.http import api_call, openapi, openapi_v2, paths
from unbounded_apiserver.resource_model import ResourcePath
from unbounded_apiserver.served_resources import Catalog
from unbounded_apiserver.status import StatusError, warning_headers

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.slow
@given(json_values)
def test_json_is_read_as_it_was_written(value: Any) -> None:
    assert gojson.decode(json.dumps(value).encode()) == value
    assert gojson.duplicate_keys(json.dumps(value).encode(), value) == []


@pytest.mark.slow
@given(st.binary(max_size=40) | st.text('{}[]":,tfn0-.e\\ ', max_size=12).map(str.encode))
def test_any_bytes_are_json_or_refused_with_a_reason(data: bytes) -> None:
    error = refusal(gojson.MalformedJson, lambda: gojson.decode(data))
    assert error is None or str(error)


@pytest.mark.slow
@given(st.binary(max_size=60) | st.text('{}[]":,&*a-! \n', max_size=20).map(str.encode))
def test_any_bytes_are_yaml_or_refused(data: bytes) -> None:
    error = refusal(gojson.MalformedJson, lambda: json.dumps(gojson.decode_yaml(data)))
    assert error is None or str(error)
    if error is None:
        assert all(line.startswith("line ") for line in gojson.decode_yaml(data)[1])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{not", "invalid character 'n' looking for beginning of object key string"),
        ("", "unexpected end of JSON input"),
        ('{"a":', "unexpected end of JSON input"),
        ("x", "invalid character 'x' looking for beginning of value"),
        ("trux", "JSON is malformed: invalid character (byte 4)"),
        ('{"a" 1}', "JSON is malformed: expected ':' (byte 5)"),
    ],
)
def test_common_errors_are_worded_as_in_go(text: str, why: str) -> None:
    with pytest.raises(gojson.MalformedJson) as refused:
        gojson.decode(text.encode())
    assert str(refused.value) == why


def test_keys_that_stand_twice_are_named_by_their_paths() -> None:
    text = b'{"a":1,"a":2,"b":[{"c":1,"c":2}]}'
    assert gojson.duplicate_keys(text, gojson.decode(text)) == ["a", "b[0].c"]


def test_yaml_is_read_as_kubernetes_reads_it() -> None:
    text = b"a: y\nb: no\nc: 2020-01-02\nd: 0x10\ne: 3.0\n2: x\ntrue: z"
    assert gojson.decode_yaml(text)[0] == {
        "a": True,
        "b": False,
        "c": "2020-01-02",
        "d": 16,
        "e": 3,
        "2": "x",
        "true": "z",
    }


@pytest.mark.parametrize(
    ("selector", "labels", "matches"),
    [
        ("a=1,b!=2", {"a": "1"}, True),
        ("a==1", {"a": "2"}, False),
        ("a in (1, 2)", {"a": "2"}, True),
        ("a notin (1,2)", {}, True),
        ("a in (,1)", {"a": ""}, True),
        ("a", {"a": ""}, True),
        ("!a", {"a": ""}, False),
        ("a>3", {"a": "4"}, True),
        ("a<3", {"a": "x"}, False),
        ("", {}, True),
    ],
)
def test_label_selectors(selector: str, labels: dict[str, str], matches: bool) -> None:
    assert selectors.labels_match(selectors.parse_labels(selector), labels) is matches


NAME_PART = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', "
    "regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
A_LABEL = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', "
    "regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        ("=a", "found '=', expected: !, identifier, or 'end of string'"),
        (",a", "found ',', expected: !, identifier, or 'end of string'"),
        ("(a)", "found '(', expected: !, identifier, or 'end of string'"),
        ("a,,b", "found ',', expected: identifier after ','"),
        ("a,", "found '', expected: identifier after ','"),
        ("!", "unable to parse requirement: found '', expected: identifier"),
        ("!a=b", "found '=', expected: ',' or 'end of string'"),
        ("a in b", "unable to parse requirement: found 'b' expected: '('"),
        ("a in (", "unable to parse requirement: found '', expected: ',', ')' or identifier"),
        ("a in (b,", "unable to parse requirement: found '', expected: ',', or identifier"),
        ("a in (b,=)", "unable to parse requirement: found '=', expected: ',', or identifier"),
        ("a in (b c)", "unable to parse requirement: found 'c', expected: ',' or ')'"),
        ("a>=1", "unable to parse requirement: found '=', expected: identifier"),
        ("a!b", "unable to parse requirement: found '!', expected: in, notin, =, ==, !=, gt, lt"),
        ("a/=x", f'unable to parse requirement: <nil>: Invalid value: "a/": name part must be non-empty; {NAME_PART}'),
        ("a>-x",
         "unable to parse requirement: [values[0]: Invalid value: \"-x\": for 'Gt', 'Lt' operators, the value must be "
         f'an integer, values[0][a]: Invalid value: "-x": {A_LABEL}]'),
    ],
)  # fmt: skip
def test_invalid_selector_is_rejected_with_the_message_of_kubernetes(selector: str, said: str) -> None:
    error = refusal(selectors.BadSelector, lambda: selectors.parse_labels(selector))
    assert str(error) == said


@pytest.mark.slow
@given(st.text("ab=!<>(),. innot1", max_size=15) | st.text(max_size=8))
def test_any_selector_is_understood_or_refused(text: str) -> None:
    for parse in (selectors.parse_labels, selectors.parse_fields):
        error = refusal(selectors.BadSelector, partial(parse, text))
        assert error is None or str(error)


def test_field_selectors_can_escape() -> None:
    assert selectors.parse_fields(r"a=x\,y,b!=\=z") == (
        selectors.FieldRequirement("a", "x,y", True),
        selectors.FieldRequirement("b", "=z", False),
    )


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".a.b", [1]),
        (".list[0].n", ["x"]),
        (".list[-1].n", ["y"]),
        (".list[*].n", ["x", "y"]),
        ('.list[?(@.n=="y")].v', [2]),
        (".list[?(@.v>1)].n", ["y"]),
        (".list[0:1].n", ["x"]),
        (r".k\.8s", ["dotted"]),
        ("..b", [1]),
        (".nothing.at.all", []),
        ("{.a.b}", [1]),
    ],
)
def test_json_paths(path: str, found: list[Any]) -> None:
    value = {"a": {"b": 1}, "list": [{"n": "x", "v": 1}, {"n": "y", "v": 2}], "k.8s": "dotted"}
    assert columns.compile_path(path)(value) == found


@pytest.mark.slow
@given(st.text(".a[]*?()@=\"'0:-", max_size=15))
def test_any_json_path_is_understood_or_refused(path: str) -> None:
    error = refusal(columns.BadPath, lambda: columns.compile_path(path)({"a": [{"a": 1}, "a", None]}))
    assert error is None or str(error)


@given(st.binary(max_size=60))
def test_any_protobuf_is_read_or_refused(data: bytes) -> None:
    for prefix in (protobuf.MAGIC, b""):
        error = refusal(protobuf.NotProtobuf, partial(protobuf.decode, prefix + data, core_types.SECRET))
        assert error is None or str(error)


def test_a_protobuf_secret_is_read() -> None:
    def part(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    secret = part(1, part(1, b"s") + part(11, part(1, b"k") + part(2, b"v"))) + part(2, part(1, b"d") + part(2, b"1"))
    secret += bytes([5 << 3, 1])
    data = protobuf.MAGIC + part(1, part(1, b"v1") + part(2, b"Secret")) + part(2, secret)
    assert protobuf.decode(data, core_types.SECRET) == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s", "labels": {"k": "v"}},
        "data": {"d": "MQ=="},
        "immutable": True,
    }


@pytest.mark.slow
@given(st.text("/apisv1namespcewtchdfultk%2F.", max_size=40))
def test_any_path_names_something_or_nothing(path: str) -> None:
    with contextlib.suppress(paths.NoSuchPath):
        found = paths.parse(Catalog(), "/" + path)
        assert found is None or isinstance(found, ResourcePath | paths.DiscoveryPath)


@pytest.mark.slow
@given(st.text("application/json;as=Table;v=1g.,*q ", max_size=60))
def test_any_accept_header_is_answered_or_refused(accept: str) -> None:
    for negotiation in (api_call.negotiate_form, api_call.accepts_aggregated):
        error = refusal(StatusError, partial(negotiation, accept))
        assert error is None or error.code == 406


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (192, "3m12s"),
        (600, "10m"),
        (3 * 3600, "3h"),
        (10_860, "3h1m"),
        (172_800, "2d"),
        (180_000, "2d2h"),
        (800 * 86_400, "2y70d"),
        (9 * 365 * 86_400, "9y"),
        (-5, "<invalid>"),
    ],
)
def test_ages_are_shown_as_kubectl_shows_them(seconds: int, shown: str) -> None:
    assert columns.duration(seconds) == shown


def test_versions_are_ordered_as_kubernetes_prefers_them() -> None:
    names = ["v1alpha1", "foo", "v2beta1", "v1", "v10", "v2", "v1beta2"]
    assert sorted(names, key=version_order) == ["v10", "v2", "v1", "v2beta1", "v1beta2", "v1alpha1", "foo"]


@pytest.mark.slow
def test_openapi_names_no_schema_that_it_does_not_have() -> None:
    documents = openapi.OpenApi(Catalog())
    for path in ("api/v1", "apis/coordination.k8s.io/v1", "apis/apiextensions.k8s.io/v1", "version"):
        text = documents.document(path)
        assert text is not None
        document = msgspec.json.decode(text)
        named = set(_references(document))
        assert {n.removeprefix(openapi.V3) for n in named} <= document["components"]["schemas"].keys()
    v2 = msgspec.json.decode(documents.v2())
    assert {n.removeprefix(openapi.V2) for n in _references(v2)} <= v2["definitions"].keys()
    assert openapi_v2.encode(v2)


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [r for inner in value.values() for r in _references(inner)]
    return [r for inner in value for r in _references(inner)] if isinstance(value, list) else []


def test_warnings_fit_into_headers() -> None:
    assert warning_headers(['a "b"\nc', 'a "b"\nc']) == ['299 - "a \\"b\\" c"']
    many = warning_headers(f"{i} " + "x" * 5000 for i in range(100))
    assert len(many) == 16
    assert all(len(value) <= 256 + len('299 - ""') for value in many)


def test_paths_are_known_until_the_catalog_changes() -> None:
    catalog = Catalog()
    places = paths.PathRouter(catalog)
    assert places.route("/api/v1/nodes/n1") is places.route("/api/v1/nodes/n1")
    with pytest.raises(paths.NoSuchPath):
        places.route("/apis/example.com/v1/widgets")
    defined = replace(NODES, group="example.com", plural="widgets")
    catalog.define("widgets.example.com", [defined])
    found = places.route("/apis/example.com/v1/widgets")
    assert isinstance(found, ResourcePath)
    assert found.resource is defined
    catalog.define("widgets.example.com", [])
    with pytest.raises(paths.NoSuchPath):
        places.route("/apis/example.com/v1/widgets")
