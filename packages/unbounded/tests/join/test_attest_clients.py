"""Both clients of attestation, with a software TPM, against metalman's answers over HTTP; and against bad answers."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from tests.fetch.registries import served
from tests.metalman.attest.test_service import FACTS, KEY
from tests.support.memory_api import MemoryApi
from tests.support.paths import ROOT
from tests.support.software_tpm import SoftwareTpm, needs_tpm, software_tpm
from unbounded.api.core import SECRETS
from unbounded.api.failures import Rejected, Transient
from unbounded.api.machine import MACHINES
from unbounded.join import attest_client
from unbounded.join.attestation import AttestationFailed, Exchange, TryAgain, seal, wait_s
from unbounded.join.tpm import Transport, socket_tpm
from unbounded.metalman.attest.challenge import Challenges
from unbounded.metalman.attest.quote import QUOTED
from unbounded.metalman.attest.service import AttestationService
from unbounded.metalman.attest.trust import TrustedRoots

COMMON = ROOT / "images" / "common"
Handler = Callable[[bytes], Awaitable[web.Response]]


@dataclass
class Server:
    """metalman's attestation for one Machine, over HTTP; `first` is answered before, one for each request."""

    roots: TrustedRoots | None = None
    first: list[web.Response] = field(default_factory=list)
    requests: int = 0
    proofs: int = 0

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        assert (request.method, request.path) == ("POST", "/boot/x/attest")
        body = await request.read()
        self.requests += 1
        self.proofs += b'"proof"' in body
        if self.first:
            return self.first.pop(0)
        answer = await self.attestation.answer(await self.api.get(MACHINES, "m1"), body, "boot", None)
        headers = {"Retry-After": str(answer.retry_after_s)} if answer.retry_after_s is not None else {}
        return web.json_response(dict(answer.body), status=answer.code, headers=headers)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        self.api = MemoryApi()
        await self.api.create(MACHINES, {"metadata": {"name": "m1"}})
        self.attestation = AttestationService(self.api, lambda: FACTS, Challenges(KEY), roots=self.roots)
        async with served(self.handle) as host:
            yield f"http://{host}/boot/x/"

    async def token(self) -> str:
        (secret,) = (await self.api.list(SECRETS, namespace="kube-system")).items
        return b".".join(secret.value(key) or b"" for key in ("token-id", "token-secret")).decode()


@pytest.fixture
def tpm(tmp_path: Path) -> Iterator[SoftwareTpm]:
    with software_tpm(tmp_path / "tpm") as running:
        yield running


async def script(folder: Path, tpm: SoftwareTpm, url: str, *arguments: str) -> tuple[int, str, str]:
    """Install attest.sh into a folder, as an image has it, and run it."""
    install = await asyncio.create_subprocess_exec(str(COMMON / "install-attest"), str(folder / "lib"))
    assert await install.wait() == 0
    process = await asyncio.create_subprocess_exec(
        str(folder / "lib" / "attest.sh"),
        *("--tpm", tpm.address, *arguments, url),
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.mark.slow
@needs_tpm
@pytest.mark.parametrize("kind", ["rsa", "ecc"])
async def test_the_script_of_images_prints_the_token(tmp_path: Path, tpm: SoftwareTpm, kind: str) -> None:
    server = Server()
    async with server.running() as url:
        ca = tmp_path / "ca.pem"
        code, out, err = await script(tmp_path, tpm, url, "--kind", kind, "--ca", str(ca))
        assert (code, err) == (0, "")
        assert out == f"{await server.token()}\n"
        assert ca.read_text() == FACTS.ca_pem
        assert (server.requests, server.proofs) == (2, 1)
        tpm_status = (await server.api.get(MACHINES, "m1")).status.tpm
        assert tpm_status is not None
        assert tpm_status.reference is not None
        assert len(tpm_status.reference.pcrs) == len(QUOTED)


@pytest.mark.slow
@needs_tpm
@pytest.mark.parametrize("kind", ["rsa", "ecc"])
async def test_the_agents_client_gets_the_token(tpm: SoftwareTpm, kind: str) -> None:
    server = Server()
    async with server.running() as url:
        for _ in range(3):  # it leaves nothing behind in the TPM, which has room for three keys
            token = await attest_client.attest(url, socket_tpm(tpm.address), kind=kind)
            assert (token.text, token.authority) == (await server.token(), FACTS.ca_pem)


def later(after: str = "0") -> web.Response:
    return web.json_response({"error": "not yet"}, status=503, headers={"Retry-After": after})


@pytest.mark.slow
@needs_tpm
async def test_attest_clients_honor_retry_after_and_give_up_after_five_attempts(
    tmp_path: Path, tpm: SoftwareTpm
) -> None:
    server = Server(first=[later() for _ in range(4)])
    async with server.running() as url:
        await attest_client.attest(url, socket_tpm(tpm.address))
        assert server.requests == 6
        server.first = [later() for _ in range(4)]
        code, out, err = await script(tmp_path, tpm, url)
        assert (code, out) == (0, f"{await server.token()}\n")
        assert err == "attest: 503: not yet\n" * 4
        server.first = [later() for _ in range(20)]
        with pytest.raises(Transient, match="no token in 5 attempts"):
            await attest_client.attest(url, socket_tpm(tpm.address))
        assert len(server.first) == 15
        code, out, err = await script(tmp_path, tpm, url)
        assert (code, out, len(server.first)) == (3, "", 10)


@pytest.mark.slow
@needs_tpm
async def test_both_clients_say_why_they_are_refused(tmp_path: Path, tpm: SoftwareTpm) -> None:
    server = Server()
    async with server.running() as url:
        pin = {"status": {"tpm": {"ekPublicKey": "another"}}}
        await server.api.patch(MACHINES, "m1", pin, subresource="status")
        with pytest.raises(Rejected, match=r"attestation at Attest\.URL: 403: the TPM's endorsement key is") as refused:
            await attest_client.attest(url, socket_tpm(tpm.address))
        assert "/boot/x" not in str(refused.value)
        code, out, err = await script(tmp_path, tpm, url)
        assert (code, out) == (1, "")
        assert err.startswith("attest: 403: the TPM's endorsement key is")
        assert server.requests == 2


@pytest.mark.slow
@needs_tpm
async def test_man_in_the_middle_cannot_replace_the_cluster_authority(tmp_path: Path, tpm: SoftwareTpm) -> None:
    server = Server()

    async def between(request: web.BaseRequest) -> web.StreamResponse:
        answer = await server.handle(request)
        assert isinstance(answer, web.Response)
        assert isinstance(answer.body, bytes)
        body = json.loads(answer.body)
        if "clusterCA" in body:
            body["clusterCA"] = "his own"
        return web.json_response(body, status=answer.status)

    async with server.running(), served(between) as host:
        url = f"http://{host}/boot/x"
        with pytest.raises(Rejected, match="the cluster's authority was modified on its way to this TPM"):
            await attest_client.attest(url, socket_tpm(tpm.address))
        code, out, err = await script(tmp_path, tpm, url)
        assert (code, out) == (1, "")
        assert "was modified on its way to this TPM; the token is not used" in err


@pytest.mark.slow
@needs_tpm
async def test_a_maker_vouches_for_the_tpm_that_brings_its_certificate(tmp_path: Path) -> None:
    with software_tpm(tmp_path / "tpm", maker=True) as made, software_tpm(tmp_path / "other") as plain:
        maker = tmp_path / "maker.pem"
        maker.write_bytes(b"".join(path.read_bytes() for path in (tmp_path / "tpm" / "ca").glob("*cert.pem")))
        server = Server(roots=TrustedRoots.load(maker))
        async with server.running() as url:
            with pytest.raises(Rejected, match="403: the request has no ekCert"):
                await attest_client.attest(url, socket_tpm(plain.address))
            token = await attest_client.attest(url, socket_tpm(made.address))
            assert token.text == await server.token()


@pytest.mark.slow
@needs_tpm
async def test_without_a_tpm_it_is_said(tmp_path: Path, tpm: SoftwareTpm) -> None:
    from unbounded.join.tpm import device

    with pytest.raises(Rejected, match="TPM: No such file or directory"):
        await attest_client.attest("http://127.0.0.1:9/", device(tmp_path / "none"))


# ---- without a TPM


def sealed(token: bytes = b"abcdef.0123456789abcdef", **more: object) -> bytes:
    """An answer in one step, of a server that wraps nothing."""
    key, nonce = b"k" * 32, b"n" * 12
    body = {
        "credentialBlob": b64encode(key).decode(),
        "encryptedSecret": "",
        "encryptedToken": b64encode(AESGCM(key).encrypt(nonce, token, None)).decode(),
        "gcmNonce": b64encode(nonce).decode(),
        "clusterCASeal": b64encode(seal(key, "")).decode(),
    }
    return json.dumps(body | more).encode()


class FakeQuote:
    """A quote that shows the nonce and the PCRs that it was made for."""

    def __init__(self, nonce: bytes, pcrs: Sequence[int]) -> None:
        self.attest, self.signature, self.values = nonce, b"signature", [bytes([number]) for number in pcrs]


class FakeKeys:
    """Keys of a TPM that wraps nothing."""

    ek_public, srk_public, ak_public = b"ek", b"srk", b"ak"

    def activate(self, blob: bytes, secret: bytes) -> bytes:
        return blob

    def activate_ak(self, blob: bytes, secret: bytes) -> bytes:
        return b"by the attestation key: " + blob

    def quote(self, nonce: bytes, pcrs: Sequence[int]) -> FakeQuote:
        return FakeQuote(nonce, pcrs)


def exchange() -> Exchange:
    return Exchange(FakeKeys(), b"", lambda k, n, s: AESGCM(k).decrypt(n, s, None))


def test_a_server_that_knows_one_step_only_gives_its_token() -> None:
    asked = exchange()
    assert json.loads(asked.message) == {"ekPub": "ZWs=", "srkPub": "c3Jr", "akPub": "YWs=", "challenge": True}
    token = asked.take(200, "", sealed())
    assert token is not None
    assert (token.text, token.authority) == ("abcdef.0123456789abcdef", "")


def test_a_challenge_is_answered_once() -> None:
    asked = exchange()
    challenge = {"nonce": "bm9uY2U=", "credentialBlob": b64encode(b"proof").decode(), "encryptedSecret": ""}
    assert asked.take(200, "", json.dumps(challenge).encode()) is None
    assert json.loads(asked.message) == {
        "ekPub": "ZWs=",
        "srkPub": "c3Jr",
        "nonce": "bm9uY2U=",
        "proof": b64encode(b"proof").decode(),
    }
    with pytest.raises(AttestationFailed, match="neither a token nor a challenge"):
        asked.take(200, "", json.dumps(challenge).encode())


CHALLENGE = {"nonce": "bm9uY2U=", "credentialBlob": b64encode(b"proof").decode(), "encryptedSecret": ""}


def test_a_quote_is_sent_where_the_server_requests_one() -> None:
    asked = exchange()
    assert asked.take(200, "", json.dumps(CHALLENGE | {"quotePCRs": [0, 7]}).encode()) is None
    assert json.loads(asked.message) == {
        "ekPub": "ZWs=",
        "srkPub": "c3Jr",
        "akPub": "YWs=",
        "nonce": "bm9uY2U=",
        "proof": b64encode(b"by the attestation key: proof").decode(),
        "quote": b64encode(hashlib.sha256(b"nonce").digest()).decode(),
        "quoteSignature": b64encode(b"signature").decode(),
        "pcrs": ["AA==", "Bw=="],
    }


@pytest.mark.parametrize("pcrs", [None, [], "7", [24], [-1], ["7"], [True], list(range(25))])
def test_other_pcrs_than_those_of_a_tpm_are_not_quoted(pcrs: object) -> None:
    with pytest.raises(AttestationFailed, match="quotePCRs that are not numbers of PCRs"):
        exchange().take(200, "", json.dumps(CHALLENGE | {"quotePCRs": pcrs}).encode())


@pytest.mark.parametrize(
    ("status", "content", "said"),
    [
        (400, b'{"error": "ekPub: no"}', "400: ekPub: no"),
        (500, b"<html>", "the server answers 500"),
        (200, b"", "not a JSON object"),
        (200, b"[]", "not a JSON object"),
        (200, b"{}", "neither a token nor a challenge"),
        (200, b'{"encryptedToken": ""}', "lacks credentialBlob"),
        (200, sealed(encryptedToken=5), "lacks encryptedToken, or it is not base64"),
        (200, sealed("ü".encode()), "is not a token"),
        (200, sealed(clusterCA="another"), "the cluster's authority was modified on its way"),
        (200, sealed(clusterCASeal=""), "the cluster's authority was modified on its way"),
        (200, sealed(clusterCASeal=None), "lacks clusterCASeal"),
        (200, b" " * (1 << 20) + b"{}", "exceeds 1048576 bytes"),
    ],
)
def test_what_is_no_answer_is_said(status: int, content: bytes, said: str) -> None:
    with pytest.raises(AttestationFailed, match=said):
        exchange().take(status, "", content)


@pytest.mark.slow
@given(st.integers(100, 599), st.text(max_size=5), st.binary(max_size=50))
def test_any_answer_is_a_token_a_refusal_or_a_wait(status: int, after: str, content: bytes) -> None:
    try:
        assert exchange().take(status, after, content) is None
    except (TryAgain, AttestationFailed) as error:
        assert str(error)  # noqa: PT017


def test_waits_are_the_servers_or_doubled_and_bounded() -> None:
    assert [wait_s(attempt, None) for attempt in (1, 2, 3, 4, 9)] == [1.0, 2.0, 4.0, 8.0, 30.0]
    assert [wait_s(1, asked) for asked in (0.0, 5.0, 3600.0)] == [0.0, 5.0, 30.0]
    with pytest.raises(TryAgain) as caught:
        exchange().take(503, "7", b"")
    assert caught.value.after_s == 7.0
    with pytest.raises(TryAgain) as caught:
        exchange().take(503, "tomorrow", b"")
    assert caught.value.after_s is None


def _aes_gcm() -> Any:
    spec = importlib.util.spec_from_file_location("aes_gcm", COMMON / "aes_gcm.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


AES_GCM = _aes_gcm()


@pytest.mark.slow
@given(st.binary(min_size=32, max_size=32), st.binary(min_size=12, max_size=12), st.binary(max_size=70), st.integers(0))
def test_the_images_decryption_is_that_of_the_library(key: bytes, nonce: bytes, plain: bytes, at: int) -> None:
    text = AESGCM(key).encrypt(nonce, plain, None)
    assert AES_GCM.open_sealed(key, nonce, text) == plain
    changed = bytearray(text)
    changed[at % len(text)] ^= 1 << at % 8
    with pytest.raises(ValueError, match="changed"):
        AES_GCM.open_sealed(key, nonce, bytes(changed))


def test_the_images_decryption_refuses_other_sizes() -> None:
    for key, nonce, text in (
        (b"k" * 16, b"n" * 12, bytes(16)),
        (b"k" * 32, b"n", bytes(16)),
        (b"k" * 32, b"n" * 12, b""),
    ):
        with pytest.raises(ValueError, match="are wanted"):
            AES_GCM.open_sealed(key, nonce, text)


@pytest.mark.slow
def test_what_images_get_needs_the_standard_library_only(tmp_path: Path) -> None:
    subprocess.run([COMMON / "install-attest", tmp_path], check=True)
    done = subprocess.run(
        [sys.executable, "-B", "-S", "-E", str(tmp_path / "attest.py"), "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path)) == ["aes_gcm.py", "attest.py", "attest.sh", "attestation.py", "tpm.py"]


async def test_who_is_cancelled_closes_the_tpm_only_once_it_has_answered() -> None:
    asked, answer, told = threading.Event(), threading.Event(), []

    @contextmanager
    def slow() -> Iterator[Transport]:
        def transport(_command: bytes) -> bytes:
            asked.set()
            assert answer.wait(10)
            told.append("answered")
            return b""  # cut off, which ends it

        try:
            yield transport
        finally:
            told.append("closed")

    work = asyncio.create_task(attest_client.attest("http://127.0.0.1:9/boot/x", slow()))
    assert await asyncio.to_thread(asked.wait, 10)
    work.cancel()
    await asyncio.sleep(0.05)
    assert not told
    answer.set()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert told == ["answered", "answered", "closed"]
