"""Garbage in requests: each is an answer or an error of the caller, never a crash, and nothing is written."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plan.staging import DryApi, Staged
from tests.support.virtual_time import run_virtual
from unbounded.api.operation import OperationKind
from unbounded.explain.chain import TOPICS
from unbounded.explain_api.service import ExplainService, ServedReply, ServedRequest

V: Final = "unbounded-cloud.io/v1alpha3"
ERRORS: Final = {400, 404, 413, 422}
VALUES: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.text(max_size=6)
    | st.sampled_from(["m1", "op", "lab"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=6), inner, max_size=2),
    max_leaves=4,
)
STRATEGY: Final = {"stages": [{"name": "canary", "selector": {"matchLabels": {"unbounded-cloud.io/site": "lab"}}}]}


def near(*valid: Any) -> st.SearchStrategy[Any]:
    """A valid value, and now and then another one."""
    return st.sampled_from(valid) | st.sampled_from(valid) | st.sampled_from(valid) | VALUES


SPEC: Final = st.fixed_dictionaries(
    {"operationKind": near(*OperationKind)},
    optional={
        "machineRef": near("m1", "m2"),
        "machineSelector": near({"matchLabels": {"unbounded-cloud.io/site": "lab"}}, {}),
        "parameters": near({}, {"force": "true"}, {"accept": "all"}, {"image": "x"}),
        "strategy": near(STRATEGY),
        "drain": near({"mode": "Always"}, {"mode": "Never", "timeoutSeconds": 1}),
        "maxConcurrent": near(1, 2**31),
        "deadlineSeconds": near(1, 3600),
    },
)
CREATES: Final = st.fixed_dictionaries(
    {
        "apiVersion": st.just(V),
        "kind": st.sampled_from(["MachineOperation", "MachineOperation", "Machine"]),
        "metadata": st.fixed_dictionaries({"name": st.sampled_from(["op", "new"])}, optional={"labels": near({})}),
        "spec": SPEC,
    },
)
CHANGE: Final = st.fixed_dictionaries(
    {},
    optional={
        "spec": st.dictionaries(
            st.sampled_from(["maintenance", "operations", "pxe", "ssh", "joinCounter", "cancel", "kubernetes"]),
            near({}, {"enabled": True}, {"rebootCounter": 3}, 1, None, True),
        ),
        "metadata": near({"annotations": {"unbounded-cloud.io/paused": "x"}}, {"labels": None}),
    },
)
PATCHED: Final = (("Machine", "m1"), ("Machine", "m1"), ("MachineOperation", "op"), ("MachineConfiguration", "none"))
PATCHES: Final = st.sampled_from(PATCHED).flatmap(
    lambda it: st.fixed_dictionaries(
        {"apiVersion": st.just(V), "kind": st.just(it[0]), "name": st.just(it[1]), "patch": CHANGE}
    )
)
BODIES: Final = st.fixed_dictionaries(
    {"creates": st.lists(CREATES, max_size=2), "patches": st.lists(PATCHES, max_size=2)}
)
SEGMENTS: Final = st.sampled_from([*TOPICS, "explain", "plan", "m1", "..", "%2e%2e", "%00", ""]) | st.text(max_size=5)


async def served(api: DryApi, method: str, path: str, body: bytes = b"") -> ServedReply:
    @asynccontextmanager
    async def open_api() -> AsyncIterator[Any]:
        yield api

    return await ExplainService().respond(ServedRequest(method, path, {}, "", body, "caller", open_api))


async def stage() -> DryApi:
    staged = Staged()
    await staged.machine("m1")
    await staged.operation("op", "HostReboot", "m1")
    await staged.alive()
    staged.api.closed = True
    return staged.api


@settings(deadline=None)
@given(BODIES)
def test_plan_of_nearly_valid_objects_is_an_answer_or_an_error_of_the_caller(body: Any) -> None:
    async def run() -> None:
        reply = await served(await stage(), "POST", "/plan", json.dumps(body).encode())
        assert reply.code in {200, *ERRORS}, (body, reply.body)

    run_virtual(run())


@settings(deadline=None)
@given(VALUES | st.dictionaries(st.sampled_from(["creates", "patches", "objects"]), VALUES))
def test_body_of_garbage_is_an_error_of_the_caller(body: Any) -> None:
    async def run() -> None:
        reply = await served(await stage(), "POST", "/plan", json.dumps(body).encode())
        assert reply.code in ERRORS, (body, reply.body)

    run_virtual(run())


@settings(deadline=None)
@given(st.lists(SEGMENTS, max_size=5))
def test_path_of_garbage_is_an_error_of_the_caller(segments: list[str]) -> None:
    async def run() -> None:
        reply = await served(await stage(), "GET", "/explain/" + "/".join(segments))
        assert reply.code in {200, *ERRORS}, (segments, reply.body)

    run_virtual(run())
