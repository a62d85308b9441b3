"""A child process, the peer of downloads: consecutive sendfile calls to one client, without any protocol.

`python -m benchmarks.one_sendfile FILE TIMES` listens, and sends the file TIMES times to each client.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from pathlib import Path

from benchmarks import children
from benchmarks.netboot_net import SERVER


def send(listener: socket.socket, path: Path, times: int) -> None:
    size = path.stat().st_size
    while True:
        connection, _ = listener.accept()
        with connection, path.open("rb") as file:
            connection.recv(4096)  # the content does not matter; unread data would reset the connection
            for _ in range(times):
                at = 0
                while at < size:
                    at += os.sendfile(connection.fileno(), file.fileno(), at, size - at)


async def main(path: Path, times: int) -> None:
    listener = socket.create_server((SERVER, 0))
    threading.Thread(target=send, args=(listener, path, times), daemon=True).start()
    await children.serve({"port": listener.getsockname()[1]})


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
