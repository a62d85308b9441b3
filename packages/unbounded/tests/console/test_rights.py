"""Rights of a user in mid-session: how often the API server is asked for them, and that each loss is noticed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import pytest
from prometheus_client.samples import Sample

from tests.console.served import BINDINGS, ROLES, bind, create_namespace, create_new, create_reader, unbind
from unbounded.api.core import CONFIG_MAPS, LEASES, NODES, SECRETS
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.console import live as console_live
from unbounded.console.live import LEADER_LEASES, LiveData, LiveKind, LiveSource, LiveState, Selection, one_object
from unbounded.console.rights import UserRights, WatchRight
from unbounded.join.bootstrap_tokens import NAMESPACE as TOKENS
from unbounded.kube.client import HttpApi
from unbounded.kube.credentials import AuthInfo, StaticCredentials

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
QUESTIONS, RULES = "selfsubjectaccessreviews", "selfsubjectrulesreviews"
REVIEWS: Final = (QUESTIONS, RULES)
EVERY_S: Final = 0.1
READ: Final = ["get", "list", "watch"]
OF_PAGES: Final[tuple[LiveSource[Any], ...]] = (  # what an open page of each view follows
    *(MACHINES, MACHINE_OPERATIONS, LEADER_LEASES),
    *(one_object(MACHINES, "m-001"), one_object(NODES, "m-001"), one_object(LEASES, "m-001", "kube-node-lease")),
    *(one_object(CONFIG_MAPS, "one", NAMESPACE), one_object(CONFIG_MAPS, "other", NAMESPACE)),
    Selection(SECRETS, TOKENS, labels="mine=yes"),
)
Count = Callable[[], Awaitable[Counter[str]]]


@pytest.fixture(scope="module")
def count(scrape: Callable[[], Awaitable[list[Sample]]]) -> Count:
    """Counts reviews by their kind, at the API server."""

    async def reviews() -> Counter[str]:
        found = Counter[str]()
        for sample in await scrape():
            if sample.name == "apiserver_request_total" and sample.labels["resource"] in REVIEWS:
                found[sample.labels["resource"]] += int(sample.value)
        return found

    return reviews


@asynccontextmanager
async def live_data(
    api: HttpApi, name: str, monkeypatch: pytest.MonkeyPatch, sources: Iterable[LiveSource[Any]]
) -> AsyncIterator[tuple[LiveData, list[LiveKind[Any]]]]:
    """Yield live data of a user, whose rights are asked for ten times a second, and the selections in them."""
    monkeypatch.setattr(console_live, "RIGHTS_EVERY_S", EVERY_S)
    token = (await api.token(name, namespace="default")).token
    async with HttpApi(replace(api.config, credentials=StaticCredentials(AuthInfo(token=token)))) as own:
        data = LiveData(own, unauthorized=lambda _cause: None)
        try:
            followed = [data.of(source) for source in sources]
            for live in followed:
                live.subscribe(lambda _old, _new: None)
                await live.settled()
            yield data, followed
        finally:
            data.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def rounds(count: Count, kind: str, least: int) -> Counter[str]:
    """Return the reviews after at least so many of one kind have come."""
    before = await count()
    async with asyncio.timeout(60):
        while ((now := await count()) - before)[kind] < least:  # noqa: ASYNC110
            await asyncio.sleep(EVERY_S)
    return now - before


async def test_one_request_a_round_keeps_the_rights_of_an_administrator(
    api: HttpApi, count: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_namespace(api, NAMESPACE)
    await create_reader(api, "reads-all")
    await api.patch(ROLES, "reads-all", {"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": READ}]})
    async with live_data(api, "reads-all", monkeypatch, OF_PAGES) as (_data, followed):
        await rounds(count, RULES, 4)  # the first ones ask for each kind, once
        asked = await rounds(count, RULES, 10)
        assert asked[QUESTIONS] == 0
        assert {live.state for live in followed} == {LiveState.LIVE}
        await unbind(api, "reads-all")
        await until(lambda: {live.state for live in followed} == {LiveState.DENIED})


async def test_rights_on_single_namespaces_cost_one_request_for_each(
    api: HttpApi, count: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_namespace(api, NAMESPACE)
    await create_reader(api, "reads-leases")
    await api.patch(ROLES, "reads-leases", {"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": READ}]})
    await unbind(api, "reads-leases")
    await bind(api, "reads-leases", namespace=NAMESPACE)
    async with live_data(api, "reads-leases", monkeypatch, OF_PAGES) as (_data, followed):
        readable = {LEADER_LEASES, *OF_PAGES[6:8]}
        await rounds(count, RULES, 20)
        asked = await rounds(count, RULES, 20)
        assert asked[QUESTIONS] == 0
        assert {live.selection for live in followed if live.state is LiveState.LIVE} == readable
        assert {live.state for live in followed} == {LiveState.LIVE, LiveState.DENIED}


async def test_a_right_that_shrinks_to_one_namespace_is_lost_elsewhere(
    api: HttpApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules are the same in the namespace that remains."""
    await create_namespace(api, NAMESPACE)
    await create_reader(api, "shrinks")
    await api.patch(ROLES, "shrinks", {"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": READ}]})
    async with live_data(api, "shrinks", monkeypatch, OF_PAGES) as (data, followed):
        await until(lambda: {live.state for live in followed} == {LiveState.LIVE})
        await bind(api, "shrinks", namespace=NAMESPACE)
        await asyncio.sleep(5 * EVERY_S)
        await unbind(api, "shrinks")
        await until(lambda: data.of(MACHINES).state is LiveState.DENIED)
        left = {LEADER_LEASES, *OF_PAGES[6:8]}
        await until(lambda: {live.selection for live in followed if live.state is LiveState.LIVE} == left)
        await bind(api, "shrinks")
        await until(lambda: {live.state for live in followed} == {LiveState.LIVE})


async def test_a_right_to_one_object_is_lost_and_given_back(api: HttpApi, monkeypatch: pytest.MonkeyPatch) -> None:
    await create_reader(api, "one-object")

    def rules(name: str) -> dict[str, Any]:
        return {"rules": [{"apiGroups": ["*"], "resources": ["*"], "resourceNames": [name], "verbs": READ}]}

    await api.patch(ROLES, "one-object", rules("m-001"))
    sources = (MACHINES, one_object(MACHINES, "m-001"), one_object(MACHINES, "m-002"))
    async with live_data(api, "one-object", monkeypatch, sources) as (_data, (whole, first, second)):
        assert (whole.state, first.state, second.state) == (LiveState.DENIED, LiveState.LIVE, LiveState.DENIED)
        await asyncio.sleep(3 * EVERY_S)
        await api.patch(ROLES, "one-object", rules("m-002"))
        await until(lambda: (first.state, second.state) == (LiveState.DENIED, LiveState.LIVE))
        assert whole.state is LiveState.DENIED
        assert first.cache.all() == ()


async def test_a_second_binding_of_the_same_role_keeps_the_right(
    api: HttpApi, count: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_reader(api, "bound-twice", "machines")
    body = await api.get(BINDINGS, "bound-twice")
    second = {"metadata": {"name": "bound-again"}, "roleRef": body["roleRef"], "subjects": body["subjects"]}
    async with live_data(api, "bound-twice", monkeypatch, (MACHINES,)) as (_data, (machines,)):
        await create_new(api, BINDINGS, second)
        await unbind(api, "bound-twice")
        await rounds(count, RULES, 5)
        assert machines.state is LiveState.LIVE
        await unbind(api, "bound-again")
        await until(lambda: machines.state is LiveState.DENIED)


async def test_a_server_that_cannot_list_the_rules_is_asked_for_each_right() -> None:
    """As one with an authorization webhook, which lists some rules and says that there may be more."""
    asked, allowed = Counter[str](), {"machines", "nodes"}

    async def ask(kind: Kind[Any], review: dict[str, Any]) -> dict[str, Any]:
        asked[kind.plural] += 1
        if kind.plural == RULES:
            return {"status": {"resourceRules": [], "incomplete": True}}
        return {"status": {"allowed": review["spec"]["resourceAttributes"]["resource"] in allowed}}

    rights = UserRights(ask)
    uses = {WatchRight("g", "machines"): [False], WatchRight("g", "machines", "", "m"): [False]}
    uses |= {WatchRight("", "nodes"): [False]}
    for _ in range(3):
        assert {right.resource: why async for right, why in rights.check(uses)} == {"machines": None, "nodes": None}
    assert asked == {RULES: 1, QUESTIONS: 6}
    allowed.remove("nodes")
    found = {right.resource: why async for right, why in rights.check(uses)}
    assert found == {"machines": None, "nodes": "you may not watch nodes"}


async def test_an_answer_between_two_changes_of_the_rules_proves_nothing() -> None:
    """The right is there only while the server is asked for it: the rules before it and those of later are the same."""
    rules: list[str] = []

    async def ask(kind: Kind[Any], _review: dict[str, Any]) -> dict[str, Any]:
        if kind.plural == RULES:
            return {"status": {"resourceRules": [{"verbs": rules}]}}
        was_allowed = bool(rules)
        rules[:] = [] if was_allowed else ["watch"]
        return {"status": {"allowed": was_allowed}}

    rights, right = UserRights(ask), WatchRight("g", "machines")
    rules[:] = ["watch"]
    assert [why async for _, why in rights.check({right: [False]})] == [None]  # the rules have changed since
    assert [why async for _, why in rights.check({right: [False]})] == ["you may not watch machines"]
