"""Bearer tokens: which are good, until when, and for whom."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from tests.apiserver.support import Answer, Client, running
from tests.support.waiting import eventually
from unbounded.kube.tls import client_context
from unbounded_apiserver.access.tokens import ISSUER, AccountTokens, BadToken, BootstrapTokens, TokenKey
from unbounded_apiserver.auth import RequestCredentials, User
from unbounded_apiserver.builtin_resources import SECRETS as SECRET_KIND
from unbounded_apiserver.options import WriteOptions
from unbounded_apiserver.resource_model import ResourcePath
from unbounded_apiserver.server import ApiServer
from unbounded_apiserver.server_core import ServerCore
from unbounded_apiserver.store import Store

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
SECRETS = "/api/v1/namespaces/kube-system/secrets"
WHOAMI = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
ASK_WHO = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    async with running(tmp_path) as (server, client):
        yield server, client


@asynccontextmanager
async def bearing(server: ApiServer, token: str) -> AsyncIterator[Client]:
    ca = (server.data_dir / "pki" / "ca.crt").read_bytes()
    connector = aiohttp.TCPConnector(ssl=client_context(ca=ca))
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        yield Client(session, server.url)


async def who(server: ApiServer, token: str) -> Answer:
    async with bearing(server, token) as client:
        return await client.ask("POST", WHOAMI, ASK_WHO)


async def token_of(admin: Client, name: str, **spec: Any) -> str:
    answer = await admin.create(f"{ACCOUNTS}/{name}/token", {"spec": spec})
    return str(answer["status"]["token"])


@pytest.mark.slow
async def test_a_token_is_its_service_account_until_that_is_gone(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    account = await admin.create(ACCOUNTS, {"metadata": {"name": "bot"}})
    token = await token_of(admin, "bot")
    told = (await who(server, token)).json()["status"]["userInfo"]
    assert told["username"] == "system:serviceaccount:default:bot"
    assert told["uid"] == account["metadata"]["uid"]
    assert told["groups"] == [
        "system:serviceaccounts",
        "system:serviceaccounts:default",
        "system:authenticated",
    ]
    await admin.ask("DELETE", f"{ACCOUNTS}/bot")
    assert (await who(server, token)).status == 401
    await admin.create(ACCOUNTS, {"metadata": {"name": "bot"}})  # another one, of the same name
    assert (await who(server, token)).status == 401


@pytest.mark.slow
async def test_a_token_is_for_its_audience(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    token = await token_of(admin, "default", audiences=["vault"])
    assert (await who(server, token)).status == 401
    path = "/apis/authentication.k8s.io/v1/tokenreviews"
    review = (await admin.create(path, {"spec": {"token": token, "audiences": ["vault", "x"]}}))["status"]
    assert (review["authenticated"], review["audiences"]) == (True, ["vault"])
    review = (await admin.create(path, {"spec": {"token": token}}))["status"]
    assert review == {"user": {}, "error": "invalid bearer token"}


@pytest.mark.slow
@pytest.mark.parametrize(("key", "sent"), [("name", "bot"), ("namespace", "kube-public")])
async def test_a_request_that_names_another_account_than_its_url_is_refused(
    served: tuple[ApiServer, Client], key: str, sent: str
) -> None:
    request = {"metadata": {key: sent}, "spec": {}}
    answer = await served[1].ask("POST", "/api/v1/namespaces/default/serviceaccounts/default/token", request)
    assert (answer.status, answer.json()["message"]) == (
        422,
        f'TokenRequest.authentication.k8s.io "default" is invalid: metadata.{key}: Invalid value: "{sent}": '
        f"must match the service account {key} if specified",
    )


@pytest.mark.slow
async def test_a_bound_token_ends_with_its_secret(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    secrets = "/api/v1/namespaces/default/secrets"
    await admin.create(secrets, {"metadata": {"name": "s"}})
    reference = {"kind": "Secret", "apiVersion": "v1", "name": "s"}
    wrong = await admin.ask(
        "POST", f"{ACCOUNTS}/default/token", {"spec": {"boundObjectRef": {**reference, "uid": "other"}}}
    )
    assert wrong.status == 409
    other = await admin.ask("POST", f"{ACCOUNTS}/default/token", {"spec": {"boundObjectRef": {"kind": "ConfigMap"}}})
    assert (other.status, other.json()["message"]) == (400, "cannot bind token to object of type , Kind=ConfigMap")
    token = await token_of(admin, "default", boundObjectRef=reference)
    assert (await who(server, token)).status == 201
    await admin.ask("DELETE", f"{secrets}/s")
    assert (await who(server, token)).status == 401


@pytest.mark.slow
async def test_pod_bound_token_needs_the_pods_account_and_ends_with_it(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    node = await admin.create("/api/v1/nodes", {"metadata": {"name": "n1"}})
    spec = {"containers": [{"name": "c", "image": "i"}], "serviceAccountName": "default", "nodeName": "n1"}
    pods = "/api/v1/namespaces/default/pods"
    pod = await admin.create(pods, {"metadata": {"name": "p"}, "spec": spec})
    reference = {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": pod["metadata"]["uid"]}
    await admin.create(ACCOUNTS, {"metadata": {"name": "bot"}})
    refused = await admin.ask("POST", f"{ACCOUNTS}/bot/token", {"spec": {"boundObjectRef": reference}})
    assert refused.status == 400
    assert refused.json()["message"] == (
        'cannot bind token for serviceaccount "bot" to pod running with different serviceaccount name.'
    )
    token = await token_of(admin, "default", boundObjectRef=reference)
    extra = (await who(server, token)).json()["status"]["userInfo"]["extra"]
    assert extra["authentication.kubernetes.io/pod-name"] == ["p"]
    assert extra["authentication.kubernetes.io/node-uid"] == [node["metadata"]["uid"]]
    await admin.ask("DELETE", f"{pods}/p?gracePeriodSeconds=0")
    assert (await who(server, token)).status == 401


@pytest.mark.slow
async def test_a_token_that_is_bound_to_a_node_ends_with_it(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    await admin.create("/api/v1/nodes", {"metadata": {"name": "n1"}})
    token = await token_of(admin, "default", boundObjectRef={"kind": "Node", "apiVersion": "v1", "name": "n1"})
    assert (await who(server, token)).status == 201
    await admin.ask("DELETE", "/api/v1/nodes/n1")
    assert (await who(server, token)).status == 401


@pytest.mark.slow
async def test_tokens_outlive_a_restart_and_are_good_for_one_server_alone(tmp_path: Path) -> None:
    async with running(tmp_path / "one") as (_, admin):
        token = await token_of(admin, "default")
    async with running(tmp_path / "one") as (server, _):
        assert (await who(server, token)).status == 201
        assert (server.data_dir / "pki" / "sa.key").stat().st_mode & 0o077 == 0
    async with running(tmp_path / "two") as (server, _):
        assert (await who(server, token)).status == 401


@pytest.mark.slow
async def test_a_token_is_good_for_its_time(tmp_path: Path) -> None:
    clock = [datetime(2026, 1, 1, tzinfo=UTC)]
    core = ServerCore(now=lambda: clock[0])
    await core.open(tmp_path)
    try:
        tokens = AccountTokens(core.store, TokenKey(tmp_path), lambda: clock[0])
        request: dict[str, Any] = {"metadata": {}, "spec": {"expirationSeconds": 600}}
        tokens.issue(User("admin"), ResourcePath(None, "default", "default", "token"), request)
        token, begin = request["status"]["token"], clock[0]
        assert request["status"]["expirationTimestamp"] == "2026-01-01T00:10:00Z"
        for after_s, good in ((0, True), (599, True), (600, False), (-1, False)):
            clock[0] = begin + timedelta(seconds=after_s)
            assert (tokens.identify(token, (ISSUER,)) is not None) is good, after_s
    finally:
        await core.close()


def parts(token: str) -> list[dict[str, Any]]:
    return [json.loads(base64.urlsafe_b64decode(part + "==")) for part in token.split(".")[:2]]


def pack(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def test_what_another_hand_has_touched_is_refused(tmp_path: Path) -> None:
    key = TokenKey(tmp_path)
    token = key.sign({"sub": "a"})
    assert key.verify(token) == {"sub": "a"}
    header, claims = parts(token)
    head, body, signature = token.split(".")
    other = tmp_path / "other"
    other.mkdir()
    for bad in (
        f"{head}.{pack({**claims, 'sub': 'b'})}.{signature}",
        f"{pack({**header, 'alg': 'none'})}.{body}.",
        f"{pack({**header, 'alg': 'HS256'})}.{body}.{signature}",
        f"{pack({**header, 'crit': ['x']})}.{body}.{signature}",
        f"{head}.{body}.{signature[:-2]}",
        f"{head}.{body}.",
        f"{head}.{body}",
        f"{token}.{signature}",
        f"{head}.{body}.{base64.urlsafe_b64encode(bytes(64)).decode().rstrip('=')}",
        TokenKey(other).sign({"sub": "a"}),
    ):
        with pytest.raises(BadToken):
            key.verify(bad)


@pytest.mark.slow
@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda b: base64.urlsafe_b64encode(b).decode() + ".e30.AA"))
def test_any_text_is_refused_and_not_tripped_over(text: str) -> None:
    key = TokenKey.__new__(TokenKey)
    key.id, key._public = "x", ec.generate_private_key(ec.SECP256R1()).public_key()
    with pytest.raises(BadToken):
        key.verify(text)


def bootstrap(**data: str) -> dict[str, Any]:
    given = {
        "token-id": "abcdef",
        "token-secret": "0123456789abcdef",
        "usage-bootstrap-authentication": "true",
        "auth-extra-groups": "system:bootstrappers:site:rack1",
        **data,
    }
    return {
        "metadata": {"name": "bootstrap-token-abcdef"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {key: value for key, value in given.items() if value},
    }


@pytest.mark.slow
async def test_a_bootstrap_token_is_its_id_and_groups(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    await admin.create(SECRETS, bootstrap(expiration="2999-01-01T00:00:00Z"))
    told = (await who(server, "abcdef.0123456789abcdef")).json()["status"]["userInfo"]
    assert told["username"] == "system:bootstrap:abcdef"
    assert told["groups"] == ["system:bootstrappers", "system:bootstrappers:site:rack1", "system:authenticated"]
    assert (await who(server, "abcdef.0123456789abcdeX")).status == 401
    assert (await who(server, "abcdef.0123456789abcdee")).status == 401
    assert (await who(server, "abcdee.0123456789abcdef")).status == 401


@pytest.mark.parametrize(
    "data",
    [
        {"expiration": "2020-01-01T00:00:00Z"},
        {"expiration": "soon"},
        {"usage-bootstrap-authentication": ""},
        {"usage-bootstrap-authentication": "false"},
        {"auth-extra-groups": "system:masters"},
        {"auth-extra-groups": "system:bootstrappers:a,system:masters"},
        {"token-id": "bbbbbb"},
        {"token-secret": ""},
    ],
    ids=str,
)
async def test_a_bootstrap_token_that_may_not_be_used_is_refused(data: dict[str, str], tmp_path: Path) -> None:
    store = Store()
    await store.open(tmp_path)
    try:
        secret = bootstrap(**data)
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in secret["stringData"].items()}
        body = json.dumps({"metadata": secret["metadata"], "type": secret["type"], "data": encoded}).encode()
        await store.write("secrets", "kube-system/bootstrap-token-abcdef", lambda _: body)
        tokens = BootstrapTokens(store, lambda: datetime(2026, 1, 1, tzinfo=UTC))
        headers = {"Authorization": "Bearer abcdef.0123456789abcdef"}
        assert tokens.authenticate(RequestCredentials(None, headers)) is None
    finally:
        await store.close()


@pytest.mark.slow
async def test_bootstrap_tokens_are_removed_when_they_have_expired(served: tuple[ApiServer, Client]) -> None:
    _, admin = served
    soon = (datetime.now(UTC) + timedelta(seconds=1.5)).isoformat()
    kinds = {
        "late0a": "2020-01-01T00:00:00Z",
        "odd00a": "soon",
        "soon0a": soon,
        "good0a": "2999-01-01T00:00:00Z",
        "ever0a": "",
    }
    for identity, end in kinds.items():
        body = bootstrap(expiration=end, **{"token-id": identity})
        await admin.create(SECRETS, body | {"metadata": {"name": f"bootstrap-token-{identity}"}})
    other = {"metadata": {"name": "other"}, "stringData": {"expiration": "2020-01-01T00:00:00Z"}}
    await admin.create(SECRETS, other)
    elsewhere = "/api/v1/namespaces/default/secrets"
    await admin.create(elsewhere, bootstrap(expiration="2020-01-01T00:00:00Z"))

    async def left() -> bool:
        found = (await admin.get(SECRETS))["items"]
        names = {one["metadata"]["name"].removeprefix("bootstrap-token-") for one in found}
        return names == {"good0a", "ever0a", "other"}

    await eventually(left)
    assert len((await admin.get(elsewhere))["items"]) == 1
    longer = {"stringData": {"expiration": "2020-01-01T00:00:00Z"}}
    await admin.merge(f"{SECRETS}/bootstrap-token-good0a", longer)

    async def gone() -> bool:
        return (await admin.ask("GET", f"{SECRETS}/bootstrap-token-good0a")).status == 404

    await eventually(gone)


@pytest.mark.slow
async def test_token_that_expired_during_downtime_is_deleted_at_start(tmp_path: Path) -> None:
    clock = [datetime(2026, 1, 1, tzinfo=UTC)]
    core = ServerCore(now=lambda: clock[0])
    await core.open(tmp_path)
    obj = bootstrap()
    obj["data"] = {"expiration": base64.b64encode(b"2026-01-01T01:00:00Z").decode()}
    obj |= {"apiVersion": "v1", "kind": "Secret"}
    del obj["stringData"]
    await core.writes.create_object(SECRET_KIND, "kube-system", obj, WriteOptions())
    await core.close()
    for later, names in ((59, ["kube-system/bootstrap-token-abcdef"]), (60, [])):
        clock[0] = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=later)
        core = ServerCore(now=lambda: clock[0])
        await core.open(tmp_path)
        try:

            async def are_left(core: ServerCore = core, names: list[str] = names) -> bool:
                return list(core.store.snapshot("secrets").keys) == names

            await eventually(are_left)
        finally:
            await core.close()


@pytest.mark.slow
async def test_a_wrong_token_is_refused_where_none_is_needed(served: tuple[ApiServer, Client]) -> None:
    async with bearing(served[0], "wrong") as client:
        assert (await client.ask("GET", "/readyz")).status == 401
    async with bearing(served[0], await token_of(served[1], "default")) as client:
        assert (await client.ask("GET", "/readyz")).status == 200
