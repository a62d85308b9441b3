"""Files by URL: https, http where allowed, and file; resumed, verified, from the first mirror that has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import aiohttp
from yarl import URL

from unbounded.fetch.failures import Corrupt, NotPublished, TooLarge, Unavailable, UnusableContent
from unbounded.fetch.reference import Digest
from unbounded.fetch.transfer import CHUNK_BYTES, BodyTransfer, Expected, OnBytes, Partial, growing
from unbounded.fetch.web import Web, log, redacted_url

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
    transfer.told = on_bytes or transfer.told
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
