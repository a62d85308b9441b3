"""Valid input of flags, and its conversion."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded.api import machine_names
from unbounded.api.fields import DNS_SUBDOMAIN, LABEL_KEY, LABEL_VALUE, TAINT
from unbounded.api.machine_names import name_of
from unbounded.cli.deploy import validation
from unbounded.cli.deploy.machine_manifests import agent_fields
from unbounded.join.host_options import base_url, web_url


@pytest.mark.slow
@given(st.text("aB1-._:[]é ", max_size=40))
def test_a_sanitised_text_is_empty_or_a_name(text: str) -> None:
    plain = machine_names.sanitised(text)
    assert not plain or re.fullmatch(DNS_SUBDOMAIN, plain), plain
    assert machine_names.sanitised(plain) == plain


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("10.0.0.5", "rack1-10.0.0.5"),
        ("10.0.0.5:2222", "rack1-10.0.0.5-2222"),
        ("[2001:db8::1]:22", "rack1-2001-db8-1-22"),
        ("Web_7.Example.COM.", "rack1-web-7.example.com"),
        ("-.a.-.b", "rack1-a.b"),
    ],
    ids=range(5),
)
def test_a_machine_is_called_by_its_site_and_its_host(host: str, name: str) -> None:
    assert name_of("rack1", host) == name


def test_a_name_that_no_node_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has 70 characters.*at most 63: choose another with --name"):
        name_of("rack1", "h" * 64)


@pytest.mark.slow
@given(st.text("aB1-._/= é", max_size=20))
def test_a_label_that_is_taken_is_one_that_an_api_server_takes(text: str) -> None:
    try:
        key, value = validation.label(text)
    except ValueError:
        return
    assert re.fullmatch(LABEL_KEY, key)
    assert re.fullmatch(LABEL_VALUE, value)


@pytest.mark.slow
@given(st.text("aB1-._/=:é", max_size=20).map(lambda text: f"{text}:NoSchedule"))
def test_a_taint_that_is_taken_can_be_written_as_fields(text: str) -> None:
    try:
        taint = validation.taint(text)
    except ValueError:
        return
    assert re.fullmatch(TAINT, taint)
    fields = validation.taint_fields(taint)
    again = f"{fields['key']}{'=' + fields['value'] if 'value' in fields else ''}:{fields['effect']}"
    assert taint in {again, again.replace(":", "=:", 1)}


def test_labels_may_stand_with_commas_between_and_not_twice() -> None:
    assert validation.labels(["a=b,c=", "example.com/d=e", "a=b"]) == {"a": "b", "c": "", "example.com/d": "e"}
    with pytest.raises(ValueError, match="'a' is given twice, as 'b' and as 'c'"):
        validation.labels(["a=b", "a=c"])


REFUSED = [
    (validation.site, "Rack_1", "is not the name of a site"),
    (validation.site, "a" * 44, "at most 43"),
    (validation.registry, "https://registry.example.com/unbounded", "without a scheme"),
    (validation.registry, "registry.example.com/Team", "is not a registry"),
    (validation.registry, "reg ex", "'reg ex' is not a registry"),
    (validation.registry, "registry.example.com/team:v1", "is not a registry"),
    (machine_names.object_name, "a_b", "is not a name"),
    (validation.label, "pool", "write KEY=VALUE"),
    (validation.label, "/a=b", "is not a label key"),
    (validation.label, "a=b c", "is not a label value"),
    (validation.taint, "k=v", "write KEY=VALUE:EFFECT"),
    (validation.taint, "k=v:Never", "one of NoSchedule"),
    (web_url, "https://user:pw@example.com/", "without user and password"),
    (web_url, "ftp://example.com", "is not a URL"),
    (web_url, "https://example.com:x/", "is not a URL"),
    (base_url, "https://example.com/a?b=c", "to which paths can be appended"),
    (validation.release, "latest", "such as v1.34.0"),
    (validation.host_key, "ssh-ed25519", "ssh-keyscan"),
    (validation.endpoint, "https://api.example.com/path", "is not an address of an API server"),
]


@pytest.mark.parametrize(("check", "text", "words"), REFUSED, ids=range(len(REFUSED)))
def test_invalid_flag_value_is_rejected_with_the_valid_form(check, text, words) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(validation.BadFlag, match=words) as raised:
        validation.flagged("--flag", check, text)
    assert str(raised.value).startswith("--flag: ")


def test_a_host_key_may_have_the_name_of_its_host_before() -> None:
    key = f"ssh-ed25519 {'A' * 68}"
    assert validation.host_key(f"192.0.2.10 {key}") == validation.host_key(key) == key


def test_where_things_come_from_is_left_out_where_nothing_is_said() -> None:
    assert agent_fields({"name": "x", "agent-url": "", "cni-url": None}) == {}
    told = {
        "agent-version": "v1.2.3",
        "oci-image": "registry.example.com/node:v1",
        "kubernetes-binary-version": "v1.34.0",
        "runc-base-url": "https://mirror.example.com/runc",
    }
    assert agent_fields(told) == {
        "version": "v1.2.3",
        "image": "registry.example.com/node:v1",
        "downloads": {
            "kubernetes": {"version": "v1.34.0"},
            "runc": {"baseURL": "https://mirror.example.com/runc"},
        },
    }
    with pytest.raises(validation.BadFlag, match="--cni-url: 'x' is not a URL"):
        agent_fields({"cni-url": "x"})
