"""Private SSH keys as they lie in files: which are brought to a cluster, and which are not."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from unbounded.cli.deploy.ssh_keys import PrivateKey, UnusableKey, key_secret, kubectl_command, read_key
from unbounded.kube.logs import SecretStr

KEYS: dict[str, Any] = {
    "ed25519": ed25519.Ed25519PrivateKey.generate(),
    "ecdsa": ec.generate_private_key(ec.SECP256R1()),
    "rsa": rsa.generate_private_key(65537, 2048),
}
FORMATS = {"openssh": PrivateFormat.OpenSSH, "pkcs8": PrivateFormat.PKCS8}


def written(folder: Path, key: Any, form: PrivateFormat, encryption: KeySerializationEncryption) -> Path:
    path = folder / "id"
    path.write_bytes(key.private_bytes(Encoding.PEM, form, encryption))
    return path


def nobody(_prompt: str) -> SecretStr:
    raise AssertionError("nobody is to be asked")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", KEYS)
def test_a_key_without_a_passphrase_is_taken_as_it_is(name: str, form: str, tmp_path: Path) -> None:
    path = written(tmp_path, KEYS[name], FORMATS[form], NoEncryption())
    key = read_key(path, nobody)
    assert (key.text.reveal(), key.passphrase, key.certificate) == (path.read_text(), None, None)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_a_passphrase_is_asked_for_until_it_opens_the_key(form: str, tmp_path: Path) -> None:
    path = written(tmp_path, KEYS["ed25519"], FORMATS[form], BestAvailableEncryption(b"right"))
    answers = iter(["wrong", "right"])
    key = read_key(path, lambda _prompt: SecretStr(next(answers)))
    assert key.passphrase is not None
    assert key.passphrase.reveal() == "right"
    if form == "pkcs8":  # the other one takes its time for each
        with pytest.raises(UnusableKey, match="none of the given passphrases decrypts it"):
            read_key(path, lambda _prompt: SecretStr("wrong"))
    with pytest.raises(
        UnusableKey, match=r"no terminal to prompt for its passphrase.*keys ssh-privatekey and passphrase"
    ):
        read_key(path, None)


def test_a_certificate_beside_the_key_comes_along(tmp_path: Path) -> None:
    path = written(tmp_path, KEYS["ed25519"], PrivateFormat.OpenSSH, NoEncryption())
    (tmp_path / "id-cert.pub").write_text("ssh-ed25519-cert-v01@openssh.com AAAA me\n")
    body = key_secret("ssh-rack1", read_key(path, nobody), {})
    assert {key: b64decode(value).decode() for key, value in body["data"].items()} == {
        "ssh-privatekey": path.read_text(),
        "ssh-certificate": "ssh-ed25519-cert-v01@openssh.com AAAA me",
    }


def test_secret_command_names_files_without_their_content() -> None:
    key = PrivateKey(SecretStr("PRIVATE"), SecretStr("sesame"), SecretStr("SIGNED"))
    assert kubectl_command("ssh-rack1", Path("/home/me/my id"), key) == (
        "kubectl create secret generic ssh-rack1 --namespace unbounded-kube"
        " '--from-file=ssh-privatekey=/home/me/my id' '--from-file=ssh-certificate=/home/me/my id-cert.pub'"
        " --from-file=passphrase=FILE"
    )


def test_what_is_no_key_is_refused_by_what_it_is(tmp_path: Path) -> None:
    public = tmp_path / "id.pub"
    public.write_bytes(KEYS["rsa"].public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    with pytest.raises(UnusableKey, match=r"id\.pub is a public key; it must be a private key of OpenSSH"):
        read_key(public, nobody)
    public.write_text("PuTTY-User-Key-File-3: ssh-ed25519\n")
    with pytest.raises(UnusableKey, match="is a PuTTY key; convert it with `puttygen"):
        read_key(public, nobody)
    damaged = written(tmp_path, KEYS["ed25519"], PrivateFormat.OpenSSH, NoEncryption())
    damaged.write_text(damaged.read_text().replace("b3BlbnNzaC1rZXk", "AAAAAAAAAAAAAAA"))
    with pytest.raises(UnusableKey, match="is damaged, or has an unknown format"):
        read_key(damaged, nobody)
    old = written(tmp_path, dsa.generate_private_key(1024), PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(UnusableKey, match="use an Ed25519, RSA or ECDSA key"):
        read_key(old, nobody)
    (tmp_path / "large").write_bytes(b"x" * 70_000)
    with pytest.raises(UnusableKey, match="is too large for a key"):
        read_key(tmp_path / "large", nobody)
    with pytest.raises(UnusableKey, match="No such file"):
        read_key(tmp_path / "missing", nobody)
    with pytest.raises(UnusableKey, match=r"'a\\x00b' is not the name of a file"):
        read_key(Path("a\0b"), nobody)


@pytest.mark.parametrize("lines", [None, 2])
def test_a_key_in_place_of_a_file_is_not_shown(lines: int | None, tmp_path: Path) -> None:
    """`--ssh-private-key "$(cat id)"`, whole, or the lines that a name of a file may have."""
    text = written(tmp_path, KEYS["ed25519"], PrivateFormat.OpenSSH, NoEncryption()).read_text()
    given = "\n".join(text.splitlines()[:lines])
    with pytest.raises(UnusableKey, match="must be the name of a file, and not the key itself") as raised:
        read_key(Path(given), nobody)
    assert text.splitlines()[1] not in str(raised.value)


def test_nothing_of_a_key_is_in_what_is_shown_of_it(tmp_path: Path) -> None:
    path = written(tmp_path, KEYS["ed25519"], PrivateFormat.OpenSSH, NoEncryption())
    assert path.read_text().splitlines()[1] not in repr(read_key(path, nobody))
