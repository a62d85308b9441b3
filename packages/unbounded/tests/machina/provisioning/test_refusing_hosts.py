"""Hosts that refuse commands, and the messages about them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.machina.provisioning.local import (
    ATTEMPT,
    TOKEN,
    UID,
    Local,
    install,
)
from unbounded.machina.provisioning.model import Finished, HostRefuses
from unbounded.machina.provisioning.remote import HostInstaller

OTHER = "f" * 16
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="root")


@pytest.fixture
def nobodys() -> Iterator[Local]:
    """A host whose user is not root; not in pytest's own folder, which only root can read."""
    with TemporaryDirectory(prefix="unbounded-") as name:
        Path(name).chmod(0o755)
        yield Local(Path(name), user=NOBODY)


@needs_root
@pytest.mark.root
@pytest.mark.parametrize(
    ("sudo", "words"),
    [
        ("echo 'sudo: a password is required' >&2; exit 1", "NOPASSWD"),
        ("echo 'sudo: sorry, you must have a tty to run sudo' >&2; exit 1", "tty"),
        ("echo 'nobody is not in the sudoers file.' >&2; exit 1", "does not let this user become root"),
        ("exit 1", "without output"),
    ],
    ids=["password", "terminal", "stranger", "silent"],
)
async def test_sudo_that_does_not_let_in(nobodys: Local, installer: HostInstaller, sudo: str, words: str) -> None:
    host = nobodys
    host.program("sudo", sudo)
    with pytest.raises(HostRefuses, match=words):
        await installer.begin(host, install("exit 0"))


@pytest.mark.slow
@needs_root
@pytest.mark.root
async def test_a_user_who_is_not_root_goes_by_sudo_alone(nobodys: Local, installer: HostInstaller) -> None:
    """Of its environment nothing comes through, as sudo has it."""
    host = nobodys
    host.place.mkdir()
    os.chown(host.place, NOBODY, NOBODY)
    host.program("sudo", f'[ "$1 $2" = "-n --" ] || exit 9; shift 2; UNBOUNDED_INSTALL_DIR={host.place} exec "$@"')
    host.environ["UNBOUNDED_INSTALL_DIR"] = "/nonexistent"
    assert await installer.begin(host, install("exit 6")) == Finished(ATTEMPT, 6)


@needs_root
@pytest.mark.root
async def test_a_host_without_sudo(nobodys: Local, installer: HostInstaller) -> None:
    nobodys.only("sh", "id")
    with pytest.raises(HostRefuses, match="sudo is not installed") as raised:
        await installer.observe(nobodys, UID)
    assert len(str(raised.value)) < 200  # and not what was sent


async def test_a_host_without_bash(host: Local, installer: HostInstaller) -> None:
    host.only("sh", "id", "mkdir", "tar", "flock", "rm")
    with pytest.raises(HostRefuses, match="bash is not installed") as raised:
        await installer.begin(host, install("exit 0"))
    assert TOKEN not in str(raised.value)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Local]:
    """A host with a mount namespace of its own, in which its place is a small disk where programs may not run."""
    (tmp_path / "install").mkdir()
    script = f"mount -t tmpfs -o size=200k,noexec none '{tmp_path}/install' && echo && exec sleep 600"
    with subprocess.Popen(["unshare", "--mount", "sh", "-c", script], stdout=subprocess.PIPE) as held:
        try:
            assert held.stdout is not None
            assert held.stdout.readline() == b"\n"
            yield Local(tmp_path, before=("nsenter", "--target", str(held.pid), "--mount"))
        finally:
            held.kill()


@pytest.mark.slow
@needs_root
@pytest.mark.root
async def test_full_disk_is_reported_and_the_result_stays_readable(small: Local, installer: HostInstaller) -> None:
    fills = 'head -c 1000000 /dev/zero > "$UNBOUNDED_INSTALL_DIR/all" || echo "error: full"; exit 4'
    found = await installer.begin(small, install(fills))
    assert isinstance(found, Finished)
    assert found.status == 4
    filled = await small.run('cat /dev/zero > "$UNBOUNDED_INSTALL_DIR/rest"', limit_s=60)
    assert filled.status == 1
    with pytest.raises(HostRefuses, match="the disk is full"):
        await installer.begin(small, install("exit 0", attempt=OTHER))
    assert await installer.observe(small, UID) == found
