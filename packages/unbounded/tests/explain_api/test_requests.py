"""Requests of the API: limits, releases, settings, and answers of later releases."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.explain.chain import explain
from unbounded.explain.links import Topic
from unbounded.explain.results import Explanation
from unbounded.explain_api.limits import REMEMBERED, RequestLimits
from unbounded.explain_api.releases import release_fault
from unbounded.explain_api.requests import plan_request
from unbounded.explain_api.service import ExplainService, ServedRequest
from unbounded.explain_api.settings import add_arguments, parse_settings
from unbounded.explain_api.statuses import RequestRejected
from unbounded.kube.options import SettingsError


def test_one_caller_cannot_take_all_turns() -> None:
    limits = RequestLimits(total=3, each=2, unknown=3)
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
        assert limits == RequestLimits(total=3, each=2, unknown=3, _running=limits._running, _unknown=1)
        assert limits._running == {"c": 1}


def test_tokens_that_no_server_has_accepted_cannot_take_all_turns() -> None:
    limits = RequestLimits(total=4, each=2, unknown=2)
    limits.note_served("known")
    with ExitStack() as stack:
        for garbage in ("a", "b"):
            stack.enter_context(limits.turn(garbage))
        with pytest.raises(RequestRejected, match="too many requests are running"):
            stack.enter_context(limits.turn("c"))
        stack.enter_context(limits.turn("known"))
    for number in range(REMEMBERED):
        limits.note_served(f"later-{number}")
    with limits.turn("a"), limits.turn("b"), pytest.raises(RequestRejected), limits.turn("known"):
        pass
    assert (limits._unknown, limits._running) == (0, {})


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


class HangingApi(MemoryApi):
    """Answers no read until it is released."""

    def __init__(self) -> None:
        super().__init__(now=virtual_now)
        self.released = asyncio.Event()

    async def get(self, kind: Kind[Any], name: str, *, namespace: str = "") -> Any:
        await self.released.wait()
        return await super().get(kind, name, namespace=namespace)


def _request(api: HangingApi, path: str = "/explain/machine/m1") -> ServedRequest:
    @asynccontextmanager
    async def open_api() -> AsyncIterator[Any]:
        yield api

    return ServedRequest("GET", path, {}, "", b"", "caller", open_api)


def test_requests_beyond_the_limit_are_rejected_and_slow_ones_end() -> None:
    async def run() -> None:
        service, api = ExplainService(limit_s=5.0), HangingApi()
        running = [asyncio.create_task(service.respond(_request(api))) for _ in range(4)]
        await asyncio.sleep(1)
        rejected = await service.respond(_request(api))
        assert (rejected.code, dict(rejected.headers)["Retry-After"]) == (429, "1")
        late = await asyncio.gather(*running)
        assert {one.code for one in late} == {504}
        assert msgspec.json.decode(late[0].body)["message"] == "no answer within 5 s"
        api.released.set()
        assert (await service.respond(_request(api))).code == 404

    run_virtual(run())


def test_bug_is_an_error_without_its_text() -> None:
    async def run() -> None:
        def open_api() -> Any:
            raise KeyError("a secret")

        request = ServedRequest("GET", "/explain/machine/m1", {}, "", b"", "caller", open_api)
        reply = await ExplainService().respond(request)
        assert (reply.code, b"secret" in reply.body) == (500, False)

    run_virtual(run())


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
