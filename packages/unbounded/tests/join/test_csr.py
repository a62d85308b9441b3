"""Certificates by request: what is on disk when, one request for each key, and the words while it waits."""

from __future__ import annotations

import asyncio
import base64
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual
from unbounded.agent.daemon.identity import AgentIdentity
from unbounded.api.core import CERTIFICATE_REQUESTS, CertificateRequest
from unbounded.api.failures import Rejected, Transient
from unbounded.join.csr import (
    IdentityFiles,
    StoredCertificate,
    agent_identity,
    certificate,
    good_certificate,
    kubelet_identity,
    parse_certificate,
    request_name,
)
from unbounded_apiserver.certificates import csr
from unbounded_apiserver.pki import CertificateAuthority

NOW = datetime(2030, 1, 1, tzinfo=UTC)
YEAR = timedelta(days=365)
AGENT = agent_identity("m1")


class Signer:
    """Approves, denies and signs the requests in a MemoryApi."""

    def __init__(self, api: MemoryApi, folder: Path) -> None:
        self.api = api
        self.authority = CertificateAuthority(folder)

    async def pending(self) -> list[CertificateRequest]:
        return list((await self.api.list(CERTIFICATE_REQUESTS)).items)

    async def set(self, name: str, **status: Any) -> None:
        await self.api.patch(CERTIFICATE_REQUESTS, name, {"status": status}, subresource="status")

    async def sign(self, request: CertificateRequest, *, begin: datetime = NOW, life: timedelta = YEAR) -> bytes:
        asked = csr.parse_csr(base64.b64decode(request.spec.request))
        chain = self.authority.sign(asked, request.spec.usages, begin, begin + life)
        text = base64.b64encode(chain).decode()
        await self.set(request.name, conditions=[{"type": "Approved", "status": "True"}], certificate=text)
        return chain

    async def sign_first(self, *, begin: datetime = NOW, life: timedelta = YEAR) -> bytes:
        while True:
            if found := await self.pending():
                return await self.sign(found[0], begin=begin, life=life)
            await asyncio.sleep(0.05)


def issued(
    folder: Path, files: IdentityFiles, *, wanted: Any = AGENT, begin: datetime = NOW, life: timedelta = YEAR
) -> StoredCertificate:
    """A certificate that was issued before."""

    async def story() -> StoredCertificate:
        api = MemoryApi()
        signer = Signer(api, folder)
        asking = asyncio.create_task(certificate(api, files, wanted))
        await signer.sign_first(begin=begin, life=life)
        return await asking

    return run_virtual(story())


def modes(folder: Path) -> dict[str, str]:
    return {path.name: oct(path.stat().st_mode & 0o777) for path in [folder, *folder.iterdir()]}


def test_certificate_and_key_share_one_file_with_mode_0600(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "identity"
    files = IdentityFiles(folder, AGENT)
    held = issued(tmp_path, files)
    assert modes(folder) == {"identity": "0o700", "agent.pem": "0o600"}
    assert files.stored() == held
    leaf = x509.load_pem_x509_certificate(held.certificate.chain)
    assert leaf.subject.rfc4514_string() == "CN=system:node:m1,O=unbounded-agent-daemons"
    assert parse_certificate(held.pem().reveal().encode(), AGENT) == held
    assert "PRIVATE" not in repr(held)


@pytest.mark.parametrize(
    ("wanted", "signer", "organization"),
    [
        (agent_identity("m1"), "kubernetes.io/kube-apiserver-client", "unbounded-agent-daemons"),
        (kubelet_identity("m1"), "kubernetes.io/kube-apiserver-client-kubelet", "system:nodes"),
    ],
    ids=["agent", "kubelet"],
)
def test_each_purpose_has_its_signer_and_its_group(tmp_path: Path, wanted: Any, signer: str, organization: str) -> None:
    async def story() -> CertificateRequest:
        api = MemoryApi()
        with pytest.raises(Transient):
            await certificate(api, IdentityFiles(tmp_path / "i", wanted), wanted, within_s=1)
        return (await api.list(CERTIFICATE_REQUESTS)).items[0]

    request = run_virtual(story())
    asked = csr.parse_csr(base64.b64decode(request.spec.request))
    assert (asked.common_name, asked.organizations, asked.names) == ("system:node:m1", (organization,), ())
    assert request.spec.signer_name == signer
    assert request.spec.usages == ("digital signature", "client auth")


def test_the_key_is_on_disk_before_anybody_hears_of_it(tmp_path: Path) -> None:
    class Cut(MemoryApi):
        async def create(self, *_args: Any, **_more: Any) -> Any:
            found.append((tmp_path / "i" / "agent.next.key").read_bytes())
            raise Transient("cut off")

    found: list[bytes] = []

    async def story() -> None:
        with pytest.raises(Transient, match="cut off"):
            await certificate(Cut(), IdentityFiles(tmp_path / "i", AGENT), AGENT)

    run_virtual(story())
    assert modes(tmp_path / "i") == {"i": "0o700", "agent.next.key": "0o600"}
    key = serialization.load_pem_private_key(found[0], None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)


def test_who_was_cut_off_finds_its_own_request_again(tmp_path: Path) -> None:
    async def story() -> None:
        api = MemoryApi()
        signer = Signer(api, tmp_path)
        for _ in range(3):
            with pytest.raises(Transient):
                await certificate(api, IdentityFiles(tmp_path / "i", AGENT), AGENT, within_s=5)
        (request,) = await signer.pending()
        key = IdentityFiles(tmp_path / "i", AGENT).next_key()
        assert request.name == request_name(AGENT, key)
        chain = await signer.sign(request)
        held = await certificate(api, IdentityFiles(tmp_path / "i", AGENT), AGENT)
        assert held.certificate.chain == chain
        assert len(await signer.pending()) == 1

    run_virtual(story())


def test_certificate_wait_reports_the_approver_and_the_manual_command(tmp_path: Path) -> None:
    async def story() -> str:
        told: list[str] = []
        api = MemoryApi()
        with pytest.raises(Transient) as trouble:
            await certificate(api, IdentityFiles(tmp_path, AGENT), AGENT, report=told.append, within_s=30)
        (request,) = (await api.list(CERTIFICATE_REQUESTS)).items
        words = f"waiting for CertificateSigningRequest {request.name} of the agent of Machine m1 to be"
        by_hand = f"approved by machina; by hand: kubectl certificate approve {request.name}"
        assert told == [f"{words} {by_hand}"]
        await Signer(api, tmp_path).set(request.name, conditions=[{"type": "Approved", "status": "True"}])
        with pytest.raises(Transient) as signing:
            await certificate(api, IdentityFiles(tmp_path, AGENT), AGENT, within_s=30)
        assert str(signing.value) == f"{words} signed by the cluster; not within 30 s"
        return str(trouble.value).removeprefix(f"{words} {by_hand}")

    assert run_virtual(story()) == "; not within 30 s"


@pytest.mark.parametrize(("kind", "what"), [("Denied", "denied"), ("Failed", "approved, but not signed")])
def test_rejected_csr_reports_its_message_and_the_next_has_another_key(tmp_path: Path, kind: str, what: str) -> None:
    async def story() -> None:
        api = MemoryApi()
        files, signer = IdentityFiles(tmp_path, AGENT), Signer(api, tmp_path)
        with pytest.raises(Transient):
            await certificate(api, files, AGENT, within_s=1)
        (first,) = await signer.pending()
        why = {"type": kind, "status": "True", "reason": "NotArmed", "message": "nothing lets m1 join"}
        await signer.set(first.name, conditions=[why])
        with pytest.raises(Rejected) as refused:
            await certificate(api, files, AGENT)
        expected = f"the agent's certificate for Machine m1 was {what}: NotArmed: nothing lets m1 join ({first.name})"
        assert str(refused.value) == expected
        with pytest.raises(Transient):
            await certificate(api, files, AGENT, within_s=1)
        assert len(await signer.pending()) == 2

    run_virtual(story())


def test_a_certificate_that_is_not_for_what_was_asked_is_not_kept(tmp_path: Path) -> None:
    async def story() -> None:
        api = MemoryApi()
        files, signer = IdentityFiles(tmp_path / "i", AGENT), Signer(api, tmp_path)
        with pytest.raises(Transient):
            await certificate(api, files, AGENT, within_s=1)
        (mine,) = await signer.pending()
        other = issued_text(tmp_path)
        await signer.set(mine.name, certificate=base64.b64encode(other).decode())
        with pytest.raises(Rejected, match="for another key"):
            await certificate(api, files, AGENT)
        assert files.stored() is None

    def issued_text(folder: Path) -> bytes:
        return CertificateAuthority(folder).issue_client("system:node:m1", "unbounded-agent-daemons").certificate

    run_virtual(story())


@pytest.mark.parametrize("content", [b"", b"garbage", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"])
def test_what_is_broken_on_disk_counts_as_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "agent.pem").write_bytes(content)
    (tmp_path / "agent.next.key").write_bytes(content)
    files = IdentityFiles(tmp_path, AGENT)
    assert files.stored() is None
    assert files.next_key().public_key() == files.next_key().public_key()


def test_the_certificate_of_another_machine_counts_as_nothing(tmp_path: Path) -> None:
    issued(tmp_path, IdentityFiles(tmp_path, AGENT))
    assert IdentityFiles(tmp_path, agent_identity("m2")).stored() is None


@pytest.mark.slow
def test_renewal_time_is_random_between_70_and_90_percent_of_validity(tmp_path: Path) -> None:
    moments = set()
    for number in range(8):
        held = issued(tmp_path, IdentityFiles(tmp_path / str(number), AGENT))
        moments.add(held.renewal())
        assert NOW + YEAR * 0.7 <= held.renewal() <= NOW + YEAR * 0.9
        assert held.renewal() == held.renewal()
    assert len(moments) == 8


def test_a_certificate_that_is_good_for_long_is_not_asked_for_again(tmp_path: Path) -> None:
    files = IdentityFiles(tmp_path, AGENT)
    held = issued(tmp_path, files)

    async def story(now: datetime) -> StoredCertificate:
        api = MemoryApi()
        signing = asyncio.create_task(Signer(api, tmp_path).sign_first())
        again = await good_certificate(api, files, AGENT, now=lambda: now)
        signing.cancel()
        return again

    assert run_virtual(story(NOW + YEAR * 0.5)) == held
    assert run_virtual(story(NOW + YEAR * 0.95)) != held


def test_certificate_without_valid_base64_is_rejected_and_key_replaced(tmp_path: Path) -> None:
    files = IdentityFiles(tmp_path / "identity", AGENT)

    async def story() -> None:
        api = MemoryApi()
        signer = Signer(api, tmp_path)
        asking = asyncio.create_task(certificate(api, files, AGENT))
        await asyncio.sleep(0.1)
        asked = await signer.pending()
        await signer.set(asked[0].name, certificate="MII=broken")
        with pytest.raises(Rejected, match=rf"status\.certificate of .* {asked[0].name} is not base64"):
            await asking
        assert request_name(AGENT, files.next_key()) != asked[0].name

    run_virtual(story())


def test_a_disk_that_refuses_is_trouble_that_may_pass(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    files = IdentityFiles(tmp_path / "file" / "identity", AGENT)
    for call in (files.stored, files.next_key, files.forget_request):
        with pytest.raises(Transient, match="Not a directory"):
            call()


@pytest.mark.slow
def test_full_disk_keeps_the_valid_certificate_and_renewal_follows_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = IdentityFiles(tmp_path / "identity", AGENT)
    held = issued(tmp_path, files, life=timedelta(hours=10))

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    async def story() -> None:
        api = MemoryApi()
        signer, loop = Signer(api, tmp_path), asyncio.get_running_loop()
        identity = AgentIdentity(files, held, "m1", now=lambda: NOW + timedelta(seconds=loop.time()))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            renewing = asyncio.create_task(identity.keep_renewed(api))
            await asyncio.sleep(timedelta(hours=9.5).total_seconds())
            assert not renewing.done()
            assert (await identity.login()).certificate == held.certificate
        await signer.sign_first(begin=NOW + timedelta(hours=9.5))
        await asyncio.sleep(10)
        now = files.stored()
        assert now is not None
        assert (await identity.login()).certificate == now.certificate != held.certificate
        renewing.cancel()

    run_virtual(story())
