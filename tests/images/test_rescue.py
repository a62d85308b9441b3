"""The rescue system: what the installer's scripts do, and an SSH client that logs in to the initrd as it was built."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

import pytest
import zstandard

from tests.images.ssh_client import Client, client_key
from tests.images.support import UID, Host, Site, needed, site
from tests.support.ports import free_port
from tests.support.qemu.tools import built
from tests.support.waiting import eventually
from unbounded.api.machine_status import host_key_fingerprint

KEY: Final = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHqczVtRFNAxbrJtsSlx9izzEO4fOvY32RAAoFjZmvZ+"
OPTIONS: Final = "no-agent-forwarding,no-port-forwarding,no-X11-forwarding"
RESCUE: Final = (200, {"status": "ok", "action": "Rescue"})
INITRD: Final = built("host-debian12/disk/initrd")


@pytest.fixture
async def where() -> AsyncIterator[Site]:
    async with site() as made:
        made.answers, made.keys = [RESCUE], f"{KEY}\n{KEY} me@here"
        yield made


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host with one disk, on which SSH servers only note how they were started."""
    made = Host(tmp_path / "host")
    made.disk("sda")
    (made.root / "dev/pts").mkdir()
    (made.root / "dev/pts/ptmx").touch()
    (made.root / "proc/mounts").touch()
    for name, script in (
        ("dropbearkey", f"echo 'Public key portion is:'; echo '{KEY} root@host'; touch $4"),
        ("dropbear", f'echo "$@" >>{made.root}/started; exec sleep 60'),
    ):
        made.command(name).write_text(f"#!/bin/sh\n{script}\n")
        made.command(name).chmod(0o755)
    return made


async def test_the_rescue_runs_until_metalman_refuses_it(host: Host, where: Site) -> None:
    running = asyncio.create_task(host.install(where))
    await eventually(lambda: len(where.rescues) > 2 and (host.root / "started").exists())
    where.rescue_answers = [503, 429, 409]
    assert await running == (3, "")
    assert {(report.host_key, report.ended) for report in where.rescues} == {(KEY, False)}
    assert not any(report["failed"] for report in where.reports)
    root, (started,) = host.root / "initrd", (host.root / "started").read_text().splitlines()
    assert {"-s", "-j", "-k"} <= set(started.split())
    keys = (root / "root/.ssh/authorized_keys").read_text().splitlines()
    assert keys == [f"{OPTIONS} {KEY}", f"{OPTIONS} {KEY} me@here"]
    assert (root / "etc/passwd").read_text() == "root:x:0:0:root:/root:/bin/sh\n"
    assert (host.root / "dev/sda").read_bytes() == bytes(16 << 20)
    assert "POST pxe/disable" not in where.asked


async def test_the_rescue_ends_after_its_time_while_metalman_is_silent(host: Host, where: Site) -> None:
    clock = host.root / "clock"
    clock.write_text("0.00 0\n")
    running = asyncio.create_task(host.install(where, UPTIME=str(clock)))
    await eventually(lambda: len(where.rescues) > 1)
    where.rescue_answers = [503] * 9999
    clock.write_text("3600.00 0\n")
    assert await running == (3, "")


@pytest.mark.parametrize(
    ("keys", "answers", "reason"),
    [
        ("", [], "Rescue: metalman named no key that may log in"),
        (KEY, [409], "Rescue: metalman takes no rescue system: HTTP 409: {}"),
    ],
)
async def test_a_rescue_that_cannot_start_says_why(
    host: Host, where: Site, keys: str, answers: list[int], reason: str
) -> None:
    where.keys, where.rescue_answers = keys, answers
    assert (await host.install(where))[0] == 1
    assert where.failure == reason
    assert not (host.root / "started").exists()


def test_the_fingerprint_is_that_of_openssh(tmp_path: Path) -> None:
    (tmp_path / "host.pub").write_text(KEY)
    shown = subprocess.run([needed("ssh-keygen"), "-lf", tmp_path / "host.pub"], capture_output=True, check=True)
    assert host_key_fingerprint(KEY) in shown.stdout.decode()


# The initrd as it was built


@pytest.fixture
def initrd(tmp_path: Path) -> Path:
    if INITRD is None or os.geteuid() != 0:
        pytest.skip("the image is not built; scripts/host-image builds it, as root")
    root = tmp_path / "initrd"
    root.mkdir()
    archive = zstandard.ZstdDecompressor().decompressobj().decompress(INITRD.read_bytes())
    subprocess.run([needed("busybox"), "cpio", "-id"], input=archive, cwd=root, capture_output=True, check=True)
    return root


def inside(initrd: Path) -> Sequence[str]:
    """Return the command that runs another in the initrd, with mounts and processes of its own."""
    mounts = f"mount --rbind /dev {initrd}/dev && mount -t proc proc {initrd}/proc && exec chroot {initrd}"
    unshare = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
    return (*unshare, needed("bash"), "-c", f'{mounts} "$@"', "bash")


@pytest.mark.slow
async def test_an_ssh_client_with_a_given_key_logs_in_to_the_built_initrd(initrd: Path, where: Site) -> None:
    needed("ssh")
    folder = initrd.parent
    where.keys = client_key(folder / "given")
    client_key(folder / "other")
    port = free_port()
    machine = Host(initrd / "host", {"machine_uid": UID, "machine": "rack1-01", "serve_url": where.url})
    machine.disk("sda")
    line = " ".join(f"unbounded.{name}={value}" for name, value in machine.arguments.items())
    paths = {name: f"/host/{path}" for name, path in (("SYS", "sys"), ("T", "tmp"), ("KMSG", "said"))}
    environment = {**paths, "CMDLINE": line, "RESCUE_PORT": str(port), "PAUSE_S": "0.1", "PATH": os.environ["PATH"]}
    process = await asyncio.create_subprocess_exec(
        *inside(initrd), "/bin/sh", "/lib/unbounded/install", env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        await eventually(lambda: len(where.rescues) > 1)
        host_key = where.rescues[0].host_key
        client, root = Client(port, host_key), "root@127.0.0.1"
        code, out = await client.run(folder / "given", root, "id -u; command -v blkid; command -v end-rescue")
        assert (code, out.splitlines()[-3:]) == (0, ["0", "/sbin/blkid", "/sbin/end-rescue"])
        assert "Rescue system of rack1-01" in out
        code, out = await Client(port, KEY).run(folder / "given", root, "true")
        assert (code, out.splitlines()[-1]) == (255, "Host key verification failed.")
        code, out = await client.run(folder / "other", root, "true")
        assert (code, out.splitlines()[-1]) == (255, f"{root}: Permission denied (publickey).")
        code, out = await client.run(folder / "given", "-W", where.host, root)
        assert code == 255
        assert "administratively prohibited" in out
        code, out = await client.run(folder / "given", root, "end-rescue")
        assert code == 0
        async with asyncio.timeout(30):
            assert await process.wait() == 3
        assert where.rescues[-1].ended
    finally:
        if process.returncode is None:
            process.kill()
