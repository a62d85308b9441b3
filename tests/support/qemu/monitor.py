"""Commands to a running QEMU, over QMP."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any, Final

_ANSWER_S: Final = 30.0


class Monitor:
    """One end of a pair of sockets; QEMU gets the other: `-chardev socket,id=monitor,fd=…`."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def execute(self, command: str, **arguments: Any) -> Any:
        """Run one command and return what it returns; underscores in names of arguments become dashes.

        Raises:
            AssertionError: QEMU refuses it; holds QEMU's words.
        """
        async with asyncio.timeout(_ANSWER_S):
            if self._streams is None:
                self._streams = await asyncio.open_connection(sock=self._ours)
                await self._answer()
                await self._send("qmp_capabilities", {})
            return await self._send(command, {name.replace("_", "-"): value for name, value in arguments.items()})

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
        self._ours.close()

    async def _send(self, command: str, arguments: dict[str, Any]) -> Any:
        assert self._streams is not None
        self._streams[1].write(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        answer = await self._answer()
        assert "error" not in answer, answer["error"]["desc"]
        return answer["return"]

    async def _answer(self) -> dict[str, Any]:
        assert self._streams is not None
        while True:
            said: dict[str, Any] = json.loads(await self._streams[0].readline())
            if "event" not in said:
                return said
