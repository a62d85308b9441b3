"""A child process, the peer of a GET: a bare aiohttp server over TLS that gives the same bytes to everybody.

`python -m benchmarks.raw_http DATA BODY` shows the certificates of the data directory, asks for those of clients, and
answers with the content of the file BODY. It looks at nothing that was asked for.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

from aiohttp import web

from benchmarks import children
from unbounded.apiserver.pki import Authority, server_context
from unbounded.apiserver.server import LOOPBACK
from unbounded.kube.tls import bound_buffers

HEADERS: Final = {"Content-Type": "application/json", "Cache-Control": "no-cache, private"}


async def main(data: Path, body: bytes) -> None:
    bound_buffers()

    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(body=body, headers=HEADERS)

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    try:
        await web.TCPSite(runner, LOOPBACK[1], 0, ssl_context=server_context(Authority(data), LOOPBACK)).start()
        await children.serve({"port": runner.addresses[0][1]})
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]).read_bytes()))
