"""Requests of a host: to the server of its boot, and to the API server of its cluster."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Self

import aiohttp

TRIES: Final = 12  # of a request that gets no answer, or a 503, as in the installer
LONGEST_PAUSE: Final = 15  # times the first one
CALL_S: Final = 120.0
RETRY_S: Final = 2.0
MERGE_PATCH: Final = "application/merge-patch+json"


class HostFailed(Exception):
    """The host cannot continue; the text is what it would print on its console."""


class BootServer:
    """The server of one boot, at the URL of the boot.

    Args:
        address: source address of the requests; empty for any.
        pause_s: pause before the second try; later ones wait twice as long each.
    """

    def __init__(self, url: str, *, address: str = "", pause_s: float = 1.0) -> None:
        self.url = url.rstrip("/")
        self._pause_s = pause_s
        self._local = (address, 0) if address else None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(
            local_addr=self._local, force_close=True
        )  # on Linux, all of 127.0.0.0/8 is here
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=CALL_S))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def once(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, **headers: str
    ) -> tuple[int, bytes]:
        """Return status and content of one answer; status 0 if there was none."""
        try:
            async with self._session.request(method, f"{self.url}/{path}", json=body, headers=headers) as answer:
                return answer.status, await answer.read()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 0, b"no answer"

    async def patiently(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, **headers: str
    ) -> tuple[int, bytes]:
        """Repeat a request until it is answered, and not with 408, 429 or 5xx."""
        pause_s, status, content = self._pause_s, 0, b""
        for left in range(TRIES - 1, -1, -1):
            status, content = await self.once(method, path, body, **headers)
            if 200 <= status < 500 and status not in (408, 429):
                break
            if left:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE * self._pause_s)
        return status, content

    async def content(self, path: str) -> bytes:
        """Return a file.

        Raises:
            HostFailed: there is none.
        """
        status, content = await self.patiently("GET", path)
        if status != 200:
            raise HostFailed(f"{path} could not be had: HTTP {status}: {content[:200].decode(errors='replace')}")
        return content

    async def report(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a report; return the answer.

        Raises:
            HostFailed: it was refused.
        """
        status, content = await self.patiently("POST", path, body)
        try:
            answer = json.loads(content or b"{}")
        except ValueError:
            answer = {}
        if not 200 <= status < 300:
            raise HostFailed(str(answer.get("error") or f"HTTP {status}"))
        return dict(answer)


class ClusterApi:
    """The API server of the host's cluster, with a token or a client certificate.

    Args:
        certificate: files of the chain and of the key.
    """

    def __init__(
        self, url: str, authority: str, *, token: str = "", certificate: tuple[str, str] | None = None
    ) -> None:
        self._url = url.rstrip("/")
        trusted = ssl.create_default_context(cadata=authority)
        if certificate is not None:
            trusted.load_cert_chain(*certificate)
        self._tls = trusted
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(headers=self._headers, timeout=aiohttp.ClientTimeout(total=30.0))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Return status and object of an answer; status 0 if there was none."""
        kind = MERGE_PATCH if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body)
        try:
            async with self._session.request(
                method, self._url + path, data=data, headers={"Content-Type": kind}, ssl=self._tls
            ) as answer:
                return answer.status, json.loads(await answer.read() or b"{}")
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return 0, {}

    async def events(self, path: str, fields: str, version: str) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of a watch, until it ends.

        Args:
            fields: selector of the objects.
            version: resourceVersion of the list that it continues.
        """
        options = {"watch": "true", "fieldSelector": fields, "resourceVersion": version}
        try:
            async with self._session.get(
                self._url + path, params=options, ssl=self._tls, timeout=aiohttp.ClientTimeout(total=None)
            ) as answer:
                if answer.status != 200:
                    return
                async for line in answer.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        return
                    yield event
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return

    async def until(self, codes: tuple[int, ...], method: str, path: str, body: Mapping[str, Any]) -> None:
        """Repeat a call until it has one of these statuses."""
        while True:
            code, _ = await self.call(method, path, body)
            if code in codes:
                return
            await asyncio.sleep(RETRY_S)
