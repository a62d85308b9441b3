"""Bytes that are almost HTTP: each on a connection of its own, as the end of such a message is undefined."""

from __future__ import annotations

import random
from typing import Final

from tests.apiserver.fuzz.inputs import Input
from tests.apiserver.fuzz.values import scrambled

PATH: Final = "/api/v1/namespaces/default/configmaps"
BODY: Final = b'{"metadata":{"name":"framed"}}'
SECOND: Final = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEADS: Final = (
    b"Content-Length: 30\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: 30\r\n",
    b"Content-Length: 30\r\nContent-Length: 5\r\n",
    b"Content-Length: 30, 5\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length: +30\r\n",
    b"Content-Length: 0x1e\r\n",
    b"Content-Length: 3 0\r\n",
    b"Content-Length: 99999999999999999999999\r\n",
    b"Content-Length:\r\n",
    b"Content-Length : 30\r\n",
    b"Transfer-Encoding: chunked, identity\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Transfer-Encoding: xchunked\r\n",
    b"Transfer-Encoding:\x0bchunked\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    b" Transfer-Encoding: chunked\r\n",
    b"X: a\r\n b\r\n",
    b"X: a\rb\r\n",
    b"X: a\nTransfer-Encoding: chunked\r\n",
    b"X: \x00\r\n",
    b": novalue\r\n",
    b"noname\r\n",
    b"X Y: z\r\n",
    b"Host: a\r\nHost: b\r\n",
    b"X: " + b"y" * 100_000 + b"\r\n",
    b"".join(b"X-%d: y\r\n" % n for n in range(2000)),
    b"Expect: 100-continue\r\nContent-Length: 30\r\n",
    b"Connection: close\r\nContent-Length: 30\r\n",
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\n",
    b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: x\r\n",
)
CHUNKS: Final = (
    b"1e\r\n" + BODY + b"\r\n0\r\n\r\n",
    b"1E;ext=" + b"x" * 9000 + b"\r\n" + BODY + b"\r\n0\r\n\r\n",
    b"ffffffffffffffffff\r\n" + BODY,
    b"-1\r\n" + BODY + b"\r\n0\r\n\r\n",
    b"0x1e\r\n" + BODY + b"\r\n0\r\n\r\n",
    b"1e\n" + BODY + b"\n0\n\n",
    b"1d\r\n" + BODY + b"\r\n0\r\n\r\n",
    b"1e\r\n" + BODY + b"XX0\r\n\r\n",
    b"\r\n" * 50,
    b"0\r\nTrailer: x\r\nContent-Length: 5\r\n\r\n",
    b"0\r\n" + b"T: x\r\n" * 5000 + b"\r\n",
    b"1\r\n{\r\n" * 500,
    b"zz\r\n",
    BODY,
)
FIRST_LINES: Final = (
    b"POST %s HTTP/1.1\r\n",
    b"POST %s HTTP/1.0\r\n",
    b"POST %s HTTP/2.0\r\n",
    b"POST %s HTTP/1.1 x\r\n",
    b"POST  %s  HTTP/1.1\r\n",
    b"POST %s\r\n",
    b"POST http://evil.example%s HTTP/1.1\r\n",
    b"POST //evil.example%s HTTP/1.1\r\n",
    b"POST *%s HTTP/1.1\r\n",
    b"\r\n\r\nPOST %s HTTP/1.1\r\n",
    b"POST %s HTTP/1.1\n",
    b"PO\0ST %s HTTP/1.1\r\n",
    b"P\xc3\x96ST %s HTTP/1.1\r\n",
    b"POST %s?\xff\xfe HTTP/1.1\r\n",
    b"POST %s#fragment HTTP/1.1\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n%s",
    b"CONNECT localhost:443 HTTP/1.1\r\nX: %s\r\n",
    b"OPTIONS * HTTP/1.1\r\nX: %s\r\n",
    b"GET " + b"/x" * 60_000 + b"%s HTTP/1.1\r\n",
)
NOT_HTTP: Final = (
    b"\0" * 1000,
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"SSH-2.0-x\r\n",
    b"\r\n" * 5000,
    b"{}",
    b"GET",
    b"GET / HTTP/1.1\r\n" * 300,
    b"\xff" * 70_000,
)


def framed_wrongly(rng: random.Random) -> Input:
    """A message that is no message, or may be read as two."""
    if rng.random() < 0.1:
        return Input("not http", rng.choice((*NOT_HTTP, rng.randbytes(rng.randrange(1, 300)))), framed=False)
    first = rng.choice(FIRST_LINES) if rng.random() < 0.4 else FIRST_LINES[0]
    head = rng.choice(HEADS) if rng.random() < 0.8 else b"Transfer-Encoding: chunked\r\n"
    host = b"" if rng.random() < 0.2 else b"Host: localhost\r\n"
    data = first.replace(b"%s", PATH.encode()) + host + head + b"\r\n" + rng.choice(CHUNKS)
    if rng.random() < 0.5:
        data += SECOND
    if rng.random() < 0.2:
        data = scrambled(data, rng)
    return Input("framing", data, framed=False)
