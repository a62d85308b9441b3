"""The peers of metalman's servers, and the third-party clients that measure both."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.netboot_net import CLIENTS, SERVER, Net

TOOLS: Final = ("ip", "nginx", "kea-dhcp4", "perfdhcp", "in.tftpd", "atftp", "curl")
STARTED_S: Final = 10.0
RATE: Final = re.compile(r"^Rate: ([0-9.]+) ", re.MULTILINE)
NGINX: Final = """\
daemon off; master_process off; user root; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 2000; }}
http {{
  access_log off; sendfile on; client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2;
  fastcgi_temp_path {folder}/t3; uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  server {{ listen {server}:80; root {folder}; }}
}}
"""


def missing() -> str | None:
    """Return the missing requirements; None if there are none."""
    if os.geteuid() != 0:
        return "root, for network namespaces"
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"{', '.join(absent)}; scripts/bench-tools installs them" if absent else None


@contextlib.asynccontextmanager
async def nginx(net: Net, folder: Path) -> AsyncIterator[Process]:
    """Run nginx with one worker that serves the folder on port 80."""
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, server=SERVER))
    async with _running(net, "nginx", "-c", str(config), ready=f"{SERVER}:80") as process:
        yield process


@contextlib.asynccontextmanager
async def kea(net: Net, folder: Path) -> AsyncIterator[Process]:
    """Run Kea with its leases in a file, as Kea recommends for speed."""
    config = {
        "interfaces-config": {"interfaces": ["s0"], "dhcp-socket-type": "udp"},
        "lease-database": {"type": "memfile", "persist": True, "name": str(folder / "kea.csv"), "lfc-interval": 0},
        "subnet4": [{"subnet": "10.55.0.0/16", "interface": "s0", "pools": [{"pool": CLIENTS}]}],
        "loggers": [
            {"name": "kea-dhcp4", "severity": "ERROR", "output_options": [{"output": str(folder / "kea.log")}]}
        ],
    }
    path = folder / "kea.json"
    path.write_bytes(msgspec.json.encode({"Dhcp4": config}))
    around = {"KEA_PIDFILE_DIR": str(folder), "KEA_LOCKFILE_DIR": str(folder)}
    async with _running(net, "kea-dhcp4", "-c", str(path), ready=":67", around=around) as process:
        yield process


@contextlib.asynccontextmanager
async def tftpd(net: Net, folder: Path) -> AsyncIterator[Process]:
    """Run tftpd-hpa, which starts a process for each transfer."""
    options = ("-4", "-L", "--address", f"{SERVER}:69", "--secure", "--user", "root")
    async with _running(net, "in.tftpd", *options, str(folder), ready=f"{SERVER}:69") as process:
        yield process


@contextlib.asynccontextmanager
async def _running(net: Net, *command: str, ready: str, around: dict[str, str] | None = None) -> AsyncIterator[Process]:
    environment = {**os.environ, **(around or {})}
    process = await asyncio.create_subprocess_exec(
        *net.server, *command, env=environment, stdout=DEVNULL, stderr=STDOUT
    )
    try:
        await _listening(net, process, ready)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _listening(net: Net, process: Process, ready: str) -> None:
    """Wait until a socket is bound to the address. Raises RuntimeError if the process ends or the time is up."""
    deadline = time.monotonic() + STARTED_S
    while True:
        sockets = await asyncio.create_subprocess_exec(*net.server, "ss", "-Hlntu", stdout=PIPE)
        listening, _ = await sockets.communicate()
        if f"{ready} " in listening.decode():
            return
        if process.returncode is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no server came up on {ready}")
        await asyncio.sleep(0.05)


async def exchanges_per_second(net: Net, *, offered: int, seconds: int) -> float:
    """Return the rate of perfdhcp: DISCOVER, OFFER, REQUEST and ACK for invented hosts."""
    options = ("-4", "-l", "c0", "-r", str(offered), "-R", "3000", "-p", str(seconds), "-W", "500000")
    process = await asyncio.create_subprocess_exec(
        *net.client, "perfdhcp", *options, SERVER, stdout=PIPE, stderr=STDOUT
    )
    output, _ = await process.communicate()
    found = RATE.search(output.decode())
    if found is None:
        raise RuntimeError(f"perfdhcp reported no rate: {output.decode()[-500:]}")
    return float(found[1])


async def tftp_seconds(net: Net, name: str, target: Path, *, window: int | None) -> float:
    """Time a transfer: in blocks of 512 bytes by curl, or with a window and larger blocks by atftp."""
    plain = ("curl", "-sS", "-m", "60", "--tftp-blksize", "512", "-o", str(target), f"tftp://{SERVER}/{name}")
    options = ("--option", "blksize 1428", "--option", f"windowsize {window}")
    windowed = ("atftp", *options, "--get", "-r", name, "-l", str(target), SERVER, "69")
    start = time.perf_counter()
    command = plain if window is None else windowed
    process = await asyncio.create_subprocess_exec(*net.client, *command, stdout=DEVNULL, stderr=DEVNULL)
    if await process.wait():
        raise RuntimeError(f"{command[0]} failed")
    return time.perf_counter() - start
