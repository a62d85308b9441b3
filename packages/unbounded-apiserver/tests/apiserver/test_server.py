"""The server as a whole: authentication, recovery, and its own controllers."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.apiserver.support import MADE_HERE, Client, client_identity, golden_definitions, running
from tests.support.waiting import eventually
from unbounded.kube.tls import client_context
from unbounded_apiserver.builtin_resources import CONFIG_MAPS as CONFIG_MAP_RESOURCE
from unbounded_apiserver.builtin_resources import EVENTS, NAMESPACES
from unbounded_apiserver.collection import StoredObject
from unbounded_apiserver.data_dir import DataInUse
from unbounded_apiserver.decoding import RequestDocument
from unbounded_apiserver.http.api_call import BODY_BYTES
from unbounded_apiserver.http.streams import EventLines
from unbounded_apiserver.options import DeleteOptions, ListOptions, WriteOptions
from unbounded_apiserver.server import ApiServer
from unbounded_apiserver.server_core import ServerCore
from unbounded_apiserver.status import StatusError
from unbounded_apiserver.store import Store
from unbounded_apiserver.writes import WriteTarget

pytestmark = pytest.mark.slow

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"
BOMB = b"a0: &a0 [x]\n" + b"".join(b"a%d: &a%d [%b]\n" % (n, n, b"*a%d, " % (n - 1) * 9) for n in range(1, 12))
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    async with running(tmp_path / "data") as pair:
        yield pair


@pytest.fixture
async def client(served: tuple[ApiServer, Client]) -> Client:
    for definition in golden_definitions():
        await served[1].create(DEFINITIONS, definition)
    return served[1]


def widget(name: str = "one", **metadata: Any) -> dict[str, Any]:
    meta = {"name": name, **metadata}
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": meta, "spec": {"size": 3}}


def config_map(name: str, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}}


async def gone(client: Client, path: str) -> bool:
    return (await client.ask("GET", path)).status == 404


async def ask_as(server: ApiServer, context: ssl.SSLContext, path: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(server.url + path, ssl=context) as response:
        text = await response.text()
        return response.status, json.loads(text) if text.startswith("{") else text


async def test_verbose_health_lists_each_check(served: tuple[ApiServer, Client]) -> None:
    _, client = served
    both = "[+]ping ok\n[+]storage ok\n"
    assert (await client.ask("GET", "/readyz?verbose")).text == f"{both}readyz check passed\n"
    assert (await client.ask("GET", "/healthz?verbose")).text == f"{both}healthz check passed\n"
    assert (await client.ask("GET", "/livez?verbose")).text == "[+]ping ok\nlivez check passed\n"
    excluded = await client.ask("GET", "/readyz?verbose&exclude=storage&exclude=etcd")
    assert excluded.text == (
        "[+]ping ok\n[+]storage excluded: ok\n"
        'warn: some health checks cannot be excluded: no matches for "etcd"\nreadyz check passed\n'
    )
    assert (await client.ask("GET", "/readyz/storage")).text == "ok"


async def test_without_a_certificate_only_health_and_version_are_answered(served: tuple[ApiServer, Client]) -> None:
    server, _ = served
    anonymous = client_context(ca=(server.data_dir / "pki" / "ca.crt").read_bytes())
    for path in ("/healthz", "/livez", "/readyz"):
        assert await ask_as(server, anonymous, path) == (200, "ok")
    assert (await ask_as(server, anonymous, "/version"))[0] == 200
    for path in ("/api/v1/secrets", "/apis", "/nowhere", "/openapi/v3"):
        status, body = await ask_as(server, anonymous, path)
        assert (status, body["message"], body["reason"], body["code"]) == (401, "Unauthorized", "Unauthorized", 401)


async def test_another_user_is_refused_in_the_words_of_kubernetes(served: tuple[ApiServer, Client]) -> None:
    server, _ = served
    alice = client_identity(server.data_dir, "alice", "dev")
    status, body = await ask_as(server, alice, "/api/v1/namespaces/default/secrets")
    assert status == 403
    assert body["message"] == (
        'secrets is forbidden: User "alice" cannot list resource "secrets" in API group "" in the namespace "default"'
    )
    assert body["details"] == {"kind": "secrets"}


async def test_a_certificate_of_another_authority_gets_no_connection(
    served: tuple[ApiServer, Client], tmp_path: Path
) -> None:
    server, _ = served
    stranger = client_identity(tmp_path / "other", "admin", "system:masters")
    stranger.load_verify_locations(server.data_dir / "pki" / "ca.crt")
    with pytest.raises(aiohttp.ClientError):
        await ask_as(server, stranger, "/api/v1/secrets")


async def test_keys_are_for_the_owner_alone_and_outlive_a_restart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with running(data) as (server, _):
        url, first = server.url, server.kubeconfig_path.read_bytes()
        for path in [server.kubeconfig_path, *data.glob("pki/*"), data / "state.db"]:
            assert path.stat().st_mode & 0o077 == 0, path
    async with running(data) as (server, client):
        assert (server.url, server.kubeconfig_path.read_bytes()) == (url, first)
        assert (await client.get("/api/v1/namespaces/kube-public"))["status"]["phase"] == "Active"


async def test_namespaces_of_the_settings_are_there_from_the_start(tmp_path: Path) -> None:
    core = ServerCore(namespaces=("plants",))
    await core.open(tmp_path)
    try:
        names = {record.name for record in core.store.snapshot(NAMESPACES.name).with_prefix("")}
        assert names == {"default", "kube-system", "kube-public", "kube-node-lease", "plants"}
    finally:
        await core.close()


async def test_a_second_server_on_the_same_data_is_refused(served: tuple[ApiServer, Client]) -> None:
    with pytest.raises(DataInUse, match="is in use by process"):
        await ApiServer(served[0].data_dir).start()


async def test_objects_and_definitions_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        for definition in golden_definitions():
            await client.create(DEFINITIONS, definition)
        created = await client.create(WIDGETS, widget())
    async with running(tmp_path) as (_, client):
        assert await client.get(f"{WIDGETS}/one") == created
        refused = await client.ask("POST", WIDGETS, {**widget("two"), "spec": {"size": 0}})
        assert refused.status == 422


async def test_discovery_lists_groups_in_one_order_also_after_a_restart(tmp_path: Path) -> None:
    make = partial(ApiServer, first_groups=("m.example.com", "absent.example.com"))
    aggregated = {"Accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}
    text = json.dumps(golden_definitions())
    async with running(tmp_path, make=make) as (_, client):
        before = [group["name"] for group in (await client.get("/apis"))["groups"]]
        for group in ("z", "b", "m", "c"):
            for definition in json.loads(text.replace("example.com", f"{group}.example.com")):
                await client.create(DEFINITIONS, definition)
        expected = [*before, *(f"{group}.example.com" for group in ("m", "b", "c", "z"))]

        async def listed() -> bool:
            return await _groups(client, aggregated) == (expected, expected)

        await eventually(listed)
    async with running(tmp_path, make=make) as (_, client):
        assert await _groups(client, aggregated) == (expected, expected)


async def _groups(client: Client, aggregated: dict[str, str]) -> tuple[list[str], list[str]]:
    whole = (await client.ask("GET", "/apis", headers=aggregated)).json()
    plain = await client.get("/apis")
    return [group["name"] for group in plain["groups"]], [item["metadata"]["name"] for item in whole["items"]]


async def test_watches_end_properly_when_the_server_stops(tmp_path: Path) -> None:
    async with running(tmp_path) as (server, client):
        watches = [
            await client.session.get(f"{client.url}/api/v1/namespaces?watch=true&resourceVersion={n}") for n in (0, 1)
        ]
        await server.stop()
        for watch in watches:
            assert watch.status == 200
            assert (await watch.text()).endswith("}\n")  # one that is cut off raises


async def test_a_watch_goes_on_over_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        seen = (await client.get("/api/v1/configmaps"))["metadata"]["resourceVersion"]
        await client.create(CONFIG_MAPS, config_map("a"))
        await client.ask("DELETE", f"{CONFIG_MAPS}/a")
    async with running(tmp_path) as (_, client):
        answer = await client.ask("GET", f"/api/v1/configmaps?watch=true&resourceVersion={seen}&timeoutSeconds=1")
        events = [json.loads(line) for line in answer.text.splitlines()]
        assert [(e["type"], e["object"]["metadata"]["name"]) for e in events] == [("ADDED", "a"), ("DELETED", "a")]


async def test_long_answers_are_compressed_for_who_asks(client: Client) -> None:
    for index in range(3):
        await client.create(CONFIG_MAPS, {**config_map(f"big-{index}"), "data": {"k": "x" * 60_000}})
    async with aiohttp.ClientSession(
        connector=client.session.connector, connector_owner=False, auto_decompress=False
    ) as raw:
        url = f"{client.url}{CONFIG_MAPS}?{MADE_HERE}"
        async with raw.get(url, headers={"Accept-Encoding": "gzip"}) as response:
            assert response.headers["Content-Encoding"] == "gzip"
            assert len(json.loads(gzip.decompress(await response.read()))["items"]) == 3
        async with raw.get(url, headers={"Accept-Encoding": "identity"}) as response:
            assert "Content-Encoding" not in response.headers


async def test_bodies_are_bounded(client: Client) -> None:
    too_much = b'{"x":"' + b"x" * BODY_BYTES + b'"}'
    answer = await client.ask("POST", CONFIG_MAPS, data=too_much)
    assert (answer.status, answer.json()["reason"]) == (413, "RequestEntityTooLarge")

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"x" * (BODY_BYTES // 4)

    headers = {"Content-Type": "application/json"}
    async with client.session.post(client.url + CONFIG_MAPS, data=chunks(), headers=headers) as response:
        assert response.status == 413


@pytest.mark.parametrize(
    ("data", "media", "status"),
    [
        (b"[" * 100_000, "application/json", 400),
        (b'{"a":' * 50_000, "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b'{"apiVersion":"v1","kind":"ConfigMap","metadata":[]}', "application/json", 400),
        (b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a\\u0000"}}', "application/json", 422),
        (b'{"apiVersion":"v1","kind":7,"metadata":{}}', "application/json", 400),
        (b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generation":1e999}}', "application/json", 400),
        (
            b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":"\\ud800"}}',
            "application/json",
            400,
        ),
        (BOMB, "application/yaml", 400),
        (b"{" * 50_000, "application/yaml", 400),
        (b"k8s\x00\xff\xff", "application/vnd.kubernetes.protobuf", 400),
        (b"x", "application/cbor", 415),
    ],
)
async def test_malformed_bodies_are_refused(client: Client, data: bytes, media: str, status: int) -> None:
    answer = await client.ask("POST", CONFIG_MAPS, data=data, headers={"Content-Type": media})
    assert answer.status == status, answer.text
    assert answer.json()["kind"] == "Status"


async def test_dependents_go_with_their_last_owner(client: Client) -> None:
    owners = [await client.create(CONFIG_MAPS, config_map(name)) for name in ("first", "second")]
    references = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": o["metadata"]["name"], "uid": o["metadata"]["uid"]}
        for o in owners
    ]
    await client.create(CONFIG_MAPS, config_map("child", ownerReferences=references))
    await client.ask("DELETE", f"{CONFIG_MAPS}/first")

    async def has_one_owner() -> bool:
        return len((await client.get(f"{CONFIG_MAPS}/child"))["metadata"]["ownerReferences"]) == 1

    await eventually(has_one_owner)
    await client.ask("DELETE", f"{CONFIG_MAPS}/second")
    await eventually(lambda: gone(client, f"{CONFIG_MAPS}/child"))


async def test_a_dependent_of_nothing_is_collected(client: Client) -> None:
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "00000000-0000-0000-0000-000000000000"}
    await client.create(CONFIG_MAPS, config_map("lost", ownerReferences=[reference]))
    await eventually(lambda: gone(client, f"{CONFIG_MAPS}/lost"))


async def test_a_namespace_waits_for_what_finalizers_hold(client: Client) -> None:
    await client.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab"}})
    held = "/api/v1/namespaces/lab/configmaps/held"
    await client.create("/api/v1/namespaces/lab/configmaps", config_map("held", finalizers=["example.com/x"]))
    await client.create("/api/v1/namespaces/lab/configmaps", config_map("free"))
    await client.ask("DELETE", "/api/v1/namespaces/lab")
    await eventually(lambda: gone(client, "/api/v1/namespaces/lab/configmaps/free"))
    assert (await client.ask("GET", "/api/v1/namespaces/lab")).status == 200
    await client.merge(held, {"metadata": {"finalizers": None}})
    await eventually(lambda: gone(client, "/api/v1/namespaces/lab"))


class NamespaceGoesMeanwhile(Store):
    """A store in which a writer finds its key busy for so long that the namespace is gone when its turn comes."""

    meanwhile: Callable[[], Awaitable[Any]] | None = None

    def is_writing(self, resource: str, key: str) -> bool:
        return self.meanwhile is not None or super().is_writing(resource, key)

    async def wait_current(self, resource: str, key: str) -> StoredObject | None:
        if resource == CONFIG_MAP_RESOURCE.name and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return await super().wait_current(resource, key)


async def test_nothing_is_made_in_a_namespace_that_went_while_the_writer_waited(tmp_path: Path) -> None:
    store = NamespaceGoesMeanwhile()
    core = ServerCore(store)
    await core.open(tmp_path)
    lab = RequestDocument.read(b'{"metadata":{"name":"lab"}}', "Namespace")
    await core.writes.create(NAMESPACES, "", lab, WriteOptions())

    async def delete_and_wait() -> None:
        await core.deletes.delete(WriteTarget(NAMESPACES, "", "lab"), DeleteOptions())

        async def absent() -> bool:
            return store.get(NAMESPACES.name, "lab") is None

        await eventually(absent)

    store.meanwhile = delete_and_wait
    made = core.writes.create(
        CONFIG_MAP_RESOURCE, "lab", RequestDocument.read(b'{"metadata":{"name":"c"}}', "ConfigMap"), WriteOptions()
    )
    with pytest.raises(StatusError, match='namespaces "lab" not found'):
        await made
    assert store.get(CONFIG_MAP_RESOURCE.name, "lab/c") is None
    await core.close()


async def test_a_default_added_to_a_schema_shows_in_stored_objects(client: Client) -> None:
    await client.create(WIDGETS, widget())
    definition = await client.get(f"{DEFINITIONS}/widgets.example.com")
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["shape"] = {"type": "string", "default": "round"}
    answer = await client.ask("PUT", f"{DEFINITIONS}/widgets.example.com", definition)
    assert answer.status == 200, answer.text
    shown = await client.get(f"{WIDGETS}/one")
    assert shown["spec"]["shape"] == "round"


async def test_an_expired_event_is_deleted(tmp_path: Path) -> None:
    moment = [datetime.now(UTC)]
    core = ServerCore(now=lambda: moment[0])
    await core.open(tmp_path)
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Node", "name": "n"},
    }
    await core.writes.create(
        EVENTS, "default", RequestDocument.read(json.dumps(event).encode(), "Event"), WriteOptions()
    )
    await core.close()
    moment[0] += timedelta(minutes=59)
    core = ServerCore(now=lambda: moment[0])
    await core.open(tmp_path)
    assert core.store.get(EVENTS.name, "default/e") is not None
    await core.close()
    moment[0] += timedelta(minutes=2)
    core = ServerCore(now=lambda: moment[0])
    await core.open(tmp_path)

    async def expired() -> bool:
        return core.store.get(EVENTS.name, "default/e") is None

    await eventually(expired)
    await core.close()


@pytest.mark.parametrize("moment", ["9999-12-31T23:59:59Z", "0000-01-01T00:00:00Z", "2020-06-31T00:00:00Z"])
async def test_no_time_that_an_event_carries_keeps_the_server_from_starting(tmp_path: Path, moment: str) -> None:
    now = datetime.now(UTC)
    core = ServerCore(now=lambda: now)
    await core.open(tmp_path)
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Node", "name": "n"},
        "lastTimestamp": moment,
    }
    with contextlib.suppress(StatusError):  # some of them are no times
        document = RequestDocument.read(json.dumps(event).encode(), "Event")
        await core.writes.create(EVENTS, "default", document, WriteOptions())
    await core.close()
    core = ServerCore(now=lambda: now + timedelta(hours=2))
    await core.open(tmp_path)

    async def expired() -> bool:
        return core.store.get(EVENTS.name, "default/e") is None

    await eventually(expired)
    await core.close()


async def test_a_client_that_does_not_read_is_cut_off(
    served: tuple[ApiServer, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    from unbounded_apiserver import reads

    monkeypatch.setattr(reads, "QUEUE_EVENTS", 20)
    server, client = served
    await client.create(CONFIG_MAPS, {**config_map("big"), "data": {"k": "x" * 500_000}})
    context = client_identity(server.data_dir, "slow", "system:masters")
    plain = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])))
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=plain, ssl=context, server_hostname="localhost", limit=4096)
    writer.write(f"GET {CONFIG_MAPS}?watch=true HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    await reader.readline()
    listeners = server.core.store._collection("configmaps").listeners
    watching = len(listeners)
    for count in range(80):
        await client.merge(f"{CONFIG_MAPS}/big", {"metadata": {"labels": {"n": str(count)}}})

    async def cut() -> bool:
        return len(listeners) < watching

    await eventually(cut)
    writer.transport.abort()


async def test_a_watch_ends_when_its_client_goes_away(served: tuple[ApiServer, Client]) -> None:
    server, client = served
    listeners = server.core.store._collection("configmaps").listeners
    before = len(listeners)
    response = await client.session.get(client.url + f"{CONFIG_MAPS}?watch=true")

    async def watching() -> bool:
        return len(listeners) == before + 1

    await eventually(watching)
    response.close()

    async def ended() -> bool:
        return len(listeners) == before

    await eventually(ended)


async def test_an_event_is_encoded_once_for_all_watchers(served: tuple[ApiServer, Client]) -> None:
    server, client = served
    await client.create(CONFIG_MAPS, config_map("one", labels={"a": "1"}))
    reads, lines = server.core.reads, EventLines()
    watches = [
        await reads.watch(CONFIG_MAP_RESOURCE, "", ListOptions(labels=text)) for text in ("a in (1)", "a", "a=1")
    ]
    first, *others = [lines.plain(CONFIG_MAP_RESOURCE, watch.take()[0]) for watch in watches]
    assert json.loads(first)["object"]["metadata"]["name"] == "one"
    assert all(line is first for line in others)
    for watch in watches:
        watch.close()
