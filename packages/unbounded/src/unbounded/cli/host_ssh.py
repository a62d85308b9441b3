"""The user's `ssh` program with the route of a Machine: address, bastion, pinned host keys, and the keys of Secrets.

ssh reads a configuration of its own, not that of the user, so that no other host key is trusted and the route is that
of machina. The configuration and the keys are files of a folder that only the user can enter. It is removed with the
context.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from unbounded.api.failures import Rejected
from unbounded.api.machine import Machine, SSHHop
from unbounded.cli.plugin.command import CliError, CommandSession
from unbounded.machina.machines.credentials import (
    SecretReader,
    SshCredentials,
    credentials_of,
    keyless_route,
    untrusted,
)
from unbounded.machina.ssh.keys import algorithms, is_first_use, read_key
from unbounded.machina.ssh.model import Hop, SshRoute

SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)
OPENSSH: Final = "8.5"  # the first with KnownHostsCommand
_USER: Final = re.compile(r"[\w.@+$][\w.@+$-]*")
_HOST: Final = re.compile(r"[\w.:][\w.:%-]*")
_PINNED: Final = """\
# Print the presented host key for ssh if its fingerprint is the pinned one: PINNED NAME FINGERPRINT TYPE KEY.
case $3 in
  "$1") echo "$2 $4 $5" ;;
  SHA256:*) echo "error: $2 presents the host key $3, and $1 is pinned" >&2 ;;
esac
"""


@asynccontextmanager
async def ssh_command(
    session: CommandSession, machine: Machine, *, reads_secrets: bool = True
) -> AsyncIterator[list[str]]:
    """Yield the command that logs in to the host of a Machine; arguments of ssh and a remote command may follow.

    Keys of Secrets are files until the end of the context: a command that may be ended by a signal enters
    `ended_by_signals` around it.

    Args:
        reads_secrets: False uses the user's own keys alone.

    Raises:
        CliError: the Machine has no address, a host key is not pinned, or there is no program ssh.
    """
    program = shutil.which("ssh", path=session.invocation.environ.get("PATH"))
    if program is None:
        raise CliError("ssh is not in PATH", next_step=f"install the client of OpenSSH {OPENSSH} or newer")
    credentials = await _credentials(session, machine, reads_secrets=reads_secrets)
    route = credentials.route
    if route is None:
        raise CliError(f"Machine {machine.name}: {credentials.address}")
    for hop in _hops(route):
        _require_pin(session, machine, hop)
    folder = Path(tempfile.mkdtemp(prefix="unbounded-ssh-", dir=_private_folder(session.invocation.environ)))
    with _removed(folder):
        hops = _hops(route) if reads_secrets else ()
        with_keys = [hop.name for hop in hops if await _write_key(session, folder, hop, credentials)]
        _write(folder / "pinned", _PINNED)
        _write(folder / "config", config_text(machine.name, route, folder, with_keys))
        yield [program, "-F", str(folder / "config"), machine.name]


@contextmanager
def _removed(folder: Path) -> Iterator[None]:
    """Remove a folder at the end."""
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let signals that would end the process at once cancel the present task, so that it cleans up.

    Raises:
        CliError: such a signal came.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    if task is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[signal.Signals] = []

    def cancel(number: signal.Signals) -> None:
        came.append(number)
        task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, cancel, number)
    try:
        yield
    except asyncio.CancelledError:
        if came:
            raise CliError(f"ended by {came[0].name}", status=128 + came[0]) from None
        raise
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


async def _credentials(session: CommandSession, machine: Machine, *, reads_secrets: bool) -> SshCredentials:
    if machine.spec.ssh is None:
        raise CliError(
            f"Machine {machine.name} has no spec.ssh, so that no address of its host for SSH is known",
            next_step=f"`{session.invocation.program} machine serial {machine.name}` opens the console of its BMC",
        )
    if reads_secrets:
        return await credentials_of(machine, SecretReader(session.api))
    try:
        return SshCredentials(keyless_route(machine))
    except Rejected as error:
        return SshCredentials(None, str(error))


def _hops(route: SshRoute) -> tuple[Hop, ...]:
    return (route.host,) if route.bastion is None else (route.bastion, route.host)


def _require_pin(session: CommandSession, machine: Machine, hop: Hop) -> None:
    """Refuse a server whose host key is not pinned, and warn of one that has presented another key."""
    is_bastion = hop.name is SSHHop.BASTION
    command = f"{session.invocation.program} machine trust-host-key {machine.name}{' --bastion' if is_bastion else ''}"
    if is_first_use(hop.pins):
        field, status = (
            ("spec.ssh.bastion.hostKeys", "status.ssh.bastionFingerprint")
            if is_bastion
            else ("spec.ssh.hostKeys", "status.ssh.fingerprint")
        )
        raise CliError(
            f"the host key of the {hop.name} {hop.at} is not pinned: neither {field} nor {status} has one, and any "
            "server could answer there",
            next_step=f"compare the key with the {hop.name}'s own console, and pin it with "
            f"`{command} --fingerprint SHA256:…`; machina pins the first key that it sees",
        )
    if (shown := untrusted(machine, hop.name)) is not None:
        session.printer.warn(
            f"the {hop.name} has presented machina another host key, {shown}: after a reinstallation, trust it with "
            f"`{command}`"
        )


def _private_folder(environ: Mapping[str, str]) -> str | None:
    """Return the user's own folder in memory; None for the usual one for temporary files."""
    found = environ.get("XDG_RUNTIME_DIR", "")
    return found if found and os.access(found, os.W_OK | os.X_OK) else None


async def _write_key(session: CommandSession, folder: Path, hop: Hop, credentials: SshCredentials) -> bool:
    """Write the key and the certificate of a server; return False, with a note, where the user's own keys serve."""
    fault = credentials.bastion_key if hop.name is SSHHop.BASTION else credentials.key
    if not fault:
        try:
            key = await asyncio.to_thread(read_key, hop.identity)
        except ValueError as error:
            fault = str(error)
        else:
            _write(folder / hop.name, key.key.export_private_key().decode())
            if key.certificate is not None:
                _write(folder / f"{hop.name}-cert.pub", key.certificate.export_certificate().decode())
            return True
    session.printer.warn(f"note: {fault}; ssh uses your own keys at the {hop.name}")
    return False


def _write(path: Path, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def config_text(name: str, route: SshRoute, folder: Path, with_keys: list[SSHHop]) -> str:
    """Return the configuration of ssh for a route. The host has the name of its Machine.

    Args:
        with_keys: the servers whose key is in the folder, under their names.
    Raises:
        CliError: a value of the Machine could mean something else to ssh.
    """
    lines: list[str] = []
    for hop in _hops(route):
        alias = _alias(name, hop.name)
        jump = _alias(name, SSHHop.BASTION) if hop.name is SSHHop.HOST and route.bastion is not None else "none"
        lines += [f"Host {alias}", *(f"  {line}" for line in _options(alias, hop, folder)), f"  ProxyJump {jump}"]
        if hop.name in with_keys:
            lines += [f'  IdentityFile "{folder / hop.name}"', "  IdentitiesOnly yes"]
            if (certificate := folder / f"{hop.name}-cert.pub").exists():
                lines.append(f'  CertificateFile "{certificate}"')
    return "\n".join((*lines, ""))


def _alias(name: str, hop: SSHHop) -> str:
    return name if hop is SSHHop.HOST else f"{name}-bastion"


def _options(alias: str, hop: Hop, folder: Path) -> Iterator[str]:
    for field, value, form in (("username", hop.user, _USER), ("host", hop.at.host, _HOST)):
        if form.fullmatch(value) is None:
            raise CliError(f"the {field} {value!r} of the {hop.name} is not one that ssh takes")
    host = hop.at.host.replace("%", "%%")
    yield from (f"HostName {host}", f"Port {hop.at.port}", f"User {hop.user}", f"HostKeyAlias {alias}")
    yield from ("StrictHostKeyChecking yes", "UpdateHostKeys no", "CheckHostIP no", "VerifyHostKeyDNS no")
    yield f"HostKeyAlgorithms {','.join(algorithms(hop.pins))}"
    yield "GlobalKnownHostsFile /dev/null"
    if hop.pins.keys:
        known = folder / f"known_hosts-{hop.name}"
        _write(known, "".join(f"{alias} {key}\n" for key in hop.pins.keys))
        yield f'UserKnownHostsFile "{known}"'
    else:
        fingerprint = (hop.pins.fingerprint or "").rstrip("=")
        yield "UserKnownHostsFile /dev/null"
        yield f'KnownHostsCommand /bin/sh "{folder / "pinned"}" {fingerprint} {alias} %f %t %K'
