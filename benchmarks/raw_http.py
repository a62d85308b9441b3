"""A child process, the peer of a GET and of a POST: a bare aiohttp server over TLS with the same answer to all.

`python -m benchmarks.raw_http DATA BODY` presents the certificates of the data directory, requests those of clients,
and answers with the content of the file BODY. Before it answers a POST, it decodes the JSON, and writes BODY to bare
sqlite3 with group commit (`raw_commits`). It authenticates no client, checks nothing and caches nothing.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
from aiohttp import web

from benchmarks import children
from benchmarks.raw_commits import Log
from unbounded.kube.tls import bound_buffers
from unbounded_apiserver.pki import CertificateAuthority, server_context
from unbounded_apiserver.server import LOOPBACK

HEADERS: Final = {"Content-Type": "application/json", "Cache-Control": "no-cache, private"}

Turn = asyncio.Future[None]


class Peer:
    """Handler of requests that answers with `body` alone."""

    def __init__(self, body: bytes, path: Path) -> None:
        self._body = body
        self._loop = asyncio.get_running_loop()
        self._log: Log[Turn] = Log(path, self._durable)
        self._revisions = count(1)

    async def answer(self, request: web.BaseRequest) -> web.Response:
        if request.method != "POST":
            return web.Response(body=self._body, headers=HEADERS)
        sent = msgspec.json.decode(await request.read(), type=dict[str, Any])
        turn: Turn = self._loop.create_future()
        self._log.write(next(self._revisions), sent["metadata"]["name"], self._body, turn)
        await turn
        return web.Response(body=self._body, status=201, headers=HEADERS)

    def _durable(self, turns: Sequence[Turn]) -> None:
        self._loop.call_soon_threadsafe(_settle, turns)

    def close(self) -> None:
        self._log.close()


def _settle(turns: Sequence[Turn]) -> None:
    for turn in turns:
        turn.set_result(None)


async def main(data: Path, body: bytes, folder: Path) -> None:
    bound_buffers()
    peer = Peer(body, folder / "state.db")
    runner = web.ServerRunner(web.Server(peer.answer, access_log=None))
    await runner.setup()
    try:
        await web.TCPSite(
            runner, LOOPBACK[1], 0, ssl_context=server_context(CertificateAuthority(data), LOOPBACK)
        ).start()
        await children.serve({"port": runner.addresses[0][1]})
    finally:
        await runner.cleanup()
        peer.close()


if __name__ == "__main__":
    body_file = Path(sys.argv[2])
    with TemporaryDirectory(dir=body_file.parent) as folder:
        asyncio.run(main(Path(sys.argv[1]), body_file.read_bytes(), Path(folder)))
