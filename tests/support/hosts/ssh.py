"""A host that can be reached over SSH: Debian's own server, and a user who is not root and may use sudo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.hosts.host import Host

USER: Final = "ubuntu"
SUDO: Final = f"/etc/sudoers.d/{USER}"
WITHOUT_PASSWORD: Final = f"{USER} ALL=(ALL:ALL) NOPASSWD: ALL\n"
WITH_PASSWORD: Final = f"{USER} ALL=(ALL:ALL) ALL\n"
_OPEN: Final = f"""
id {USER} >/dev/null 2>&1 || useradd --create-home --shell /bin/bash {USER}
install -d -m 0700 -o {USER} -g {USER} /home/{USER}/.ssh
install -m 0600 -o {USER} -g {USER} /root/key.pub /home/{USER}/.ssh/authorized_keys
grep -q "$(hostname)" /etc/hosts || echo "127.0.1.1 $(hostname)" >>/etc/hosts
[ -e /etc/ssh/ssh_host_ed25519_key ] || ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
systemctl enable --quiet --now ssh.service
"""


@dataclass(frozen=True)
class Key:
    """Args:
    file: the private key, in OpenSSH's format.
    public: one line.
    """

    file: Path
    public: str


def make_key(file: Path) -> Key:
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o600)
    file.write_bytes(private)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return Key(file, public.decode())


async def open_ssh(host: Host, key: Key) -> None:
    """Let the user log in with this key, and be root by sudo; also after a reboot."""
    host.put(SUDO, WITHOUT_PASSWORD.encode(), mode=0o440)
    host.put("/root/key.pub", f"{key.public}\n".encode())
    await host.run("sh", "-euc", _OPEN)


async def rekey(host: Host) -> None:
    """Another host key, as a new installation has it."""
    await host.run("sh", "-euc", "rm /etc/ssh/ssh_host_*; systemctl stop ssh.service")
    await host.run("sh", "-euc", _OPEN)
