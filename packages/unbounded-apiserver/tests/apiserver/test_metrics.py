"""The server's metrics for Prometheus, and the right to read them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from prometheus_client.parser import text_string_to_metric_families

from tests.apiserver.support import Client, client_identity, running
from tests.support.waiting import eventually
from unbounded_apiserver.http.metrics import RequestCounts, RequestLabels, request_labels
from unbounded_apiserver.journal import BUCKETS_S, Histogram

MAPS = "/api/v1/namespaces/default/configmaps"
SOON_S = 10.0

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def scraped(client: Client) -> Samples:
    answer = await client.session.get(f"{client.url}/metrics")
    assert answer.status == 200
    assert answer.content_type == "text/plain"
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(await answer.text())
        for sample in family.samples
    }


def of(samples: Samples, name: str, **labels: str) -> float:
    """The sum of the samples that have these labels."""
    return sum(
        value for (found, own), value in samples.items() if found == name and labels.items() <= dict(own).items()
    )


@pytest.mark.slow
async def test_requests_are_counted_by_what_they_are_for_and_how_they_end(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, admin):
        before = await scraped(admin)
        await admin.create(MAPS, {"metadata": {"name": "a"}})
        await admin.get(f"{MAPS}/a")
        await admin.ask("GET", f"{MAPS}/none")
        await admin.get(MAPS)
        after = await scraped(admin)
    counted = [("POST", "201"), ("GET", "200"), ("GET", "404"), ("LIST", "200")]
    for verb, code in counted:
        labels = {"verb": verb, "code": code, "group": "", "version": "v1", "resource": "configmaps"}
        assert of(after, "apiserver_request_total", **labels) - of(before, "apiserver_request_total", **labels) == 1
    took = {"verb": "GET", "resource": "configmaps"}
    assert of(after, "apiserver_request_duration_seconds_count", **took) == 2
    assert 0 < of(after, "apiserver_request_duration_seconds_sum", **took) < SOON_S
    assert of(after, "apiserver_request_duration_seconds_bucket", **took, le="+Inf") == 2


@pytest.mark.slow
async def test_the_store_and_its_journal_are_counted(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, admin):
        before = await scraped(admin)
        for number in range(3):
            await admin.create(MAPS, {"metadata": {"name": f"m{number}"}})
        after = await scraped(admin)

    def more(name: str, **labels: str) -> float:
        return of(after, name, **labels) - of(before, name, **labels)

    assert more("apiserver_storage_objects", resource="configmaps") == 3
    assert more("unbounded_store_revision") >= 3  # the server itself may write too
    assert more("unbounded_journal_entries_total") >= 3
    assert more("unbounded_journal_commit_seconds_count") >= 3
    assert more("unbounded_store_history_bytes") > 0
    assert of(after, "unbounded_journal_failures_total") == 0


@pytest.mark.slow
async def test_the_ends_of_the_servers_certificates_are_shown(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, admin):
        found = await scraped(admin)
    for name in ("ca", "server"):
        pem = (tmp_path / "pki" / f"{name}.crt").read_bytes()
        expires = x509.load_pem_x509_certificate(pem).not_valid_after_utc
        shown = of(found, "unbounded_certificate_expiry_timestamp_seconds", certificate=name)
        assert shown == expires.timestamp()


@pytest.mark.slow
async def test_watches_and_connections_are_counted_while_they_are_open(tmp_path: Path) -> None:
    async with running(tmp_path) as (server, admin):
        connector = aiohttp.TCPConnector(ssl=client_identity(server.data_dir, "unbounded-admin", "system:masters"))
        async with aiohttp.ClientSession(connector=connector) as other:
            watch = await other.get(f"{server.url}{MAPS}?watch=true")
            during = await scraped(admin)
            assert of(during, "apiserver_longrunning_requests", verb="WATCH", resource="configmaps") == 1
            assert of(during, "unbounded_apiserver_connections") == 2
            assert of(during, "apiserver_current_inflight_requests", request_kind="readOnly") == 1  # this one
            watch.close()
        after: Samples = await eventually(partial(_without_watches, admin))
        assert of(after, "apiserver_current_inflight_requests") == 1
        assert of(after, "apiserver_request_duration_seconds_count", verb="WATCH") == 0


async def _without_watches(admin: Client) -> Samples | None:
    found = await scraped(admin)
    return None if of(found, "apiserver_longrunning_requests") else found


@pytest.mark.slow
async def test_metrics_are_for_those_who_may_get_them(tmp_path: Path) -> None:
    async with running(tmp_path) as (server, admin):
        for groups, code in ((), 403), (("system:monitoring",), 200):
            connector = aiohttp.TCPConnector(ssl=client_identity(server.data_dir, "prometheus", *groups))
            async with aiohttp.ClientSession(connector=connector) as session:
                assert (await session.get(f"{server.url}/metrics")).status == code
        connector = aiohttp.TCPConnector(ssl=False)
        async with aiohttp.ClientSession(connector=connector) as nobody:
            assert (await nobody.get(f"{server.url}/metrics")).status == 401
        assert (await admin.ask("POST", "/metrics")).status == 405


@pytest.mark.slow
async def test_nothing_that_clients_make_up_becomes_a_label(tmp_path: Path) -> None:
    async with running(tmp_path) as (server, admin):
        for path in ("/apis/made.up/v1/things", "/api/v1/made-up", f"{MAPS}/made-up/made-up", "/made-up"):
            for method in ("GET", "MADEUP"):
                with contextlib.suppress(aiohttp.ClientError):
                    await (await admin.session.request(method, f"{server.url}{path}")).read()
        assert not [labels for _, labels in await scraped(admin) if "made" in str(labels).lower()]


@pytest.mark.parametrize(("method", "verb"), [("POST", "POST"), ("DANCE", "other")])
def test_what_is_no_resource_is_known_by_its_method(method: str, verb: str) -> None:
    assert request_labels(method, "create", None, "made-up") == RequestLabels(verb)


def test_what_was_begun_and_ended_is_not_under_way() -> None:
    requests = RequestCounts()
    for method in ("GET", "POST", "PATCH", "HEAD"):
        requests.begin(method)
    assert (requests.reading, requests.writing) == (2, 2)
    for method in ("GET", "POST", "PATCH", "HEAD"):
        requests.end(method, RequestLabels("GET"), 200, 0.01)
    assert (requests.reading, requests.writing) == (0, 0)


def test_a_histogram_counts_each_once_at_the_least_bound_that_holds_it() -> None:
    histogram = Histogram()
    for seconds in (0.0, BUCKETS_S[0], BUCKETS_S[0] * 1.01, BUCKETS_S[-1], BUCKETS_S[-1] + 1):
        histogram.observe(seconds)
    found: Mapping[str, float] = dict(histogram.cumulative())
    assert histogram.count == 5
    assert [found[str(BUCKETS_S[0])], found[str(BUCKETS_S[1])], found[str(BUCKETS_S[-1])], found["+Inf"]] == [
        2,
        3,
        4,
        5,
    ]
    assert histogram.seconds == pytest.approx(2.01 * BUCKETS_S[0] + 2 * BUCKETS_S[-1] + 1)
