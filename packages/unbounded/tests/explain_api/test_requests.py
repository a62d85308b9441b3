"""Requests of the API: limits, releases, settings, and answers of later releases."""

from __future__ import annotations

import argparse
from contextlib import ExitStack

import msgspec
import pytest

from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.api.machine import MACHINES
from unbounded.explain.chain import explain
from unbounded.explain.links import Topic
from unbounded.explain.results import Explanation
from unbounded.explain_api.limits import RequestLimits
from unbounded.explain_api.releases import release_fault
from unbounded.explain_api.requests import plan_request
from unbounded.explain_api.settings import add_arguments, parse_settings
from unbounded.explain_api.statuses import RequestRejected
from unbounded.kube.options import SettingsError


def test_one_caller_cannot_take_all_turns() -> None:
    limits = RequestLimits(total=3, each=2)
    with ExitStack() as stack:
        stack.enter_context(limits.turn("a"))
        stack.enter_context(limits.turn("a"))
        with pytest.raises(RequestRejected, match="2 requests of this caller are running") as rejected:
            stack.enter_context(limits.turn("a"))
        assert (rejected.value.code, rejected.value.retry_after_s) == (429, 1)
        stack.enter_context(limits.turn("b"))
        with pytest.raises(RequestRejected, match="too many requests are running"):
            stack.enter_context(limits.turn("c"))
    with limits.turn("c"):
        assert limits == RequestLimits(total=3, each=2, _running=limits._running)
        assert limits._running == {"c": 1}


@pytest.mark.parametrize(
    ("other", "own", "fits"),
    [
        ("0.1.0", "0.1.0", True),
        ("0.2.9", "0.1.0", True),
        ("0.1.0", "0.2.0", True),
        ("0.3.0", "0.1.0", False),
        ("1.1.0", "0.1.0", False),
        ("0.2.0rc1", "0.1.0", True),
        ("0.2", "0.1.0", True),
        ("", "0.1.0", False),
        ("v0.1.0", "0.1.0", False),
        ("0.1.0\r\nX: y", "0.1.0", False),
    ],
)
def test_releases_fit_that_differ_by_one_minor_release(other: str, own: str, fits: bool) -> None:
    assert bool(release_fault(other, own)) is not fits


def test_fields_of_later_releases_are_ignored_and_named() -> None:
    patch = b'{"apiVersion": "v1", "kind": "ConfigMap", "name": "n", "patch": {}, "later": 1}'
    request, unknown = plan_request(b'{"patches": [' + patch + b'], "more": 2}')
    assert (len(request.patches), unknown) == (1, ["more", "patches[0].later"])


def test_answer_of_a_later_release_is_read() -> None:
    async def run() -> None:
        api = MemoryApi(now=virtual_now)
        await api.create(MACHINES, {"metadata": {"name": "m1"}, "spec": {}})
        found = await explain(api, Topic.MACHINE, "m1", now=virtual_now)
        later = msgspec.to_builtins(found)
        later |= {"version": "9.9.9", "advice": {"of": "a later release"}}
        later["links"] = [{**link, "code": "CodeOfALaterRelease", "severity": 3} for link in later["links"]]
        read = msgspec.json.decode(msgspec.json.encode(later), type=Explanation)
        assert [link.code for link in read.links] == ["CodeOfALaterRelease"] * len(found.links)
        assert read.settled == found.settled

    run_virtual(run())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tls-cert-file", "c"], "--tls-cert-file and --tls-private-key-file belong together"),
        (["--plain-addr", "0"], "nothing is served"),
        (["--api-server", ""], "name the API server"),
    ],
)
def test_settings_that_do_not_fit_are_refused(arguments: list[str], words: str) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, {})
    with pytest.raises(SettingsError, match=words):
        parse_settings(parser.parse_args(["--api-server", "https://s:6443", *arguments]), {})


@pytest.mark.parametrize("address", [":8090", "0.0.0.0:8090", "10.0.0.1:8090", "example.com:8090"])
def test_tokens_cross_no_network_without_tls(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, {})
    with pytest.raises(SystemExit):
        parser.parse_args(["--plain-addr", address])
    assert "is not on loopback" in capsys.readouterr().err
