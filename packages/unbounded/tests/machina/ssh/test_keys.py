"""Errors of a Secret are reported, without its content."""

from __future__ import annotations

import asyncio

import asyncssh
import pytest

from unbounded.api.machine import SSHHop
from unbounded.kube.logs import SecretStr
from unbounded.machina.ssh import keys
from unbounded.machina.ssh.keys import KeyRing, UserKey, read_key
from unbounded.machina.ssh.model import SshIdentity, SshReason, SshRejected


def text_of(key: asyncssh.SSHKey) -> str:
    return key.export_private_key().decode()


MINE, OTHERS, AUTHORITY = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(3))
CERTIFICATE = AUTHORITY.generate_user_certificate(MINE, "me").export_certificate().decode()
FOR_ANOTHER = AUTHORITY.generate_user_certificate(OTHERS, "other").export_certificate().decode()
CUT = text_of(MINE)[:120]

WRONG = {
    "empty": ("", None, None, "is empty"),
    "public": (MINE.export_public_key().decode(), None, None, "the key is a public key"),
    "text": ("hunter2", None, None, "the key contains no private key"),
    "cut": (CUT, None, None, "cannot read"),
    "dss": (text_of(asyncssh.generate_private_key("ssh-dss")), None, None, "ssh-dss are not supported"),
    "certificate-of-another": (text_of(MINE), None, FOR_ANOTHER, "for a key other than"),
    "certificate-garbage": (text_of(MINE), None, "hunter2", "cannot read the certificate"),
}


def identity(key: str, passphrase: str | None = None, certificate: str | None = None) -> SshIdentity:
    return SshIdentity(
        SecretStr(key),
        "unbounded-kube/site@7",
        SecretStr(passphrase) if passphrase else None,
        SecretStr(certificate) if certificate else None,
    )


@pytest.mark.parametrize("what", WRONG)
async def test_what_is_wrong_is_said_and_nothing_of_the_secret(what: str) -> None:
    *parts, words = WRONG[what]
    with pytest.raises(SshRejected, match=words or "") as refused:
        await KeyRing().read(identity(*parts), SSHHop.BASTION)  # type: ignore[arg-type]
    assert (refused.value.reason, refused.value.hop) == (SshReason.KEY_UNUSABLE, SSHHop.BASTION)
    assert str(refused.value).startswith("Secret unbounded-kube/site: ")
    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_key_is_read_however_it_was_pasted() -> None:
    text = text_of(MINE)
    for pasted in (text, text.strip(), "\n" + text, text.replace("\n", "\r\n")):
        assert read_key(identity(pasted)).key == MINE


def test_a_certificate_is_offered_before_the_key_alone() -> None:
    pairs = read_key(identity(text_of(MINE), certificate=CERTIFICATE + "\n")).pairs()
    assert [pair.get_algorithm() for pair in pairs] == ["ssh-ed25519-cert-v01@openssh.com", "ssh-ed25519"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["openssh", "pkcs8-pem"])
def test_a_key_with_a_passphrase_is_opened(kind: str) -> None:
    text = MINE.export_private_key(kind, passphrase="it", rounds=16, ignore_few_rounds=True).decode()
    assert read_key(identity(text, "it\n")).key == MINE


async def test_a_key_is_read_once_however_many_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0

    def counted(who: SshIdentity) -> UserKey:
        nonlocal reads
        reads += 1
        return read_key(who)

    monkeypatch.setattr(keys, "read_key", counted)
    ring, text = KeyRing(), text_of(MINE)
    first = asyncio.create_task(ring.read(identity(text), SSHHop.HOST))
    await asyncio.sleep(0)
    first.cancel()
    found = await asyncio.gather(*(ring.read(identity(text), SSHHop.HOST) for _ in range(20)))
    assert {key.key for key in found} == {MINE}
    assert reads == 1
