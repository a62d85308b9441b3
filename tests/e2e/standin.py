"""Stand-ins for the agent and for kubelets, on hosts that are only an SSH server.

The agent's stand-in records its starts and does what a test sets. The kubelets' stand-in makes Nodes of Joining
Machines, which are Ready at once. On such a host /srv is a folder of its own:

    /srv/started     a line for each `start`, with the Machine's name
    /srv/behaviour   shell that a start runs first, if a test has written it
    /srv/reset       a line for each `reset`
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from tests.support.hosts.mirror import packed
from tests.support.ssh.sshd import Server
from unbounded.api.core import NODES
from unbounded.api.machine import MACHINES, MachinePhase
from unbounded.api.names import LABEL_MACHINE
from unbounded.kube.api import AlreadyExists, ApiError, NotFound, StrategicMerge
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import rfc3339

TARBALL: Final = "unbounded-agent-linux-amd64.tar.gz"
_LOOK_S: Final = 0.3
_REPORT_S: Final = 10.0  # as kubelet renews its Lease
_HALF: Final = """#!/bin/sh
[ ! -e /srv/half ] || exec /usr/bin/tar "$@"
touch /srv/half
{ head -c 10240; exec sleep 600; } | /usr/bin/tar "$@"
"""
AGENT: Final = r"""#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in
    --config) config=$2; shift ;;
    --*) ;;
    *) [ -n "$command" ] || command=$1 ;;
  esac
  shift
done
case $command in
  version) echo "unbounded-agent 0.0.0" ;;
  preflight) echo "nothing is wrong" ;;
  reset) echo reset >>/srv/reset ;;
  start)
    sed -n 's/.*"MachineName": *"\([^"]*\)".*/\1/p' "${config:-$UNBOUNDED_AGENT_CONFIG_FILE}" >>/srv/started
    echo "containerd: fetching: 50 %" >&2
    if [ -e /srv/behaviour ]; then . /srv/behaviour; fi
    echo "done" >&2 ;;
esac
"""
RELEASE: Final = packed({"unbounded-agent/unbounded-agent": AGENT.encode()})
SHA256: Final = sha256(RELEASE).hexdigest()  # it comes over plain http


@contextmanager
def standin_agent(folder: Path) -> Iterator[str]:
    """The URL of its tarball, served on loopback."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TARBALL).write_bytes(RELEASE)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/{TARBALL}"
        finally:
            server.shutdown()
            thread.join(20)


def started(host: Server) -> list[str]:
    """For which Machines the agent was started on a host, in this order."""
    return _lines(host.folder / "started")


def resets(host: Server) -> int:
    return len(_lines(host.folder / "reset"))


def behave(host: Server, shell: str) -> None:
    """From the next start on the agent does this; empty: as usual."""
    (host.folder / "behaviour").write_text(shell)


def unpack_half(host: Server) -> None:
    """Unpack the first upload in part, secrets included, and wait forever for the rest."""
    tar = host.folder / "bin" / "tar"
    tar.write_text(_HALF)
    tar.chmod(0o755)


def half_arrived(host: Server) -> bool:
    return any("BootstrapToken" in one.read_text() for one in host.install.glob("*/new-*/config.json"))


def _lines(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


@asynccontextmanager
async def kubelets(api: HttpApi, *, but: Collection[str] = ()) -> AsyncIterator[None]:
    """Give each Joining Machine a Ready Node that continues to report, while inside.

    Args:
        but: Machines without a kubelet.
    """
    reported: dict[str, float] = {}

    async def run() -> None:
        clock = asyncio.get_running_loop().time
        while True:
            with suppress(ApiError):  # the control plane may be away
                machines = (await api.list(MACHINES)).items
                joining = [one.name for one in machines if one.status.phase == MachinePhase.JOINING]
                made = [name for name in joining if name not in but]
                due = [name for name, when in reported.items() if clock() - when > _REPORT_S and name not in made]
                await asyncio.gather(
                    *(make_node(api, name) for name in made), *(report_ready(api, name) for name in due)
                )
                reported.update(dict.fromkeys((*made, *due), clock()))
            await asyncio.sleep(_LOOK_S)

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def kubelet(api: HttpApi, machine: str) -> AsyncIterator[None]:
    """Give a Machine a Ready Node that continues to report, while inside."""

    async def run() -> None:
        while True:
            await asyncio.sleep(_REPORT_S)
            with suppress(ApiError):  # the control plane may be away
                await report_ready(api, machine)

    await make_node(api, machine)
    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def make_node(api: HttpApi, machine: str) -> None:
    """A Ready Node, as kubelet registers it."""
    meta = {"name": machine, "labels": {LABEL_MACHINE: machine}}
    with suppress(AlreadyExists):
        await api.create(NODES.raw(), {"apiVersion": "v1", "kind": "Node", "metadata": meta})
    await report_ready(api, machine)


async def report_ready(api: HttpApi, machine: str) -> None:
    """Report a Node's condition Ready as kubelet does, without which the server would set it to Unknown.

    Other conditions of the Node stay, and the time of the last transition of one that is Ready.
    """
    with suppress(NotFound):
        node = await api.get(NODES.raw(), machine)
        before = {one["type"]: one for one in node.get("status", {}).get("conditions", [])}.get("Ready", {})
        now = rfc3339()
        since = before["lastTransitionTime"] if before.get("status") == "True" else now
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "well"}
        ready |= {"lastHeartbeatTime": now, "lastTransitionTime": since}
        await api.patch(NODES.raw(), machine, StrategicMerge({"status": {"conditions": [ready]}}), subresource="status")
