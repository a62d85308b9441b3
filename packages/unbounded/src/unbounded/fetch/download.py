"""Files by URL: https, http where allowed, and file; resumed, verified, from the first mirror that has them.

A body is never trusted before its digest matches. A `Partial` is the file that grows during its download. It survives
its process.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import aiohttp
from yarl import URL

from unbounded.fetch.failures import Corrupt, NotPublished, TooLarge, Unavailable, UnusableContent
from unbounded.fetch.reference import Digest
from unbounded.fetch.web import Web, log, redacted_url
from unbounded.kube.durable_files import place_durably
from unbounded.kube.tasks import run_in_thread

CHUNK_BYTES: Final = 1 << 20
Opener = Callable[[Mapping[str, str]], AbstractAsyncContextManager[aiohttp.ClientResponse]]
OnBytes = Callable[[int, int | None], None]  # received bytes, and the total where known

STEP_BYTES: Final = 64 * 1024  # progress of this size resets the number of attempts
_CONTENT_RANGE: Final = re.compile(r"bytes (?:(\d{1,19})-(\d{1,19})|\*)/(\d{1,19}|\*)")


@dataclass
class Partial:
    """A file opened by `growing`. Writes go to the page cache and need no thread; syncs to the disk run in one."""

    path: Path
    descriptor: int
    limit: int
    algorithm: str = "sha256"
    size: int = 0
    _hash: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._hash = hashlib.new(self.algorithm)

    def write(self, chunk: bytes) -> None:
        """Append a chunk. Raises TooLarge past the limit, and Unavailable when the disk is full."""
        if self.size + len(chunk) > self.limit:
            raise TooLarge(f"{self.path.name}: more than {self.limit} bytes")
        rest = memoryview(chunk)
        try:
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]
        except OSError as error:
            self.restart()  # the digest lacks the part of the chunk that was written
            raise _disk_error(self.path, error) from error
        self._hash.update(chunk)
        self.size += len(chunk)

    def restart(self) -> None:
        os.ftruncate(self.descriptor, 0)
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        self._hash, self.size = hashlib.new(self.algorithm), 0

    @property
    def hex(self) -> str:
        return str(self._hash.hexdigest())

    def read_back(self) -> None:
        """Add the content from an earlier process to the digest."""
        while chunk := os.read(self.descriptor, CHUNK_BYTES):
            self._hash.update(chunk)
            self.size += len(chunk)

    async def put_in_place(self, target: Path) -> None:
        """Sync the file, and rename it to its final name."""
        try:
            await run_in_thread(place_durably, self.descriptor, self.path, target)
        except OSError as error:
            raise _disk_error(target, error) from error


@asynccontextmanager
async def growing(path: Path, *, limit: int, algorithm: str = "sha256", resume: bool = True) -> AsyncIterator[Partial]:
    """Open the file, with its earlier content if `resume`; the file stays unchanged when the block ends."""
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise _disk_error(path, error) from error
    try:
        partial = Partial(path, descriptor, limit, algorithm)
        if resume and os.fstat(descriptor).st_size <= limit:
            await run_in_thread(partial.read_back)
        else:
            partial.restart()
        yield partial
    finally:
        os.close(descriptor)


def _disk_error(path: Path, error: OSError) -> Unavailable:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    hint = "the disk is full; free some space" if full else error.strerror or str(error)
    return Unavailable(f"{path}: {hint}")


@dataclass(frozen=True)
class Expected:
    """Properties that are known before; unknown ones are not verified."""

    digest: Digest | None = None
    size: int | None = None


@dataclass
class BodyTransfer:
    """Download of one body.

    Args:
        open: requests the body with these headers; statuses other than 200, 206 and 416 are failures there.
    """

    web: Web
    what: str
    open: Opener
    partial: Partial
    expected: Expected = Expected()
    on_bytes: OnBytes = lambda _done, _total: None
    _validator: str = field(default="", init=False)

    async def run(self) -> None:
        """Download the whole body into the partial file.

        Raises:
            Unavailable: too many attempts; the received part stays, for a later resumption.
            Corrupt: twice in a row with the wrong digest or size.
            TooLarge: past the partial file's limit.
        """
        await self._whole()
        if self._wrong():
            self.partial.restart()  # a wrong resumption, or a proxy on the way: retry once, from the start
            await self._whole()
        if wrong := self._wrong():
            self.partial.restart()
            raise Corrupt(f"{self.what}: {wrong}, twice")

    def _wrong(self) -> str:
        if self.expected.size is not None and self.partial.size != self.expected.size:
            return f"received {self.partial.size} bytes, expected {self.expected.size}"
        if self.expected.digest is not None and self.partial.hex != self.expected.digest.hex:
            return f"its digest is {self.expected.digest.algorithm}:{self.partial.hex}, not {self.expected.digest}"
        return ""

    async def _whole(self) -> None:
        failures = 0
        while self.partial.size == 0 or self.partial.size != self.expected.size:
            before = self.partial.size
            try:
                if await self._attempt():
                    return
            except Unavailable as failure:
                failures = 1 if self.partial.size >= before + STEP_BYTES else failures + 1
                await self.web.wait_retry(self.what, failures, failure)

    async def _attempt(self) -> bool:
        """Send one request; return whether the body is complete then."""
        if self.partial.size and not self._validator and self.expected.digest is None:
            self.partial.restart()  # without a validator, the file may have changed
        headers = {}
        if self.partial.size:
            headers["Range"] = f"bytes={self.partial.size}-"
            if self._validator:
                headers["If-Range"] = self._validator
        async with self.open(headers) as response:
            if response.status == 416:
                return self._beyond(response)
            total = self._place(response)
            self._check_size(total)
            self._validator = _strong(response)
            await self._copy(response, total if total is not None else self.expected.size)
        if total is not None and self.partial.size < total:
            raise Unavailable(f"{self.what}: it ended after {self.partial.size} of {total} bytes")
        return True

    def _check_size(self, total: int | None) -> None:
        """Raise TooLarge where the server reports a body that is larger than the file may become."""
        if total is None or total <= self.partial.limit:
            return
        if self.partial.limit == self.expected.size:
            raise TooLarge(f"{self.what}: the server offers {total} bytes, expected {self.expected.size}")
        raise TooLarge(f"{self.what}: {total} bytes exceed the limit of {self.partial.limit}")

    def _place(self, response: aiohttp.ClientResponse) -> int | None:
        """Position the file at the body's offset; return the total size, None where the server does not report it."""
        if response.status == 206:
            match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if match and match.group(1) and int(match.group(1)) == self.partial.size:
                return None if match.group(3) == "*" else int(match.group(3))
            self.partial.restart()
            raise Unavailable(f"{self.what}: the server sent a range other than the requested one")
        if self.partial.size:
            self.partial.restart()
        return response.content_length

    def _beyond(self, response: aiohttp.ClientResponse) -> bool:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if match and match.group(3) == str(self.partial.size):
            return True
        self.partial.restart()
        raise Unavailable(f"{self.what}: the server does not have the requested range")

    async def _copy(self, response: aiohttp.ClientResponse, total: int | None) -> None:
        patience, loop = self.web.patience, asyncio.get_running_loop()
        since, at_least = loop.time(), self.partial.size
        async for chunk in response.content.iter_any():
            if self.partial.size + len(chunk) > self.partial.limit == self.expected.size:
                raise TooLarge(f"{self.what}: received more than the expected {self.expected.size} bytes")
            self.partial.write(chunk)
            self.on_bytes(self.partial.size, total)
            if loop.time() - since >= patience.pace_s:
                if self.partial.size - at_least < patience.slowest_bytes_per_s * patience.pace_s:
                    raise Unavailable(f"{self.what}: less than {patience.slowest_bytes_per_s:.0f} bytes a second")
                since, at_least = loop.time(), self.partial.size


def _strong(response: aiohttp.ClientResponse) -> str:
    """Return the value for If-Range (RFC 9110 section 13.1.5): a strong ETag, else the Last-Modified date."""
    etag = response.headers.get("ETag", "")
    return etag if etag.startswith('"') else response.headers.get("Last-Modified", "")


LARGEST_BYTES: Final = 16 << 30


@dataclass(frozen=True)
class Download:
    """One file and its sources.

    Args:
        urls: tried in this order; the next one when one is missing, unreachable, or delivers other content.
        sha256: verified unless empty.
        plain: http is allowed for any host. It always is for this machine's own and private IPv4 literals.
    """

    urls: tuple[str, ...]
    sha256: str = ""
    limit: int = LARGEST_BYTES
    plain: bool = False


async def download(web: Web, desired: Download, target: Path, *, on_bytes: OnBytes | None = None) -> Digest:
    """Download a file to `target`, whole or not at all; return its digest.

    Raises:
        NotPublished, Denied, Corrupt, TooLarge, UnusableContent, Unavailable: the failure of the last mirror.
    """
    expected = Expected(Digest.parse(f"sha256:{desired.sha256.lower()}") if desired.sha256 else None)
    if not desired.urls:
        raise UnusableContent(f"{target.name}: no URL is configured")
    urls = [checked_url(web, text, plain=desired.plain) for text in desired.urls]
    path = target.with_name(target.name + ".partial")
    async with growing(path, limit=desired.limit, resume=expected.digest is not None) as partial:
        for url, more in zip(urls, [True] * (len(urls) - 1) + [False], strict=True):
            try:
                await _from(web, url, partial, expected, on_bytes)
                break
            except (NotPublished, Corrupt, Unavailable, UnusableContent) as failure:
                if not more:
                    raise
                log.warning("mirror failed", url=redacted_url(url), error=failure)
        await partial.put_in_place(target)
        return Digest("sha256", partial.hex)


async def _from(web: Web, url: URL, partial: Partial, expected: Expected, on_bytes: OnBytes | None) -> None:
    if url.scheme == "file":
        await asyncio.to_thread(_copy_file, url, partial, expected)
        return

    @asynccontextmanager
    async def opened(headers: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        async with web.request("GET", url, headers=headers) as response:
            if response.status not in (200, 206, 416):
                raise web.failure_of(response, redacted_url(url))
            yield response

    transfer = BodyTransfer(web, redacted_url(url), opened, partial, expected)
    transfer.on_bytes = on_bytes or transfer.on_bytes
    await transfer.run()


def checked_url(web: Web, text: str, *, plain: bool) -> URL:
    """Return a URL that may be fetched.

    Raises:
        UnusableContent: it is invalid, or http where that is not allowed.
    """
    try:
        url = URL(text)
    except ValueError:
        # other parts of the URL may be secret, in the error's text too
        named = text.partition("?")[0].rpartition("@")[2]
        raise UnusableContent(f"{named!r} is not a URL") from None
    if url.scheme == "file" and not url.host and url.path.startswith("/"):
        return url
    if url.scheme not in ("http", "https") or not url.host:
        raise UnusableContent(f"{redacted_url(url)}: only https, http and file URLs are supported")
    if url.scheme == "http" and not plain and not web.trust.may_be_plain(url.authority):
        raise UnusableContent(f"{redacted_url(url)}: plain http is not allowed; use https")
    return url


def _copy_file(url: URL, partial: Partial, expected: Expected) -> None:
    partial.restart()
    path = Path(unquote(url.raw_path))
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                partial.write(chunk)
    except (TooLarge, Unavailable):
        raise
    except FileNotFoundError as error:
        raise NotPublished(f"{path}: this file does not exist") from error
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}") from error
    if expected.digest is not None and partial.hex != expected.digest.hex:
        digest = partial.hex
        partial.restart()
        raise Corrupt(f"{path}: its digest is sha256:{digest}, not {expected.digest}")
