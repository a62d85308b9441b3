"""Statements of a site on answers of the HTTP server, verified by OpenSSL's command."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from tests.metalman.support.fixed_boots import PREFIX, FixedBoots
from tests.support.memory_api import MemoryApi
from unbounded.api.core import SECRETS
from unbounded.api.names import NAMESPACE
from unbounded.metalman.http.response_signing import LARGEST_PART_BYTES, StatementKey
from unbounded.metalman.http.server import HttpServer, HttpServerSettings
from unbounded.metalman.netboot.boot_requests import STATEMENT_DATA, STATEMENT_SECRET, StatementKeys

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")

NONCE = "ab" * 32
IMAGE = bytes(range(256)) * 4000
UNDER = f"/boot/{PREFIX}"


def openssl(*arguments: str, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["openssl", *arguments], input=data, capture_output=True, check=False)


def new_key(kind: str = "ed25519") -> bytes:
    return openssl("genpkey", "-algorithm", kind).stdout


class Client:
    """A client of the server, with the public key of the site."""

    def __init__(self, folder: Path, port: int, session: aiohttp.ClientSession, key: bytes) -> None:
        self._folder, self._port, self._session = folder, port, session
        (folder / "key").write_bytes(openssl("pkey", "-pubout", data=key).stdout)

    async def ask(self, method: str, path: str, body: bytes = b"", **fields: str) -> tuple[Any, bytes]:
        headers = {name.replace("_", "-"): value for name, value in fields.items()}
        url = f"http://127.0.0.1:{self._port}{path}"
        async with self._session.request(method, url, data=body or None, headers=headers) as answer:
            return answer, await answer.read()

    def verifies(self, request: str, nonce: str, sent: bytes, answer: Any, body: bytes) -> bool:
        """Return whether the site has signed this answer to this request, as the installer checks it."""
        span = answer.headers.get("Content-Range", "-")
        digests = hashlib.sha256(sent).hexdigest(), hashlib.sha256(body).hexdigest()
        lines = ("unbounded-statement 1", request, nonce, digests[0], str(answer.status), span, digests[1])
        (self._folder / "text").write_text("".join(f"{line}\n" for line in lines))
        (self._folder / "signature").write_bytes(base64.b64decode(answer.headers["Unbounded-Statement"]))
        files = {"-inkey": "key", "-in": "text", "-sigfile": "signature"}
        arguments = [part for name, file in files.items() for part in (name, str(self._folder / file))]
        return openssl("pkeyutl", "-verify", "-pubin", "-rawin", *arguments).returncode == 0


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    pem = new_key()

    async def keys() -> StatementKey:
        return StatementKey(pem)

    (tmp_path / "files").mkdir()
    boots = FixedBoots(tmp_path / "files")
    boots.put("disk.img.gz", IMAGE)
    settings = HttpServerSettings("127.0.0.1", 0)
    async with (
        HttpServer(settings, boots, CollectorRegistry(), keys).serving() as server,
        aiohttp.ClientSession() as session,
    ):
        yield Client(tmp_path, server.port, session, pem)


async def test_a_file_a_part_and_a_refusal_are_signed(client: Client) -> None:
    for path, fields in {
        f"{UNDER}/disk.img.gz": {},
        f"{UNDER}/disk.img.gz ": {"Range": "bytes=100-299999"},
        f"{UNDER}/grub/grub.cfg": {},
        f"{UNDER}/not-there": {},
    }.items():
        answer, body = await client.ask("GET", path.strip(), b"", Unbounded_Nonce=NONCE, **fields)
        request = f"GET {path.strip()}"
        assert client.verifies(request, NONCE, b"", answer, body)
        assert not client.verifies(request, "cd" * 32, b"", answer, body)
        assert not client.verifies("GET /other", NONCE, b"", answer, body)
        assert not client.verifies(request, NONCE, b"", answer, body + b"x")


async def test_the_answer_to_a_report_is_signed_with_the_report(client: Client) -> None:
    report = b'{"stage":"Writing","message":""}'
    answer, body = await client.ask("POST", f"{UNDER}/progress", report, Unbounded_Nonce=NONCE)
    assert answer.status == 200
    assert client.verifies(f"POST {UNDER}/progress", NONCE, report, answer, body)
    assert not client.verifies(f"POST {UNDER}/progress", NONCE, report.replace(b"W", b"R"), answer, body)


@pytest.mark.parametrize("nonce", ["", "ab" * 31, "AB" * 32, "ab" * 33, "x" * 64])
async def test_only_a_nonce_of_32_bytes_gets_a_signature(client: Client, nonce: str) -> None:
    answer, _ = await client.ask("GET", f"{UNDER}/disk.img.gz", Unbounded_Nonce=nonce)
    assert answer.status == 200
    assert "Unbounded-Statement" not in answer.headers


async def test_a_part_that_is_too_large_is_sent_without_a_signature(tmp_path: Path) -> None:
    pem = new_key()

    async def keys() -> StatementKey:
        return StatementKey(pem)

    (tmp_path / "files").mkdir()
    boots = FixedBoots(tmp_path / "files")
    boots.put("disk.img.gz", b"")
    with (tmp_path / "files" / "disk.img.gz").open("wb") as file:
        file.truncate(LARGEST_PART_BYTES + 1)
    settings = HttpServerSettings("127.0.0.1", 0)
    async with (
        HttpServer(settings, boots, CollectorRegistry(), keys).serving() as server,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{server.port}{UNDER}/disk.img.gz", headers={"Unbounded-Nonce": NONCE}) as answer,
    ):
        assert "Unbounded-Statement" not in answer.headers


@pytest.mark.parametrize("pem", [b"", b"no key", new_key("x25519"), new_key("rsa")], ids=["empty", "text", "x", "rsa"])
def test_only_an_ed25519_key_signs(pem: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        StatementKey(pem)


async def test_the_key_of_a_site_is_read_from_its_secret() -> None:
    api = MemoryApi()
    assert await StatementKeys(api).current() is None
    await api.create(SECRETS, {"metadata": {"name": STATEMENT_SECRET}}, namespace=NAMESPACE)
    for content, usable in ((new_key(), True), (b"no key", False)):
        data = {STATEMENT_DATA: base64.b64encode(content).decode()}
        await api.patch(SECRETS, STATEMENT_SECRET, {"data": data}, namespace=NAMESPACE)
        assert (await StatementKeys(api).current() is not None) == usable
