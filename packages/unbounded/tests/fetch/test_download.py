from __future__ import annotations

import hashlib
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme
from aiohttp import web

from tests.fetch.registries import HASTY, cut_after, part_of, served
from unbounded.fetch.download import Download, download
from unbounded.fetch.failures import Corrupt, Denied, NotPublished, TooLarge, UnusableContent
from unbounded.fetch.reference import Digest
from unbounded.fetch.web import Trust, Web

CONTENT = os.urandom(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
async def session() -> AsyncIterator[Web]:
    async with Web(patience=HASTY) as opened:
        yield opened


class Site:
    """Serves CONTENT under /file; the first answers break off. `etag` is what it calls its content now."""

    def __init__(self, *, cuts: int = 0, content: bytes = CONTENT, etag: str = '"1"') -> None:
        self.cuts, self.content, self.etag = cuts, content, etag
        self.starts: list[int] = []

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path != "/file":
            return web.Response(status=404)
        self.starts.append(request.http_range.start or 0)
        if self.cuts:
            self.cuts -= 1
            return await cut_after(request, self.content, 100_000, ETag=self.etag)
        if request.headers.get("If-Range", self.etag) != self.etag:
            return web.Response(body=self.content)
        return part_of(request, self.content, ETag=self.etag)


async def test_a_cut_download_goes_on_where_it_was(session: Web, tmp_path: Path) -> None:
    site = Site(cuts=2)
    async with served(site.handle) as host:
        told: list[tuple[int, int | None]] = []
        digest = await download(
            session,
            Download((f"http://{host}/file",)),
            tmp_path / "f",
            on_bytes=lambda done, total: told.append((done, total)),
        )
    assert digest == Digest("sha256", SHA256)
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert site.starts[0] == 0 < site.starts[1] < site.starts[2]
    assert told[-1] == (300_000, 300_000)


async def test_a_file_that_changed_in_between_is_taken_from_the_start(session: Web, tmp_path: Path) -> None:
    site = Site(cuts=1, content=b"old" * 100_000)

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if site.starts:
            site.content, site.etag = CONTENT, '"2"'
        return await site.handle(request)

    async with served(handle) as host:
        await download(session, Download((f"http://{host}/file",)), tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT


async def test_without_a_digest_nothing_of_an_earlier_time_is_used(session: Web, tmp_path: Path) -> None:
    (tmp_path / "f.partial").write_bytes(b"old" * 1000)
    async with served(Site().handle) as host:
        await download(session, Download((f"http://{host}/file",)), tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT


async def test_with_a_digest_an_earlier_time_counts(session: Web, tmp_path: Path) -> None:
    (tmp_path / "f.partial").write_bytes(CONTENT[:1000])
    site = Site()
    async with served(site.handle) as host:
        await download(session, Download((f"http://{host}/file",), sha256=SHA256.upper()), tmp_path / "f")
        assert site.starts == [1000]
        (tmp_path / "f.partial").write_bytes(CONTENT)
        await download(session, Download((f"http://{host}/file",), sha256=SHA256), tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT


async def test_the_next_mirror_serves_what_the_first_does_not(session: Web, tmp_path: Path) -> None:
    async with served(Site(content=b"wrong").handle) as wrong, served(Site().handle) as right:
        urls = (
            f"http://{wrong}/nothing/file",
            f"http://{wrong}/file",
            "http://127.0.0.1:1/file",
            f"http://{right}/file",
        )
        await download(session, Download(urls, sha256=SHA256), tmp_path / "f")
        assert (tmp_path / "f").read_bytes() == CONTENT
        with pytest.raises(NotPublished, match="404"):
            await download(session, Download(urls[:1]), tmp_path / "g")
        with pytest.raises(Corrupt, match="twice"):
            await download(session, Download((f"http://{wrong}/file",), sha256=SHA256), tmp_path / "g")
    assert not (tmp_path / "g").exists()


async def test_limits_and_schemes_hold(session: Web, tmp_path: Path) -> None:
    async with served(Site().handle) as host:
        with pytest.raises(TooLarge):
            await download(session, Download((f"http://{host}/file",), limit=1000), tmp_path / "f")
    refused = (
        "http://example.com/f",
        "ftp://example.com/f",
        "f",
        "file://host/f",
        "http://user:pw@example.com/f?q=secret",
    )
    for url in refused:
        with pytest.raises(UnusableContent) as caught:
            await download(session, Download((url,)), tmp_path / "f")
        assert "pw" not in str(caught.value)
        assert "secret" not in str(caught.value)
    with pytest.raises(UnusableContent, match="no URL is configured"):
        await download(session, Download(()), tmp_path / "f")


async def test_a_file_url_is_copied_and_checked(session: Web, tmp_path: Path) -> None:
    source = tmp_path / "with space"
    source.write_bytes(CONTENT)
    wanted = Download((source.as_uri(),), sha256=SHA256)
    assert await download(session, wanted, tmp_path / "f") == Digest("sha256", SHA256)
    with pytest.raises(Corrupt):
        await download(session, Download((source.as_uri(),), sha256="0" * 64), tmp_path / "g")
    with pytest.raises(NotPublished):
        await download(session, Download(((tmp_path / "none").as_uri(),)), tmp_path / "g")


@pytest.mark.slow
async def test_a_server_is_trusted_by_the_bundle_for_its_host_only(tmp_path: Path) -> None:
    ca = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("localhost").configure_cert(context)
    runner = web.ServerRunner(web.Server(Site().handle))
    await runner.setup()
    await web.TCPSite(runner, "localhost", 0, ssl_context=context).start()
    wanted = Download((f"https://localhost:{runner.addresses[0][1]}/file",))
    bundle = ca.cert_pem.bytes()
    try:
        async with Web(Trust(authorities={"localhost": bundle}), HASTY) as trusting:
            await download(trusting, wanted, tmp_path / "f")
        async with Web(Trust(authorities={"example.com": bundle}), HASTY) as other:
            with pytest.raises(Denied, match=r"is not trusted.*add its authority to the CA bundle"):
                await download(other, wanted, tmp_path / "g")
    finally:
        await runner.cleanup()
