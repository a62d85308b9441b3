"""Logins to real OpenSSH servers: who is let in, with which keys, and what is refused before a key is offered."""

from __future__ import annotations

import asyncio
import pwd
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.machina.ssh.servers import FirstUses, direct_to, hop_to, identity
from tests.support.ssh.sshd import Fleet, fingerprint_of, keygen, sign
from unbounded.api.failures import Stale
from unbounded.api.machine import SSHHop
from unbounded.machina.ssh import handshake
from unbounded.machina.ssh.client import SshClient
from unbounded.machina.ssh.model import HostKeyPins, SshIdentity, SshReason, SshRejected, SshRoute

pytestmark = [pytest.mark.slow, pytest.mark.root]

KINDS = {
    "ed25519": ("ed25519", ()),
    "ecdsa-256": ("ecdsa", ("-b", "256")),
    "ecdsa-521": ("ecdsa", ("-b", "521")),
    "rsa": ("rsa", ("-b", "2048")),
    "rsa-pem": ("rsa", ("-b", "2048", "-m", "PEM")),
    "ecdsa-pkcs8": ("ecdsa", ("-b", "256", "-m", "PKCS8")),
}


async def who_am_i(ssh: SshClient, route: SshRoute, first: FirstUses | None = None) -> str:
    async with ssh.login(route, on_first_use=first or FirstUses()) as shell:
        return (await shell.run("id -un", limit_s=60)).stdout.decode().strip()


def as_who(fleet: Fleet, who: SshIdentity, **more: str) -> SshRoute:
    return SshRoute(replace(hop_to(fleet, fleet.servers[0], **more), identity=who))  # type: ignore[arg-type]


def lock(key: Path, place: Path, passphrase: str) -> Path:
    """The same key behind a passphrase."""
    shutil.copy(key, place)
    again = ["ssh-keygen", "-q", "-p", "-a", "2", "-P", "", "-N", passphrase, "-f", str(place)]
    form = (
        ["-m", "PEM"]
        if "RSA PRIVATE" in key.read_text()
        else ["-m", "PKCS8"]
        if " OPENSSH " not in key.read_text()
        else []
    )
    subprocess.run([*again, *form], check=True, timeout=60)
    return place


@pytest.mark.parametrize("kind", KINDS)
async def test_keys_of_each_kind_log_in_open_encrypted_and_certified(
    fleet: Fleet, ssh: SshClient, tmp_path: Path, kind: str
) -> None:
    of_type, options = KINDS[kind]
    key = keygen(tmp_path / f"key-{kind}", of_type, options=options)
    certificate = sign(fleet.authority, key.with_suffix(".pub"))
    assert await who_am_i(ssh, as_who(fleet, identity(key, certificate=certificate))) == "ubuntu"
    with pytest.raises(SshRejected, match="rejects the key"):
        await who_am_i(ssh, as_who(fleet, identity(key)))
    fleet.authorize(key.with_suffix(".pub"))
    assert await who_am_i(ssh, as_who(fleet, identity(key))) == "ubuntu"
    locked = lock(key, tmp_path / f"locked-{kind}", "open sesame")
    assert await who_am_i(ssh, as_who(fleet, identity(locked, passphrase="open sesame"))) == "ubuntu"
    from_a_file = identity(locked, version="2", passphrase="open sesame\n")
    assert await who_am_i(ssh, as_who(fleet, from_a_file)) == "ubuntu"
    with pytest.raises(SshRejected, match="passphrase does not decrypt"):
        await who_am_i(ssh, as_who(fleet, identity(locked, version="3", passphrase="wrong")))
    with pytest.raises(SshRejected, match="is encrypted, and the Secret has no passphrase"):
        await who_am_i(ssh, as_who(fleet, identity(locked, version="4")))


async def test_the_first_key_that_is_seen_is_pinned_before_ours_is_offered(fleet: Fleet, ssh: SshClient) -> None:
    server, before = fleet.servers[0], len(fleet.servers[0].log)
    first = FirstUses(fails=Stale("the Machine has changed"))
    with pytest.raises(Stale, match="the Machine has changed"):
        await who_am_i(ssh, direct_to(fleet, server, pins=HostKeyPins()), first)
    assert first.seen == [(SSHHop.HOST, server.fingerprint)]
    assert "publickey" not in server.log[before:]
    first.fails = None
    assert await who_am_i(ssh, direct_to(fleet, server, pins=HostKeyPins()), first) == "ubuntu"
    pinned = FirstUses()
    assert (
        await who_am_i(ssh, direct_to(fleet, server, pins=HostKeyPins(fingerprint=first.seen[0][1])), pinned)
        == "ubuntu"
    )
    assert pinned.seen == []


@pytest.mark.parametrize("by", ["key", "fingerprint"])
async def test_no_login_is_tried_where_the_host_key_is_another(
    fleet: Fleet, ssh: SshClient, tmp_path: Path, by: str
) -> None:
    server, before = fleet.servers[0], len(fleet.servers[0].log)
    other = keygen(tmp_path / "other", "ed25519").with_suffix(".pub")
    line = " ".join(other.read_text().split()[:2])
    pins = HostKeyPins((line,)) if by == "key" else HostKeyPins(fingerprint=fingerprint_of(other))
    with pytest.raises(SshRejected) as refused:
        await who_am_i(ssh, direct_to(fleet, server, pins=pins))
    assert (refused.value.reason, refused.value.hop) == (SshReason.HOST_KEY, SSHHop.HOST)
    assert refused.value.fingerprint == server.fingerprint
    assert server.fingerprint in str(refused.value)
    assert fingerprint_of(other) in str(refused.value)
    _, connected, said = server.log[before:].partition("Connection from")  # the end of a login before may come late
    assert connected
    assert "publickey" not in said
    assert "user" not in said.lower()


async def test_a_key_that_is_refused_is_offered_once(fleet: Fleet, ssh: SshClient, tmp_path: Path) -> None:
    server, before = fleet.servers[0], len(fleet.servers[0].log)
    stranger = keygen(tmp_path / "stranger", "ed25519")
    with pytest.raises(
        SshRejected, match=r"rejects the key SHA256:\S+ of Secret unbounded-kube/stranger for user ubuntu"
    ) as told:
        await who_am_i(ssh, as_who(fleet, identity(stranger)))
    assert told.value.reason is SshReason.LOGIN
    assert server.log[before:].count("Failed publickey") == 1


async def test_the_end_of_a_certificate_is_said(fleet: Fleet, ssh: SshClient, tmp_path: Path) -> None:
    old = keygen(tmp_path / "old", "ed25519")
    certificate = sign(fleet.authority, old.with_suffix(".pub"), valid="20200101:20200201")
    with pytest.raises(SshRejected, match="its certificate expired on 2020-0"):
        await who_am_i(ssh, as_who(fleet, identity(old, certificate=certificate)))


async def test_two_first_uses_at_once_pin_the_same_key(fleet: Fleet, ssh: SshClient) -> None:
    server, first = fleet.servers[0], FirstUses()
    route = direct_to(fleet, server, pins=HostKeyPins())
    assert await asyncio.gather(*(who_am_i(ssh, route, first) for _ in range(2))) == ["ubuntu"] * 2
    assert first.seen == [(SSHHop.HOST, server.fingerprint)] * 2


async def test_nothing_of_the_process_s_own_user_counts(
    fleet: Fleet, ssh: SshClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files and agent would let it in, or keep it out; and in a container it may have no name."""
    own = tmp_path / ".ssh"
    own.mkdir()
    shutil.copy(fleet.key, own / "id_ed25519")
    (own / "config").write_text("Port 9\nUser nobody\nProxyCommand false\nHostKeyAlgorithms ssh-rsa\n")
    known = keygen(tmp_path / "known", "ed25519").with_suffix(".pub")
    (own / "known_hosts").write_text(f"{fleet.servers[0].address} {known.read_text()}")
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "me")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    for made in (handshake._options_of, handshake._ensure_user_name):
        made.cache_clear()
    assert await who_am_i(ssh, direct_to(fleet, fleet.servers[0])) == "ubuntu"
    stranger = identity(keygen(tmp_path / "stranger", "ed25519"))
    with pytest.raises(SshRejected, match="rejects the key"):
        await who_am_i(ssh, as_who(fleet, stranger))


async def test_a_host_that_was_made_anew_is_not_logged_in_to(fleet: Fleet, ssh: SshClient) -> None:
    host, first = fleet.servers[0], FirstUses()
    was = host.fingerprint
    assert await who_am_i(ssh, direct_to(fleet, host, pins=HostKeyPins(fingerprint=was))) == "ubuntu"
    host.down()
    host.rekey()
    host.start()
    before = host.log.count("publickey")
    with pytest.raises(SshRejected) as refused:
        await who_am_i(ssh, direct_to(fleet, host, pins=HostKeyPins(fingerprint=was)), first)
    assert f"presents the host key {host.fingerprint}, but {was} is pinned" in str(refused.value)
    assert host.log.count("publickey") == before
    assert first.seen == []
