"""Health of kubelet, and the cause of its last exit. It listens in the host's network."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Final

PORT: Final = 10248
ANSWER_S: Final = 5.0
_WELL: Final = 200
_MOST: Final = 4096
_LAST_WORDS: Final = re.compile(r'panic: .*|"command failed" .*|(?<!\S)F\d{4} .*')
_LONGEST: Final = 400


async def kubelet_trouble(port: int = PORT) -> str:
    """Return why kubelet is not healthy; empty when it reports that it is."""
    try:
        async with asyncio.timeout(ANSWER_S):
            status, answer = await _asked(port)
    except TimeoutError:
        return f"kubelet does not answer health checks within {ANSWER_S:g} s"
    except (OSError, ValueError) as error:
        return f"kubelet does not answer health checks: {error}"
    return "" if status == _WELL else f"kubelet reports that it is not healthy: {status} {answer}".rstrip()


def last_error_line(lines: str) -> str:
    """Return the line of kubelet's output that shows the cause of its last exit; empty where there is none."""
    found = _LAST_WORDS.findall(lines)
    return str(found[-1]).removeprefix('"command failed" ')[:_LONGEST] if found else ""


async def _asked(port: int) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
        await writer.drain()
        head, _, said = (await _read(reader)).decode(errors="replace").partition("\r\n\r\n")
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    words = head.split()
    if len(words) < 2 or not words[0].startswith("HTTP/"):
        raise ValueError("the answer is not HTTP")
    return int(words[1]), " ".join(said.split())


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Return the response, up to a size limit."""
    content = b""
    while len(content) < _MOST and (part := await reader.read(_MOST - len(content))):
        content += part
    return content
