"""Secrets with the SSH keys of Machines: created from files, or expected to exist where no file is given."""

from __future__ import annotations

import getpass
import shlex
import signal
from argparse import Namespace
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from unbounded.api.core import SECRETS
from unbounded.api.names import LABEL_SITE, NAMESPACE
from unbounded.cli.deploy import ssh_keys
from unbounded.cli.deploy.machine_manifests import bastion_secret_of, secret_of
from unbounded.cli.plugin.command import MANAGER, USAGE, CliError, CliInvocation, CommandSession
from unbounded.kube import logs
from unbounded.kube.api import AlreadyExists, Forbidden, NotFound

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


def read_keys(invocation: CliInvocation, desired: tuple[KeySecret, ...]) -> dict[str, ssh_keys.PrivateKey]:
    """Read the keys that are given as files; returns them by the names of their Secrets.

    Raises:
        CliError: a file is no key, or the passphrase is wrong.
    """
    found: dict[str, ssh_keys.PrivateKey] = {}
    ask = _passphrase_prompt(invocation)
    for one in desired:
        if one.file is not None:
            try:
                found[one.name] = ssh_keys.read_key(one.file, ask)
            except ssh_keys.UnusableKey as error:
                raise CliError(f"{one.flag}: {error}", status=USAGE) from None
    return found


def _passphrase_prompt(invocation: CliInvocation) -> ssh_keys.PassphrasePrompt | None:
    if not invocation.stdin.isatty():
        return None

    def ask(prompt: str) -> logs.SecretStr:
        # with the event loop's handler, Ctrl-C would wait for the input
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return logs.SecretStr(getpass.getpass(prompt, invocation.err))
        except EOFError:
            raise ssh_keys.UnusableKey("no passphrase was given") from None
        finally:
            signal.signal(signal.SIGINT, before)

    return ask


def kubectl_command(name: str, file: Path, key: ssh_keys.PrivateKey) -> str:
    """Return the kubectl command that creates the Secret. A passphrase, which is in no file, needs one."""
    words = [
        "kubectl",
        "create",
        "secret",
        "generic",
        name,
        "--namespace",
        NAMESPACE,
        f"--from-file={ssh_keys.KEY}={file}",
    ]
    if key.certificate is not None:
        words.append(f"--from-file={ssh_keys.CERTIFICATE}={ssh_keys.certificate_path(file)}")
    if key.passphrase is not None:
        words.append(f"--from-file={ssh_keys.PASSPHRASE}=FILE")
    return shlex.join(words)


async def apply_secrets(
    session: CommandSession, desired: tuple[KeySecret, ...], keys: Mapping[str, ssh_keys.PrivateKey], *, dry_run: bool
) -> AsyncIterator[tuple[str, str]]:
    """Check the Secrets without a file and write the others; yields the name and the outcome of each.

    Raises:
        CliError: one is missing, or has another key and may not be replaced.
    """
    for one in desired:
        if one.name not in keys:
            await _check_exists(session, one)
    for name, key in keys.items():
        body = ssh_keys.key_secret(name, key, {LABEL_SITE: session.invocation.args.site})
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
    if ssh_keys.KEY not in found.data:
        has = ", ".join(sorted(found.data)) or "none"
        raise CliError(f"Secret {NAMESPACE}/{desired.name} has no key {ssh_keys.KEY}; it has: {has}")


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
