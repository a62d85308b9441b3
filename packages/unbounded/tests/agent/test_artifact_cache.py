from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from tests.fetch.layers import files, image, index
from tests.fetch.registries import HASTY, Registry, cut_after, part_of, served
from unbounded.agent.artifact_cache import ArtifactCache, BlobStore, CachedArtifact, find_cached
from unbounded.agent.artifact_sources import Artifact
from unbounded.agent.node.rootfs import ImageCache
from unbounded.api.failures import Rejected, Transient
from unbounded.fetch.reference import Platform
from unbounded.fetch.web import Web
from unbounded.kube.logs import HumanFormatter, chain

CONTENT = os.urandom(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
AMD64 = Platform("linux", "amd64")


class Mirror:
    """Serves what is in `held`; the first answers about /runc break off, and `away` answers nothing."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {"/runc": CONTENT, "/runc.sha256sum": f"{SHA256}  runc\n".encode()}
        self.cuts = 0
        self.away = False
        self.dies = False  # with a cut
        self.asked: list[str] = []
        self.host = ""
        self.starts: list[int] = []

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append(request.path)
        if self.away:
            return web.Response(status=503)
        if request.path not in self.held:
            return web.Response(status=404)
        content = self.held[request.path]
        if request.path == "/runc":
            self.starts.append(request.http_range.start or 0)
            if self.cuts:
                self.cuts -= 1
                self.away = self.dies
                return await cut_after(request, content, 100_000, ETag='"1"')
        return part_of(request, content, ETag='"1"')

    def artifact(self, *, fixed: bool = True) -> Artifact:
        return Artifact("runc", "1.5.0", f"http://{self.host}/runc", f"http://{self.host}/runc.sha256sum", fixed)


@pytest.fixture
async def mirror() -> AsyncIterator[Mirror]:
    made = Mirror()
    async with served(made.handle) as host:
        made.host = host
        yield made


Opened = Callable[[], Awaitable[ArtifactCache]]


@pytest.fixture
async def session() -> AsyncIterator[Web]:
    async with Web(patience=HASTY) as opened:
        yield opened


@pytest.fixture
def cache(session: Web, tmp_path: Path) -> ArtifactCache:
    return ArtifactCache(opened(tmp_path), session, session)


def opened(folder: Path) -> BlobStore:
    shelf = BlobStore(folder / "cache")
    shelf.open()
    return shelf


def quiet(_: str) -> None:
    pass


async def test_an_artifact_is_fetched_once_and_checked(mirror: Mirror, cache: ArtifactCache) -> None:
    first = await cache.get(mirror.artifact(), quiet)
    assert first.path.read_bytes() == CONTENT
    assert first.checked
    asked = len(mirror.asked)
    assert await cache.get(mirror.artifact(), quiet) == first
    assert len(mirror.asked) == asked


async def test_a_cut_download_goes_on_and_says_how_far_it_is(mirror: Mirror, cache: ArtifactCache) -> None:
    mirror.cuts = 2
    told: list[str] = []
    assert (await cache.get(mirror.artifact(), told.append)).path.read_bytes() == CONTENT
    assert mirror.starts[0] == 0 < mirror.starts[1] < mirror.starts[2]
    assert told[-1] == "1.5.0: fetched"
    assert any(line.endswith("%") for line in told)


async def test_a_download_that_was_given_up_is_resumed_by_the_next(
    mirror: Mirror, cache: ArtifactCache, tmp_path: Path
) -> None:
    mirror.cuts, mirror.dies = 1, True
    with pytest.raises(Transient):
        await cache.get(mirror.artifact(), quiet)
    mirror.away = False
    async with Web(patience=HASTY) as later:  # another process
        fetched = await ArtifactCache(opened(tmp_path), later, later).get(mirror.artifact(), quiet)
    assert fetched.path.read_bytes() == CONTENT
    assert mirror.starts == [0, mirror.starts[1]]
    assert mirror.starts[1] > 0


async def test_two_artifacts_that_are_one_file_are_fetched_once(mirror: Mirror, cache: ArtifactCache) -> None:
    url = f"http://{mirror.host}/runc"
    twins = [Artifact(name, "1", f"{url}?{name}", f"{url}.sha256sum?{name}") for name in ("a", "b", "c")]
    fetched = await asyncio.gather(*(cache.get(twin, quiet) for twin in twins))
    assert {found.path.read_bytes() for found in fetched} == {CONTENT}
    assert len(mirror.starts) == 1


async def test_what_is_not_what_its_source_publishes_is_refused(mirror: Mirror, cache: ArtifactCache) -> None:
    mirror.held["/runc"] = CONTENT[:-1] + b"!"
    with pytest.raises(Rejected, match=r"runc 1\.5\.0: .*its digest is sha256"):
        await cache.get(mirror.artifact(), quiet)
    mirror.held["/runc"] = CONTENT
    assert (await cache.get(mirror.artifact(), quiet)).path.read_bytes() == CONTENT


async def test_source_without_checksum_is_reported(
    mirror: Mirror, cache: ArtifactCache, caplog: pytest.LogCaptureFixture
) -> None:
    del mirror.held["/runc.sha256sum"]
    told: list[str] = []
    fetched = await cache.get(mirror.artifact(), told.append)
    assert fetched.path.read_bytes() == CONTENT
    assert not fetched.checked
    assert "artifact not verified" in caplog.text
    assert told[0] == "1.5.0: no sha256 is published beside it, so it is not verified"


async def test_a_digest_of_the_configuration_counts_and_nothing_published_is_asked_for(
    mirror: Mirror, cache: ArtifactCache
) -> None:
    del mirror.held["/runc.sha256sum"]
    unchecked = await cache.get(mirror.artifact(), quiet)
    mirror.asked.clear()
    pinned = await cache.get(replace(mirror.artifact(), sha256=SHA256), quiet)
    assert (unchecked.checked, pinned.checked, mirror.asked) == (False, True, [])
    with pytest.raises(Rejected, match=r"runc 1\.5\.0: .*its digest is sha256"):
        await cache.get(replace(mirror.artifact(), sha256="0" * 64), quiet)


@asynccontextmanager
async def no_http() -> AsyncIterator[str]:
    """Answers everybody with what is no HTTP."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.com ready\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_credentials_of_a_source_are_not_logged_or_reported(
    mirror: Mirror, cache: ArtifactCache, caplog: pytest.LogCaptureFixture
) -> None:
    opens = "?sig=opensesame"
    artifact = replace(
        mirror.artifact(),
        url=f"{mirror.artifact().url}{opens}",
        checksum_url=f"{mirror.artifact().checksum_url}{opens}",
    )
    caplog.set_level("DEBUG")
    mirror.away = True
    with pytest.raises(Transient) as later:
        await cache.get(artifact, quiet)
    mirror.away = False
    mirror.held["/runc.sha256sum"] = b"<html>moved</html>"
    with pytest.raises(Rejected) as refused:
        await cache.get(artifact, quiet)
    with pytest.raises(Rejected) as no_url:
        await cache.get(replace(artifact, checksum_url=f"http://user:opensesame@[x{opens}"), quiet)
    async with no_http() as nonsense:
        with pytest.raises(Transient) as garbled:
            await cache.get(replace(artifact, checksum_url=f"{nonsense}/runc{opens}"), quiet)
    ours = (record for record in caplog.records if record.name != "aiohttp.access")  # which is the mirror's
    logged = "\n".join(map(HumanFormatter().format, ours))
    assert "retrying fetch" in logged
    for text in (logged, *(chain(one.value) for one in (later, refused, no_url, garbled))):
        assert "opensesame" not in text


async def test_looking_changes_nothing_on_the_shelf(mirror: Mirror, cache: ArtifactCache, tmp_path: Path) -> None:
    await cache.get(mirror.artifact(), quiet)
    (note,) = (tmp_path / "cache/notes").iterdir()
    os.utime(note, (1, 1))
    assert find_cached(opened(tmp_path), mirror.artifact()) == CachedArtifact(checked=True)
    assert note.stat().st_mtime == 1
    await cache.get(mirror.artifact(), quiet)
    assert note.stat().st_mtime > 1


async def test_a_damaged_note_does_not_stop_collecting(mirror: Mirror, cache: ArtifactCache, tmp_path: Path) -> None:
    held = await cache.get(mirror.artifact(), quiet)
    (tmp_path / "cache/notes/cni-1").write_text('{"kind": "artifact", "source": "x", "blobs": ["sha256:short"]}')
    (tmp_path / "cache/sha256-left").write_bytes(b"left")
    opened(tmp_path).collect(2)
    assert held.path.exists()
    assert not (tmp_path / "cache/sha256-left").exists()


async def test_a_page_in_place_of_a_checksum_is_refused(mirror: Mirror, cache: ArtifactCache) -> None:
    mirror.held["/runc.sha256sum"] = b"<html>moved</html>"
    with pytest.raises(Rejected, match=r"runc\.sha256sum: it does not contain exactly one sha256 of runc"):
        await cache.get(mirror.artifact(), quiet)


@pytest.mark.parametrize("fixed", [True, False])
async def test_a_warm_cache_needs_no_mirror(mirror: Mirror, cache: ArtifactCache, fixed: bool) -> None:
    first = await cache.get(mirror.artifact(fixed=fixed), quiet)
    mirror.away = True
    assert await cache.get(mirror.artifact(fixed=fixed), quiet) == first


async def test_a_cold_cache_without_a_mirror_may_work_later(mirror: Mirror, cache: ArtifactCache) -> None:
    mirror.away = True
    with pytest.raises(Transient, match="503"):
        await cache.get(mirror.artifact(), quiet)


async def test_a_url_without_a_version_is_looked_up_again(mirror: Mirror, cache: ArtifactCache) -> None:
    await cache.get(mirror.artifact(fixed=False), quiet)
    newer = os.urandom(1000)
    mirror.held.update({"/runc": newer, "/runc.sha256sum": hashlib.sha256(newer).hexdigest().encode()})
    assert (await cache.get(mirror.artifact(fixed=False), quiet)).path.read_bytes() == newer


async def test_what_rotted_on_the_disk_is_fetched_again(mirror: Mirror, cache: ArtifactCache) -> None:
    fetched = await cache.get(mirror.artifact(), quiet)
    fetched.path.write_bytes(CONTENT[:1000])
    assert (await cache.get(mirror.artifact(), quiet)).path.read_bytes() == CONTENT


async def test_collecting_keeps_what_was_used_last(mirror: Mirror, cache: ArtifactCache, tmp_path: Path) -> None:
    for number in range(4):
        content = os.urandom(100)
        digest = hashlib.sha256(content).hexdigest()
        mirror.held.update({f"/{number}": content, f"/{number}.sha256": digest.encode()})
        url = f"http://{mirror.host}/{number}"
        await cache.get(Artifact("kubelet", str(number), url, f"{url}.sha256"), quiet)
        await asyncio.sleep(0.01)
    (tmp_path / "cache/fresh-123.partial").write_bytes(b"left by a cut")
    kept = await cache.get(mirror.artifact(), quiet)
    opened(tmp_path).collect(2)
    assert kept.path.exists()
    assert len(list((tmp_path / "cache/notes").iterdir())) == 3
    assert len(list((tmp_path / "cache").glob("sha256-*"))) == 3
    assert not (tmp_path / "cache/fresh-123.partial").exists()


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    made = Registry()
    async with served(made.handle) as made.host:
        yield made


LAYERS = [files({"etc/a": b"1"}), files({"etc/b": os.urandom(50_000)})]


async def test_an_image_is_pulled_once_for_its_platform(registry: Registry, session: Web, tmp_path: Path) -> None:
    built, other = image(LAYERS), image([files({"arm": b""})])
    registry.add(other)
    registry.add(built)
    many = index({"linux/arm64": other, "linux/amd64": built})
    registry.manifests["1"] = (many, "application/vnd.oci.image.index.v1+json")
    images = ImageCache(opened(tmp_path), session, session)
    found = await images.get(f"{registry.host}/rootfs:1", AMD64, quiet)
    assert found.digest == str(built.digest)
    assert len(found.layers) == 2
    pulls = registry.count("/blobs/")
    assert await images.get(f"{registry.host}/rootfs:1", AMD64, quiet) == found
    assert registry.count("/blobs/") == pulls == 2


async def test_an_image_that_is_there_is_used_while_the_registry_is_away(
    registry: Registry, session: Web, tmp_path: Path
) -> None:
    registry.add(image(LAYERS), "1")
    images = ImageCache(opened(tmp_path), session, session)
    found = await images.get(f"{registry.host}/rootfs:1", AMD64, quiet)

    async def away(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=503)

    registry.dial = away
    again = await images.get(f"{registry.host}/rootfs:1", AMD64, quiet)
    assert (again.digest, again.layers) == (found.digest, found.layers)
    assert "503" in again.stale
    with pytest.raises(Transient):
        await images.get(f"{registry.host}/rootfs:2", AMD64, quiet)


async def test_moved_tag_fetches_the_new_image_and_corrupt_layer_is_refetched(
    registry: Registry, session: Web, tmp_path: Path
) -> None:
    registry.add(image(LAYERS), "1")
    images = ImageCache(opened(tmp_path), session, session)
    first = await images.get(f"{registry.host}/rootfs:1", AMD64, quiet)
    newer = image([LAYERS[0], files({"etc/c": b"3"})])
    registry.add(newer, "1")
    second = await images.get(f"{registry.host}/rootfs:1", AMD64, quiet)
    assert second.digest == str(newer.digest) != first.digest
    second.layers[0].write_bytes(b"rotten")
    assert (await images.get(f"{registry.host}/rootfs:1", AMD64, quiet)).layers[0].read_bytes() != b"rotten"
