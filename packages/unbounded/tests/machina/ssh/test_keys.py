"""What is wrong with a Secret is said, and nothing of what is in it."""

from __future__ import annotations

import asyncio
from base64 import encodebytes

import asyncssh
import pytest
from asyncssh.asn1 import ObjectIdentifier, der_encode
from asyncssh.packet import String, UInt32
from hypothesis import given
from hypothesis import strategies as st

from unbounded.api.machine import SSHHop
from unbounded.kube.logs import SecretStr
from unbounded.machina.ssh import keys
from unbounded.machina.ssh.kdf_rounds import check_rounds
from unbounded.machina.ssh.keys import KeyRing, UserKey, read_key
from unbounded.machina.ssh.model import SshIdentity, SshReason, SshRejected


def text_of(key: asyncssh.SSHKey) -> str:
    return key.export_private_key().decode()


MINE, OTHERS, AUTHORITY = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(3))
CERTIFICATE = AUTHORITY.generate_user_certificate(MINE, "me").export_certificate().decode()
FOR_ANOTHER = AUTHORITY.generate_user_certificate(OTHERS, "other").export_certificate().decode()
CUT = text_of(MINE)[:120]

HOURS = 2**31
OPENSSH_KEY = b"openssh-key-v1\0" + b"".join(
    (
        String("aes256-ctr"),
        String("bcrypt"),
        String(String(b"0" * 16) + UInt32(HOURS)),
        UInt32(1),
        String(""),
        String(""),
    )
)
PBKDF2 = (ObjectIdentifier("1.2.840.113549.1.5.12"), (b"0" * 8, HOURS))
AES = (ObjectIdentifier("2.16.840.1.101.3.4.1.42"), b"0" * 16)
PKCS8_KEY = der_encode(((ObjectIdentifier("1.2.840.113549.1.5.13"), (PBKDF2, AES)), b"0" * 64))

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


@pytest.mark.parametrize("passphrase", [None, "it"], ids=["without", "with"])
@pytest.mark.parametrize("kind", ["openssh", "pkcs8"])
def test_a_key_that_would_keep_its_thread_for_hours_is_not_opened(kind: str, passphrase: str | None) -> None:
    body = OPENSSH_KEY if kind == "openssh" else PKCS8_KEY
    name = "OPENSSH" if kind == "openssh" else "ENCRYPTED"
    text = f"-----BEGIN {name} PRIVATE KEY-----\n{encodebytes(body).decode()}-----END {name} PRIVATE KEY-----\n"
    with pytest.raises(ValueError, match=rf"needs {2**31} key derivation rounds; the limit is \d+"):
        read_key(identity(text, passphrase))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["openssh", "pkcs8-pem"])
def test_a_key_with_a_passphrase_is_opened(kind: str) -> None:
    text = MINE.export_private_key(kind, passphrase="it", rounds=16, ignore_few_rounds=True).decode()
    assert read_key(identity(text, "it\n")).key == MINE


@pytest.mark.slow
@given(
    st.binary(max_size=80), st.sampled_from(["OPENSSH ", "ENCRYPTED ", ""]), st.sampled_from([b"", b"openssh-key-v1\0"])
)
def test_what_is_no_key_has_no_rounds(body: bytes, kind: str, begin: bytes) -> None:
    check_rounds(
        f"-----BEGIN {kind}PRIVATE KEY-----\n{encodebytes(begin + body).decode()}-----END {kind}PRIVATE KEY-----"
    )


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
