"""Reading of facts and rendering of an explanation: few requests, no writes, missing rights, and the words."""

from __future__ import annotations

import asyncio
import io
import json
from argparse import Namespace
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

import msgspec
import pytest
import yaml

from tests.explain.staging import ALIVE, beat
from tests.operations.building import claim, slot_of
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.command_tables.general import COMMANDS
from unbounded.cli.explain import WIDTH, links_text, parsed, run, timeline_text
from unbounded.cli.plugin.command import CliError, CliInvocation, CommandSession
from unbounded.explain.chain import SubjectAmbiguous, SubjectNotFound, explain, find
from unbounded.explain.links import ExplainLink, Fix, LinkCode, Topic
from unbounded.explain.results import Explanation
from unbounded.explain.timeline import OperationTimeline, TimelineAttempt, TimelineStage
from unbounded.kube.api import Forbidden, ServerError

NOW: Final = datetime(2030, 1, 1, 0, 5, tzinfo=UTC)
LINKS: Final = (
    ExplainLink(
        "operation/op",
        "HostReboot, not started: paused",
        "Paused",
        held_by="Machine m1",
        since="2030-01-01T00:00:00Z",
        until="2030-01-01T01:00:00Z",
        next_step="it starts as soon as nothing blocks it",
    ),
    ExplainLink(
        "machine/m1",
        "has the annotation",
        "Paused",
        next_step="nothing starts until the annotation is removed",
        fixes=(Fix("kubectl unbounded machine resume m1", "takes it off"),),
    ),
)


class CountingApi(MemoryApi):
    """Counts reads; can refuse every write, and every read of selected kinds."""

    def __init__(self) -> None:
        super().__init__(now=virtual_now)
        self.reads = 0
        self.closed = False
        self.secret: frozenset[str] = frozenset()
        self.broken: frozenset[str] = frozenset()

    def _look(self, kind: Kind[Any]) -> None:
        self.reads += 1
        if kind.plural in self.broken:
            raise ServerError(f"{kind.plural}: try later", code=503)
        if kind.plural in self.secret:
            raise Forbidden(f"{kind.plural} may not be read", code=403, reason="Forbidden")

    async def get(self, kind: Kind[Any], name: str, *, namespace: str = "") -> Any:
        self._look(kind)
        return await super().get(kind, name, namespace=namespace)

    async def list(self, kind: Kind[Any], *, namespace: str = "", labels: str = "", fields: str = "") -> Any:
        self._look(kind)
        return await super().list(kind, namespace=namespace, labels=labels, fields=fields)

    async def create(self, kind: Kind[Any], body: Mapping[str, Any], *, namespace: str = "") -> Any:
        assert not self.closed
        return await super().create(kind, body, namespace=namespace)

    async def patch(
        self, kind: Kind[Any], name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> Any:
        assert not self.closed
        return await super().patch(kind, name, patch, namespace=namespace, subresource=subresource)

    async def delete(self, kind: Kind[Any], name: str, **options: Any) -> None:
        assert not self.closed
        await super().delete(kind, name, **options)


async def staged() -> CountingApi:
    """A Machine that an operation has, and one that waits for it; from now on nothing is written."""
    api = CountingApi()
    for process in ALIVE:
        await beat(api, process)
    labels = {"unbounded-cloud.io/site": "lab"}
    redfish = {"url": "https://m1", "username": "u", "passwordRef": {"name": "s", "namespace": "n", "key": "p"}}
    spec = {"pxe": {"image": "i", "redfish": redfish}, "kubernetes": {}}
    await api.create(MACHINES, {"metadata": {"name": "m1", "labels": labels}, "spec": spec})
    for name in ("op-1", "op-2"):
        body = {"operationKind": "HostReboot", "machineRef": "m1", "startDeadlineSeconds": 3600}
        made = await api.create(MACHINE_OPERATIONS, {"metadata": {"name": name}, "spec": body})
        if name == "op-1":
            slot = slot_of(name) | {"uid": made.metadata.uid}
            await api.patch(MACHINES, "m1", {"status": {"activeOperation": slot}}, subresource="status")
            await api.patch(MACHINE_OPERATIONS, name, {"status": claim()}, subresource="status")
    api.reads, api.closed = 0, True
    return api


@pytest.mark.parametrize(("topic", "name"), [(Topic.MACHINE, "m1"), (Topic.OPERATION, "op-2"), (None, "op-2")])
def test_an_answer_takes_few_requests_and_writes_nothing(topic: Topic | None, name: str) -> None:
    async def ask() -> None:
        api = await staged()
        found = await explain(api, topic, name, now=virtual_now)
        links, settled, unread = found.links, found.settled, found.unread
        assert len(links) >= 2
        assert not settled
        assert unread == ()
        assert api.reads <= (8 if topic is not None else 9)

    run_virtual(ask())


def test_what_may_not_be_read_is_left_out_and_said() -> None:
    async def ask() -> None:
        api = await staged()
        api.secret = frozenset({"leases", "nodes", "configmaps", "events"})
        found = await explain(api, Topic.OPERATION, "op-2", now=virtual_now)
        links, unread = found.links, found.unread
        assert links[0].about == "operation/op-2"
        hidden = {"Leases", "its Node", "the pause of all operations", "Events"}
        assert {fact.text for fact in unread} == {f"{what} you have no permission to read it" for what in hidden}
        api.secret = frozenset({"machineoperations"})
        with pytest.raises(Forbidden):
            await explain(api, Topic.OPERATION, "op-2", now=virtual_now)

    run_virtual(ask())


def test_hidden_objects_are_not_reported_as_absent() -> None:
    async def ask() -> None:
        api = await staged()
        api.secret = frozenset({"machines"})
        found = await explain(api, Topic.OPERATION, "op-2", now=virtual_now)
        assert not found.complete
        texts = [f"{link.about} {link.what}" for link in found.links]
        assert not any("does not exist" in text or "MachineNotFound" in text for text in texts), texts
        assert found.links[0].code == LinkCode.NOT_READABLE
        api.secret = frozenset({"machineoperations"})
        found = await explain(api, Topic.MACHINE, "m1", now=virtual_now)
        texts = [f"{link.about} {link.what} {link.next_step}" for link in found.links]
        assert not any("not exist" in text for text in texts), texts
        assert [fact.resource for fact in found.unread] == ["machineoperations.unbounded-cloud.io"]

    run_virtual(ask())


def test_hidden_node_leaves_the_phase_of_the_status() -> None:
    async def ask() -> None:
        api = await staged()
        api.closed = False
        status = {"phase": "Ready", "message": "Node m1 is Ready", "activeOperation": None}
        await api.patch(MACHINES, "m1", {"status": status}, subresource="status")
        for name in ("op-1", "op-2"):
            await api.delete(MACHINE_OPERATIONS, name)
        api.secret = frozenset({"nodes", "events"})
        (link,) = (await explain(api, Topic.MACHINE, "m1", now=virtual_now)).links
        assert (link.code, link.what) == ("Ready", "Ready: Node m1 is Ready; nothing blocks it")

    run_virtual(ask())


def test_explanation_is_the_same_after_json() -> None:
    async def ask() -> None:
        api = await staged()
        api.secret = frozenset({"leases"})
        found = await explain(api, Topic.OPERATION, "op-2", now=virtual_now)
        assert found.unread
        assert msgspec.json.decode(msgspec.json.encode(found), type=Explanation) == found

    run_virtual(ask())


def test_a_name_that_two_have_is_asked_back() -> None:
    async def ask() -> None:
        api = await staged()
        api.closed = False
        await api.create(MACHINE_OPERATIONS, {"metadata": {"name": "m1"}, "spec": {"operationKind": "HostReboot"}})
        with pytest.raises(SubjectAmbiguous, match="both a Machine and an operation have the name m1"):
            await find(api, None, "m1")
        with pytest.raises(SubjectNotFound, match="Machine or operation m2 does not exist"):
            await find(api, None, "m2")

    run_virtual(ask())


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("m1", (None, "m1")),
        ("machine/m1", (Topic.MACHINE, "m1")),
        ("machines/m1", (Topic.MACHINE, "m1")),
        ("mop/op", (Topic.OPERATION, "op")),
        ("Operation/op", (Topic.OPERATION, "op")),
    ],
)
def test_how_an_object_is_named(text: str, meant: tuple[Topic | None, str]) -> None:
    assert parsed(text) == meant


@pytest.mark.parametrize("text", ["node/m1", "machine/", "/m1"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(CliError, match="neither machine/NAME nor operation/NAME"):
        parsed(text)


def test_what_people_read() -> None:
    assert links_text(LINKS, NOW) == [
        "operation/op HostReboot, not started: paused",
        "  held by Machine m1",
        "  since 2030-01-01T00:00:00Z (5m by the local clock)",
        "  until 2030-01-01T01:00:00Z",
        "  because machine/m1 has the annotation",
        "next: operation/op: it starts as soon as nothing blocks it",
        "next: machine/m1: nothing starts until the annotation is removed",
        "try:  kubectl unbounded machine resume m1",
        "      # takes it off",
    ]


def test_long_words_are_wrapped_and_commands_are_not() -> None:
    command = f"kubectl {'x' * 200}"
    shown = links_text((ExplainLink("machine/m1", "word " * 60, "Paused", fixes=(Fix(command, "does"),)),), NOW)
    assert f"try:  {command}" in shown
    assert all(len(line) <= WIDTH for line in shown if not line.startswith("try:"))


def test_stages_and_attempts_are_tables_below_the_links() -> None:
    stages = (
        TimelineStage(
            name="Off",
            state="Done",
            waits_for="Off",
            started_at="2030-01-01T00:00:00Z",
            limit_seconds=300,
            spent_seconds=7,
        ),
        TimelineStage(name="On", state="Ahead", limit_seconds=60),
    )
    attempt = TimelineAttempt(stage="Off", action="ForceOff", number=1, reply="NotDone", reason="Busy", message="wait")
    assert timeline_text(OperationTimeline(stages=stages, dropped_stages=2, attempts=(attempt,))) == [
        "",
        "STAGE   STATE   STARTED                SPENT   LIMIT   WAITS FOR",
        "Off     Done    2030-01-01T00:00:00Z   7 s     300 s   Off",
        "On      Ahead                                  60 s",
        "2 earlier stages are not listed any more",
        "",
        "ACTION     ATTEMPT   STAGE   STARTED   REPLY     MESSAGE",
        "ForceOff   1         Off               NotDone   Busy: wait",
    ]
    assert timeline_text(None) == []


def test_an_operation_that_is_claimed_is_explained_with_its_stages_in_text_and_json() -> None:
    async def ask() -> tuple[str, str]:
        api = await staged()
        texts = []
        for output in ("", "json"):
            told = told_of(output=output)
            told.args.name = "operation/op-1"
            await run(CommandSession(told, cast("Any", api), cast("Any", None)))
            texts.append(cast("io.StringIO", told.out).getvalue())
        return texts[0], texts[1]

    text, printed = run_virtual(ask())
    assert "STAGE" in text
    assert "Starting" in text
    found = msgspec.json.decode(printed, type=Explanation)
    assert found.timeline is not None
    assert (found.timeline.stages[0].name, found.timeline.stages[0].state) == ("Starting", "Current")
    assert all(one.limit_seconds for one in found.timeline.stages)


def test_an_answer_of_the_former_release_has_no_timeline() -> None:
    found = msgspec.json.decode(b'{"links": [], "settled": true, "readAt": "", "version": "0.1.0"}', type=Explanation)
    assert found.timeline is None


def test_a_time_that_is_none_is_shown_as_it_is() -> None:
    assert links_text((ExplainLink("machine/m1", "x", "Paused", since="soon"),), NOW)[1] == "  since soon"


def told_of(*, output: str = "", watch: bool = False, program: str = "kubectl unbounded") -> CliInvocation:
    """`why op-2` was typed."""
    return CliInvocation(
        program=program,
        args=Namespace(name="op-2", url="", url_ca="", output=output, watch=watch),
        environ={},
        out=io.StringIO(),
        err=io.StringIO(),
        stdin=io.StringIO(),
        colour=False,
        terminal=False,
    )


async def _shown(output: str, program: str = "kubectl unbounded") -> tuple[str, int]:
    api, told = await staged(), told_of(output=output, program=program)
    status = await run(CommandSession(told, cast("Any", api), cast("Any", None)))
    return cast("io.StringIO", told.out).getvalue(), status


def test_it_is_shown_again_when_it_changes_until_it_is_over() -> None:
    async def watch() -> None:
        api = await staged()
        api.closed = False
        told = told_of(watch=True)
        waiting = asyncio.create_task(run(CommandSession(told, cast("Any", api), cast("Any", None))))
        await asyncio.sleep(60)
        shown = cast("io.StringIO", told.out)
        assert shown.getvalue().count("operation/op-2 HostReboot") == 1
        await api.delete(MACHINE_OPERATIONS, "op-1")
        await asyncio.sleep(60)
        assert shown.getvalue().count("operation/op-2 HostReboot") == 2
        ended = {"phase": "Failed", "reason": "Cancelled", "message": "cancelled before it started"}
        await api.patch(MACHINE_OPERATIONS, "op-2", {"status": ended}, subresource="status")
        assert await waiting == 0
        assert "has ended: Failed/Cancelled" in shown.getvalue()

    run_virtual(watch())


def test_what_programs_read() -> None:
    shown, status = run_virtual(_shown("json"))
    assert status == 0
    links = json.loads(shown)["links"]
    assert [link["about"] for link in links[:2]] == ["operation/op-2", "operation/op-1"]
    assert links[0].keys() == {
        *("about", "what", "code", "heldBy", "since", "until", "untilEvent", "then", "next", "fixes"),
        *("topic", "namespace", "name"),
    }
    fixes = [fix for link in links for fix in link["fixes"]]
    assert fixes
    assert all(fix.keys() == {"command", "does", "onceEnded"} for fix in fixes)
    assert yaml.safe_load(run_virtual(_shown("yaml"))[0]).keys() == json.loads(shown).keys()
    assert run_virtual(_shown(""))[0].startswith("operation/op-2 HostReboot, not started: waiting for the older")


@pytest.mark.parametrize("program", ["kubectl unbounded", "unbounded"])
def test_commands_are_shown_as_they_can_be_typed_here(program: str) -> None:
    shown = run_virtual(_shown("", program))[0]
    ours = [line for line in shown.splitlines() if line.startswith("try:") and "unbounded " in line]
    assert ours
    assert all(line.startswith(f"try:  {program} ") for line in ours)
    with pytest.raises(CliError) as refused:
        parsed("node/m1", program)
    assert refused.value.next_step == f"{program} why machine/NAME"


def test_the_row_says_how_it_is_used() -> None:
    row = next(each for each in COMMANDS if each.path == ("why",))
    assert all(words.startswith("why ") and does for words, does in row.examples)


def test_a_server_in_trouble_is_answered_about_with_what_it_does_tell() -> None:
    async def ask() -> None:
        api = await staged()
        api.broken = frozenset({"leases", "nodes", "configmaps", "events"})
        found = await explain(api, Topic.OPERATION, "op-2", now=virtual_now)
        links, unread = found.links, found.unread
        assert links[0].about == "operation/op-2"
        texts = [fact.text for fact in unread]
        assert "Leases it cannot be read: leases: try later" in texts
        assert "Events it cannot be read: events: try later" in texts
        assert len(set(unread)) == len(unread)

    run_virtual(ask())


@pytest.mark.parametrize("kind", ["machines", "machineoperations"])
def test_unreadable_object_is_an_error_and_not_reported_as_absent(kind: str) -> None:
    async def ask() -> None:
        api = await staged()
        api.broken = frozenset({kind})
        with pytest.raises(ServerError):
            await explain(api, Topic.OPERATION, "op-2", now=virtual_now)

    run_virtual(ask())
