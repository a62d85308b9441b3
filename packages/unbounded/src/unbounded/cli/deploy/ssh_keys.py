"""Private SSH keys in files: validated, so that no unusable key is uploaded to a cluster."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

from unbounded.api.names import NAMESPACE
from unbounded.kube.logs import SecretStr
from unbounded.machina.ssh.model import LONGEST_KEY, check_private_key

KEY: Final = "ssh-privatekey"
PASSPHRASE: Final = "passphrase"  # noqa: S105 - the name of a key in a Secret
CERTIFICATE: Final = "ssh-certificate"
ATTEMPTS: Final = 3
_OPENSSH: Final = b"-----BEGIN OPENSSH PRIVATE KEY-----"

PassphrasePrompt = Callable[[str], SecretStr]  # shows a prompt, and returns the input


class UnusableKey(ValueError):
    """A file is no private key for machina's logins; the message names the file and the expected form."""


@dataclass(frozen=True)
class PrivateKey:
    """A private key with all that a login with it needs.

    Args:
        passphrase: None for a key that is not encrypted.
        certificate: an OpenSSH certificate, found beside the key as ssh does.
    """

    text: SecretStr
    passphrase: SecretStr | None = None
    certificate: SecretStr | None = None


def read_key(path: Path, ask: PassphrasePrompt | None) -> PrivateKey:
    """Read the key in a file.

    Args:
        ask: prompts for the passphrase of an encrypted key; None without a terminal.

    Raises:
        UnusableKey
    """
    content = _content(path)
    text = content.decode("ascii", "replace")
    try:
        check_private_key(text)
    except ValueError as error:
        raise UnusableKey(f"{path} {error}: give the file that `ssh -i` takes") from error
    passphrase = _passphrase(path, content, ask)
    beside = certificate_path(path)
    certificate = SecretStr(_content(beside).decode("ascii", "replace").strip()) if beside.is_file() else None
    return PrivateKey(SecretStr(text), passphrase, certificate)


def certificate_path(path: Path) -> Path:
    """Return the path at which ssh expects the certificate of a key."""
    return path.with_name(f"{path.name}-cert.pub")


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(LONGEST_KEY + 1)
    except OSError as error:
        raise UnusableKey(f"{path}: {error.strerror}") from error
    if len(content) > LONGEST_KEY:
        raise UnusableKey(f"{path} is too large for a key")
    return content


def _passphrase(path: Path, content: bytes, ask: PassphrasePrompt | None) -> SecretStr | None:
    """Return the passphrase that decrypts the key; None where it is not encrypted."""
    if _opens(path, content, None):
        return None
    if ask is None:
        raise UnusableKey(
            f"{path} is encrypted, and there is no terminal to prompt for its passphrase: run this on a "
            f"terminal, or create the Secret yourself, with the keys {KEY} and {PASSPHRASE}, and omit the file"
        )
    for _ in range(ATTEMPTS):
        given = ask(f"Passphrase of {path}: ")
        if _opens(path, content, given):
            return given
    raise UnusableKey(f"{path}: none of the given passphrases decrypts it")


def _opens(path: Path, content: bytes, passphrase: SecretStr | None) -> bool:
    """Return whether a passphrase (or None) opens the key."""
    load = load_ssh_private_key if content.lstrip().startswith(_OPENSSH) else load_pem_private_key
    password = None if passphrase is None else passphrase.reveal().encode()
    try:
        key = load(content, password)
    except TypeError:  # raised for a missing passphrase
        return False
    except UnsupportedAlgorithm as error:
        raise UnusableKey(f"{path}: {error}: use an Ed25519, RSA or ECDSA key") from None
    except ValueError:
        if passphrase is None and not _is_encrypted(content):
            raise UnusableKey(f"{path} is damaged, or has an unknown format") from None
        return False
    if not isinstance(key, ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        raise UnusableKey(f"{path}: use an Ed25519, RSA or ECDSA key")
    return True


def _is_encrypted(content: bytes) -> bool:
    """Return whether a PEM file is marked as encrypted; for OpenSSH's format, the library detects encryption."""
    return b"ENCRYPTED" in content


def key_secret(name: str, key: PrivateKey, labels: dict[str, str]) -> dict[str, Any]:
    """Return the Secret with the key. No output may show it."""
    texts = {KEY: key.text, PASSPHRASE: key.passphrase, CERTIFICATE: key.certificate}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "type": "Opaque",
        "data": {at: b64encode(text.reveal().encode()).decode() for at, text in texts.items() if text is not None},
    }
