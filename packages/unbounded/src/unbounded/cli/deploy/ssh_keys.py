"""Private SSH keys of Machines: read from files, validated, and stored in Secrets.

No unusable key is uploaded to a cluster. Where no file is given, the Secret has to exist.
"""

from __future__ import annotations

import getpass
import shlex
import signal
from argparse import Namespace
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

from unbounded.api.core import SECRETS
from unbounded.api.machine_spec import SSH_PRIVATE_KEY
from unbounded.api.names import LABEL_SITE, NAMESPACE
from unbounded.cli.deploy import validation
from unbounded.cli.deploy.machine_manifests import bastion_secret_of, secret_of
from unbounded.cli.plugin.command import MANAGER, USAGE, CliError, CliInvocation, CommandSession
from unbounded.kube import logs
from unbounded.kube.api import AlreadyExists, Forbidden, NotFound
from unbounded.kube.logs import SecretStr
from unbounded.machina.ssh.model import LONGEST_KEY, check_private_key

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
    if validation.PRIVATE_KEY in str(path):  # no message may show it
        raise UnusableKey("must be the name of a file, and not the key itself")
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
    except ValueError as error:  # a NUL
        raise UnusableKey(f"{str(path)!r} is not the name of a file") from error
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
            f"terminal, or create the Secret yourself, with the keys {SSH_PRIVATE_KEY} and {PASSPHRASE}, and omit "
            "the file"
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
    texts = {SSH_PRIVATE_KEY: key.text, PASSPHRASE: key.passphrase, CERTIFICATE: key.certificate}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "type": "Opaque",
        "data": {at: b64encode(text.reveal().encode()).decode() for at, text in texts.items() if text is not None},
    }


Raw = dict[str, Any]

FORCE: Final = "replace it for every Machine that names it with --force, or use another Secret with --ssh-secret-name"


@dataclass(frozen=True)
class KeySecret:
    """A Secret that a login needs.

    Args:
        file: the private key for it; None where the Secret must exist.
        flag: the flag that names the file.
    """

    name: str
    file: Path | None
    flag: str


def required_secrets(args: Namespace) -> tuple[KeySecret, ...]:
    """Return the Secrets that a registered Machine needs, each once.

    Raises:
        CliError: the flags give two keys for one Secret.
    """
    host = KeySecret(secret_of(args), _path(args.ssh_private_key), "--ssh-private-key")
    if not args.bastion_host:
        return (host,)
    bastion = KeySecret(bastion_secret_of(args), _path(args.bastion_ssh_private_key), "--bastion-ssh-private-key")
    if bastion.name != host.name:
        return (host, bastion)
    if host.file is not None and bastion.file is not None and host.file != bastion.file:
        raise CliError(
            f"{host.flag} and {bastion.flag} name two keys for one Secret, {host.name}",
            next_step="name another Secret with --bastion-ssh-secret-name",
            status=USAGE,
        )
    return (host if host.file is not None else bastion,)


def _path(text: str) -> Path | None:
    return Path(text).expanduser() if text else None


def read_keys(invocation: CliInvocation, desired: tuple[KeySecret, ...]) -> dict[str, PrivateKey]:
    """Read the keys that are given as files; returns them by the names of their Secrets.

    Raises:
        CliError: a file is no key, or the passphrase is wrong.
    """
    found: dict[str, PrivateKey] = {}
    ask = _passphrase_prompt(invocation)
    for one in desired:
        if one.file is not None:
            try:
                found[one.name] = read_key(one.file, ask)
            except UnusableKey as error:
                raise CliError(f"{one.flag}: {error}", status=USAGE) from None
    return found


def _passphrase_prompt(invocation: CliInvocation) -> PassphrasePrompt | None:
    if not invocation.stdin.isatty():
        return None

    def ask(prompt: str) -> logs.SecretStr:
        # with the event loop's handler, Ctrl-C would wait for the input
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return logs.SecretStr(getpass.getpass(prompt, invocation.err))
        except EOFError:
            raise UnusableKey("no passphrase was given") from None
        finally:
            signal.signal(signal.SIGINT, before)

    return ask


def kubectl_command(name: str, file: Path, key: PrivateKey) -> str:
    """Return the kubectl command that creates the Secret. A passphrase, which is in no file, needs one."""
    words = [
        "kubectl",
        "create",
        "secret",
        "generic",
        name,
        "--namespace",
        NAMESPACE,
        f"--from-file={SSH_PRIVATE_KEY}={file}",
    ]
    if key.certificate is not None:
        words.append(f"--from-file={CERTIFICATE}={certificate_path(file)}")
    if key.passphrase is not None:
        words.append(f"--from-file={PASSPHRASE}=FILE")
    return shlex.join(words)


async def apply_secrets(
    session: CommandSession, desired: tuple[KeySecret, ...], keys: Mapping[str, PrivateKey], *, dry_run: bool
) -> AsyncIterator[tuple[str, str]]:
    """Check the Secrets without a file and write the others; yields the name and the outcome of each.

    Raises:
        CliError: one is missing, or has another key and may not be replaced.
    """
    for one in desired:
        if one.name not in keys:
            await _check_exists(session, one)
    for name, key in keys.items():
        body = key_secret(name, key, {LABEL_SITE: session.invocation.args.site})
        yield name, await _apply_secret(session, body, dry_run=dry_run)


async def _check_exists(session: CommandSession, desired: KeySecret) -> None:
    try:
        found = await session.api.get(SECRETS, desired.name, namespace=NAMESPACE)
    except NotFound:
        raise CliError(
            f"Secret {NAMESPACE}/{desired.name} with an SSH key does not exist",
            next_step=f"give the key with {desired.flag} FILE",
            status=USAGE,
        ) from None
    except Forbidden:
        session.printer.warn(f"this user may not read Secret {NAMESPACE}/{desired.name}: its existence was not checked")
        return
    if SSH_PRIVATE_KEY not in found.data:
        has = ", ".join(sorted(found.data)) or "none"
        raise CliError(f"Secret {NAMESPACE}/{desired.name} has no key {SSH_PRIVATE_KEY}; it has: {has}")


async def _apply_secret(session: CommandSession, body: Raw, *, dry_run: bool) -> str:
    """Write a Secret unless an equal one exists; returns `created`, `configured` or `unchanged`."""
    name = body["metadata"]["name"]
    kind = SECRETS.raw()
    try:
        await session.api.create(kind, body, namespace=NAMESPACE, manager=MANAGER, dry_run=dry_run)
    except AlreadyExists:
        pass
    else:
        return "created"
    existing: Raw = await session.api.get(kind, name, namespace=NAMESPACE)
    before: Raw = existing.get("data") or {}
    if all(before.get(key) == value for key, value in body["data"].items()):
        return "unchanged"
    if not session.invocation.args.force:
        raise CliError(f"Secret {NAMESPACE}/{name} has another key", next_step=FORCE)
    gone = dict.fromkeys(key for key in ("passphrase", "ssh-certificate") if key in before)
    patch = {
        "metadata": {"resourceVersion": existing["metadata"]["resourceVersion"]},
        "data": gone | body["data"],  # they belong to the replaced key
    }
    await session.api.patch(kind, name, patch, namespace=NAMESPACE, manager=MANAGER, dry_run=dry_run)
    return "configured"
