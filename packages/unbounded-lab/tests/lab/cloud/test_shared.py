"""Shared base of all simulated clouds: limits, records with a past, due changes, and the frontend with its faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from unbounded.kube.tls import client_context
from unbounded_lab.clock import ManualClock
from unbounded_lab.cloud.frontend import CloudCall, CloudFrontend, CloudRateLimit, TokenBuckets
from unbounded_lab.cloud.history import CloudEvent, CloudHistory, Schedule, VersionedValues
from unbounded_lab.cloud.local import LabCloud
from unbounded_lab.cloud.misbehaviours import COMMON, CloudFaults, Misbehaviours
from unbounded_lab.faults import FOR_EVER
from unbounded_lab.http import Delivery, LabReply, LabRequest

ERRORS = {"TooManyRequests": 429, "InternalServerError": 500, "ServiceUnavailable": 503}


class Counter:
    """A cloud whose only thing is a number: POST adds one, GET shows it."""

    error_names = tuple(ERRORS)

    def __init__(self, faults: CloudFaults) -> None:
        self.history = CloudHistory()
        self.faults = faults
        self.number = 0

    def set_faults(self, faults: CloudFaults, now: float) -> None:
        self.faults = faults

    def advance(self, now: float) -> None:
        pass

    def call(self, request: LabRequest) -> CloudCall:
        kind = "Login" if request.path == "/login" else "Add" if request.method == "POST" else "Show"
        return CloudCall(f"Number.{kind}", request.headers.get("account", ""), kind == "Add", kind == "Login")

    def answer(self, request: LabRequest, call: CloudCall, now: float) -> LabReply:
        self.number += call.changes
        return LabReply(200, str(self.number).encode())

    def error(self, name: str, request: LabRequest, call: CloudCall, now: float) -> LabReply:
        return LabReply(ERRORS[name], name.encode())


class LabCounter(LabCloud[CloudFaults]):
    table = Misbehaviours(CloudFaults(), COMMON)

    def _begin(self, faults: CloudFaults, now: float) -> Counter:
        self.counter = Counter(faults)
        return self.counter


def ask(front: CloudFrontend, method: str = "POST", path: str = "/", **headers: str) -> tuple[int, Delivery] | None:
    """Status and fate of an answer; None when the request was lost on its way."""
    request = LabRequest(method, path, headers)
    passage = front.admit(request, 0.0)
    if passage.dropped:
        return None
    reply = front.answer(request, passage, 0.0)
    return reply.status, reply.fate


@pytest.fixture
def turned() -> Callable[..., tuple[CloudFrontend, Counter]]:
    def make(**settings: Any) -> tuple[CloudFrontend, Counter]:
        counter = Counter(CloudFaults(**settings))
        return CloudFrontend(counter, 0.0), counter

    return make


GOOD = (200, Delivery.SENT)


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    buckets, limit = TokenBuckets(), CloudRateLimit(burst=3, per_s=0.5)
    assert [buckets.take({"writes": limit}, 0.0) for _ in range(4)] == [None, None, None, ("writes", 2.0)]
    assert buckets.take({"writes": limit}, 2.0) is None
    assert buckets.take({"writes": limit}, 3.0) == ("writes", 1.0)
    assert (buckets.left("writes", limit, 3.0), buckets.left("writes", limit, 600.0)) == (0, 3)


def test_a_request_that_one_bucket_refuses_takes_nothing_from_the_others() -> None:
    buckets, wide, narrow = TokenBuckets(), CloudRateLimit(10, 1), CloudRateLimit(1, 1)
    assert buckets.take({"wide": wide, "narrow": narrow}, 0.0) is None
    assert buckets.take({"wide": wide, "narrow": narrow}, 0.0) == ("narrow", 1.0)
    assert buckets.left("wide", wide, 0.0) == 9


def test_records_are_seen_as_they_were() -> None:
    records: VersionedValues[str, int] = VersionedValues()
    records.put("a", 1, 10.0)
    records.put("a", 2, 20.0)
    records.put("b", 3, 20.0)
    records.drop("a", 30.0)
    assert [records.value_at("a", at) for at in (9.9, 10.0, 19.9, 20.0, 29.9, 30.0)] == [None, 1, 1, 2, 2, None]
    assert (dict(records.values_at(25.0)), dict(records), records.get("a")) == ({"a": 2, "b": 3}, {"b": 3}, None)


def test_what_comes_due_comes_in_its_order_with_what_it_brings_about() -> None:
    agenda, seen = Schedule(), list[tuple[str, float]]()

    def first(at: float) -> None:
        seen.append(("first", at))
        agenda.put(at + 1.0, lambda at: seen.append(("then", at)))

    agenda.put(5.0, lambda at: seen.append(("last", at)))
    agenda.put(2.0, first)
    agenda.run(1.9)
    assert seen == []
    agenda.run(4.0)
    assert seen == [("first", 2.0), ("then", 3.0)]


def test_history_counts_what_was_there_at_once() -> None:
    history = CloudHistory()
    for what in ("created", "deleted", "created", "created", "deleted"):
        history.add(CloudEvent(0.0, "Disk", "os", what))
    history.add(CloudEvent(0.0, "Disk", "other", "created"))
    assert history.max_concurrent("created", "deleted", kind="Disk", name="os") == 2
    assert history.max_concurrent("created", "deleted", kind="Disk") == 2


def test_lost_before_does_nothing_and_lost_after_does_it(turned: Callable[..., tuple[CloudFrontend, Counter]]) -> None:
    front, counter = turned(lost_before=1, lost_after=1)
    assert (ask(front), counter.number) == (None, 0)
    assert (ask(front), counter.number) == ((200, Delivery.DROPPED), 1)
    assert (ask(front), counter.number) == (GOOD, 2)
    assert [exchange.fate for exchange in front.journal] == ["lost on the way", "dropped", "sent"]


def test_errors_come_in_their_order_and_nothing_is_done(turned: Callable[..., tuple[CloudFrontend, Counter]]) -> None:
    front, counter = turned(errors=("TooManyRequests", "ServiceUnavailable"))
    assert [ask(front) for _ in range(3)] == [(429, Delivery.SENT), (503, Delivery.SENT), GOOD]
    assert counter.number == 1
    front, counter = turned(errors=("InternalServerError",), errors_go_on=True)
    assert [ask(front) for _ in range(3)] == [(500, Delivery.SENT)] * 3


def test_a_fault_hits_the_calls_that_it_is_for(turned: Callable[..., tuple[CloudFrontend, Counter]]) -> None:
    front, _ = turned(only=("*.Add",), spared=1, lost_before=FOR_EVER)
    assert [ask(front, "GET"), ask(front), ask(front, "GET"), ask(front)] == [GOOD, GOOD, GOOD, None]
    front, _ = turned(of="reads", lost_before=1)
    assert [ask(front), ask(front, "GET"), ask(front, "GET")] == [GOOD, None, GOOD]
    front, _ = turned(accounts=("one",), lost_before=FOR_EVER)
    assert [ask(front, account="one"), ask(front, account="two")] == [None, GOOD]


def test_a_login_is_hit_only_when_it_is_named(turned: Callable[..., tuple[CloudFrontend, Counter]]) -> None:
    front, _ = turned(lost_before=FOR_EVER)
    assert ask(front, path="/login") == GOOD
    front, _ = turned(only=("Number.Login",), lost_before=FOR_EVER)
    assert [ask(front, path="/login"), ask(front)] == [None, GOOD]


def test_faults_name_errors_that_the_cloud_has(turned: Callable[..., tuple[CloudFrontend, Counter]]) -> None:
    with pytest.raises(ValueError, match="unknown error: Teapot; the errors are TooManyRequests"):
        turned(errors=("Teapot",))


def test_misbehaviours_can_be_joined_and_explain_themselves() -> None:
    table = LabCounter.table
    assert table.faults("throttles+stale-lists") == CloudFaults(errors=("TooManyRequests",) * 5, list_lag_s=30.0)
    assert table.faults("ideal") == CloudFaults()
    assert all(table.explain(name).endswith((".", ").")) for name in table.names())
    with pytest.raises(ValueError, match="unknown profile: odd; the profiles are ideal, answers-lost-before-acting"):
        table.faults("odd")


async def test_it_is_served_over_tls_of_its_own_authority() -> None:
    clock = ManualClock()
    async with LabCounter("one", clock=clock) as cloud, LabCounter("two", clock=clock) as other:
        connector = aiohttp.TCPConnector(ssl=client_context(ca=cloud.ca))
        async with aiohttp.ClientSession(connector=connector) as http:
            async with http.post(cloud.url) as answer:
                assert (answer.status, await answer.text()) == (200, "1")
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await http.get(other.url)
            cloud.set_faults(lost_after=1)
            with pytest.raises(aiohttp.ServerDisconnectedError):
                await http.post(cloud.url)
            assert (cloud.counter.number, cloud.profile) == (2, "custom")
            cloud.set_profile("throttles")
            async with http.get(f"{cloud.url}/number?wide=1") as answer:
                assert answer.status == 429
        assert [(each.path, each.status) for each in cloud.journal] == [("/", 200), ("/", 200), ("/number?wide=1", 429)]
