"""Keys of SSH: those that servers show, compared with the pinned ones, and those of users, from their Secrets.

A server may have several host keys and shows one, of the first type on the client's list that it has. Pinned types come
first, so that a server with three keys does not seem changed. A fingerprint does not reveal its type. With only a
fingerprint pinned, the client requests the other types before the server counts as changed.

A user's private key and certificate are parsed once for each version of their Secret.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

import asyncssh

from unbounded.api.machine import SSHHop
from unbounded.api.machine_status import ssh_fingerprint
from unbounded.kube.logs import SecretStr
from unbounded.kube.tasks import DaemonThreads
from unbounded.machina.ssh.model import HostKeyPins, SshIdentity, SshReason, SshRejected, check_private_key

KINDS: Final[dict[str, tuple[str, ...]]] = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}
"""Types of keys and their signature algorithms, in order of preference: RSA never with SHA-1."""
CACHED_KEYS: Final = 512  # identities; all Machines of a site usually share one
READ_S: Final = 60.0  # deriving the key from a passphrase is slow on purpose, seconds with many rounds
READERS: Final = 8
_NO_PASSPHRASE: Final = "the private key is encrypted, and the Secret has no passphrase for it"  # noqa: S105  # words
_FOREVER: Final = 2**64 - 1  # a certificate without an end


@dataclass(frozen=True)
class HostKey:
    """A public key that a server showed."""

    kind: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """Fingerprint as `ssh-keygen -l` prints it: SHA256 and unpadded base64."""
        return ssh_fingerprint(self.blob)


def host_key(line: str) -> HostKey | None:
    """Parse a key of `ssh.hostKeys`, "ssh-ed25519 AAAA… comment"; return None for an unsupported or invalid key."""
    parts = line.split()
    if len(parts) < 2 or parts[0] not in KINDS:
        return None
    try:
        blob = base64.b64decode(parts[1] + "=" * (-len(parts[1]) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
    return HostKey(parts[0], blob) if key_type(blob) == parts[0] else None


def key_type(blob: bytes) -> str | None:
    """Return the type inside the key, its first string (RFC 4253, section 6.6)."""
    length = int.from_bytes(blob[:4], "big")
    name = blob[4 : 4 + length]
    return name.decode("ascii", errors="replace") if len(name) == length and name else None


def is_trusted(pins: HostKeyPins, shown: HostKey) -> bool:
    """Return whether the pins allow the key. Without pins (first use) every key is allowed."""
    if pins.keys:
        return shown in pinned_keys(pins)
    if pins.fingerprint:
        return shown.fingerprint == pins.fingerprint.rstrip("=")
    return True


def is_first_use(pins: HostKeyPins) -> bool:
    """Return whether nothing is pinned yet."""
    return not pins.keys and not pins.fingerprint


def pinned_keys(pins: HostKeyPins) -> tuple[HostKey, ...]:
    return tuple(key for key in map(host_key, pins.keys) if key is not None)


def pinned_text(pins: HostKeyPins) -> str:
    """Return the pinned keys for a message."""
    if pins.keys:
        return ", ".join(key.fingerprint for key in pinned_keys(pins)) or "no readable key"
    return pins.fingerprint or ""


def algorithms(pins: HostKeyPins, *, known_kind: str | None = None) -> tuple[str, ...]:
    """Return the algorithms of the first attempt, the preferred ones first.

    All algorithms are on the list: a server without a key of a pinned type then shows a key that it has.

    Args:
        known_kind: type of the key behind `pins.fingerprint`, if an earlier login has shown it.
    """
    first = [key.kind for key in pinned_keys(pins)] if pins.keys else [known_kind] if known_kind else []
    return _algorithms([*first, *KINDS])


def other_algorithms(pins: HostKeyPins, *, shown: Collection[str], has: Collection[str] | None) -> tuple[str, ...]:
    """Return the algorithms for a server whose keys so far are not trusted; none if it cannot have a trusted key.

    Args:
        shown: types of the keys that it has shown.
        has: algorithms that it offers; None if unknown.
    """
    if is_first_use(pins):
        return ()
    may_count = [key.kind for key in pinned_keys(pins)] if pins.keys else list(KINDS)
    offered = _algorithms(kind for kind in may_count if kind not in shown)
    return tuple(name for name in offered if has is None or name in has)


def _algorithms(kinds: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for kind in kinds for name in KINDS[kind]))


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
