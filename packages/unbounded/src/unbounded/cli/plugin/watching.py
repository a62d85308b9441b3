"""Lists that a command follows: a cache beside it, and rows that are printed as objects change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from itertools import zip_longest
from typing import TextIO, TypeVar

from unbounded.api.meta import Kind
from unbounded.cli.plugin.output import GAP
from unbounded.cli.terminal_text import one_line
from unbounded.kube.api import Api
from unbounded.kube.cache import Cache

T = TypeVar("T")


@contextlib.asynccontextmanager
async def followed_cache(
    api: Api, kind: Kind[T], *, namespace: str = "", labels: str = "", fields: str = ""
) -> AsyncIterator[tuple[Cache[T], asyncio.Task[None]]]:
    """Yield a synced cache of the objects that a selector picks, and the task that follows the server.

    Raises:
        ApiError: the objects cannot be read. The cache itself would retry that.
    """
    await api.list(kind, namespace=namespace, fields="metadata.name=-")
    cache = Cache(api, kind, namespace=namespace, labels=labels, fields=fields)
    following = asyncio.create_task(cache.run())
    try:
        await cache.synced.wait()
        yield cache, following
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following


class GrowingTable:
    """Rows printed one below the other, at once; the first ones set the widths of the columns."""

    def __init__(self, out: TextIO, heads: Sequence[str], first: Sequence[Sequence[str]]) -> None:
        self._out, self._heads = out, heads
        self._widths = [max(map(len, column)) for column in zip(heads, *first, strict=True)]

    def print_heads(self) -> None:
        self.print(self._heads)

    def print(self, row: Sequence[str]) -> None:
        cells = map(one_line, row)
        line = GAP.join(f"{cell:<{width}}" for cell, width in zip_longest(cells, self._widths[: len(row)], fillvalue=0))
        print(line.rstrip(), file=self._out, flush=True)
