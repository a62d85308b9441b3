"""Routes to the test's OpenSSH servers, and who logs in there."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.support.ssh.sshd import USER, Fleet, Server
from unbounded.api.machine import SSHHop
from unbounded.kube.logs import SecretStr
from unbounded.machina.ssh.model import Hop, HostKeyPins, HostPort, SshIdentity, SshRoute

PATIENCE_S = 60.0  # for what takes a moment on a machine that has nothing else to do


@dataclass
class FirstUses:
    """The keys to pin, in order; `fails` is raised in place of pinning."""

    seen: list[tuple[SSHHop, str]] = field(default_factory=list)
    fails: Exception | None = None

    async def __call__(self, hop: SSHHop, fingerprint: str) -> None:
        self.seen.append((hop, fingerprint))
        if self.fails is not None:
            raise self.fails


def identity(key: Path, *, version: str = "", passphrase: str = "", certificate: Path | None = None) -> SshIdentity:
    return SshIdentity(
        SecretStr(key.read_text()),
        f"unbounded-kube/{key.name}@{version or '1'}",
        SecretStr(passphrase) if passphrase else None,
        SecretStr(certificate.read_text()) if certificate else None,
    )


def at(server: Server) -> HostPort:
    return HostPort(server.address, server.port)


def hop_to(
    fleet: Fleet, server: Server, *, name: SSHHop = SSHHop.HOST, user: str = USER, pins: HostKeyPins | None = None
) -> Hop:
    """Return a hop with the fleet's key, and with the server's own key pinned unless `pins` differs."""
    return Hop(name, at(server), user, identity(fleet.key), HostKeyPins((server.host_key,)) if pins is None else pins)


def direct_to(fleet: Fleet, server: Server, *, pins: HostKeyPins | None = None) -> SshRoute:
    return SshRoute(hop_to(fleet, server, pins=pins))


def through_bastion(
    fleet: Fleet, server: Server, *, pins: HostKeyPins | None = None, bastion: HostKeyPins | None = None
) -> SshRoute:
    assert fleet.bastion is not None
    jump = hop_to(fleet, fleet.bastion, name=SSHHop.BASTION, pins=bastion)
    return SshRoute(hop_to(fleet, server, pins=pins), jump)
