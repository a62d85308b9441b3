"""Position in the bytes of a connection, next to the HTTP library's parser, for any pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from aiohttp.http_parser import HttpRequestParser
from hypothesis import given, settings
from hypothesis import strategies as st

from unbounded_apiserver.http.request_heads import Framing

HOST = b"Host: x\r\n"
REQUESTS = st.sampled_from(
    [
        b"GET / HTTP/1.1\r\n" + HOST + b"\r\n",
        b"\r\nGET / HTTP/1.1\r\n" + HOST + b"\r\n",
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 7\r\n\r\nGET /\r\n",
        b"POST / HTTP/1.1\r\n" + HOST + b"content-length: 4\r\n\r\n\r\n\r\n",
    ]
)
IN_CHUNKS = b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
PARTS = st.sampled_from([b"", b"G", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r"])


class Paused:
    """A transport that the parser may pause."""

    def __getattr__(self, _name: str) -> object:
        return lambda *_args, **_named: None


async def follow(pieces: Sequence[bytes]) -> Framing:
    parser = HttpRequestParser(Paused(), asyncio.get_running_loop(), 2**16)  # type: ignore[arg-type]
    framing = Framing()
    for piece in pieces:
        messages, _upgraded, _tail = parser.feed_data(piece)
        framing.follow(piece, [message for message, _body in messages], all_read=True)
        for _ in messages:
            parser.message_consumed()
    return framing


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(REQUESTS, min_size=1, max_size=4), st.sampled_from([b"", IN_CHUNKS]), PARTS, st.data())
def test_framing_detects_a_partial_head(requests: list[bytes], last: bytes, part: bytes, data: st.DataObject) -> None:
    sent = b"".join([*requests, last, part])
    cuts = sorted(data.draw(st.sets(st.integers(1, len(sent) - 1), max_size=6)))
    pieces = [sent[at:until] for at, until in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    framing = asyncio.run(follow(pieces))
    assert framing.has_part_of_head() is bool(part)
    assert (framing.missing == 0) is not bool(part)
