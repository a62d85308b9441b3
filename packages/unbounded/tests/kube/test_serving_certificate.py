"""The certificate of a listener: awaited, replaced by new files, and kept while they do not belong together."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from prometheus_client import CollectorRegistry

from tests.support.waiting import eventually
from unbounded.kube.serving_certificate import ServingCertificate, certificate_expiry

QUICK_S = 0.01
CA = trustme.CA()
EXPIRY = "unbounded_certificate_expiry_timestamp_seconds"


class Files:
    """The files of a certificate, and the metric of its expiry."""

    def __init__(self, folder: Path) -> None:
        self.chain, self.key = folder / "tls.crt", folder / "tls.key"
        self.registry = CollectorRegistry()
        self.certificate = ServingCertificate(
            self.chain, self.key, "test", certificate_expiry(self.registry), renewal_s=QUICK_S
        )

    def expiry(self) -> float | None:
        return self.registry.get_sample_value(EXPIRY, {"certificate": "test"})


def issued(days: int) -> tuple[trustme.LeafCert, float]:
    """Return a certificate with its end."""
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
    return CA.issue_cert("127.0.0.1", not_after=end), end.timestamp()


@asynccontextmanager
async def listening(context: ssl.SSLContext) -> AsyncIterator[int]:
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def served_end(port: int) -> float:
    """Return the end of the certificate that a new connection gets."""
    trusted = ssl.create_default_context(cadata=CA.cert_pem.bytes().decode())
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted)
    found = writer.get_extra_info("peercert")["notAfter"]
    writer.close()
    return ssl.cert_time_to_seconds(found)


async def test_a_listener_without_its_certificate_says_what_it_waits_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = Files(tmp_path)
    waiting = asyncio.create_task(files.certificate.wait_usable())
    async with asyncio.timeout(10):
        while not caplog.records:  # noqa: ASYNC110
            await asyncio.sleep(QUICK_S)
    waiting.cancel()
    [record] = caplog.records
    assert vars(record)["fields"] == {"certificate": "test", "files": f"{files.chain}, {files.key}"}
    assert files.certificate.missing() == f"awaited from {files.chain}, {files.key}"


@pytest.mark.slow
async def test_a_listener_waits_for_its_certificate_and_uses_the_next_one(tmp_path: Path) -> None:
    files = Files(tmp_path)
    (first, first_end), (second, second_end) = issued(5), issued(90)
    waiting = asyncio.create_task(files.certificate.wait_usable())
    first.cert_chain_pems[0].write_to_path(files.chain)
    second.private_key_pem.write_to_path(files.key)  # of another certificate
    await asyncio.sleep(5 * QUICK_S)
    assert not waiting.done()
    assert files.expiry() is None
    first.private_key_pem.write_to_path(files.key)
    async with asyncio.timeout(10), listening(await waiting) as port:
        following = asyncio.create_task(files.certificate.follow())
        assert await served_end(port) == first_end == files.expiry()
        second.private_key_pem.write_to_path(files.key)
        await asyncio.sleep(5 * QUICK_S)
        assert await served_end(port) == first_end == files.expiry()
        files.key.unlink()
        second.cert_chain_pems[0].write_to_path(files.chain)
        await asyncio.sleep(5 * QUICK_S)
        assert await served_end(port) == first_end
        second.private_key_pem.write_to_path(files.key)

        async def is_renewed() -> bool:
            return await served_end(port) == second_end

        await eventually(is_renewed)
        assert files.expiry() == second_end
        following.cancel()


def test_files_that_cannot_be_used_are_reported_at_once(tmp_path: Path) -> None:
    files = Files(tmp_path)
    with pytest.raises(FileNotFoundError):
        files.certificate.load()
    files.chain.write_text("no certificate")
    files.key.write_text("no key")
    with pytest.raises(ssl.SSLError):
        files.certificate.load()
    assert files.expiry() is None
    leaf, end = issued(1)
    leaf.cert_chain_pems[0].write_to_path(files.chain)
    leaf.private_key_pem.write_to_path(files.key)
    assert files.certificate.missing() is not None
    assert files.certificate.load() is files.certificate.load()
    assert files.certificate.missing() is None
    assert files.expiry() == end
