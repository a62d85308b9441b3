"""Keys of users: private keys and certificates of Secrets. Each is parsed once for each version of its Secret."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import Final

import asyncssh

from unbounded.api.machine import SSHHop
from unbounded.kube.logs import SecretStr
from unbounded.kube.tasks import DaemonThreads
from unbounded.machina.ssh.model import SshIdentity, SshReason, SshRejected, check_private_key

CACHED_KEYS: Final = 512  # identities; all Machines of a site usually share one
READ_S: Final = 60.0  # deriving the key from a passphrase is slow on purpose, seconds with many rounds
READERS: Final = 8
_NO_PASSPHRASE: Final = "the private key is encrypted, and the Secret has no passphrase for it"  # noqa: S105  # words
_FOREVER: Final = 2**64 - 1  # a certificate without an end


@dataclass(frozen=True)
class UserKey:
    """A private key that can sign, and its certificate."""

    key: asyncssh.SSHKey
    certificate: asyncssh.SSHCertificate | None = None

    def pairs(self) -> list[asyncssh.SSHKeyPair]:
        """Return the key pairs to offer, the certificate first. New ones for each login: a pair stores its server's
        algorithms.
        """
        keys = [(self.key, self.certificate)] if self.certificate else [self.key]
        return list(asyncssh.load_keypairs(keys))

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the public key, as `ssh-keygen -l` prints it."""
        return self.key.get_fingerprint()

    def hint(self, now: float) -> str:
        """Return a likely cause why the server refused the key, for a message."""
        after = getattr(self.certificate, "_valid_after", 0)
        before = getattr(self.certificate, "_valid_before", _FOREVER)
        if now >= before:
            return f"; its certificate expired on {_day(before)}"
        if now < after:
            return f"; its certificate is not valid before {_day(after)}"
        return ""


class PassphraseWrong(ValueError):
    """The passphrase does not open the key, or there is none."""


def _day(at: int) -> str:
    return time.strftime("%Y-%m-%d at %H:%M UTC", time.gmtime(at))


def read_key(identity: SshIdentity) -> UserKey:
    """Parse and decrypt an identity; may compute for seconds.

    Raises:
        ValueError: with a message for the user that contains nothing secret.
    """
    key = _private_key(identity)
    if identity.certificate is None or not identity.certificate.reveal().strip():
        return UserKey(key)
    return UserKey(key, _certificate(identity.certificate, key))


def _private_key(identity: SshIdentity) -> asyncssh.SSHKey:
    text = identity.private_key.reveal().replace("\r\n", "\n").strip()
    try:
        check_private_key(text)
    except ValueError as error:
        raise ValueError(f"the key {error}") from None
    key = _decrypted(text + "\n", identity.passphrase)
    if key.get_algorithm() in ("ssh-dss",) or key.get_algorithm().startswith("sk-"):
        raise ValueError(f"keys of type {key.get_algorithm()} are not supported; use Ed25519, ECDSA or RSA")
    return key


def _decrypted(text: str, passphrase: SecretStr | None) -> asyncssh.SSHKey:
    phrase = passphrase.reveal() if passphrase else ""
    try:
        return _imported(text, phrase)
    except asyncssh.KeyEncryptionError:
        if phrase.endswith("\n"):  # a Secret made from a file
            return _decrypted(text, SecretStr(phrase.rstrip("\r\n")))
        raise PassphraseWrong("the passphrase does not decrypt the private key") from None


def _imported(text: str, phrase: str) -> asyncssh.SSHKey:
    """Import a private key. asyncssh raises two classes for a wrong passphrase; this raises one."""
    try:
        return asyncssh.import_private_key(text, phrase or None)
    except asyncssh.KeyEncryptionError as error:
        if not phrase:
            raise PassphraseWrong(_NO_PASSPHRASE) from None
        if str(error).startswith(("Unknown", "OpenSSH private key encryption")):
            raise ValueError(f"cannot decrypt the private key here: {error}") from None
        raise
    except asyncssh.KeyImportError as error:
        words = str(error)
        if words.startswith("Passphrase must be"):
            raise PassphraseWrong(_NO_PASSPHRASE) from None
        if words.startswith("Unable to decrypt"):
            raise asyncssh.KeyEncryptionError(words) from None
        raise ValueError(f"cannot read the private key: {words}") from None
    except Exception:  # any error of a parser; its message may quote the key
        raise ValueError("cannot read the private key") from None


def _certificate(text: SecretStr, key: asyncssh.SSHKey) -> asyncssh.SSHCertificate:
    try:
        certificate = asyncssh.import_certificate(text.reveal().strip())
    except Exception:  # whatever a parser stumbles over
        raise ValueError("cannot read the certificate; expected one line as in id_ed25519-cert.pub") from None
    if certificate.is_x509:
        raise ValueError("the certificate is an X.509 one; expected an OpenSSH certificate")
    if certificate.key.public_data != key.public_data:
        raise ValueError("the certificate is for a key other than the private key in the same Secret")
    return certificate


def unusable(identity: SshIdentity, hop: SSHHop, why: ValueError) -> SshRejected:
    """Return the failure of a key that cannot be read."""
    reason = SshReason.PASSPHRASE if isinstance(why, PassphraseWrong) else SshReason.KEY_UNUSABLE
    return SshRejected(reason, hop, f"Secret {identity.version.partition('@')[0]}: {why}")


class KeyRing:
    """Cache of parsed identities. Each is parsed once, in a thread, for all concurrent callers."""

    def __init__(self) -> None:
        self._read: OrderedDict[SshIdentity, asyncio.Task[UserKey]] = OrderedDict()
        self._threads = DaemonThreads(READERS, "ssh keys")

    async def read(self, identity: SshIdentity, hop: SSHHop) -> UserKey:
        """Return the parsed identity.

        Raises:
            SshRejected: SecretUnusable or PassphraseWrong, naming the Secret.
        """
        task = self._read.get(identity)
        if task is None:
            task = self._read[identity] = asyncio.create_task(self._parse(identity), name="read an SSH key")
        self._read.move_to_end(identity)
        while len(self._read) > CACHED_KEYS:
            self._read.popitem(last=False)
        try:
            async with asyncio.timeout(READ_S):
                return await asyncio.shield(task)
        except ValueError as error:
            raise unusable(identity, hop, error) from None
        except TimeoutError:
            raise unusable(identity, hop, ValueError("decryption of the key takes too long")) from None

    async def _parse(self, identity: SshIdentity) -> UserKey:
        return await self._threads.run(partial(read_key, identity))

    def forget(self) -> None:
        self._read.clear()
