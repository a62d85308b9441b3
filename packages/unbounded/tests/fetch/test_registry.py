from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest
from aiohttp import web

from tests.fetch.layers import Built, files, image, index
from tests.fetch.registries import HASTY, Answer, Registry, cut_after, docker_config, part_of, served
from unbounded.fetch.failures import Corrupt, Denied, NotPublished, TooLarge, Unavailable, UnusableContent
from unbounded.fetch.logins import RegistryLogins
from unbounded.fetch.manifest import OCI_INDEX, Blob
from unbounded.fetch.reference import Digest, Platform, Reference
from unbounded.fetch.registry import RegistryClient as Client
from unbounded.fetch.web import Trust, Web

AMD64 = Platform("linux", "amd64")
CONTENT = os.urandom(300_000)
DIGEST = Digest.of(CONTENT)


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    async with Registry().running() as running:
        yield running


@pytest.fixture
async def session() -> AsyncIterator[Web]:
    async with Web(patience=HASTY) as opened:
        yield opened


def client(session: Web, registry: Registry, name: str = "lab/img:v1", logins: RegistryLogins | None = None) -> Client:
    return Client(session, Reference.parse(f"{registry.host}/{name}"), logins)


async def fetched(session: Web, registry: Registry, target: Path, *, limit: int = 1 << 20) -> bytes:
    registry.blobs.setdefault(str(DIGEST), CONTENT)
    blob = Blob(DIGEST, len(CONTENT), "application/octet-stream")
    await client(session, registry).fetch(blob, target, limit=limit)
    return target.read_bytes()


def built(text: bytes = b"x", *, docker: bool = False) -> Built:
    return image([files({"disk/a": text})], docker=docker)


@pytest.mark.parametrize("docker", [False, True])
async def test_a_tag_is_followed_through_an_index_to_the_platform(
    registry: Registry, session: Web, docker: bool
) -> None:
    images = {"linux/amd64": built(b"1", docker=docker), "linux/arm64/v8": built(b"2"), "unknown/unknown": built(b"3")}
    for one in images.values():
        registry.add(one)
    registry.manifests["v1"] = (index(images), OCI_INDEX)
    for platform in ("linux/amd64", "linux/arm64"):
        resolved = await client(session, registry).resolve(Platform.parse(platform))
        assert resolved.digest == images["linux/arm64/v8" if "arm" in platform else platform].digest
        assert resolved.top == Digest.of(registry.manifests["v1"][0]) == await client(session, registry).top()
    with pytest.raises(UnusableContent, match=r"no image for linux/riscv64; it has linux/amd64, linux/arm64/v8$"):
        await client(session, registry).resolve(Platform("linux", "riscv64"))


async def test_a_manifest_that_is_not_what_its_digest_says_is_refused(registry: Registry, session: Web) -> None:
    registry.add(built(b"1"), "v1")
    pinned = f"lab/img@{built(b'2').digest}"
    registry.manifests[str(built(b"2").digest)] = registry.manifests["v1"]
    with pytest.raises(Corrupt, match=r"lab/img@sha256.*the manifest that 127\.0\.0\.1:\d+ sent is not sha256:"):
        await client(session, registry, pinned).resolve(AMD64)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"<html>", "cannot read its manifest"),
        (b'{"schemaVersion": 1}', "schema 1"),
        (b'{"schemaVersion": 2, "layers": [], "manifests": []}', "both an index and an image"),
        (b'{"schemaVersion": 2}', "neither an index nor an image"),
        (b'{"schemaVersion":2,"layers":[{"mediaType":"x","digest":"sha256:../../x","size":1}]}', "is not a digest"),
        (b'{"schemaVersion":2,"layers":[{"mediaType":"x","digest":"sha256:%s","size":-1}]}' % (b"a" * 64), "size -1"),
    ],
)
async def test_what_is_no_manifest_is_named_as_such(registry: Registry, session: Web, body: bytes, told: str) -> None:
    registry.manifests["v1"] = (body, "")
    with pytest.raises(UnusableContent, match=told):
        await client(session, registry).resolve(AMD64)


async def test_a_manifest_without_end_is_cut_off(registry: Registry, session: Web) -> None:
    registry.manifests["v1"] = (b" " * (5 << 20), OCI_INDEX)
    with pytest.raises(TooLarge, match="its manifest: more than 4194304 bytes"):
        await client(session, registry).resolve(AMD64)


async def test_missing_image_is_reported_with_the_registry_error(registry: Registry, session: Web) -> None:
    with pytest.raises(
        NotPublished, match=r"image 127.0.0.1:\d+/lab/img:v1: .*404 Not Found \(MANIFEST_UNKNOWN: unknown\)"
    ):
        await client(session, registry).resolve(AMD64)
    assert registry.count("manifests") == 1


async def test_unreachable_registry_is_unavailable() -> None:
    async with Registry().running() as registry:
        host = registry.host
    async with Web(patience=HASTY) as session:
        with pytest.raises(Unavailable, match=host):
            await Client(session, Reference.parse(f"{host}/lab/img:v1")).resolve(AMD64)


async def test_a_blob_is_resumed_after_every_cut(registry: Registry, session: Web, tmp_path: Path) -> None:
    starts: list[int] = []

    async def dial(request: web.BaseRequest) -> Answer:
        starts.append(request.http_range.start or 0)
        return await cut_after(request, CONTENT, 70_000) if len(starts) < 4 else None

    registry.dial = dial
    assert await fetched(session, registry, tmp_path / "blob") == CONTENT
    assert starts[0] == 0
    assert all(earlier < later for earlier, later in pairwise(starts))
    assert [path.name for path in tmp_path.iterdir()] == ["blob"]


async def test_a_blob_is_resumed_by_the_next_process(registry: Registry, session: Web, tmp_path: Path) -> None:
    (tmp_path / "blob.partial").write_bytes(CONTENT[:200_000])
    starts: list[int | None] = []

    async def dial(request: web.BaseRequest) -> Answer:
        starts.append(request.http_range.start)
        return None

    registry.dial = dial
    assert await fetched(session, registry, tmp_path / "blob") == CONTENT
    assert starts == [200_000]


async def test_a_server_without_ranges_starts_anew(registry: Registry, session: Web, tmp_path: Path) -> None:
    (tmp_path / "blob.partial").write_bytes(CONTENT[:200_000])

    async def dial(request: web.BaseRequest) -> Answer:
        return web.Response(body=CONTENT)

    registry.dial = dial
    assert await fetched(session, registry, tmp_path / "blob") == CONTENT


async def test_what_an_earlier_time_left_wrong_is_thrown_away(registry: Registry, session: Web, tmp_path: Path) -> None:
    (tmp_path / "blob.partial").write_bytes(b"wrong" * 10_000)
    assert await fetched(session, registry, tmp_path / "blob") == CONTENT
    assert registry.count("blobs") == 2


async def test_another_content_than_promised_never_gets_its_name(
    registry: Registry, session: Web, tmp_path: Path
) -> None:
    registry.blobs[str(DIGEST)] = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    with pytest.raises(Corrupt, match=f"layer {DIGEST}: its digest is sha256:[0-9a-f]*, not {DIGEST}, twice"):
        await fetched(session, registry, tmp_path / "blob")
    assert registry.count("blobs") == 2
    assert not (tmp_path / "blob").exists()


async def test_more_than_the_limit_is_not_even_begun(registry: Registry, session: Web, tmp_path: Path) -> None:
    with pytest.raises(TooLarge, match="300000 bytes exceed the limit of 1000"):
        await fetched(session, registry, tmp_path / "blob", limit=1000)
    assert registry.count("blobs") == 0


async def test_a_server_that_sends_more_than_it_promised_is_stopped(
    registry: Registry, session: Web, tmp_path: Path
) -> None:
    async def dial(request: web.BaseRequest) -> Answer:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(100):
            await response.write(CONTENT)
        return response

    registry.dial = dial
    promised = f"layer {DIGEST}: received more than the expected {len(CONTENT)} bytes"
    with pytest.raises(TooLarge, match=promised):
        await fetched(session, registry, tmp_path / "blob", limit=1 << 30)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= len(
        CONTENT
    )  # it filled the cache up to the limit


async def test_a_size_that_differs_from_the_descriptor_is_not_even_begun(
    registry: Registry, session: Web, tmp_path: Path
) -> None:
    registry.blobs[str(DIGEST)] = CONTENT * 3
    with pytest.raises(TooLarge, match=f"the server offers 900000 bytes, expected {len(CONTENT)}"):
        await fetched(session, registry, tmp_path / "blob")


@pytest.mark.slow
async def test_a_busy_registry_is_asked_again_when_it_says_so(registry: Registry, session: Web) -> None:
    registry.add(built(), "v1")
    times: list[float] = []

    async def dial(request: web.BaseRequest) -> Answer:
        times.append(asyncio.get_running_loop().time())
        return web.Response(status=429, headers={"Retry-After": "1"}) if len(times) == 1 else None

    registry.dial = dial
    await client(session, registry).resolve(AMD64)
    assert times[1] - times[0] >= 1.0


async def test_one_that_is_busy_for_long_is_left_with_what_it_said(registry: Registry, session: Web) -> None:
    async def dial(request: web.BaseRequest) -> Answer:
        return web.Response(status=503, headers={"Retry-After": "3600"})

    registry.dial = dial
    with pytest.raises(Unavailable) as caught:
        await client(session, registry).resolve(AMD64)
    assert caught.value.retry_after_s == 3600.0
    assert len(registry.seen) == 1


async def test_attempts_are_bounded(registry: Registry, session: Web) -> None:
    async def dial(request: web.BaseRequest) -> Answer:
        return web.Response(status=502)

    registry.dial = dial
    with pytest.raises(Unavailable, match="502"):
        await client(session, registry).resolve(AMD64)
    assert len(registry.seen) == HASTY.attempts


@pytest.mark.slow
@pytest.mark.parametrize("trickles", [False, True])
async def test_a_body_that_stops_or_trickles_is_cut_and_resumed(
    registry: Registry, session: Web, tmp_path: Path, trickles: bool
) -> None:
    async def dial(request: web.BaseRequest) -> Answer:
        if len(registry.seen) > 1:
            return None
        response = web.StreamResponse(headers={"Content-Length": str(len(CONTENT))})
        await response.prepare(request)
        await response.write(CONTENT[:100_000])
        for at in range(100_000, 100_400):
            await asyncio.sleep(0.02 if trickles else 3.0)
            await response.write(CONTENT[at : at + 1])
        return response

    registry.dial = dial
    assert await fetched(session, registry, tmp_path / "blob") == CONTENT
    assert len(registry.seen) == 2


async def test_a_redirect_to_another_host_does_not_get_the_login(
    registry: Registry, session: Web, tmp_path: Path
) -> None:
    elsewhere: list[str] = []

    async def storage(request: web.BaseRequest) -> web.StreamResponse:
        elsewhere.append(request.headers.get("Authorization", "") + request.raw_path)
        return part_of(request, CONTENT)

    async with served(storage) as host:

        async def dial(request: web.BaseRequest) -> Answer:
            if not request.headers.get("Authorization"):
                return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="lab"'})
            return web.Response(status=307, headers={"Location": f"http://{host}/blob?signature=a%2Fb%3D"})

        registry.dial = dial
        logins = RegistryLogins.from_secret(docker_config({registry.host: {"username": "me", "password": "pw"}}))
        registry.blobs[str(DIGEST)] = CONTENT
        await client(session, registry, logins=logins).fetch(
            Blob(DIGEST, len(CONTENT), ""), tmp_path / "blob", limit=1 << 20
        )
    assert elsewhere == ["/blob?signature=a%2Fb%3D"]
    assert registry.seen[-1][2].startswith("Basic ")


@pytest.mark.parametrize(
    ("location", "told"),
    [
        ("/v2/again", "more than 10 redirects"),
        ("file:///etc/passwd", "which is not supported"),
        ("http://[", "redirects to an invalid URL"),
    ],
)
async def test_redirects_that_lead_nowhere_end(registry: Registry, session: Web, location: str, told: str) -> None:
    async def dial(request: web.BaseRequest) -> Answer:
        return web.Response(status=302, headers={"Location": location})

    registry.dial = dial
    with pytest.raises(UnusableContent, match=told):
        await client(session, registry).resolve(AMD64)


class Tokens:
    """A token server in front of a registry; a token serves `uses` requests."""

    def __init__(self, registry: Registry, *, uses: int = 1000) -> None:
        self.registry, self.uses = registry, uses
        self.asked: list[str] = []

    async def dial(self, request: web.BaseRequest) -> Answer:
        if request.path == "/token":
            form = await request.post()
            self.asked.append(request.headers.get("Authorization", "") or str(form.get("refresh_token", "")))
            if self.asked[-1] == "Basic bm90Om1l":
                return web.Response(status=401)
            wanted = dict(request.query) or {key: str(value) for key, value in form.items()}
            assert wanted["service"] == "lab, really"
            assert wanted["scope"] == "repository:lab/img:pull"
            return web.json_response({"token": f"t{len(self.asked)}", "expires_in": 300})
        if request.headers.get("Authorization") == f"Bearer t{len(self.asked)}" and self.uses:
            self.uses -= 1
            return None
        challenge = (
            f'Bearer realm="http://{self.registry.host}/token",service="lab, really",scope="repository:lab/img:pull"'
        )
        return web.Response(status=401, headers={"WWW-Authenticate": challenge})


async def test_a_token_is_asked_for_once_and_used_until_it_is_refused(registry: Registry, session: Web) -> None:
    registry.add(built(), "v1")
    tokens = Tokens(registry)
    registry.dial = tokens.dial
    asking = client(session, registry)
    await asking.resolve(AMD64)
    await asking.resolve(AMD64)
    assert tokens.asked == [""]


@pytest.mark.parametrize(
    ("entry", "shown"),
    [
        ({"auth": "bWU6cHc="}, "Basic bWU6cHc="),
        ({"username": "me", "password": "pw"}, "Basic bWU6cHc="),
        ({"identitytoken": "refresh"}, "refresh"),
    ],
)
async def test_the_token_server_gets_the_login_of_the_pull_secret(
    registry: Registry, session: Web, entry: dict[str, str], shown: str
) -> None:
    registry.add(built(), "v1")
    tokens = Tokens(registry)
    registry.dial = tokens.dial
    await client(session, registry, logins=RegistryLogins.from_secret(docker_config({registry.host: entry}))).resolve(
        AMD64
    )
    assert tokens.asked == [shown]


async def test_a_login_that_the_token_server_refuses_is_named_without_its_password(
    registry: Registry, session: Web
) -> None:
    registry.dial = Tokens(registry).dial
    logins = RegistryLogins.from_secret(docker_config({registry.host: {"auth": "bm90Om1l"}}))
    with pytest.raises(Denied, match="does not let 'not' read lab/img: check the pull secret") as caught:
        await client(session, registry, logins=logins).resolve(AMD64)
    assert "me" not in str(caught.value).split(":")[-1].split()


@pytest.mark.parametrize("secret", [True, False])
@pytest.mark.parametrize("scheme", ["Basic", "Bearer"])
async def test_a_registry_that_refuses_every_login_is_asked_a_few_times_only(
    registry: Registry, session: Web, secret: bool, scheme: str
) -> None:
    tokens = Tokens(registry, uses=0)

    async def dial(request: web.BaseRequest) -> Answer:
        if scheme == "Bearer":
            return await tokens.dial(request)
        return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="x"'})

    registry.dial = dial
    config = docker_config({registry.host: {"auth": "bWU6cHc="}})
    logins = RegistryLogins.from_secret(config) if secret else None
    with pytest.raises(Denied, match="check the pull secret" if secret else "set a pull secret"):
        await client(session, registry, logins=logins).resolve(AMD64)
    assert len(registry.seen) <= 3


async def test_a_token_server_without_tls_on_another_host_gets_no_login(registry: Registry, session: Web) -> None:
    async def dial(request: web.BaseRequest) -> Answer:
        challenge = 'Bearer realm="http://tokens.example.com/token"'
        return web.Response(status=401, headers={"WWW-Authenticate": challenge})

    registry.dial = dial
    with pytest.raises(UnusableContent, match=r"tokens\.example\.com/token would get the login without TLS"):
        await client(session, registry).resolve(AMD64)


def test_registry_uses_plain_http_for_local_private_or_configured_hosts() -> None:
    trust = Trust(plain=frozenset({"lab.example.com", "b.example.com:5000"}), tls=frozenset({"10.0.0.9"}))
    plain = ("localhost:5000", "127.0.0.1", "[::1]:5000", "10.1.2.3:5000", "192.168.1.1", "172.31.0.1")
    tls = ("example.com", "172.32.0.1", "10.0.0.9:5000", "b.example.com", "8.8.8.8", "localhost.example.com")
    assert {trust.scheme(host) for host in (*plain, "lab.example.com:80", "b.example.com:5000")} == {"http"}
    assert {trust.scheme(host) for host in tls} == {"https"}
