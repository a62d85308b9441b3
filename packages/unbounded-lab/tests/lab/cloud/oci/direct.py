"""Oracle's SDK without sockets and threads: its requests are handed to a cloud in the same process.

The SDK blocks. Where calls of an executor run in the event loop itself, as in virtual time, nothing could answer it
over a socket; this answers at once. A lost answer is a broken connection, an answer that
takes longer than the client waits is a timeout. Time itself does not pass during a call: how long it would have been is
in `waited_s`.
"""

from __future__ import annotations

import asyncio
from http.client import responses
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

from oci._vendor import requests

from unbounded_lab.cloud.oci import LabOci
from unbounded_lab.http import Delivery, LabReply, LabRequest


def connect(client: Any, cloud: LabOci) -> Direct:
    """Have one of the SDK's clients speak to a cloud without a socket. The cloud has to be started."""
    adapter = Direct(cloud)
    client.base_client.session.mount("https://", adapter)
    return adapter


class Direct(requests.adapters.BaseAdapter):  # type: ignore[misc]  # the SDK has no types
    def __init__(self, cloud: LabOci) -> None:
        super().__init__()
        self._cloud = cloud
        self.waited_s = 0.0

    def send(self, request: Any, stream: bool = False, timeout: Any = None, **_: Any) -> Any:
        reply = self._reply(_received(request), patience_s=timeout[1])
        self.waited_s = timeout[1] if reply is None else reply.hold_s
        if reply is None:
            raise requests.exceptions.ReadTimeout("Read timed out.", request=request)
        if reply.fate is Delivery.DROPPED:
            raise requests.exceptions.ConnectionError("Connection aborted.", request=request)
        if reply.fate is Delivery.CUT_OFF:
            raise requests.exceptions.ChunkedEncodingError("Connection broken: IncompleteRead", request=request)
        return _response(request, reply)

    def _reply(self, request: LabRequest, *, patience_s: float) -> LabReply | None:
        """The answer; None when it takes too long."""
        front, now = self._cloud.front, self._cloud.now
        passage = front.admit(request, now)
        if passage.dropped:
            return LabReply(fate=Delivery.DROPPED)
        if passage.wait_s >= patience_s:
            loop = asyncio.get_running_loop()
            loop.call_later(passage.wait_s, lambda: front.answer(request, passage, self._cloud.now))
            return None
        reply = front.answer(request, passage, now)
        return None if reply.hold_s >= patience_s else reply

    def close(self) -> None:
        pass


def _received(request: Any) -> LabRequest:
    url = urlsplit(request.url)
    body = request.body or b""
    headers = {name.lower(): value for name, value in request.headers.items()}
    return LabRequest(request.method, url.path, headers, body.encode() if isinstance(body, str) else body, url.query)


def _response(request: Any, reply: LabReply) -> Any:
    response = requests.Response()
    response.status_code = reply.status
    response.reason = responses.get(reply.status, "")
    response.headers = requests.structures.CaseInsensitiveDict(reply.headers)
    response.raw = BytesIO(reply.body)
    response.url, response.request = request.url, request
    response.encoding = "utf-8"
    return response
